"""Jobs that were evicted or shrunk for another job, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.dashboard.page import MAX_ROWS, Page, PageRequest
from muster.visibility.types import PreemptionList


def _data(request: PageRequest) -> Mapping[str, Any]:
    queue = request.get("queue")
    found = request.reader.page(
        PreemptionList, limit=MAX_ROWS, after=request.get("after"), selector={"queue": queue} if queue else None
    )
    return {
        "preemptions": found.items,
        "queue": queue,
        "next": found.metadata.continue_token,
        "remaining": found.metadata.remaining_item_count,
        "first": not request.get("after"),
    }


PAGE = Page("/preemptions", "Preemptions", "preemptions.html", _data, parameters=("queue", "after"))
