"""Jobs by namespace and name, page by page, of one queue, phase or namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from muster.api.spec import Phase
from muster.dashboard.page import MAX_ROWS, Page, PageRequest
from muster.dashboard.reader import try_read
from muster.visibility.types import JobSummary, JobSummaryList, QueueSummaryList

PHASES: tuple[str, ...] = get_args(Phase)


def running_since(job: JobSummary) -> float | None:
    """The time that its run time counts from, with that of earlier attempts; None unless it runs."""
    if job.started_at is None or job.finished_at is not None:
        return None
    return job.started_at - job.ran_seconds


def _data(request: PageRequest) -> Mapping[str, Any]:
    phase, queue, namespace = request.choice("phase", PHASES), request.get("queue"), request.get("namespace")
    selector = {name: value for name, value in (("phase", phase), ("queue", queue)) if value}
    found = request.reader.page(
        JobSummaryList, limit=MAX_ROWS, after=request.get("after"), namespace=namespace or None, selector=selector
    )
    queues = try_read(lambda: [one.metadata.name for one in request.reader.all(QueueSummaryList).items])
    return {
        "jobs": found.items,
        "running_since": running_since,
        "next": found.metadata.continue_token,
        "remaining": found.metadata.remaining_item_count,
        "first": not request.get("after"),
        "phases": PHASES,
        "queues": queues,
        "selected": {"phase": phase, "queue": queue, "namespace": namespace},
    }


PAGE = Page("/jobs", "Jobs", "jobs.html", _data, parameters=("namespace", "queue", "phase", "after"))
