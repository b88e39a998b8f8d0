"""The transitions of a workload, each a function from status to status.

A transition is one durable write: the status that it returns has everything that later steps need to continue after a
crash. `attempt` increases whenever pods of the present attempt must never be taken for the job's pods again.
"""

from __future__ import annotations

import math
from typing import Final

from muster.api.spec import (
    EvictionStatus,
    NominationStatus,
    PastEvictionStatus,
    QueueingStatus,
    RolePlacementStatus,
)
from muster.model import EVICTION_WINDOW_S, MAX_RECORDED_EVICTIONS, Nominate, Placement, Wait
from muster.workload.conditions import (
    ADMITTED,
    CANCELLED,
    COMPLETE,
    EVICTED,
    FAILED,
    PODS_READY,
    SUSPENDED,
    S,
    find_condition,
    is_admitted,
    is_condition_true,
    is_evicting,
    set_condition,
    with_condition,
    with_status_fields,
)
from muster.workload.placement import (
    describe,
    pod_count,
    recorded_finished_pods,
    to_status,
    without_nodes,
    without_pods,
)
from muster.workload.timeouts import Timeouts


def waiting_since(status: QueueingStatus, now: float) -> float:
    """Since when a job that is not admitted has waited: its submission, the end of its last admission, or its resume.
    `now` if it is not waiting yet."""
    ended = (find_condition(status, kind) for kind in (ADMITTED, SUSPENDED))
    begins = [part.last_transition_time for part in ended if part is not None and part.status == "False"]
    return max([now if status.submitted_at is None else status.submitted_at, *begins])


def admit(status: S, placement: Placement, now: float, max_runtime_s: float | None = None) -> S:
    """Admit the gang at a placement, for at most this time. Its pods may be created once this is written."""
    places = to_status(placement)
    fields = {
        "placement": places,
        "admitted_at": now,
        "max_runtime_seconds": None if max_runtime_s is None else math.ceil(max_runtime_s),
        "started_at": None,
        "requeue_after": None,
        "queue_position": None,
        "estimated_start": None,
        "nomination": None,
        "eviction": None,
        "pods_wanted": pod_count(places),
        "pods_ready": 0,
    }
    status = with_status_fields(status, fields)
    status = set_condition(status, ADMITTED, True, "Admitted", describe(places), now)
    if is_condition_true(status, EVICTED):
        status = set_condition(status, EVICTED, False, "Admitted", "", now)
    return set_condition(status, PODS_READY, False, "Starting", "", now)


def set_waiting(status: S, decision: Wait, now: float) -> S:
    """Set why the gang waits, and its position in the queue."""
    conditions = with_condition(
        status.conditions, ADMITTED, False, decision.reason, decision.message, now, status.observed_generation
    )
    waits: dict[str, object] = {"queue_position": decision.position, "estimated_start": decision.estimated_start}
    if decision.borrowing_head_since is not None:
        waits["borrowing_head_since"] = decision.borrowing_head_since
    elif decision.ends_clock:
        waits["borrowing_head_since"] = None
    return with_status_fields(status, waits | {"conditions": conditions})


def nominate(status: S, decision: Nominate, before: NominationStatus | None, now: float) -> S:
    """Nominate capacity for the gang before any victim is evicted. A nomination for the same capacity and victims as
    the one `before`, which has not expired, is that one, with its expiry: a gang keeps capacity for a limited time."""
    nomination = NominationStatus(
        placement=to_status(decision.placement), victims=list(decision.victims), expires_at=decision.expires_at
    )
    if before is not None and now < before.expires_at:
        same = nomination.model_copy(update={"expires_at": before.expires_at})
        nomination = before if same == before else nomination
    return with_status_fields(status, {"nomination": nomination})


def clear_nomination(status: S) -> S:
    """Withdraw the nomination."""
    return status if status.nomination is None else with_status_fields(status, {"nomination": None})


def evict(status: S, reason: str, message: str, now: float, *, eviction: EvictionStatus | None = None) -> S:
    """Begin to tear an admitted gang down; once its pods are deleted it is requeued. Never a failure."""
    status = with_status_fields(status, {"eviction": eviction})
    return set_condition(status, EVICTED, True, reason, message, now)


def record_eviction(status: S, queue: str, beneficiary_queue: str, now: float) -> S:
    """Record for the limit of evictions that a gang of `queue` is evicted for one of another queue, or of its own."""
    recent = [one for one in status.evictions if one.at > now - EVICTION_WINDOW_S]
    latest = PastEvictionStatus.model_construct(at=now, queue=beneficiary_queue, job_queue=queue)
    return with_status_fields(status, {"evictions": [*recent, latest][-MAX_RECORDED_EVICTIONS:]})


def revoke_eviction(status: S, now: float) -> S:
    """End an eviction of which no pod was stopped: the gang stays where it is, and was not evicted."""
    status = with_status_fields(status, {"eviction": None, "evictions": status.evictions[:-1]})
    message = "another job that was to be evicted with it cannot be"
    return set_condition(status, EVICTED, False, "EvictionRevoked", message, now)


def requeue(
    status: S,
    now: float,
    timeouts: Timeouts,
    retained: list[RolePlacementStatus],
    nomination_ttl_s: float,
) -> S:
    """End the admission: all pods are deleted, the gang waits again. `retained` is nominated for it, for
    `nomination_ttl_s` from when it may start again.

    Some evictions are followed by a backoff (see `backoff_s`).
    """
    evicted = find_condition(status, EVICTED)
    reason = evicted.reason if evicted is not None else "Requeued"
    message = evicted.message if evicted is not None else ""
    delay_s = backoff_s(status, reason, timeouts)
    requeue_after = now + delay_s if delay_s > 0 else None
    starts_at = now if requeue_after is None else requeue_after  # not before: the nomination must not expire until then
    nomination = (
        NominationStatus(placement=retained, victims=[], expires_at=starts_at + nomination_ttl_s) if retained else None
    )
    return with_status_fields(
        _release(status, now, reason, message), {"nomination": nomination, "requeue_after": requeue_after}
    )


START_TIMEOUT: Final = "StartTimeout"
"""Reason of an eviction: the gang was not ready within startTimeoutSeconds."""
POD_REJECTED: Final = "PodRejected"
"""Reason of an eviction, and of the end of a job: a kubelet rejected a pod of the gang."""
POD_UNSUITABLE: Final = "PodUnsuitable"
"""Why a job avoids a node: the kubelet rejected a pod for what the pod is, not for what the node lacks."""
REJECTIONS: Final = frozenset({POD_REJECTED, POD_UNSUITABLE})
"""Why a job avoids nodes that rejected its pods."""


def backoff_s(status: QueueingStatus, reason: str, timeouts: Timeouts) -> float:
    """Seconds that a gang waits after an eviction for this reason; increases with each repetition."""
    match reason:
        case "StartTimeout":
            return timeouts.backoff(status.start_retries)
        case "PodRejected":
            return timeouts.backoff(status.rejections)
        case "RestartElsewhere":
            return timeouts.backoff(status.restarts)
        case "NodeLost" | "PodLost":
            return timeouts.backoff(status.node_losses - 1)  # none after the first
    return 0.0


def restart(status: S, reason: str, message: str, now: float, delay_s: float) -> S:
    """Restart the whole gang on its nodes after `delay_s`; it stays admitted."""
    fields: dict[str, object] = {
        "attempt": status.attempt + 1,
        "started_at": None,
        "ran_seconds": _ran_seconds(status, now),
        "requeue_after": now + delay_s,
        "pods_ready": 0,
        "finished_pods": [],
    }
    return set_condition(with_status_fields(status, fields), PODS_READY, False, reason, message, now)


def resize(status: S, placement: Placement, reason: str, now: float, *, eviction: EvictionStatus | None) -> S:
    """Restart the gang on `placement`, once its present pods are deleted; it stays admitted, nothing failed."""
    places = to_status(placement)
    message = describe(places)
    status = restart(status, "Resizing", f"{reason}: restarts with {message}", now, 0.0)
    fields = {"placement": places, "resized_at": now, "eviction": eviction, "pods_wanted": pod_count(places)}
    return set_condition(with_status_fields(status, fields), ADMITTED, True, "Resized", message, now)


def suspend(status: S, now: float) -> S:
    """Release everything until the job is resumed. Rejections are counted anew then; nodes that are evidence for all
    jobs could otherwise become more than the limit of rejections allows."""
    message = "spec.suspend is true"
    status = _release(status, now, "Suspended", message) if is_admitted(status) else status
    fields = {
        "nomination": None,
        "requeue_after": None,
        "queue_position": None,
        "estimated_start": None,
        "borrowing_head_since": None,
        "start_retries": 0,
        "rejections": 0,
        "blamed_nodes": [entry for entry in status.blamed_nodes if entry.reason not in REJECTIONS],
    }
    status = set_condition(with_status_fields(status, fields), ADMITTED, False, "Suspended", message, now)
    return set_condition(status, SUSPENDED, True, "Suspended", message, now)


def resume(status: S, now: float) -> S:
    """Requeue at its old position."""
    status = set_condition(status, SUSPENDED, False, "Resumed", "", now)
    return set_condition(status, ADMITTED, False, "Resumed", "", now)


def finish(status: S, condition_type: str, reason: str, message: str, now: float) -> S:
    """Decide that the job ends; `kind` is Complete, Failed or Cancelled, and its condition has the time. It has
    terminated once its last process has ended, which may take its grace period. The placement is kept as a record."""
    assert condition_type in (COMPLETE, FAILED, CANCELLED)
    fields = {
        "nomination": None,
        "eviction": None,
        "requeue_after": None,
        "queue_position": None,
        "estimated_start": None,
        "pods_ready": 0,
    }
    status = set_condition(with_status_fields(status, fields), condition_type, True, reason, message, now)
    if find_condition(status, PODS_READY) is not None:
        status = set_condition(status, PODS_READY, False, "Finished", "", now)
    return set_condition(status, ADMITTED, False, "Finished", "", now)


def _release(status: S, now: float, reason: str, message: str) -> S:
    fields: dict[str, object] = {
        "attempt": status.attempt + 1,
        "placement": [],
        "eviction": None,
        "borrowing_head_since": None,
        "admitted_at": None,
        "started_at": None,
        "ran_seconds": _ran_seconds(status, now),
        "pods_wanted": 0,
        "pods_ready": 0,
        "finished_pods": [],
    }
    status = set_condition(with_status_fields(status, fields), PODS_READY, False, reason, "", now)
    return set_condition(status, ADMITTED, False, reason, message, now)


def _ran_seconds(status: QueueingStatus, now: float) -> int:
    """Run time of all attempts up to the present one, which ends now."""
    present = 0.0 if status.started_at is None else max(0.0, now - status.started_at)
    return status.ran_seconds + round(present)


CAPACITY_RETAINING_REASONS: Final = frozenset({"NodeLost", "PodLost", POD_REJECTED, "RestartElsewhere", "Drained"})
"""Evictions after which the gang retains its good nodes while the others are replaced: they are nominated for it once
its last pod is deleted. Until then its evicted condition implies that, so that no other gang gets the capacity."""


def retained_placement(status: QueueingStatus, now: float) -> list[RolePlacementStatus]:
    """Where an evicted gang restarts: its placement without nodes that it excludes, and without pods that had
    completed, whose capacity others may have. Empty: it retains nothing. Which of these nodes accept pods by then, and
    whether its pod sets are still the same, is not known here."""
    evicted = find_condition(status, EVICTED)
    if not is_evicting(status) or evicted is None or evicted.reason not in CAPACITY_RETAINING_REASONS:
        return []
    blamed = frozenset(entry.node for entry in status.blamed_nodes if entry.until > now)
    return without_nodes(without_pods(status.placement, recorded_finished_pods(status)), blamed)


def retained_until(status: QueueingStatus, timeouts: Timeouts, grace_s: float, ttl_s: float) -> float:
    """When it ceases to retain that at the latest, for an evicted gang whose pods stop within `grace_s`; `ttl_s`: for
    how long, from when it may start again."""
    evicted = find_condition(status, EVICTED)
    assert evicted is not None
    return evicted.last_transition_time + grace_s + backoff_s(status, evicted.reason, timeouts) + ttl_s
