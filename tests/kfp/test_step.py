"""The step of a pipeline on this host, as processes: submission, log, outputs, retries and signals."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.kfp.steps import log_of, outputs_of, start_step
from tests.local.support import eventually

from muster.api.spec import TrainingJob
from muster.local.client import LocalClient

LIMIT_S = 600.0


class Steps:
    """Tries of one task of a pipeline: they share the folder of the outputs."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder

    def start(self, **parameters: Any) -> subprocess.Popen[str]:
        return start_step(self.folder, {"MUSTER_HOME": str(self.home), "MUSTER_CLUSTER": "local"}, **parameters)

    def run(self, **parameters: Any) -> int:
        return self.start(**parameters).wait(LIMIT_S)

    def jobs(self) -> list[TrainingJob]:
        return LocalClient.connect(self.home).jobs()

    def wait_for_log(self, text: str) -> None:
        eventually(lambda: text in log_of(self.folder), LIMIT_S)


@pytest.fixture
def steps(home: Path, tmp_path: Path) -> Steps:
    return Steps(home, tmp_path / "task")


def shell(line: str) -> list[str]:
    return ["sh", "-c", line]


def test_a_step_prints_the_log_of_its_job_and_records_outputs(steps: Steps) -> None:
    assert steps.run(command=shell("echo hello from $MUSTER_JOB $SIZE; exit 0"), env={"SIZE": 3.0}, name="fit") == 0
    (job,) = steps.jobs()
    assert job.metadata.name.startswith("fit-")
    assert f"hello from {job.metadata.name} 3" in log_of(steps.folder)
    outputs = outputs_of(steps.folder)
    run_folder = LocalClient.connect(steps.home).run_dir(job.metadata.name)
    assert outputs["parameterValues"] == {
        "job_name": f"default/{job.metadata.name}",
        "run_folder": str(run_folder),
    }
    assert (steps.folder / "parameters" / "job_name").read_text() == f"default/{job.metadata.name}"
    assert outputs["artifacts"]["metrics"]["artifacts"][0]["metadata"]["restarts"] == 0
    assert "No report" in (steps.folder / "report").read_text()


def test_a_report_and_the_last_metrics_become_artifacts(steps: Steps) -> None:
    line = """
        mkdir -p $MUSTER_RUN_DIR/metrics $MUSTER_RUN_DIR/heartbeats
        echo '{"step": 1, "attempt": 0, "at": 1, "step_time_s": 1, "loss": 2.5, "tokens": 8}' \
            > $MUSTER_RUN_DIR/metrics/rank-0.jsonl
        echo '{"rank": 0, "attempt": 0, "step": 1, "loss": 2.5, "tokens_per_s": null, "mfu": null, "at": 1}' \
            > $MUSTER_RUN_DIR/heartbeats/rank-0.json
    """
    assert steps.run(command=shell(line)) == 0, log_of(steps.folder)
    metadata = outputs_of(steps.folder)["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    assert {name: metadata.get(name) for name in ("loss", "step", "mfu")} == {"loss": 2.5, "step": 1, "mfu": None}
    page = (steps.folder / "report").read_text()
    assert "No report" not in page
    assert steps.jobs()[0].metadata.name in page


def test_a_step_fails_with_its_job_and_its_next_try_submits_a_job_of_another_number(steps: Steps) -> None:
    template = {"spec": {"containers": [{"name": "main", "command": shell("echo tried; exit 7")}]}}
    job = {"spec": {"roles": [{"name": "main", "template": template}], "failurePolicy": {"maxRestarts": 0}}}
    assert steps.run(job=job) == 1
    assert "exited with code 7" in log_of(steps.folder)
    assert steps.run(job=job) == 1
    first, second = steps.jobs()
    assert second.metadata.name == f"{first.metadata.name}-2"


def test_a_try_after_sigkill_adopts_the_running_job(steps: Steps, tmp_path: Path) -> None:
    command = shell(f"echo began; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo ended")
    step = steps.start(command=command)
    steps.wait_for_log("began")
    step.kill()
    step.wait(LIMIT_S)
    again = steps.start(command=command)
    steps.wait_for_log("which an earlier try of this step submitted")
    (tmp_path / "go").touch()
    assert again.wait(LIMIT_S) == 0
    assert log_of(steps.folder).count("\nended\n") == 1
    assert steps.run(command=command) == 0  # what has succeeded is not run again
    assert [job.status.attempt for job in steps.jobs()] == [0]


def test_a_job_of_that_name_with_another_spec_is_refused_by_name(steps: Steps) -> None:
    assert steps.run(command=shell("true")) == 0
    (job,) = steps.jobs()
    assert steps.run(command=shell("echo other")) == 3
    assert f"job default/{job.metadata.name} exists with another spec" in log_of(steps.folder)
    assert len(steps.jobs()) == 1


def test_a_job_that_another_user_made_with_name_and_annotation_of_the_step_is_not_adopted(steps: Steps) -> None:
    assert steps.run(command=shell("true")) == 0
    (own,) = steps.jobs()
    client, name = LocalClient.connect(steps.home), own.metadata.name
    client.delete_all([("TrainingJob", name, "default")])
    eventually(lambda: steps.jobs() == [], LIMIT_S)
    forged = own.model_dump(by_alias=True, exclude_unset=True, mode="json")
    forged["metadata"] = {"name": name, "annotations": own.metadata.annotations}
    forged["spec"]["roles"][0]["template"]["spec"]["containers"][0]["command"] = shell("echo forged")
    client.submit_all([TrainingJob.model_validate({key: forged[key] for key in ("metadata", "spec")})])
    assert steps.run(command=shell("true")) == 3
    assert f"job default/{name} exists with another spec" in log_of(steps.folder)


def test_sigterm_cancels_the_job_and_keeps_its_record(steps: Steps) -> None:
    step = steps.start(command=shell("echo began; exec sleep 600"))
    steps.wait_for_log("began")
    step.send_signal(signal.SIGTERM)
    assert step.wait(LIMIT_S) == 143
    (job,) = steps.jobs()
    assert job.spec.cancel
    eventually(lambda: steps.jobs()[0].status.phase == "Cancelled", LIMIT_S)


def test_sigterm_of_a_waiting_step_cancels_too(steps: Steps) -> None:
    step = steps.start(command=shell("exec sleep 600"), cpu="1", max_runtime="1h", replicas=1, priority=0)
    eventually(lambda: steps.home.exists() and "submitted" in log_of(steps.folder), LIMIT_S)
    step.send_signal(signal.SIGTERM)
    assert step.wait(LIMIT_S) == 143
    eventually(lambda: steps.jobs()[0].status.phase == "Cancelled", LIMIT_S)


def test_with_on_terminate_leave_the_job_continues_and_the_next_try_adopts_it(steps: Steps, tmp_path: Path) -> None:
    command = shell(f"echo began; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
    step = steps.start(command=command, on_terminate="leave")
    steps.wait_for_log("began")
    step.send_signal(signal.SIGTERM)
    assert step.wait(LIMIT_S) == 143
    assert [job.spec.cancel for job in steps.jobs()] == [False]
    again = steps.start(command=command, on_terminate="leave")
    steps.wait_for_log("which an earlier try of this step submitted")
    (tmp_path / "go").touch()
    assert again.wait(LIMIT_S) == 0
    assert len(steps.jobs()) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "command: must be the program of the pods, such as [python, train.py], or set `job`; got []"),
        ({"command": ["true"], "replicas": 0}, "replicas: must be"),
        ({"command": ["true"], "job": {"spec": {}}}, "job: must not be set together with command"),
        ({"command": ["true"], "on_terminate": "delete"}, "on_terminate: must be"),
        ({"command": ["true"], "max_runtime": "soon"}, "max_runtime: 'soon' must be a duration"),
        (
            {"job": {"kind": "Queue", "metadata": {"name": "a"}, "spec": {}}},
            "job: must be a TrainingJob; got kind Queue",
        ),
    ],
)
def test_invalid_parameters_are_refused_with_field_and_value(
    steps: Steps, parameters: dict[str, Any], message: str
) -> None:
    assert steps.run(**parameters) == 2
    assert message in log_of(steps.folder)
