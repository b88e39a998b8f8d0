"""Pipelines that kfp runs locally, with the daemon of this host."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.local.client import LocalClient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PIPELINE = """
import sys
from kfp import dsl, local
from muster.kfp import train

local.init(local.SubprocessRunner(use_venv=False), pipeline_root=sys.argv[1])

@dsl.component(install_kfp_package=False)
def prepare() -> str:
    return "prepared"

@dsl.pipeline
def pipeline() -> str:
    data = prepare()
    task = train(command=["sh", "-c", "echo $0 and $WORD", data.output], env={"WORD": data.output})
    return task.outputs["job_name"]

pipeline()
"""


@pytest.mark.kfp
def test_the_output_of_one_step_reaches_the_job_of_the_next(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("kfp")
    environ = os.environ | {"MUSTER_HOME": str(home), "MUSTER_CLUSTER": "local", "PYTHONWARNINGS": "ignore"}
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    command = [sys.executable, str(tmp_path / "pipeline.py"), str(tmp_path / "outputs")]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "prepared and prepared" in ran.stdout
    (job,) = LocalClient.connect(home).jobs()
    (recorded,) = (tmp_path / "outputs").glob("*/train/executor_output.json")
    assert json.loads(recorded.read_text())["parameterValues"]["job_name"] == f"default/{job.metadata.name}"


@pytest.mark.kfp
@pytest.mark.slow
def test_the_example_prepares_data_trains_and_evaluates() -> None:
    pytest.importorskip("kfp")
    path = f"{EXAMPLES.parent / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"  # torch is there
    ran = subprocess.run(
        ["bash", str(EXAMPLES / "11-kubeflow-pipeline" / "run.sh")],
        env=os.environ | {"PATH": path, "NO_COLOR": "1", "MUSTER_CLUSTER": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "final loss" in ran.stdout
    assert "train/report" in ran.stdout.splitlines()[-1]
