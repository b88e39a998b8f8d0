"""How an array changes: statuses of its indices and its own are written into its object, and users cancel and retry
indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from muster.api import spec
from muster.api.spec import ArrayStatus, IndexFailure, format_indices, index_set
from muster.cluster import RecordEvent
from muster.errors import Conflict, InvalidSpec
from muster.kinds.trainingjob.arrays import MAX_TEXT, running_count, split_index_key, stored_status, summary
from muster.workload import transitions
from muster.workload.conditions import (
    ADMITTED,
    CANCELLED,
    COMPLETE,
    FAILED,
    PODS_READY,
    SUSPENDED,
    find_condition,
    has_terminated,
    is_admitted,
    is_condition_true,
    is_finished,
    set_condition,
    with_status_fields,
)

_MAX_FAILURES = 10


def with_index_cancelled(array: spec.TrainingJob, index: int, fields: Mapping[str, Any]) -> spec.TrainingJob:
    """The array with one index cancelled, as `fields` ask. Raises `InvalidSpec`: nothing else can be asked of it."""
    if fields != {"cancel": True} or array.spec.array is None:
        (field,) = fields
        name = array.metadata.name
        raise InvalidSpec(f"{field}: of an index only cancel can be set; name the array {name!r}", field=field)
    cancel = format_indices(index_set(array.spec.array.cancel) | {index})
    return _with_array_spec(array, {"cancel": cancel})


def with_retry(array: spec.TrainingJob) -> spec.TrainingJob:
    """The array with its failed indices queued again. Raises `InvalidSpec` for a job that is none, `Conflict`
    NothingToRetry if no index has failed, and JobFinished for a cancelled one."""
    name = array.metadata.name
    if array.spec.array is None:
        raise InvalidSpec(f"job {name!r} is no array: only those have indices to run again; submit it again")
    if array.spec.cancel:
        raise Conflict(f"array {name!r} is cancelled; submit it again under another name", reason="JobFinished")
    if not (array.status.array or ArrayStatus()).failed:
        raise Conflict(f"no index of array {name!r} has failed", reason="NothingToRetry")
    return _with_array_spec(array, {"retries": array.spec.array.retries + 1})


def _with_array_spec(array: spec.TrainingJob, fields: Mapping[str, Any]) -> spec.TrainingJob:
    assert array.spec.array is not None
    try:
        changed = spec.ArraySpec.model_validate({**array.spec.array.model_dump(by_alias=True), **fields})
    except ValidationError as error:
        first = error.errors()[0]
        field = f"spec.array.{first['loc'][0]}"
        raise InvalidSpec(f"{field}: {first['msg']}", field=field) from error
    return array.model_copy(update={"spec": array.spec.model_copy(update={"array": changed})})


def retried(status: spec.TrainingJobStatus, indices: ArrayStatus, retries: int, now: float) -> spec.TrainingJobStatus:
    """The failed indices wait again. Their attempts are numbered after all earlier ones: pods of those may be left."""
    again = indices.model_copy(
        update={"failed": "", "failures": [], "retries": retries, "first_attempt": indices.highest_attempt + 1}
    )
    if not index_set(indices.failed):
        again = indices.model_copy(update={"retries": retries})
    status = with_status_fields(status, {"array": again})
    if index_set(indices.failed) and is_finished(status):
        for kind in (FAILED, CANCELLED):
            if is_condition_true(status, kind):
                status = set_condition(status, kind, False, "Retried", "", now)
        status = with_status_fields(status, {"finished_at": None})
    return status


def summarized(wanted: spec.TrainingJobSpec, status: spec.TrainingJobStatus, now: float) -> spec.TrainingJobStatus:
    """The status of the array with the phase that follows from its indices."""
    array, indices = wanted.array, status.array or ArrayStatus()
    assert array is not None
    if is_finished(status) or is_condition_true(status, SUSPENDED):
        return status
    failed, cancelled = index_set(indices.failed), index_set(indices.cancelled)
    left = array.index_count - len(index_set(indices.succeeded)) - len(failed) - len(cancelled)
    job = spec.TrainingJob.model_construct(spec=wanted, status=status)
    if left <= 0 and not indices.active:
        kind, reason, message = COMPLETE, "Completed", f"all {array.index_count} indices succeeded"
        if failed or cancelled:
            kind, reason = (FAILED, "IndicesFailed") if failed else (CANCELLED, "IndicesCancelled")
            message = f"{summary(job)}; {reason.removeprefix('Indices').lower()}: "
            message += _shortened(indices.failed or indices.cancelled)
        return with_status_fields(transitions.finish(status, kind, reason, message, now), {"finished_at": now})
    if running_count(indices):
        status = status if status.admitted_at else with_status_fields(status, {"admitted_at": now, "started_at": now})
        status = set_condition(status, ADMITTED, True, "Admitted", "", now)
        return set_condition(status, PODS_READY, True, "IndicesRunning", summary(job), now)
    if is_admitted(status):
        status = set_condition(status, PODS_READY, False, "Waiting", "", now)
        return set_condition(status, ADMITTED, False, "Waiting", summary(job), now)
    return status


def _shortened(indices: str) -> str:
    return indices if len(indices) <= MAX_TEXT else f"{indices[:MAX_TEXT].rpartition(',')[0]},..."


def with_index_statuses(
    job: spec.TrainingJob, statuses: Mapping[int, spec.TrainingJobStatus], now: float
) -> spec.TrainingJob:
    """The array after these statuses of indices were written; the same object if it keeps nothing else of them."""
    array = job.status.array or ArrayStatus()
    active, ended = dict(array.active), dict[str, set[int]]()
    highest, failures, status = array.highest_attempt, list(array.failures), job.status
    for index, own in sorted(statuses.items()):
        if has_terminated(own):
            active.pop(str(index), None)
            ended.setdefault(own.phase.lower(), set()).add(index)
            highest = max(highest, own.attempt)
            if (failed := find_condition(own, FAILED)) is not None and failed.status == "True":
                message = failed.message[:MAX_TEXT]
                failures.append(IndexFailure(index=index, message=message, at=failed.last_transition_time))
                if own.last_failure is not None:
                    status = with_status_fields(status, {"last_failure": own.last_failure})
            continue
        stored = stored_status(own, job.status)
        if str(index) in active or not _only_waits(own, stored, array):
            active[str(index)] = stored
        elif not is_admitted(status):
            status = _with_wait(status, own, now)
    fields: dict[str, Any] = {"active": active, "highest_attempt": highest, "failures": failures[-_MAX_FAILURES:]}
    for name, new in ended.items():
        fields[name] = format_indices(index_set(getattr(array, name)) | new)
    changed = array.model_copy(update=fields)
    if changed != array:
        status = summarized(job.spec, with_status_fields(status, {"array": changed}), now)
    return job if status is job.status else job.model_copy(update={"status": status})


def _only_waits(status: spec.TrainingJobStatus, stored: Mapping[str, Any], array: ArrayStatus) -> bool:
    """Whether an index has never been admitted or nominated: nothing of it has to be kept."""
    is_first = status.attempt == array.first_attempt and find_condition(status, SUSPENDED) is None
    return is_first and stored.keys() <= {"conditions", "attempt"}


def _with_wait(status: spec.TrainingJobStatus, own: spec.TrainingJobStatus, now: float) -> spec.TrainingJobStatus:
    """The array waits for what its first index in the queue waits for."""
    wait = find_condition(own, ADMITTED)
    known = find_condition(status, ADMITTED)
    first = status.queue_position is None or own.queue_position is None or own.queue_position <= status.queue_position
    if wait is None or wait.status == "True" or not (first or known is None):
        return status
    fields = {"queue_position": own.queue_position, "estimated_start": own.estimated_start}
    return set_condition(with_status_fields(status, fields), ADMITTED, False, wait.reason, wait.message, now)


def with_array_status(
    job: spec.TrainingJob, old: spec.TrainingJobStatus, new: spec.TrainingJobStatus
) -> spec.TrainingJob:
    """The array after its own status was changed from `old` to `new`, although indices were written meanwhile."""
    status, skipped = job.status, {"array", "conditions", "phase", "reason"}
    fields = {
        name: getattr(new, name)
        for name in type(new).model_fields
        if name not in skipped and getattr(new, name) != getattr(old, name)
    }
    conditions = {one.type: one for one in status.conditions}
    conditions |= {one.type: one for one in new.conditions if one not in old.conditions}
    was, now, array = old.array or ArrayStatus(), new.array or ArrayStatus(), status.array or ArrayStatus()
    change: dict[str, Any] = {}
    for name in ("failed", "cancelled"):
        before, after = index_set(getattr(was, name)), index_set(getattr(now, name))
        if before != after:
            change[name] = format_indices((index_set(getattr(array, name)) - (before - after)) | (after - before))
    for name in ("retries", "first_attempt", "failures"):
        if getattr(was, name) != getattr(now, name):
            change[name] = getattr(now, name)
    array = array.model_copy(update=change)
    status = with_status_fields(status, {**fields, "conditions": list(conditions.values()), "array": array})
    return job.model_copy(update={"status": status})


def array_event(event: RecordEvent) -> RecordEvent | None:
    """The event of an index as one of its array: warnings only, since an array has thousands of indices."""
    uid, index = split_index_key(event.job_uid)
    if index is None:
        return event
    if event.type == "Normal":
        return None
    return replace(event, job_uid=uid, message=f"index {index}: {event.message}")
