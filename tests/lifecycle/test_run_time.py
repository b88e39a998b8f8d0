"""Into what the time of pods is divided, where only the status outlives them."""

from __future__ import annotations

from dataclasses import replace

from tests.lifecycle.cases import BOUNDS, NODES, NOW, JobResult, failed, pods_of, reconcile_job, running, with_status

from muster.api import spec
from muster.cluster import Heartbeat, PodView, RunTime
from muster.workload.observation import Observation

EVERY_MINUTE = replace(BOUNDS, progress_refresh_s=60.0)
FIRST = RunTime(0, 1, 10, NOW + 1, {"start": 5_000, "productive": 20_000})


def seen(
    one: spec.TrainingJob, run_time: RunTime, *, now: float, pods: tuple[PodView, ...] | None = None, every: bool = True
) -> JobResult:
    heartbeat = Heartbeat(at=NOW - 5, step=10, step_changed_at=NOW, run_time=run_time)
    observation = Observation(now, pods_of(one) if pods is None else pods, heartbeat, NODES)
    return reconcile_job(one, observation, EVERY_MINUTE if every else BOUNDS)


def recorded(status: spec.TrainingJobStatus) -> list[spec.RunTimeStatus]:
    assert status.time_spent is not None
    return status.time_spent.runs


def accounted() -> spec.TrainingJob:
    one = running()
    spent = spec.TimeSpentStatus(cause="running", since=NOW, milliseconds={"waiting/QuotaExceeded": 3_000})
    return with_status(one, one.status.model_copy(update={"time_spent": spent}))


def test_it_is_written_with_other_changes_and_alone_once_a_minute() -> None:
    one = accounted()
    first = seen(one, FIRST, now=NOW + 1).status
    (run,) = recorded(first)
    assert (run.attempt, run.first_step, run.last_step, run.milliseconds) == (0, 1, 10, dict(FIRST.milliseconds))
    one = with_status(one, first)
    later = replace(FIRST, at=NOW + 30, last_step=20, milliseconds={"start": 5_000, "productive": 40_000})
    waiting = seen(one, later, now=NOW + 30)
    assert (waiting.status, waiting.wake_at) == (first, NOW + 61)
    assert recorded(seen(one, later, now=NOW + 61).status)[0].milliseconds == dict(later.milliseconds)
    pods = pods_of(one)
    restarted = seen(one, later, now=NOW + 31, pods=(failed(pods[0]), *pods[1:])).status
    assert restarted.restarts == 1
    assert recorded(restarted)[0].last_step == 20


def test_a_job_without_new_steps_is_not_written_for_it() -> None:
    one = accounted()
    one = with_status(one, seen(one, FIRST, now=NOW + 1).status)
    stalled = replace(FIRST, at=NOW + 600, milliseconds={**FIRST.milliseconds, "unknown": 599_000})
    result = seen(one, stalled, now=NOW + 600)
    assert (result.status, result.wake_at) == (one.status, None)


def test_where_the_run_folder_can_be_read_the_status_does_not_have_it() -> None:
    one = accounted()
    assert seen(one, FIRST, now=NOW + 1, every=False).status is one.status


def test_of_attempts_with_folders_of_their_own_each_is_kept_and_what_is_done_again_is_lost() -> None:
    one = accounted()
    one = with_status(one, seen(one, FIRST, now=NOW + 1).status)
    second = RunTime(1, 6, 8, NOW + 100, {"recovery": 4_000, "productive": 6_000})
    runs = recorded(seen(one, second, now=NOW + 100).status)
    assert [(run.attempt, run.last_step, run.milliseconds) for run in runs] == [
        (0, 5, {"start": 5_000, "productive": 10_000, "lost": 10_000}),
        (1, 8, dict(second.milliseconds)),
    ]
