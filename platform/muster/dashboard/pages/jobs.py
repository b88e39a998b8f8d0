"""Pages with jobs: the overview, pending jobs, all jobs page by page, preempted jobs.

Pending jobs are by position, so that the first page has those that are next in each queue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from muster.api.spec import Phase
from muster.dashboard.page import MAX_ROWS, Page, PageRequest
from muster.dashboard.queue_tree import CapacityHolder, capacity_holders, queue_views
from muster.dashboard.reader import try_read
from muster.queue_bars import QUOTA_COLUMNS
from muster.visibility.columns import columns_of
from muster.visibility.list_types import JobSummaryList, ListResponse, PendingJobList, PreemptionList, QueueSummaryList
from muster.visibility.requests import JOB_ORDERS
from muster.visibility.types import PendingJob, QueueSummary

PHASES: tuple[str, ...] = get_args(Phase)
_JOB_COLUMNS = columns_of("JobSummary", "Job", "Queue", "Phase", "Pods", "Age", "Run time", "Reason")
_PENDING_COLUMNS = columns_of("PendingJob", "Position", "Queue", "Job", "Estimated start", "Priority", "Reason")
_PREEMPTION_COLUMNS = columns_of("Preemption", "Time", "Job", "Queue", "How", "Reason")
_DEFAULT_ORDER = "state"
_MAX_HOLDERS = 12
_PENDING_SHOWN = 10


@dataclass(frozen=True, slots=True)
class PendingQueue:
    """The pending jobs of one queue, and who holds the capacity that it may use."""

    name: str
    jobs: tuple[PendingJob, ...]
    holders: tuple[CapacityHolder, ...]
    more_holders: int


def _overview(request: PageRequest) -> Mapping[str, Any]:
    """The queue tree, how many jobs wait and run, the first pending jobs."""
    reader = request.reader
    queues = try_read(lambda: queue_views(reader.all(QueueSummaryList).items))
    pending = try_read(lambda: reader.page(PendingJobList, limit=_PENDING_SHOWN, sort="position"))
    counts = try_read(lambda: {"running": _count(request, phase="Running"), "all": _count(request)})
    jobs = sorted(pending.value.items, key=_by_position) if pending.value else []
    more = pending.value.metadata.remaining_item_count if pending.value else 0
    return {
        "queues": queues,
        "quota_columns": QUOTA_COLUMNS,
        "counts": counts,
        "pending": pending,
        "pending_count": more + len(jobs),
        "pending_jobs": jobs,
        "columns": _PENDING_COLUMNS,
        "more_pending": more,
    }


def _count(request: PageRequest, **selector: str) -> int:
    """The number of jobs that the user may read."""
    found = request.reader.page(JobSummaryList, limit=1, selector=selector)
    return len(found.items) + found.metadata.remaining_item_count


def _pending(request: PageRequest) -> Mapping[str, Any]:
    """By queue: why each job waits, its position and estimated start, and who holds the capacity."""
    queue = request.get("queue")
    found = request.reader.page(
        PendingJobList,
        limit=MAX_ROWS,
        after=request.get("after"),
        selector={"queue": queue} if queue else None,
        sort="position",
    )
    queues = try_read(lambda: request.reader.all(QueueSummaryList).items)
    return {
        "queues": queues,
        "queue_names": [one.metadata.name for one in queues.value or ()],
        "columns": [column for column in _PENDING_COLUMNS if column.form != "queue"],
        "groups": _by_queue(found.items, queues.value or ()),
        "shown": len(found.items),
        "queue": queue,
        **_position_in_list(request, found),
    }


def _by_queue(jobs: Sequence[PendingJob], queues: Sequence[QueueSummary]) -> list[PendingQueue]:
    by_queue: dict[str, list[PendingJob]] = {}
    for job in sorted(jobs, key=_by_position):
        by_queue.setdefault(job.queue, []).append(job)
    groups = []
    for name in sorted(by_queue):
        holders = capacity_holders(queues, name)
        shown = tuple(holders[:_MAX_HOLDERS])
        groups.append(PendingQueue(name, tuple(by_queue[name]), shown, len(holders) - len(shown)))
    return groups


def _by_position(job: PendingJob) -> tuple[float, str, str, str]:
    """Sorts by position, those without one last."""
    position = math.inf if job.position is None else job.position
    return position, job.queue, job.metadata.namespace or "", job.metadata.name


def _jobs(request: PageRequest) -> Mapping[str, Any]:
    """Running ones first, the newest first, or by name; of one queue, phase or namespace."""
    phase, queue, namespace = request.choice("phase", PHASES), request.get("queue"), request.get("namespace")
    sort = request.choice("sort", JOB_ORDERS) or _DEFAULT_ORDER
    selector = {name: value for name, value in (("phase", phase), ("queue", queue)) if value}
    found = request.reader.page(
        JobSummaryList,
        limit=MAX_ROWS,
        after=request.get("after"),
        namespace=namespace or None,
        selector=selector,
        sort=sort,
    )
    queues = try_read(lambda: [one.metadata.name for one in request.reader.all(QueueSummaryList).items])
    return {
        "jobs": found.items,
        "columns": _JOB_COLUMNS,
        "phases": PHASES,
        "queues": queues,
        "orders": {"state": "running first", "created": "newest first", "name": "by name"},
        "sort": sort,
        "selected": {"phase": phase, "queue": queue, "namespace": namespace, "sort": request.get("sort")},
        **_position_in_list(request, found),
    }


def _preemptions(request: PageRequest) -> Mapping[str, Any]:
    """Jobs that were evicted or shrunk for another job, newest first."""
    queue = request.get("queue")
    found = request.reader.page(
        PreemptionList, limit=MAX_ROWS, after=request.get("after"), selector={"queue": queue} if queue else None
    )
    position = _position_in_list(request, found)
    return {"preemptions": found.items, "columns": _PREEMPTION_COLUMNS, "queue": queue, **position}


def _position_in_list(request: PageRequest, found: ListResponse) -> dict[str, Any]:
    """For the links to the first and the next page of a list."""
    return {
        "next": found.metadata.continue_token,
        "remaining": found.metadata.remaining_item_count,
        "first": not request.get("after"),
    }


OVERVIEW_PAGE = Page("/", "Overview", "overview.html", _overview)
PENDING_PAGE = Page("/pending", "Pending", "pending.html", _pending, parameters=("queue", "after"))
JOBS_PAGE = Page("/jobs", "Jobs", "jobs.html", _jobs, parameters=("namespace", "queue", "phase", "sort", "after"))
PREEMPTIONS_PAGE = Page("/preemptions", "Preemptions", "preemptions.html", _preemptions, parameters=("queue", "after"))
