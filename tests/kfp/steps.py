"""Starts steps as Kubeflow Pipelines does: `python -m muster.kfp` with an executor input, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ARTIFACTS, PARAMETERS = ("metrics", "report"), ("job_name", "run_folder")


def executor_input(folder: Path, parameters: dict[str, Any]) -> dict[str, Any]:
    """What the driver of Kubeflow Pipelines writes for a task whose outputs are in this folder."""
    artifacts = {name: {"artifacts": [{"name": name, "uri": str(folder / name)}]} for name in ARTIFACTS}
    files = {name: {"outputFile": str(folder / "parameters" / name)} for name in PARAMETERS}
    outputs = {"artifacts": artifacts, "parameters": files, "outputFile": str(folder / "output_metadata.json")}
    return {"inputs": {"parameterValues": parameters}, "outputs": outputs}


def start_step(folder: Path, environ: dict[str, str], **parameters: Any) -> subprocess.Popen[str]:
    """Start a step; its outputs and its standard output go to files in the folder."""
    folder.mkdir(exist_ok=True)
    paths = [part for name in ARTIFACTS for part in (f"--{name}", str(folder / name))]
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "muster.kfp", *paths, json.dumps(executor_input(folder, parameters))],
            env={name: value for name, value in os.environ.items() if name != "MUSTER_CONTEXT"} | environ,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )


def log_of(folder: Path) -> str:
    """What the steps of this folder have printed."""
    return (folder / "log").read_text()


def outputs_of(folder: Path) -> dict[str, Any]:
    """The outputs that a step has recorded for Kubeflow Pipelines."""
    outputs: dict[str, Any] = json.loads((folder / "output_metadata.json").read_text())
    return outputs
