"""What a signal cancels: the job of this step, and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.api.spec import TrainingJob
from muster.errors import NotFound
from muster.kfp import step as step_module
from muster.kfp.job import SPEC_HASH, Target, build_job, parse_parameters
from muster.kfp.step import StepTerminated, run_step

VALUES = {"name": "train", "command": ["python", "train.py"]}
TASK = "s3://bucket/run/task/output"


class Client:
    """A cluster with at most one job; a signal arrives while it is asked for it the first time."""

    def __init__(self, spec_hash: str | None, **changed: Any) -> None:
        """`changed`: fields of the job's spec, or of its role, that differ from those of the step."""
        self.spec_hash = spec_hash
        self.changed = changed
        self.cancelled: list[str] = []
        self.requested = 0

    def job(self, name: str, namespace: str) -> TrainingJob:
        self.requested += 1
        if self.requested == 1:
            raise StepTerminated("SIGTERM")
        wanted = build_job(parse_parameters(VALUES), Target(TASK, namespace, False, {}), 1)
        if self.spec_hash is None:
            raise NotFound(f"job {name} does not exist")
        if self.spec_hash:
            wanted.metadata.annotations[SPEC_HASH] = self.spec_hash
        document = wanted.model_dump(by_alias=True, exclude_unset=True, mode="json")
        role = document["spec"]["roles"][0]
        for name, value in self.changed.items():
            (role if name in ("replicas", "template") else document["spec"])[name] = value
        return TrainingJob.model_validate(document)

    def cancel(self, name: str, namespace: str) -> None:
        self.cancelled.append(f"{namespace}/{name}")


def terminated(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimpleNamespace(client=client, namespace="team", in_cluster=False, step_resources=dict)
    monkeypatch.setattr(step_module, "connect", lambda: cluster)
    monkeypatch.setattr("muster.kfp.step.signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        run_step(VALUES, task=TASK, report_path="unused")
    assert ended.value.code == 143


def test_a_signal_before_the_earlier_job_is_found_cancels_it(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(spec_hash="")
    terminated(client, monkeypatch)
    assert len(client.cancelled) == 1


def test_a_job_of_the_same_name_with_another_spec_is_not_cancelled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client(spec_hash="of-another")
    terminated(client, monkeypatch)
    assert client.cancelled == []
    assert "was not cancelled" in capsys.readouterr().out


FORGED = {"spec": {"containers": [{"name": "trainer", "command": ["python", "other.py"]}]}}


@pytest.mark.parametrize(
    "changed", [{"template": FORGED}, {"trace": {"startStep": 1, "steps": 2}}, {"failurePolicy": {"maxRestarts": 9}}]
)
def test_a_job_with_the_annotation_of_the_step_and_another_spec_is_not_cancelled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changed: dict[str, Any]
) -> None:
    """Anyone who may create jobs in the namespace can write the annotation and compute the name."""
    client = Client("", **changed)
    terminated(client, monkeypatch)
    assert client.cancelled == []
    assert "exists with another spec" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changed", [{"replicas": 2}, {"queue": "red"}, {"priority": 5}, {"suspend": True}, {"maxRuntimeSeconds": 60}]
)
def test_a_job_that_a_user_has_scaled_moved_or_suspended_is_still_that_of_the_step(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    client = Client("", **changed)
    terminated(client, monkeypatch)
    assert len(client.cancelled) == 1


def test_a_signal_before_anything_is_submitted_cancels_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(spec_hash=None)
    terminated(client, monkeypatch)
    assert client.cancelled == []


def test_a_signal_while_it_connects_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect() -> None:
        raise StepTerminated("SIGTERM")

    monkeypatch.setattr(step_module, "connect", connect)
    monkeypatch.setattr("muster.kfp.step.signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        run_step(VALUES, task=TASK, report_path="unused")
    assert ended.value.code == 143
