"""A Trainer of default arguments reports, with a small package in place of transformers: its callback sends the
requests of transformers 5.23. `make frameworks` runs the real one (tests/examples/test_frameworks.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Pod

Start = Callable[..., Pod]

INTEGRATION_UTILS = """
import json, os, ssl, urllib.request
from datetime import datetime, timezone


def is_kubeflow_available():
    if os.getenv("DISABLE_KUBEFLOW_INTEGRATION", "FALSE").upper() == "TRUE":
        return False
    return os.getenv("KUBEFLOW_TRAINER_SERVER_URL") is not None


class KubeflowCallback:
    def send(self, percent, remaining_s, metrics):
        status = {"lastUpdatedTime": datetime.now(timezone.utc).isoformat(), "progressPercentage": percent}
        if remaining_s is not None:
            status["estimatedRemainingSeconds"] = remaining_s
        status["metrics"] = [{"name": str(name), "value": str(value)} for name, value in metrics.items()]
        with open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"], encoding="utf-8") as file:
            headers = {"Authorization": f"Bearer {file.read().strip()}", "Content-Type": "application/json"}
        certificate = os.environ.get("KUBEFLOW_TRAINER_SERVER_CA_CERT")
        context = ssl.create_default_context(cafile=certificate) if certificate else None
        data = json.dumps({"trainerStatus": status}).encode()
        request = urllib.request.Request(os.environ["KUBEFLOW_TRAINER_SERVER_URL"], data, headers, method="POST")
        with urllib.request.urlopen(request, timeout=600, context=context) as response:
            assert response.status == 200
"""

TRAINER = """
from .integrations.integration_utils import KubeflowCallback


def get_reporting_integration_callbacks(report_to):
    return [] if report_to in (None, "none") else [KubeflowCallback]


class Trainer:
    def __init__(self, report_to="none"):
        self.callbacks = [callback() for callback in get_reporting_integration_callbacks(report_to)]
"""

SCRIPT = """
import os, sys, time
from pathlib import Path
from transformers.trainer import Trainer

callbacks = Trainer(*sys.argv[1:]).callbacks
print(len(callbacks), "callbacks", flush=True)
for callback in callbacks:
    callback.send(0, None, {"total_steps": 600})
    known = {"loss": 4.25, "grad_norm": 1.5}
    callback.send(83, 21, {**known, "current_step": 500, "total_steps": 600, "current_epoch": 2.5})
    while not os.path.exists("end"):
        time.sleep(0.05)
    callback.send(100, 0, {"loss": 4.25, "train_loss": 4.5, "train_runtime": 9.0})
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script beside a package `transformers`."""
    package = tmp_path / "own" / "transformers"
    (package / "integrations").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "trainer.py").write_text(TRAINER)
    (package / "integrations" / "__init__.py").touch()
    (package / "integrations" / "integration_utils.py").write_text(INTEGRATION_UTILS)
    (tmp_path / "own" / "train.py").write_text(SCRIPT)
    return tmp_path / "own" / "train.py"


INSTRUMENTED = """
from muster_components.trainer import instrument
sys.exit(instrument.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("report_to", [(), ("all",)])
def test_a_trainer_shows_step_last_step_time_left_and_loss(
    start: Start, tmp_path: Path, script: Path, report_to: tuple[str, ...]
) -> None:
    pod = start(INSTRUMENTED, args=(str(script), *report_to), MUSTER_RUN_DIR=str(tmp_path / "run"), MUSTER_JOB="tune")
    file = tmp_path / "run" / "heartbeats" / "rank-0.json"
    pod.await_line("1 callbacks")
    pod.await_file(tmp_path / "run" / "metrics" / "rank-0.jsonl")  # which is written after the heartbeat
    heartbeat = json.loads(file.read_text())
    assert (heartbeat["step"], heartbeat["steps"], heartbeat["eta_s"], heartbeat["loss"]) == (500, 600, 21.0, 4.25)
    (tmp_path / "end").touch()
    assert pod.end()[0] == 0, pod.log_text()
    heartbeat = json.loads(file.read_text())
    assert (heartbeat["step"], heartbeat["steps"], heartbeat["phase"]) == (600, 600, "done")


def test_the_callback_is_not_added_if_the_integration_is_turned_off(start: Start, tmp_path: Path, script: Path) -> None:
    variables = {"MUSTER_RUN_DIR": str(tmp_path / "run"), "MUSTER_JOB": "tune"}
    pod = start(INSTRUMENTED, args=(str(script),), DISABLE_KUBEFLOW_INTEGRATION="TRUE", **variables)
    code, log = pod.end()
    assert (code, "0 callbacks" in log) == (0, True), log
