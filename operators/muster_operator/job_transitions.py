"""What a status that was written means to an administrator: a job was admitted, evicted, restarted, requeued, or has
ended; where, why, and for which other job. Each has one log line, and is counted in the metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from muster.api import spec
from muster.workload.conditions import (
    ADMITTED,
    EVICTED,
    PODS_READY,
    SUSPENDED,
    explain_phase,
    find_condition,
    is_admitted,
    is_condition_true,
    is_evicting,
    is_finished,
)
from muster.workload.placement import nodes_of, pod_count

_LOG = logging.getLogger("muster.operator")
_MAX_NODES = 8
_MAX_WHY = 500
TransitionKind: TypeAlias = Literal["admitted", "evicted", "resized", "restarted", "requeued", "suspended", "ended"]


@dataclass(frozen=True, slots=True)
class JobTransition:
    """A change of a job. `beneficiary`: uid of the job for which it is evicted or shrunk."""

    kind: TransitionKind
    reason: str
    message: str
    placement: list[spec.RolePlacementStatus]
    beneficiary: str = ""


def job_transitions(old: spec.QueueingStatus, new: spec.QueueingStatus) -> Iterator[JobTransition]:
    """What changed from one status to the next."""
    beneficiary = "" if new.eviction is None else new.eviction.beneficiary
    if is_finished(new):
        if not is_finished(old):
            reason, message = explain_phase(new)
            yield JobTransition("ended", new.reason or reason, message, old.placement)
        return
    if not is_admitted(old):
        if is_admitted(new):
            yield _transition("admitted", new, ADMITTED, new.placement)
        return
    if is_condition_true(new, EVICTED) and not is_evicting(old):  # also if it is requeued in the same write
        yield _transition("evicted", new, EVICTED, old.placement, beneficiary)
    if not is_admitted(new):
        suspended = is_condition_true(new, SUSPENDED)
        yield _transition("suspended" if suspended else "requeued", new, ADMITTED, old.placement)
    elif new.attempt != old.attempt:
        resized = pod_count(new.placement) != pod_count(old.placement)
        yield _transition("resized" if resized else "restarted", new, PODS_READY, new.placement, beneficiary)


def _transition(
    kind: TransitionKind,
    status: spec.QueueingStatus,
    condition_type: str,
    placement: list[spec.RolePlacementStatus],
    beneficiary: str = "",
) -> JobTransition:
    condition = find_condition(status, condition_type)
    reason, message = ("", "") if condition is None else (condition.reason, condition.message)
    return JobTransition(kind, reason, message, placement, beneficiary)


def log_transition(
    transition: JobTransition, job: str, status: spec.QueueingStatus, name_of: Callable[[str], str]
) -> None:
    """One line: the job (NAMESPACE/NAME), what happened, why, on which nodes, for which job. `name_of`: by uid."""
    nodes = sorted(nodes_of(transition.placement))
    fields: dict[str, object] = {"job": job, "reason": transition.reason, "why": transition.message[:_MAX_WHY]}
    fields |= {"nodes": nodes[:_MAX_NODES], "attempt": status.attempt}
    if len(nodes) > _MAX_NODES:
        fields["more_nodes"] = len(nodes) - _MAX_NODES
    if transition.beneficiary:
        fields["for"] = name_of(transition.beneficiary)
    failure = status.last_failure if isinstance(status, spec.TrainingJobStatus) else None
    if failure is not None and transition.kind in ("evicted", "restarted", "ended") and status.phase != "Succeeded":
        fields |= {"pod": failure.pod, "node": failure.node, "exit_code": failure.exit_code}
    _LOG.info("job %s", transition.kind, extra=fields)
