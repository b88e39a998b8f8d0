"""Queues under deletion are removed with their last job."""

from __future__ import annotations

from typing import Any

import pytest
from tests.local.support import has, shell_job

from muster.api import spec
from muster.cluster import WriteStatus
from muster.errors import Conflict, Refused
from muster.local.control_loop import DaemonComponents
from muster.workload.conditions import COMPLETE
from muster.workload.transitions import finish


def make_queue(name: str, parent: str | None = None) -> spec.Queue:
    wanted: dict[str, Any] = {"parent": parent, "namespaceSelector": {}, "resources": [{"flavor": "local"}]}
    return spec.Queue.model_validate({"metadata": {"name": name}, "spec": wanted})


def complete(parts: DaemonComponents, job: spec.TrainingJob) -> None:
    """Write the status as the engine does."""
    stored = parts.store.jobs[job.metadata.uid]
    status = finish(stored.status, COMPLETE, "Completed", "completed", 1.0)
    parts.cluster.apply([WriteStatus(job.metadata.uid, status, stored.metadata.resource_version)])


def test_applying_a_queue_under_deletion_cancels_the_deletion(parts: DaemonComponents) -> None:
    parts.service.apply([make_queue("research")])
    (job,) = parts.service.submit([shell_job("a", "true", queue="research")], dry_run=False)
    assert parts.service.delete_all([("Queue", "research", "default")])[0]["result"] == "deleting"
    with pytest.raises(Refused) as refused:
        parts.service.submit([shell_job("b", "true", queue="research")], dry_run=False)
    assert refused.value.reason == "QueueInactive"
    (row,) = parts.service.apply([make_queue("research")])
    assert row["result"] == "configured"
    parts.service.submit([shell_job("b", "true", queue="research")], dry_run=False)
    complete(parts, job)
    assert "research" in parts.store.queues


@pytest.mark.parametrize(("selector", "removed"), [(None, True), ({"team": "a"}, True), ({}, False)])
def test_a_waiting_job_of_a_namespace_that_the_queue_does_not_select_does_not_keep_it(
    parts: DaemonComponents, selector: dict[str, str] | None, removed: bool
) -> None:
    parts.service.apply([make_queue("research")])
    (job,) = parts.service.submit([shell_job("a", "true", queue="research", suspend=True)], dry_run=False)
    queue = make_queue("research")
    chosen = None if selector is None else spec.LabelSelector(match_labels=selector)
    fields = queue.spec.model_copy(update={"namespace_selector": chosen})
    parts.service.apply([queue.model_copy(update={"spec": fields})])
    (row,) = parts.service.delete_all([("Queue", "research", "default")])
    assert (row["result"] == "deleted", "research" not in parts.store.queues) == (removed, removed)
    assert job.metadata.uid in parts.store.jobs


def test_a_job_whose_queue_is_being_deleted_cannot_be_resumed(parts: DaemonComponents) -> None:
    parts.service.apply([make_queue("research")])
    parts.service.submit([shell_job("a", "true", queue="research", suspend=True)], dry_run=False)
    parts.service.delete_all([("Queue", "research", "default")])
    with pytest.raises(Refused) as refused:
        parts.service.patch("default", "a", {"suspend": False})
    assert (refused.value.reason, refused.value.field) == ("QueueDeleted", "spec.queue")
    assert parts.service.job("default", "a").spec.suspend
    parts.service.apply([make_queue("research")])
    assert not parts.service.patch("default", "a", {"suspend": False}).spec.suspend


def test_the_deletion_of_a_queue_is_cancelled_only_together_with_that_of_its_parent(parts: DaemonComponents) -> None:
    tree = [make_queue("company"), make_queue("research", "company")]
    parts.service.apply(tree)
    parts.service.submit([shell_job("a", "true", queue="research")], dry_run=False)
    parts.service.delete_all([("Queue", "research", "default"), ("Queue", "company", "default")])
    with pytest.raises(Conflict, check=has("'company'", reason="Deleting")):
        parts.service.apply(tree[1:])
    assert [row["result"] for row in parts.service.apply(tree)] == ["configured", "configured"]
    assert {queue.metadata.deletion_timestamp for queue in parts.store.queues.values()} == {None}


def test_with_the_last_job_of_a_queue_its_deleted_parents_are_removed_too(parts: DaemonComponents) -> None:
    tree = ("company", "research", "vision")
    parts.service.apply([make_queue("company"), make_queue("research", "company"), make_queue("vision", "research")])
    first, last = parts.service.submit([shell_job(name, "true", queue="vision") for name in ("a", "b")], dry_run=False)
    parts.service.delete_all([("Queue", name, "default") for name in reversed(tree)])
    complete(parts, first)
    assert set(tree) <= parts.store.queues.keys(), "a job uses them"
    complete(parts, last)
    assert parts.store.queues.keys().isdisjoint(tree)
