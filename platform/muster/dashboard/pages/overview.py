"""The first page: the queue tree, how many jobs wait and run, the first pending jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.dashboard.page import MAX_ROWS, Page, PageRequest
from muster.dashboard.pages.pending import by_position
from muster.dashboard.queue_tree import queue_views
from muster.dashboard.reader import try_read
from muster.visibility.types import JobSummaryList, PendingJobList, QueueSummaryList

_PENDING_SHOWN = 10


def _data(request: PageRequest) -> Mapping[str, Any]:
    reader = request.reader
    queues = try_read(lambda: queue_views(reader.all(QueueSummaryList).items))
    pending = try_read(lambda: reader.page(PendingJobList, limit=MAX_ROWS))
    counts = try_read(lambda: {"running": _count(request, phase="Running"), "all": _count(request)})
    jobs = sorted(pending.value.items, key=by_position) if pending.value else []
    more = pending.value.metadata.remaining_item_count + len(jobs[_PENDING_SHOWN:]) if pending.value else 0
    return {
        "queues": queues,
        "counts": counts,
        "pending": pending,
        "pending_count": more + len(jobs[:_PENDING_SHOWN]),
        "pending_jobs": jobs[:_PENDING_SHOWN],
        "more_pending": more,
    }


def _count(request: PageRequest, **selector: str) -> int:
    """The number of jobs that the user may read."""
    found = request.reader.page(JobSummaryList, limit=1, selector=selector)
    return len(found.items) + found.metadata.remaining_item_count


PAGE = Page("/", "Overview", "overview.html", _data)
