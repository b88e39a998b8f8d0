"""Queues that were deleted, and go once nobody needs them any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.local.small import shell_job

from muster import spec
from muster.cluster import WriteStatus
from muster.errors import Conflict, Refused
from muster.lifecycle.conditions import COMPLETE
from muster.lifecycle.transitions import finish
from muster.local.control_loop import DaemonComponents
from muster.local.home import open_home
from muster.local.wiring import assemble


def a_queue(name: str, parent: str | None = None) -> spec.Queue:
    wanted: dict[str, Any] = {"parent": parent, "namespaceSelector": {}, "resources": [{"flavor": "local"}]}
    return spec.Queue.model_validate({"metadata": {"name": name}, "spec": wanted})


def complete(parts: DaemonComponents, job: spec.TrainingJob) -> None:
    """As the engine writes it."""
    now = parts.store.jobs[job.metadata.uid]
    status = finish(now.status, COMPLETE, "Completed", "it is over", 1.0)
    parts.cluster.apply([WriteStatus(job.metadata.uid, status, now.metadata.resource_version)])


def test_applying_a_queue_under_deletion_withdraws_the_deletion(home: Path) -> None:
    parts = assemble(open_home(home), "1x8", None)
    parts.service.apply([a_queue("research")])
    (job,) = parts.service.submit([shell_job("a", "true", queue="research")], dry_run=False)
    assert parts.service.delete("Queue", "default", "research")["result"] == "deleting"
    with pytest.raises(Refused) as refused:
        parts.service.submit([shell_job("b", "true", queue="research")], dry_run=False)
    assert refused.value.reason == "QueueInactive"
    (row,) = parts.service.apply([a_queue("research")])
    assert row["result"] == "configured"
    parts.service.submit([shell_job("b", "true", queue="research")], dry_run=False)
    complete(parts, job)
    assert "research" in parts.store.queues
    parts.store.close()


def test_to_resume_a_job_whose_queue_is_being_deleted_is_refused_and_the_job_stays_suspended(home: Path) -> None:
    parts = assemble(open_home(home), "1x8", None)
    parts.service.apply([a_queue("research")])
    parts.service.submit([shell_job("a", "true", queue="research", suspend=True)], dry_run=False)
    parts.service.delete("Queue", "default", "research")
    with pytest.raises(Refused) as refused:
        parts.service.patch("default", "a", {"suspend": False})
    assert (refused.value.reason, refused.value.field) == ("QueueDeleted", "spec.queue")
    assert parts.service.job("default", "a").spec.suspend
    parts.service.apply([a_queue("research")])
    assert not parts.service.patch("default", "a", {"suspend": False}).spec.suspend
    parts.store.close()


def test_the_deletion_of_a_queue_below_one_that_is_deleted_is_withdrawn_with_it_or_not_at_all(home: Path) -> None:
    parts = assemble(open_home(home), "1x8", None)
    tree = [a_queue("company"), a_queue("research", "company")]
    parts.service.apply(tree)
    parts.service.submit([shell_job("a", "true", queue="research")], dry_run=False)
    parts.service.delete_all([("Queue", "research", "default"), ("Queue", "company", "default")])
    with pytest.raises(Conflict, match="'company' is being deleted"):
        parts.service.apply(tree[1:])
    assert [row["result"] for row in parts.service.apply(tree)] == ["configured", "configured"]
    assert {queue.metadata.deletion_timestamp for queue in parts.store.queues.values()} == {None}
    parts.store.close()


def test_with_the_last_job_of_a_queue_its_parents_go_too(home: Path) -> None:
    parts = assemble(open_home(home), "1x8", None)
    tree = ("company", "research", "vision")
    parts.service.apply([a_queue("company"), a_queue("research", "company"), a_queue("vision", "research")])
    first, last = parts.service.submit([shell_job(name, "true", queue="vision") for name in ("a", "b")], dry_run=False)
    parts.service.delete_all([("Queue", name, "default") for name in reversed(tree)])
    complete(parts, first)
    assert set(tree) <= parts.store.queues.keys(), "a job needs them"
    complete(parts, last)
    assert parts.store.queues.keys().isdisjoint(tree)
    parts.store.close()
