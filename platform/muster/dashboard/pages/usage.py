"""Usage over time: resource-hours per queue, namespace or user, with a bar for each day or hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

from muster.dashboard.page import Page, PageRequest
from muster.usage.report import STEP_HOURS, UsageGroup, UsageStep
from muster.visibility.list_types import UsageSummaryList
from muster.visibility.reader import shown_usage
from muster.visibility.types import UsageSummary

GROUPS: tuple[str, ...] = get_args(UsageGroup)
DAYS = ("1", "7", "30", "90")
MAX_ROWS = 100
_USAGE_AGE_S = 20.0

# In units of the SVG.
CHART_WIDTH, CHART_HEIGHT = 360.0, 30.0


@dataclass(frozen=True, slots=True)
class UsageBar:
    """One step; `x`, `width` and `height` in units of the SVG, `at` in Unix seconds."""

    x: float
    width: float
    height: float
    at: float
    hours: float


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A name, flavor and resource. The highest bars of rows with the same resource are of the same usage per height."""

    item: UsageSummary
    bars: Sequence[UsageBar]


def _data(request: PageRequest) -> Mapping[str, Any]:
    by = request.choice("by", GROUPS) or GROUPS[0]
    days = int(request.choice("days", DAYS) or "30")
    step: UsageStep = "hour" if days == 1 else "day"
    since = datetime.fromtimestamp(request.now - days * 86400, UTC).replace(second=0, microsecond=0).isoformat()
    found = request.reader.remember(
        f"usage {by} {days}",
        lambda: request.client.usage({"by": by, "step": step, "from": since}),
        _USAGE_AGE_S,
    )
    page = found.last_page
    assert isinstance(page, UsageSummaryList), "read from the route usage"
    rows = usage_rows(found.items, page.since, page.until, STEP_HOURS[step] * 3600.0)
    return {
        "rows": rows[:MAX_ROWS],
        "omitted": max(0, len(rows) - MAX_ROWS),
        "step": step,
        "groups": GROUPS,
        "days": DAYS,
        "selected": {"by": by, "days": str(days)},
        "width": CHART_WIDTH,
        "height": CHART_HEIGHT,
    }


def usage_rows(items: Sequence[UsageSummary], since: float, until: float, step_s: float) -> list[UsageRow]:
    """The rows of `shown_usage`."""
    shown = shown_usage(items)
    highest: dict[str, float] = {}
    for item in shown:
        most = max((point.hours for point in item.points), default=0.0)
        highest[item.resource] = max(most, highest.get(item.resource, 0.0))
    wide = CHART_WIDTH * step_s / max(until - since, step_s)
    rows = []
    for item in shown:
        bars = [
            UsageBar(
                (point.at - since) / step_s * wide,
                max(wide - 1, wide * 0.6),
                max(point.hours / (highest[item.resource] or 1.0) * CHART_HEIGHT, 0.5),
                point.at,
                point.hours,
            )
            for point in item.points
        ]
        rows.append(UsageRow(item, bars))
    return rows


PAGE = Page("/usage", "Usage", "usage.html", _data, parameters=("by", "days"))
