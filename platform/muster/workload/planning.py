"""A workload as the planner sees it: its gang, what it has while it is admitted, and what is nominated for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.cluster import PodView
from muster.model import Gang, GangKey, Nomination, PastEviction, Placement, Role
from muster.workload import transitions
from muster.workload.conditions import (
    CANCELLED,
    COMPLETE,
    EVICTED,
    FAILED,
    SUSPENDED,
    find_condition,
    is_admitted,
    is_condition_true,
    is_evicting,
    is_finished,
)
from muster.workload.placement import ended_pods, from_status, held_placement
from muster.workload.protocol import Workload
from muster.workload.timeouts import Timeouts

_TIMEOUTS = Timeouts()  # how long capacity is retained is an estimate until the nomination is written


@dataclass(frozen=True, slots=True)
class Admission:
    """What an admitted workload has, and how its admission may end. Times are Unix seconds.

    `placement` is where it takes capacity: without pods that have ended. `pods_ended`: there are such pods. `attempt`:
    pods of other attempts are terminating. `preemptor`: uid of the workload that it is evicted or
    shrunk for. `retained_placement`: what it keeps nominated, until `retained_until`, after it was evicted.
    """

    placement: Placement
    attempt: int
    pods_ended: bool = False
    evicting: bool = False
    checkpoint_at: float | None = None
    resized_at: float | None = None
    preemptor: str | None = None
    retained_placement: Placement = ()
    retained_until: float | None = None


def gang_key(uid: str, index: int = 0) -> GangKey:
    """The key of the gang with this index of a workload; most have one, of index 0."""
    return f"{uid}/{index}" if index else uid


def is_one_of_several(key: GangKey) -> bool:
    """Whether this gang is one of an object with several: another may be queued once it has ended."""
    return "/" in key


def split_gang_key(key: GangKey) -> tuple[str, int]:
    """The uid of the workload and the index of a gang."""
    uid, _, index = key.partition("/")
    return uid, int(index or "0")


def namespace_of(workload: Workload) -> str:
    """Its namespace; `default` if it names none."""
    return workload.metadata.namespace or "default"


def wants_capacity(workload: Workload) -> bool:
    """False once it is suspended, cancelled, deleted or finished, or about to be."""
    return not (
        workload.metadata.deletion_timestamp is not None
        or is_finished(workload.status)
        or is_condition_true(workload.status, SUSPENDED)
        or workload.is_suspended
        or workload.is_cancelled
    )


def stopping_since(workload: Workload) -> float | None:
    """When its pods last began to stop, as far as its status tells."""
    found = (find_condition(workload.status, kind) for kind in (COMPLETE, FAILED, CANCELLED, EVICTED))
    return max((one.last_transition_time for one in found if one is not None and one.status == "True"), default=None)


def effective_priority(workload: Workload, priority_classes: Mapping[str, int]) -> int | None:
    """Its own priority, or the value of its PriorityClass. None: the class does not exist."""
    named = workload.priority_class
    return workload.own_priority if named is None else priority_classes.get(named)


def grace_period_s(workload: Workload, limit_s: float) -> float:
    """The longest grace period of its pods, at most `limit_s`, the limit of its queue."""
    return min(workload.grace_s, limit_s)


def nomination_ttl_s(workload: Workload, limit_s: float) -> float:
    """Seconds for which it retains capacity, from when it may start again."""
    return grace_period_s(workload, limit_s) + workload.start_timeout_s


def gang_of(
    workload: Workload, now: float, priority_classes: Mapping[str, int], roles: tuple[Role, ...], max_grace_s: float
) -> Gang:
    """It as the planner sees it; `roles` is the result of `roles()`, `max_grace_s` the longest grace period that its
    queue allows."""
    meta, status = workload.metadata, workload.status
    priority = effective_priority(workload, priority_classes)
    if priority is None:  # the class of a running workload may be deleted
        priority = status.priority or 0
    return Gang(
        uid=workload.key,
        name=f"{namespace_of(workload)}/{meta.name}",
        queue=workload.queue,
        priority=priority,
        submitted_at=status.submitted_at if status.submitted_at is not None else now,
        roles=roles,
        flavors=tuple(workload.flavors),
        topology=workload.topology,
        max_runtime_s=workload.max_runtime_s,
        grace_s=grace_period_s(workload, max_grace_s),
        start_timeout_s=workload.start_timeout_s,
        excluded_nodes=frozenset(entry.node for entry in status.blamed_nodes if entry.until > now),
        borrowing_head_since=status.borrowing_head_since,
        evictions=tuple(PastEviction(one.at, one.queue, one.job_queue) for one in status.evictions),
    )


def admission_of(workload: Workload, now: float, pods: Sequence[PodView], max_grace_s: float) -> Admission | None:
    """What it, with these pods, has while it is admitted; None before, and once it is finished or deleted."""
    status = workload.status
    if not is_admitted(status) or is_finished(status) or workload.metadata.deletion_timestamp is not None:
        return None
    retained = transitions.retained_placement(status, now)
    if not workload.allows(retained):
        retained = []
    until = None
    if retained:
        grace_s, ttl_s = grace_period_s(workload, max_grace_s), nomination_ttl_s(workload, max_grace_s)
        until = transitions.retained_until(status, _TIMEOUTS, grace_s, ttl_s)
    return Admission(
        placement=held_placement(status, pods, retained, creates_pods=workload.creates_pods),
        pods_ended=bool(ended_pods(status, pods)),
        attempt=status.attempt,
        evicting=is_evicting(status),
        checkpoint_at=workload.checkpoint_at,
        resized_at=status.resized_at,
        preemptor=None if status.eviction is None else status.eviction.beneficiary or None,
        retained_placement=from_status(retained),
        retained_until=until,
    )


def nomination_of(workload: Workload, now: float, gang: Gang) -> Nomination | None:
    """The capacity nominated for it, unless that has expired."""
    nomination = workload.status.nomination
    if nomination is None or now >= nomination.expires_at or workload.metadata.deletion_timestamp is not None:
        return None
    placement, victims = from_status(nomination.placement), tuple(nomination.victims)
    return Nomination(workload.key, placement, victims, nomination.expires_at, nominated_gang=gang)
