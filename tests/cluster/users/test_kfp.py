"""The step of Kubeflow Pipelines on a cluster: its job, log, outputs, retries and signals, as processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.operator.pools import Pool
from tests.cluster.users.conftest import kubeconfig
from tests.kfp.steps import log_of, outputs_of, start_step

LIMIT_S = 600.0
PIPELINE = """
import sys
from kfp import local
from muster.kfp import train

local.init(local.SubprocessRunner(use_venv=False), pipeline_root=sys.argv[1])
train(image="none", command=["train"], queue=sys.argv[2], gpus=1, name="piped")
"""


def environment(pool: Pool, step_pod: str = "") -> dict[str, str]:
    """As in the pod of a step, with a kubeconfig in the place of its service account."""
    return {"MUSTER_CLUSTER": "kubernetes", "KUBECONFIG": kubeconfig(pool), "KFP_POD_NAME": step_pod}


def start(pool: Pool, folder: Path, step_pod: str = "", **parameters: Any) -> subprocess.Popen[str]:
    pool.wait_until_seen()
    given = {"image": "none", "command": ["train"], "queue": pool.queue("red"), "gpus": 1, "name": "step", **parameters}
    return start_step(folder, environment(pool, step_pod), **given)


def job_of(pool: Pool) -> str:
    """The name of the only job, once it runs."""
    pool.wait("a job", lambda: len(pool.api.items(pool._jobs())) == 1)
    name = str(pool.api.items(pool._jobs())[0]["metadata"]["name"])
    pool.wait_for_phase(name, "Running")
    return name


@pytest.mark.smoke
def test_a_step_follows_its_job_and_passes_the_resources_set_on_it(pool: Pool, tmp_path: Path) -> None:
    pool.set_up()
    pool.plane.write_log("hello from the pod")
    amounts = {"limits": {"memory": "64Mi", GPU: "2"}, "requests": {"cpu": "250m", "memory": "64Mi", GPU: "2"}}
    containers = [{"name": "main", "image": "none", "resources": amounts}]
    selector = {"pool": "none"}  # it stays pending: only its resources are read
    pod = {"metadata": {"name": "step-pod"}, "spec": {"containers": containers, "nodeSelector": selector}}
    pool.api.create(f"/api/v1/namespaces/{pool.namespace}/pods", pod)
    step = start(pool, tmp_path / "task", "step-pod", gpus=0, replicas=2)
    name = job_of(pool)
    (role,) = (pool.get(name) or {})["spec"]["roles"]
    assert role["template"]["spec"]["containers"][0]["resources"] == amounts
    for index in range(2):
        pool.annotate(name, index, run_seconds=0, exit_code=0)
    assert step.wait(LIMIT_S) == 0, log_of(tmp_path / "task")
    assert "hello from the pod" in log_of(tmp_path / "task")
    assert outputs_of(tmp_path / "task")["parameterValues"]["job_name"] == f"{pool.namespace}/{name}"
    assert "No report" in (tmp_path / "task" / "report").read_text()


def test_sigterm_cancels_the_job_and_the_next_try_submits_another(pool: Pool, tmp_path: Path) -> None:
    pool.set_up()
    step = start(pool, tmp_path / "task")
    name = job_of(pool)
    step.send_signal(signal.SIGTERM)
    assert step.wait(LIMIT_S) == 143
    pool.wait_for_phase(name, "Cancelled")
    again = start(pool, tmp_path / "task")
    pool.wait_for_phase(f"{name}-2", "Running")
    pool.annotate(f"{name}-2", 0, run_seconds=0, exit_code=0)
    assert again.wait(LIMIT_S) == 0, log_of(tmp_path / "task")
    assert pool.phase(name) == "Cancelled"


def test_a_try_after_sigkill_adopts_the_job_and_refuses_another_spec(pool: Pool, tmp_path: Path) -> None:
    pool.set_up()
    step = start(pool, tmp_path / "task")
    name = job_of(pool)
    step.kill()
    step.wait(LIMIT_S)
    assert start(pool, tmp_path / "task", replicas=2).wait(LIMIT_S) == 3
    assert f"job {pool.namespace}/{name} exists with another spec" in log_of(tmp_path / "task")
    again = start(pool, tmp_path / "task")
    pool.wait("it is adopted", lambda: "adopted" in log_of(tmp_path / "task"))
    pool.annotate(name, 0, run_seconds=0, exit_code=0)
    assert again.wait(LIMIT_S) == 0, log_of(tmp_path / "task")
    assert len(pool.api.items(pool._jobs())) == 1


@pytest.mark.kfp
def test_kfp_runs_the_component_in_python_against_a_cluster(pool: Pool, tmp_path: Path) -> None:
    pytest.importorskip("kfp")
    pool.set_up()
    pool.wait_until_seen()
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    command = [sys.executable, str(tmp_path / "pipeline.py"), str(tmp_path / "outputs"), pool.queue("red")]
    environ = os.environ | environment(pool) | {"PYTHONWARNINGS": "ignore"}
    step = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    name = job_of(pool)
    pool.annotate(name, 0, run_seconds=0, exit_code=0)
    out, _ = step.communicate(timeout=LIMIT_S)
    assert step.returncode == 0, out
    (recorded,) = (tmp_path / "outputs").glob("*/train/executor_output.json")
    assert json.loads(recorded.read_text())["parameterValues"]["job_name"] == f"{pool.namespace}/{name}"
