"""The container of the released component: `python -m muster.kfp --metrics PATH --report PATH EXECUTOR_INPUT`.

Reads the step's parameters from the JSON that Kubeflow Pipelines passes, and writes its outputs as a component in
Python does: output parameters into their files, metadata of artifacts into the executor's output file. Needs no kfp.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.errors import ClusterError, InvalidSpec, MusterError, Refused
from muster.kfp.parameters import TrainParameters
from muster.kfp.step import PipelineStepResult, run_step

_EXIT_CODES = ((InvalidSpec, 2), (Refused, 3), (ClusterError, 4))
"""As for the command line; 1 if the job did not succeed."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m muster.kfp", description="A step of Kubeflow Pipelines.")
    parser.add_argument("--metrics", type=Path, required=True, help="file of the artifact metrics")
    parser.add_argument("--report", type=Path, required=True, help="file of the artifact report")
    parser.add_argument("executor_input", type=json.loads, help="the executor input of the step, as JSON")
    given = parser.parse_args(arguments)
    passed = given.executor_input.get("inputs", {}).get("parameterValues", {})  # with those that others refer to
    values = {name: value for name, value in passed.items() if name in TrainParameters.model_fields}
    outputs = given.executor_input["outputs"]
    task = str(outputs["artifacts"]["report"]["artifacts"][0]["uri"])
    try:
        result = run_step(values, task=task, report_path=str(given.report))
    except MusterError as error:
        print(f"muster: {error}", file=sys.stderr, flush=True)
        return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)
    _write(given.metrics, json.dumps(dict(result.metrics), indent=1))
    _write_outputs(outputs, result)
    return 0


def _write_outputs(outputs: Mapping[str, Any], result: PipelineStepResult) -> None:
    parameters = {"job_name": result.job_name, "run_folder": result.run_folder}
    for name, value in parameters.items():
        _write(Path(outputs["parameters"][name]["outputFile"]), value)
    metadata: dict[str, Mapping[str, float]] = {"metrics": result.metrics, "report": {}}
    artifacts = {
        name: {"artifacts": [{**outputs["artifacts"][name]["artifacts"][0], "metadata": dict(fields)}]}
        for name, fields in metadata.items()
    }
    _write(Path(outputs["outputFile"]), json.dumps({"parameterValues": parameters, "artifacts": artifacts}))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
