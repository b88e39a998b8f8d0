"""The table of `muster usage`, with a chart of the steps in each line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group
from rich.table import Table
from rich.text import Text

from muster.text import format_hours, hours_unit, sanitize
from muster.usage.report import STEP_HOURS
from muster.visibility.columns import columns_of
from muster.visibility.list_types import UsageSummaryList
from muster.visibility.reader import Listing, shown_usage
from muster.visibility.types import UsageSummary

_LEVELS = " ▁▂▃▄▅▆▇█"
_MIN_CHART, _MAX_CHART = 8, 60  # columns


def usage_table(found: Listing[UsageSummary], width: int) -> Group:
    """A line per name, flavor and resource, extended resources first; cpu only of names without others. The chart of a
    line is relative to its highest column."""
    page = found.last_page
    assert isinstance(page, UsageSummaryList), "read from the route usage"
    items = shown_usage(found.items)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    shown, now = columns_of("UsageSummary", "Flavor", "Used", "Unit"), page.source.observed_at
    table.add_column(items[0].by.upper(), no_wrap=True)
    for column in shown:
        title = "" if column.title == "Unit" else column.heading
        table.add_column(title, no_wrap=True, justify="right" if column.right else "left")
    table.add_column("LARGEST", no_wrap=True, justify="right")
    table.add_column(f"PER {page.step.upper()}", no_wrap=True)
    used = (
        max(len(item.metadata.name or "(none)") + len(item.flavor) + len(hours_unit(item.resource)) for item in items)
        + 34
    )
    steps = round((page.until - page.since) / 3600 / STEP_HOURS[page.step])
    columns = min(steps, max(_MIN_CHART, min(_MAX_CHART, width - used)))
    for item in items:
        name = Text(sanitize(item.metadata.name)) if item.metadata.name else Text("(none)", style="dim")
        values = by_column(item, page, columns)
        chart = Text(chart_of(values), style="green")
        largest = Text(format_hours(max(values)), style="dim")
        table.add_row(name, *(Text(sanitize(column.show(item, now))) for column in shown), largest, chart)
    until = f"now, {_minute(now)}" if page.until > now else _day(page.until)
    each = (
        f"{'an' if page.step == 'hour' else 'a'} {page.step}"
        if columns == steps
        else f"{steps / columns:.2g} {page.step}s"
    )
    note = f"{_day(page.since)} to {until} UTC; a column is {each}, the highest of a line is LARGEST"
    return Group(table, Text(note, style="dim"))


def by_column(item: UsageSummary, page: UsageSummaryList, columns: int) -> list[float]:
    """The usage divided into equal parts of the period, each step in the part in which it begins."""
    found = [0.0] * columns
    for point in item.points:
        found[min(columns - 1, int((point.at - page.since) / (page.until - page.since) * columns))] += point.hours
    return found


def chart_of(values: Sequence[float]) -> str:
    """A character per value, its height relative to the largest; a value above 0 is never blank."""
    most = max(values, default=0.0) or 1.0
    return "".join(_LEVELS[0 if value <= 0 else max(1, round(value / most * 8))] for value in values)


def _minute(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")


def _day(time_s: float) -> str:
    at = datetime.fromtimestamp(time_s, UTC)
    return at.strftime("%Y-%m-%d") if at.hour == 0 else _minute(time_s)
