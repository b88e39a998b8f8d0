"""What the time of a job since its submission was spent on, from its status alone.

The status has the present cause, since when it lasts, and the sums of what ended before. Each write that changes the
cause changes all three, so that the sums always equal the time since the submission, whatever crashes in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.api.spec import ObjectMeta, QueueingStatus, TimeSpentStatus
from muster.usage.causes import RECOVERY, RUNNING, START, STOPPING, UNKNOWN, WAITING
from muster.usage.segments import Charged
from muster.workload.conditions import EVICTED, find_condition, is_condition_true

_FAILURES: Final = frozenset({"NodeLost", "PodLost", "PodRejected", "StartTimeout", "RestartElsewhere", "Restarting"})
"""Reasons of evictions and restarts because something failed."""
_MAX_CAUSES: Final = 32
"""In one status; further reasons for waiting count as `waiting/Other`."""


def next_time_spent(job: Charged, status: QueueingStatus, now: float) -> TimeSpentStatus | None:
    """The account to write with `status`, the next one of `job`. The same object if the cause stays."""
    before = recorded_time(job.metadata, job.status)
    if before is None:
        return None
    cause = _cause_of(status, before.cause)
    runs = before.runs if status.time_spent is None else status.time_spent.runs
    if cause == before.cause:  # also of a job that has ended
        return before if runs == before.runs else before.model_copy(update={"runs": runs})
    end = min(now, status.finished_at) if cause == "" and status.finished_at is not None else now
    if cause not in before.milliseconds and len(before.milliseconds) >= _MAX_CAUSES:
        cause = f"{WAITING}/Other" if cause.startswith(WAITING) else cause
    milliseconds = _sums(before, end)
    return TimeSpentStatus.model_construct(
        cause=cause, since=_whole_ms(end, before), milliseconds=milliseconds, runs=runs
    )


def time_spent(job: Charged, now: float) -> dict[str, int]:
    """Milliseconds by cause; they sum to the time from the submission to `now`, or to the end of the job. Empty for one
    without a submission time."""
    recorded = recorded_time(job.metadata, job.status)
    return {} if recorded is None else sums_until(recorded, now)


def sums_until(recorded: TimeSpentStatus, now: float) -> dict[str, int]:
    """Milliseconds by cause of a recorded account until `now`, or until the job ended."""
    return dict(recorded.milliseconds) if recorded.cause == "" else _sums(recorded, now)


def recorded_time(metadata: ObjectMeta, status: QueueingStatus) -> TimeSpentStatus | None:
    """The account in a status. That of a job that no cycle has written yet has waited since its submission; of one that
    a version without accounts wrote, it is unknown."""
    if status.time_spent is not None:
        return status.time_spent
    submitted = status.submitted_at if status.submitted_at is not None else metadata.creation_timestamp
    if submitted is None:
        return None
    cause = f"{WAITING}/NotReconciled" if not status.conditions else UNKNOWN
    first = TimeSpentStatus.model_construct(cause=cause, since=_to_ms(submitted) / 1000, milliseconds={}, runs=[])
    if status.finished_at is None:
        return first
    sums = _sums(first, status.finished_at)
    return TimeSpentStatus.model_construct(
        cause="", since=_whole_ms(status.finished_at, first), milliseconds=sums, runs=[]
    )


def _cause_of(status: QueueingStatus, before: str) -> str:
    """The cause from now on. `before`: the last one; recovery lasts until the pods are ready again."""
    if status.finished_at is not None:
        return ""
    evicted = find_condition(status, EVICTED)
    match status.phase:
        case "Succeeded" | "Failed" | "Cancelled" | "Terminating":
            return STOPPING
        case "Suspended":
            return f"{WAITING}/Suspended"
        case "Admitted" | "Running" if evicted is not None and is_condition_true(status, EVICTED):
            return RECOVERY if evicted.reason in _FAILURES else STOPPING
        case "Running":
            return RUNNING
        case "Admitted":
            return RECOVERY if before == RECOVERY or status.reason in _FAILURES else START
    if before == RECOVERY and status.reason in _FAILURES:
        return RECOVERY
    return f"{WAITING}/{status.reason or 'NotReconciled'}"


def _sums(before: TimeSpentStatus, end: float) -> dict[str, int]:
    spent = max(0, _to_ms(end) - _to_ms(before.since))
    sums: Mapping[str, int] = before.milliseconds
    return {**sums, before.cause: sums.get(before.cause, 0) + spent}


def _whole_ms(end: float, before: TimeSpentStatus) -> float:
    return max(_to_ms(end), _to_ms(before.since)) / 1000


def _to_ms(time_s: float) -> int:
    return round(time_s * 1000)
