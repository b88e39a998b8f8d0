"""The statuses that a cycle writes: in which order, and how often.

The status of every job is written at most once per cycle, since each write is guarded by the resourceVersion that was
read. The order makes a crash after any write harmless: capacity is nominated before any victim is evicted for it, all
victims are marked before the first pod is stopped, and an admission is written before its first pod is created.

Why a job waits is written at once at its first result and for a new reason; otherwise at most once a minute, for all
jobs together ten times per second on average; errors of the job itself every five seconds. Positions and estimates
change with every plan; writing them all would cost more than planning. Current values are in the `waits` of a cycle's
result. Fair-share usage of queues is written as often; `queue_usage` has their other usage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import TypeAlias

import numpy as np

from muster.api import spec
from muster.api.quantity import format_quantity
from muster.api.spec import QueueingStatus
from muster.api.validation import QueueReadiness
from muster.cluster import ObjectWrites, Write, WriteFlavorStatus, WritePhase, WriteQueueStatus, WriteStatus
from muster.model import Wait
from muster.scheduling import PlannerCache
from muster.state import JobEntry
from muster.state.fair_share import FairShare
from muster.workload import transitions
from muster.workload.conditions import ADMITTED, find_condition, with_condition
from muster.workload.protocol import Workload


class WritePriority(IntEnum):
    """When in a cycle a job is written; see `StatusUpdate.raise_priority` for a job with several reasons."""

    NOMINATION = 0  # nominated, or loses a nomination
    LIFECYCLE = 1  # its own lifecycle: ended, restarts, releases
    PREEMPTION = 2  # evicted, shrunk, or its nomination was taken
    ADMISSION = 3  # takes capacity: admitted, or grows
    WAIT_STATUS = 4  # why it waits: no other write depends on it
    PODS_READY = 5  # that it runs: no other write depends on it


@dataclass(slots=True)
class StatusUpdate:
    """What a cycle writes of one job."""

    workload: Workload  # as observed
    status: QueueingStatus
    priority: WritePriority
    writes: list[Write] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return self.status is not self.workload.status and self.status != self.workload.status

    def raise_priority(self, priority: WritePriority) -> None:
        """Add a reason to write the job: it is written after everything that any of its reasons depends on. A new
        nomination comes first in any case, since its victims are evicted after it."""
        if priority is WritePriority.NOMINATION or self.priority in (
            WritePriority.WAIT_STATUS,
            WritePriority.PODS_READY,
        ):
            self.priority = priority
        elif priority not in (WritePriority.WAIT_STATUS, WritePriority.PODS_READY):
            self.priority = max(self.priority, priority)


def write_phases(updates: Iterable[StatusUpdate]) -> tuple[list[WritePhase], WritePhase]:
    """All writes of the jobs: one phase per priority, except that all victims are marked in one phase before the next
    stops their pods; and, separately, what may be written later."""
    groups: dict[WritePriority, list[StatusUpdate]] = {priority: [] for priority in WritePriority}
    for update in updates:
        groups[update.priority].append(update)
    later = [*groups.pop(WritePriority.WAIT_STATUS), *groups.pop(WritePriority.PODS_READY)]
    phases: list[WritePhase] = []
    for priority, group in groups.items():
        if priority is WritePriority.PREEMPTION:
            phases.append(_phase((update, _status_writes(update)) for update in group))
            phases.append(_phase((update, update.writes) for update in group))
        else:
            phases.append(_phase((update, [*_status_writes(update), *update.writes]) for update in group))
    return [phase for phase in phases if phase], _phase(
        (update, [*_status_writes(update), *update.writes]) for update in later
    )


def _phase(writes_by_update: Iterable[tuple[StatusUpdate, list[Write]]]) -> WritePhase:
    return tuple(ObjectWrites(update.workload.key, tuple(writes)) for update, writes in writes_by_update if writes)


def _status_writes(update: StatusUpdate) -> list[Write]:
    if not update.changed:
        return []
    workload = update.workload
    return [WriteStatus(workload.key, update.status, workload.metadata.resource_version, workload.status)]


_WaitText: TypeAlias = tuple[str, int | None, float | None]
REFRESHED_POSITIONS = 100  # positions of a queue that are refreshed
_REFRESHES_PER_SECOND = 10.0  # for all jobs together
_ERROR_REFRESH_S = 5.0  # errors of the job itself: its owner watches the result while fixing it


@dataclass(slots=True)
class WaitStatusThrottle:
    """How often is written why jobs wait. `refresh_s`: seconds until the same reason is written again."""

    refresh_s: float
    _full_refresh_s: float = 0.0  # how long it takes to write all of them

    def begin_cycle(self, waits: Iterable[Wait]) -> None:
        """These jobs wait now: with many jobs each position is refreshed less often."""
        count = sum(wait.position is not None and wait.position <= REFRESHED_POSITIONS for wait in waits)
        self._full_refresh_s = count / _REFRESHES_PER_SECOND

    def update(
        self, entry: JobEntry, wait: Wait, status: QueueingStatus, now: float, *, force: bool
    ) -> tuple[QueueingStatus, float | None]:
        """The status to write (the same object: nothing), and when to call again. The entry records what is written.

        `force`: the status is written in any case, so it gets the newest message.
        """
        code, text = _written_wait(entry, status)
        has_clock = status.borrowing_head_since is not None
        is_durable = wait.ends_clock if has_clock else wait.borrowing_head_since is not None  # a clock begins or ends
        if not force and code == wait.reason and not is_durable:
            if text == _wait_text(wait) or (wait.position is not None and wait.position > REFRESHED_POSITIONS):
                return status, None
            in_turn_s = max(self.refresh_s, self._full_refresh_s)
            every_s = in_turn_s if wait.position is not None else min(self.refresh_s, _ERROR_REFRESH_S)
            if entry.wait_written_at is None:
                entry.wait_written_at = now
            due = entry.wait_written_at + every_s
            if now < due:
                return status, due if due < inf else None
        entry.wait, entry.wait_written_at = wait, now
        return transitions.set_waiting(status, wait, now), None


def _written_wait(entry: JobEntry, status: QueueingStatus) -> tuple[str | None, _WaitText]:
    """Reason and message in the status, as far as known."""
    if entry.wait is not None:
        return entry.wait.reason, _wait_text(entry.wait)
    condition = find_condition(status, ADMITTED)
    if condition is None:
        return None, ("", None, None)
    return condition.reason, (condition.message, status.queue_position, status.estimated_start)


def _wait_text(wait: Wait) -> _WaitText:
    return wait.message, wait.position, wait.estimated_start


def guarantees_exceeding_nodes(cache: PlannerCache) -> dict[str, str]:
    """By queue, a sentence if it is guaranteed more than all nodes of a flavor have."""
    table, found = cache.table, dict[str, str]()
    for queue in cache.tree.queues:
        for quota in queue.quotas:
            span, column = table.flavors.get(quota.flavor), table.columns.get(quota.resource)
            if span is None or not quota.guaranteed:
                continue
            has = 0.0 if column is None else table.allocatable[span.start : span.stop, column].sum(dtype=np.float64)
            if quota.guaranteed > has:
                amount = f"{format_quantity(quota.guaranteed, quota.resource)} {quota.resource} of {quota.flavor}"
                found.setdefault(queue.name, f"{amount} are guaranteed, more than all nodes of that flavor have")
    return found


def queue_status_writes(
    queues: Iterable[spec.Queue],
    readiness: Mapping[str, QueueReadiness],
    exceeding: Mapping[str, str],
    fair_share_usage: FairShare,
    now: float,
    refresh_s: float,
    new_usage: Mapping[str, spec.QueueUsageStatus],
) -> list[WriteQueueStatus]:
    """Active and Overcommitted at once when they change, fair-share usage at most every `refresh_s`, `new_usage` of
    queues by name."""
    writes = []
    for queue in queues:
        ready, generation = readiness[queue.metadata.name], queue.metadata.generation
        conditions = queue.status.conditions
        conditions = with_condition(conditions, "Active", ready.active, ready.reason, ready.message, now, generation)
        over, reason = ready.overcommitted_message, "ChildrenExceedGuarantee"
        if over is None:
            over = exceeding.get(queue.metadata.name)
            reason = "WithinGuarantee" if over is None else "ExceedsNodes"
        conditions = with_condition(conditions, "Overcommitted", over is not None, reason, over or "", now, generation)
        fair_share = queue.status.fair_share
        if now >= (0.0 if fair_share is None else fair_share.at) + refresh_s:
            fair_share = fair_share_usage.status(queue.metadata.name, now) or fair_share
        usage = new_usage.get(queue.metadata.name, queue.status.usage)
        new = {"conditions": conditions, "fair_share": fair_share, "usage": usage}
        if any(value is not getattr(queue.status, field) for field, value in new.items()):
            status = queue.status.model_copy(update=new)
            writes.append(WriteQueueStatus(queue.metadata.name, status))
    return writes


def flavor_status_writes(
    flavors: Iterable[spec.Flavor], overlaps: Mapping[str, str], now: float
) -> list[WriteFlavorStatus]:
    """Overlapping, with the nodes that the flavor loses because another one matches them too."""
    writes = []
    for flavor in flavors:
        message = overlaps.get(flavor.metadata.name)
        reason = "NoOverlap" if message is None else "NodesMatchTwoFlavors"
        old = flavor.status.conditions
        new = with_condition(
            old, "Overlapping", message is not None, reason, message or "", now, flavor.metadata.generation
        )
        if new is not old:
            writes.append(WriteFlavorStatus(flavor.metadata.name, flavor.status.model_copy(update={"conditions": new})))
    return writes
