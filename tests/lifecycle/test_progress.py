"""How far a job is, where its status is the only place that can tell."""

from __future__ import annotations

from dataclasses import replace

from tests.lifecycle.cases import (
    BOUNDS,
    NODES,
    NOW,
    JobResult,
    failed,
    pods_of,
    reconcile,
    reconcile_job,
    running,
    with_status,
)

from muster.api import spec
from muster.cluster import Heartbeat, PodView
from muster.workload.observation import Observation
from muster.workload.timeouts import Timeouts

EVERY_MINUTE = replace(BOUNDS, progress_refresh_s=60.0)
HEARTBEAT = Heartbeat(
    at=NOW + 1,
    step=10,
    step_changed_at=NOW + 1,
    total_steps=60,
    loss=2.5,
    tokens_per_s=99.0,
    collectives_per_step=12.5,
    collective_bytes_per_step=2.0**31,
)
WRITTEN = spec.ProgressStatus(
    step=10,
    steps=60,
    loss=2.5,
    tokens_per_second=99.0,
    collectives_per_step=12.5,
    collective_bytes_per_step=2.0**31,
    attempt=0,
    at=NOW + 1,
)


def seen(
    one: spec.TrainingJob,
    heartbeat: Heartbeat,
    *,
    now: float,
    pods: tuple[PodView, ...] | None = None,
    bounds: Timeouts = EVERY_MINUTE,
) -> JobResult:
    return reconcile_job(one, Observation(now, pods_of(one) if pods is None else pods, heartbeat, NODES), bounds)


def test_it_is_written_with_other_changes_and_alone_once_a_minute() -> None:
    one = running()
    first = seen(one, HEARTBEAT, now=NOW + 1).status
    assert first.progress == WRITTEN
    one = with_status(one, first)
    later = replace(HEARTBEAT, at=NOW + 30, step=20, step_changed_at=NOW + 30)
    result = seen(one, later, now=NOW + 30)
    assert result.status is first
    assert result.wake_at == NOW + 61
    progress = seen(one, later, now=NOW + 61).status.progress
    assert progress is not None
    assert (progress.step, progress.at) == (20, NOW + 30)
    pods = pods_of(one)
    restarted = seen(one, later, now=NOW + 31, pods=(failed(pods[0]), *pods[1:])).status
    assert restarted.restarts == 1
    assert restarted.progress is not None
    assert (restarted.progress.step, restarted.progress.attempt) == (20, 0)


def test_a_checkpoint_alone_is_progress_if_its_step_is_known() -> None:
    known = Heartbeat(at=NOW + 1, step=10, step_changed_at=NOW + 1, has_stepped=False, checkpoint_step=10,
                      checkpoint_at=NOW + 1, total_steps=60, loss=2.5)  # fmt: skip
    progress = seen(running(), known, now=NOW + 2).status.progress
    assert progress == spec.ProgressStatus(step=10, steps=60, loss=2.5, attempt=0, at=NOW + 1)
    unknown = replace(known, step=0, checkpoint_step=None)
    status = seen(running(), unknown, now=NOW + 2).status
    assert (status.progress, status.last_checkpoint) == (None, spec.CheckpointStatus(step=None, at=NOW + 1))


def test_the_same_step_is_not_written_again() -> None:
    one = with_status(running(), seen(running(), HEARTBEAT, now=NOW + 1).status)
    result = seen(one, replace(HEARTBEAT, at=NOW + 500), now=NOW + 500)
    assert (result.status, result.wake_at) == (one.status, None)


def test_what_was_said_before_the_attempt_began_is_not_its_progress() -> None:
    one = running()
    assert seen(one, replace(HEARTBEAT, at=NOW - 1), now=NOW + 1).status.progress is None


def test_where_it_can_be_read_live_the_status_does_not_tell() -> None:
    one = running()
    assert reconcile(one, pods_of(one), now=NOW + 1, heartbeat=HEARTBEAT).status is one.status
