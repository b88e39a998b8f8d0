"""The standard conditions of a workload, and the phase and its reason that are derived from them.

Reason and message are stored in conditions only. As in Kubernetes a transition time changes only with a condition's
status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

from muster.api.spec import Condition, Phase, QueueingStatus

S = TypeVar("S", bound=QueueingStatus)

ADMITTED = "Admitted"
PODS_READY = "PodsReady"
EVICTED = "Evicted"
SUSPENDED = "Suspended"
COMPLETE = "Complete"
FAILED = "Failed"
CANCELLED = "Cancelled"
TERMINATING = "Terminating"
"""Of a job that has ended or was suspended, while pods of it have not ended; absent if none had to be stopped."""
LOGS_WRITABLE = "LogsWritable"
"""On one host, of a job that has resources; present only while it is False."""
_CONDITIONS_OF_PHASE = {
    "Failed": (FAILED,),
    "Cancelled": (CANCELLED,),
    "Suspended": (SUSPENDED,),
    "Succeeded": (COMPLETE,),
    "Running": (PODS_READY,),
}


def find_condition(status: QueueingStatus, condition_type: str) -> Condition | None:
    """The condition of this type, or None."""
    for condition in status.conditions:
        if condition.type == condition_type:
            return condition
    return None


def is_condition_true(status: QueueingStatus, condition_type: str) -> bool:
    """Whether the condition is present and True."""
    condition = find_condition(status, condition_type)
    return condition is not None and condition.status == "True"


def set_condition(status: S, condition_type: str, value: bool, reason: str, message: str, now: float) -> S:
    """The status with this condition set and the phase derived again; the same object if nothing would change."""
    changed = with_condition(status.conditions, condition_type, value, reason, message, now, status.observed_generation)
    return status if changed is status.conditions else with_status_fields(status, {"conditions": changed})


def with_condition(
    conditions: list[Condition],
    condition_type: str,
    value: bool,
    reason: str,
    message: str,
    now: float,
    generation: int,
) -> list[Condition]:
    """The conditions with this one set, in its old position or last; the same list if nothing would change."""
    wanted: Literal["True", "False"] = "True" if value else "False"
    position = next((i for i, condition in enumerate(conditions) if condition.type == condition_type), len(conditions))
    old = conditions[position] if position < len(conditions) else None
    if old is not None and (wanted, reason, message, generation) == (
        old.status,
        old.reason,
        old.message,
        old.observed_generation,
    ):
        return conditions
    since = old.last_transition_time if old is not None and old.status == wanted else now
    new = Condition(
        type=condition_type,
        status=wanted,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=generation,
    )
    return [*conditions[:position], new, *conditions[position + 1 :]]


def with_status_fields(status: S, fields: Mapping[str, object]) -> S:
    """A copy with some fields replaced (not validated: for internal values only), phase and reason derived again."""
    changed = status.model_copy(update=dict(fields))
    derived: dict[str, object] = {"phase": phase_of(changed), "reason": reason_of(changed)}
    if derived == {"phase": changed.phase, "reason": changed.reason}:
        return changed
    return changed.model_copy(update=derived)


def phase_of(status: QueueingStatus) -> Phase:
    """The phase: see `muster.api.spec.Phase`."""
    true = {condition.type for condition in status.conditions if condition.status == "True"}
    if COMPLETE in true:
        return "Succeeded"
    if FAILED in true:
        return "Failed"
    if CANCELLED in true:
        return "Terminating" if status.finished_at is None else "Cancelled"
    if SUSPENDED in true:
        return "Suspended"
    if ADMITTED in true:
        return "Running" if PODS_READY in true else "Admitted"
    return "Pending"


def reason_of(status: QueueingStatus) -> str:
    """The reason of the condition that explains the phase: why it ended, is evicted, starts, waits."""
    true = {condition.type for condition in status.conditions if condition.status == "True"}
    for kind in (COMPLETE, FAILED, CANCELLED, SUSPENDED):
        if kind in true:
            return _condition_reason(status, kind)
    if ADMITTED in true:
        return _condition_reason(status, EVICTED if EVICTED in true else PODS_READY)
    return _condition_reason(status, ADMITTED)


def _condition_reason(status: QueueingStatus, condition_type: str) -> str:
    condition = find_condition(status, condition_type)
    return "" if condition is None else condition.reason


def is_finished(status: QueueingStatus) -> bool:
    """True once it is decided that the job ends: complete, failed or cancelled. Its processes may still run: see
    `has_terminated`."""
    return (
        is_condition_true(status, COMPLETE) or is_condition_true(status, FAILED) or is_condition_true(status, CANCELLED)
    )


def has_terminated(status: QueueingStatus) -> bool:
    """True once the job is finished and its last process has ended."""
    return is_finished(status) and status.finished_at is not None


def is_admitted(status: QueueingStatus) -> bool:
    """True while the gang has a placement, also while it is being torn down."""
    return is_condition_true(status, ADMITTED)


def is_evicting(status: QueueingStatus) -> bool:
    """True while an admitted gang is torn down in order to be requeued."""
    return is_condition_true(status, ADMITTED) and is_condition_true(status, EVICTED)


def last_eviction(status: QueueingStatus) -> Condition | None:
    """Why and since when an unfinished job is stopped in order to wait again; None once it is admitted again, or is
    suspended."""
    waits_again = not is_finished(status) and not is_condition_true(status, SUSPENDED)
    found = find_condition(status, EVICTED) if waits_again else None
    return found if found is not None and found.status == "True" else None


def explain_phase(status: QueueingStatus) -> tuple[str, str]:
    """(reason, message) that explain the phase; empty if none does. A cancelled job whose processes have not ended is
    Stopping."""
    if status.phase == "Terminating":
        cancelled = find_condition(status, CANCELLED)
        return "Stopping", cancelled.message if cancelled else ""
    for kind in _CONDITIONS_OF_PHASE.get(status.phase, (ADMITTED, EVICTED)):
        found = find_condition(status, kind)
        if found is not None and (found.message or found.reason):
            terminating = find_condition(status, TERMINATING)
            stops = f"; {terminating.message}" if terminating is not None and terminating.status == "True" else ""
            return found.reason, found.message + stops
    if status.phase == "Pending" and status.submitted_at is None:
        return "NotReconciled", "not yet processed; if this persists, check that the operator is running"
    return "", ""
