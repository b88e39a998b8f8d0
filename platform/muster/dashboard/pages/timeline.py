"""What ran where in the last hours, and what is expected to start: a Gantt chart with a row for each node."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.dashboard.page import Page, PageRequest
from muster.dashboard.reader import MAX_AGE_S, PageReader
from muster.visibility.list_types import JobSummaryList
from muster.visibility.requests import MAX_LIMIT
from muster.visibility.types import DataSource, JobSummary

HOURS = ("1", "6", "24", "168")
MAX_NODES = 100
MAX_PENDING = 25
MAX_LANES = 16
"""Jobs on one node at a time that are drawn."""
_FUTURE_SHARE = 0.3
"""Of the chart, for what is expected to start."""

_MAX_TICKS = 9
_TICK_STEPS_S = (300, 600, 900, 1800, 3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400)

# In units of the SVG.
LEFT, WIDTH, LANE, GAP, TOP = 150, 1000, 14, 4, 22


@dataclass(frozen=True, slots=True)
class Bar:
    """A job on a node, or a pending job from its estimated start; `x` and `width` in units of the SVG."""

    job: JobSummary
    x: float
    width: float
    lane: int


@dataclass(frozen=True, slots=True)
class Row:
    """A node, or the place of a pending job; `y` and `height` in units of the SVG."""

    label: str
    y: float
    height: float
    bars: Sequence[Bar]
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """`ticks`: x and Unix seconds. `heading_y`: of the heading above the pending jobs."""

    rows: Sequence[Row]
    expected: Sequence[Row]
    heading_y: float
    ticks: Sequence[tuple[float, float]]
    now_x: float
    height: float
    omitted_nodes: int
    has_more_pending: bool


def _data(request: PageRequest) -> Mapping[str, Any]:
    hours = int(request.choice("hours", HOURS) or HOURS[1])
    past_s = hours * 3600.0
    jobs, source = request.reader.remember(
        f"timeline {hours}", lambda: _read_jobs(request.reader, request.now - past_s), MAX_AGE_S
    )
    request.reader.source = source  # also of an answer that another page has read
    return {
        "chart": gantt_chart(jobs, request.now, past_s),
        "hours": HOURS,
        "selected": hours,
        "left": LEFT,
        "total": WIDTH,
        "lane_height": LANE,
    }


def _read_jobs(reader: PageReader, begin: float) -> tuple[list[JobSummary], DataSource | None]:
    """The pending jobs that are expected to start next, the jobs with nodes, and those that ended since `begin`."""
    expected = reader.page(JobSummaryList, limit=MAX_PENDING + 1, selector={"phase": "Pending"}, sort="start")
    found = {job.metadata.uid: job for job in expected.items}
    after = ""
    while True:
        page = reader.page(JobSummaryList, limit=MAX_LIMIT, after=after, sort="recent")
        for job in page.items:
            if job.phase in ("Pending", "Suspended") or (job.finished_at is not None and job.finished_at < begin):
                return [*found.values()], reader.source
            found[job.metadata.uid] = job  # in its newer state, if its order changed between two pages
        after = page.metadata.continue_token
        if not after:
            return [*found.values()], reader.source


def gantt_chart(jobs: Iterable[JobSummary], now: float, past_s: float) -> Chart:
    """The jobs that had nodes in the last `past_s` seconds, and pending jobs with an estimated start."""
    jobs = list(jobs)
    pending = [job for job in jobs if job.phase == "Pending" and job.estimated_start is not None]
    pending.sort(key=lambda job: (job.estimated_start or 0.0, job.metadata.namespace or "", job.metadata.name))
    shown_pending = pending[:MAX_PENDING]
    longest_wait = max(((job.estimated_start or now) - now for job in shown_pending), default=0.0)
    future_s = min(max(longest_wait * 1.25, past_s / 20), past_s * _FUTURE_SHARE / (1 - _FUTURE_SHARE))
    begin, end = now - past_s, now + future_s

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT) * (min(max(at, begin), end) - begin) / (end - begin)

    by_node: dict[str, list[tuple[float, float, JobSummary]]] = defaultdict(list)
    for job in jobs:
        start = job.admitted_at if job.admitted_at is not None else job.started_at
        if job.phase == "Pending" or start is None:
            continue
        stop = now if job.finished_at is None else job.finished_at
        if stop >= begin:
            for node in job.nodes:
                by_node[node].append((start, stop, job))
    rows, y = [], float(TOP)
    names = sorted(by_node)
    for name in names[:MAX_NODES]:
        row = _row(name, by_node[name], y, x)
        rows.append(row)
        y += row.height + GAP
    expected = []
    heading_y = y + 11
    if shown_pending:
        y += LANE + GAP
    for job in shown_pending:
        at = x(job.estimated_start or now)
        bar = Bar(job, at, max(WIDTH - at, 4.0), 0)
        expected.append(Row(f"{job.metadata.namespace}/{job.metadata.name}", y, LANE, [bar]))
        y += LANE + GAP
    ticks = [(x(at), at) for at in round_times(begin, end)]
    return Chart(
        rows,
        expected,
        heading_y,
        ticks,
        x(now),
        y,
        max(0, len(names) - MAX_NODES),
        len(pending) > len(shown_pending),
    )


def round_times(begin: float, end: float) -> list[float]:
    """Full minutes, hours or days of the local time within this span, at most `_MAX_TICKS`."""
    step = next((one for one in _TICK_STEPS_S if (end - begin) / one <= _MAX_TICKS), _TICK_STEPS_S[-1])
    offset = datetime.fromtimestamp(begin).astimezone().utcoffset()
    shift = 0.0 if offset is None else offset.total_seconds()
    first = math.ceil((begin + shift) / step)
    return [number * step - shift for number in range(first, math.floor((end + shift) / step) + 1)]


def _row(label: str, spans: list[tuple[float, float, JobSummary]], y: float, x: Any) -> Row:
    """Jobs at the same time are in lanes of their own."""
    ends: list[float] = []  # of the last job by lane
    bars, omitted = [], 0
    for start, stop, job in sorted(spans, key=lambda span: (span[0], span[2].metadata.uid, span[2].metadata.name)):
        lane = next((number for number, end in enumerate(ends) if end <= start), len(ends))
        if lane >= MAX_LANES:
            omitted += 1
            continue
        ends[lane : lane + 1] = [stop]
        bars.append(Bar(job, x(start), max(x(stop) - x(start), 1.5), lane))
    return Row(label, y, max(1, len(ends)) * LANE, bars, omitted)


PAGE = Page("/timeline", "Timeline", "timeline.html", _data, parameters=("hours",))
