"""Jobs, page by page: running ones first, the newest first, or by name; of one queue, phase or namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from muster.api.spec import Phase
from muster.dashboard.page import MAX_ROWS, Page, PageRequest
from muster.dashboard.reader import try_read
from muster.visibility.requests import JOB_ORDERS
from muster.visibility.types import JobSummaryList, QueueSummaryList

PHASES: tuple[str, ...] = get_args(Phase)
_DEFAULT_ORDER = "state"


def _data(request: PageRequest) -> Mapping[str, Any]:
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
        "next": found.metadata.continue_token,
        "remaining": found.metadata.remaining_item_count,
        "first": not request.get("after"),
        "phases": PHASES,
        "queues": queues,
        "orders": {"state": "running first", "created": "newest first", "name": "by name"},
        "sort": sort,
        "selected": {"phase": phase, "queue": queue, "namespace": namespace, "sort": request.get("sort")},
    }


PAGE = Page("/jobs", "Jobs", "jobs.html", _data, parameters=("namespace", "queue", "phase", "sort", "after"))
