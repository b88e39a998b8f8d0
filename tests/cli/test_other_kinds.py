"""Commands on objects of other kinds that queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import NOW, MemoryClient

from muster.api.spec import WorkloadRecord

JOB = "{apiVersion: batch/v1, kind: Job, metadata: {name: train}, spec: {template: {}}}"
TRAINING_JOB = "{apiVersion: muster.dev/v1alpha1, kind: TrainingJob, metadata: {name: a}, spec: {roles: []}}"


def test_a_job_is_submitted_with_its_queue_and_priority(cluster: MemoryClient, muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    ended = muster("submit", str(file), "--queue", "research", "--priority", "5")
    assert ended.out.strip() == "job default/train submitted to queue research"
    (call,) = cluster.calls
    meta = {"labels": {"muster.dev/queue": "research"}, "annotations": {"muster.dev/priority": "5"}, "name": "train"}
    assert call == ("submit_objects", [meta], False)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (JOB, (), "metadata.labels[muster.dev/queue]: must name the queue"),
        (JOB, ("--queue", "q", "--max-runtime", "1h"), "--max-runtime: is for TrainingJobs"),
        (JOB, ("--queue", "q", "--watch"), "are for TrainingJobs"),
        (f"{JOB}\n---\n{TRAINING_JOB}", ("--queue", "q"), "must not be submitted together with TrainingJobs"),
        ("{apiVersion: batch/v1, kind: Job, metadata: {labels: 3}}", ("--queue", "q"), "metadata.name: must be set"),
        (JOB.replace("name: train", "name: train, labels: 3"), ("--queue", "q"), "metadata.labels: must be a mapping"),
    ],
)
def test_what_cannot_queue_is_refused_before_anything_is_created(
    cluster: MemoryClient, muster: Muster, tmp_path: Path, text: str, options: tuple[str, ...], message: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    ended = muster("submit", str(file), *options)
    assert message in ended.err
    assert (ended.code, cluster.calls) == (2, [])


def record(**status: Any) -> WorkloadRecord:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "batch", "uid": "u"}
    meta = {"name": "job-batch-12345", "namespace": "default"}
    document = {"metadata": meta, "spec": {"queue": "research", "objectRef": reference}, "status": status}
    return WorkloadRecord.model_validate(document)


def test_one_is_cancelled_suspended_and_resumed_by_its_name(cluster: MemoryClient, muster: Muster) -> None:
    cluster.objects = [record(phase="Running")]
    assert "job default/batch is being cancelled" in muster("cancel", "batch").out
    assert "job default/batch suspended" in muster("suspend", "batch").out
    assert "job default/batch resumed" in muster("resume", "batch").out
    assert [call[:2] for call in cluster.calls] == [("cancel", "batch"), ("suspend", "batch"), ("resume", "batch")]


def test_one_is_watched_to_its_end(cluster: MemoryClient, muster: Muster) -> None:
    done = {"type": "Complete", "status": "True", "reason": "Done", "message": "", "lastTransitionTime": NOW}
    cluster.objects = [record(phase="Succeeded", finishedAt=NOW, conditions=[done])]
    ended = muster("watch", "batch")
    assert (ended.code, ended.out.strip()) == (0, "job default/batch: Succeeded; Done")
    cluster.objects = [record(phase="Failed", finishedAt=NOW, conditions=[{**done, "type": "Failed"}])]
    assert muster("watch", "batch").code == 1


def test_its_logs_are_those_of_its_pods(cluster: MemoryClient, muster: Muster) -> None:
    nodes = [{"node": "n1", "indexes": "0-1"}]
    cluster.objects = [record(phase="Running", placement=[{"role": "pods", "flavor": "h", "nodes": nodes}])]
    cluster.logs = {("pods", 0): ["one"], ("pods", 1): ["two"]}
    assert muster("logs", "batch").out.splitlines() == ["pods-0 │ one", "pods-1 │ two"]
    assert muster("logs", "batch", "--index", "1").out.splitlines() == ["two"]
    assert "--role: must be one of pods" in muster("logs", "batch", "--role", "x").err
    cluster.objects = [record(phase="Pending", queuePosition=1)]
    assert "position 1" in muster("logs", "batch").err
