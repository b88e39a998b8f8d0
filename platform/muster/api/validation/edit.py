"""The allowed changes of an existing job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.errors import Conflict, InvalidSpec, NotFound, Refused
from muster.workload.conditions import CANCELLED, TERMINATING, is_admitted, is_condition_true, is_finished

_IMMUTABLE_WHILE_ADMITTED = ("queue", "flavors", "topology")


def check_edit(old: TrainingJob, new: TrainingJob) -> None:
    """Refuse a change of an immutable field.

    Raises `InvalidSpec` with the field if the job is admitted and queue, flavors, topology or roles (except replicas
    and minReplicas) differ, if queue differs before the pods of a suspended job have ended, or if cancel is changed
    from true to false. Raises `Conflict` if the job is finished and another field than ttlSecondsAfterFinished differs.
    """
    name = old.metadata.name
    if _indices(old) != _indices(new):
        raise InvalidSpec(
            f"spec.array.indices: cannot be changed of job {name!r}; submit it under another name",
            field="spec.array.indices",
        )
    if old.spec.array is not None and new.spec.array is not None and new.spec.array.retries < old.spec.array.retries:
        raise InvalidSpec(
            f"spec.array.retries: cannot be lowered of job {name!r} (it is {old.spec.array.retries})",
            field="spec.array.retries",
        )
    allowed = {"ttl_seconds_after_finished": None, "array": None}
    if old.spec.model_copy(update=allowed) == new.spec.model_copy(update=allowed):
        return
    check_unfinished(old)
    if old.spec.cancel and not new.spec.cancel:
        raise InvalidSpec(
            f"spec.cancel: job {name!r} is cancelled, which cannot be undone; submit it again", field="spec.cancel"
        )
    field = None if not is_admitted(old.status) else _changed_field(old, new)
    if field is not None:
        raise _immutable_field(name, field)
    if old.spec.queue != new.spec.queue and is_condition_true(old.status, TERMINATING):
        raise InvalidSpec(
            f"spec.queue: cannot be changed before the pods of job {name!r} have ended, which are charged to queue "
            f"{old.spec.queue!r}",
            field="spec.queue",
        )


def _indices(job: TrainingJob) -> str | None:
    return None if job.spec.array is None else job.spec.array.indices


def _changed_field(old: TrainingJob, new: TrainingJob) -> str | None:
    """The first changed field of those that are immutable while a job is admitted."""
    for field in _IMMUTABLE_WHILE_ADMITTED:
        if getattr(old.spec, field) != getattr(new.spec, field):
            return f"spec.{field}"
    return "spec.roles" if _roles_without_sizes(old) != _roles_without_sizes(new) else None


def already_exists_conflict(name: str, namespace: str, found: TrainingJobStatus | None) -> Conflict:
    """The error of a new job whose name is in use. `found`: the status of the job that has it; None if unknown. Only of
    one that has ended, it says how to delete it."""
    phase = "" if found is None else f" ({found.phase})"
    advice = "" if found is None else f"; to see it: muster describe {namespace}/{name}"
    if found is not None and is_finished(found):
        advice = f", or delete it: muster delete job {namespace}/{name}"
    message = f"job {name!r} already exists in namespace {namespace!r}{phase}; use another name{advice}"
    return Conflict(message, field="metadata.name", reason="AlreadyExists")


def being_deleted_conflict(kind: str, name: str) -> Conflict:
    """The error, Deleting, for an apply of an object that is being deleted, whose changes would be deleted with it."""
    if kind == "TrainingJob":
        return Conflict(f"job {name!r} is being deleted; apply it again in a moment", reason="Deleting")
    message = f"{kind.lower()} {name!r} is being deleted and waits for its unfinished jobs"
    return Conflict(f"{message}; apply it again once they have ended", reason="Deleting")


def resumed_in_vain(job: TrainingJob) -> Refused:
    """The error for a resume of a job whose queue is being deleted: a waiting job would block the deletion."""
    queue = job.spec.queue
    return Refused(
        f"job {job.metadata.name!r} cannot be resumed: its queue {queue!r} is being deleted and waits for its"
        f" unfinished jobs; change spec.queue of the job, or apply queue {queue!r} again to keep it",
        field="spec.queue",
        reason="QueueDeleted",
    )


def check_unfinished(job: TrainingJob, *, stopping: bool = False) -> None:
    """Raise `Conflict` JobFinished if the job is finished. `stopping`: the request was to stop it, so the message does
    not suggest a new job."""
    if is_finished(job.status):
        advice = "" if stopping else "; submit it again under another name"
        message = f"job {job.metadata.name!r} has already ended in phase {_final_phase(job)}{advice}"
        raise Conflict(message, reason="JobFinished")


def _final_phase(job: TrainingJob) -> str:
    """The final phase of a finished job: Succeeded, Failed or Cancelled."""
    return "Cancelled" if is_condition_true(job.status, CANCELLED) else str(job.status.phase)


def _roles_without_sizes(job: TrainingJob) -> list[dict[str, Any]]:
    """The roles without replicas and minReplicas."""
    return [role.model_dump(exclude={"replicas", "min_replicas"}) for role in job.spec.roles]


def _immutable_field(name: str, field: str) -> InvalidSpec:
    return InvalidSpec(
        f"{field}: cannot be changed while job {name!r} is admitted; suspend it first: muster suspend {name}",
        field=field,
    )


def with_replicas(job: TrainingJob, replicas: Mapping[str, int]) -> TrainingJob:
    """The job with other numbers of replicas, by role; for the elastic role this replaces `elasticReplicas`. Raises
    `NotFound` RoleNotFound, or `InvalidSpec` with the valid range."""
    names = [role.name for role in job.spec.roles]
    for name in replicas:
        if name not in names:
            message = f"job {job.metadata.name!r} has no role {name!r}; it has {', '.join(names)}"
            raise NotFound(message, field="role", reason="RoleNotFound")
    written = job.model_dump(by_alias=True, exclude_unset=True)
    for place, role in enumerate(job.spec.roles):
        if role.name in replicas:
            _check_min_replicas(role.name, replicas[role.name], role.min_replicas)
            written["spec"]["roles"][place]["replicas"] = replicas[role.name]
            if role.is_elastic:
                written["spec"].pop("elasticReplicas", None)
    try:
        return TrainingJob.model_validate(written)
    except ValidationError as error:
        message = "; ".join(finding["msg"].removeprefix("Value error, ") for finding in error.errors())
        raise InvalidSpec(f"replicas: {message}", field="replicas") from error


def _check_min_replicas(role: str, replicas: int, min_replicas: int | None) -> None:
    if min_replicas is not None and replicas < min_replicas:
        message = f"role {role}: must be at least its minReplicas ({min_replicas}); got {replicas}"
        raise InvalidSpec(message, field="replicas")
