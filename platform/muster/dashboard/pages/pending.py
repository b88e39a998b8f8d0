"""Pending jobs by queue: why each waits, its position and estimated start, and who holds the capacity.

Lists of the read API are by namespace and name. If all pending jobs are on one page, they are sorted by position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.dashboard.page import MAX_ROWS, Page, PageRequest
from muster.dashboard.queue_tree import CapacityHolder, capacity_holders
from muster.dashboard.reader import try_read
from muster.visibility.types import PendingJob, PendingJobList, QueueSummary, QueueSummaryList

_MAX_HOLDERS = 12


@dataclass(frozen=True, slots=True)
class PendingQueue:
    """The pending jobs of one queue, and who holds the capacity that it may use."""

    name: str
    jobs: tuple[PendingJob, ...]
    holders: tuple[CapacityHolder, ...]
    more_holders: int


def _data(request: PageRequest) -> Mapping[str, Any]:
    queue = request.get("queue")
    found = request.reader.page(
        PendingJobList, limit=MAX_ROWS, after=request.get("after"), selector={"queue": queue} if queue else None
    )
    queues = try_read(lambda: request.reader.all(QueueSummaryList).items)
    return {
        "queues": queues,
        "groups": _by_queue(found.items, queues.value or ()),
        "is_sorted": not request.get("after") and not found.metadata.continue_token,
        "next": found.metadata.continue_token,
        "remaining": found.metadata.remaining_item_count,
        "shown": len(found.items),
        "queue": queue,
        "first": not request.get("after"),
    }


def _by_queue(jobs: Sequence[PendingJob], queues: Sequence[QueueSummary]) -> list[PendingQueue]:
    by_queue: dict[str, list[PendingJob]] = {}
    for job in sorted(jobs, key=by_position):
        by_queue.setdefault(job.queue, []).append(job)
    groups = []
    for name in sorted(by_queue):
        holders = capacity_holders(queues, name)
        shown = tuple(holders[:_MAX_HOLDERS])
        groups.append(PendingQueue(name, tuple(by_queue[name]), shown, len(holders) - len(shown)))
    return groups


def by_position(job: PendingJob) -> tuple[float, str, str, str]:
    """Sorts by position, those without one last."""
    position = math.inf if job.position is None else job.position
    return position, job.queue, job.metadata.namespace or "", job.metadata.name


PAGE = Page("/pending", "Pending", "pending.html", _data, parameters=("queue", "after"))
