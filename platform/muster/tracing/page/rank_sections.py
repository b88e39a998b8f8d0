"""The sections of a report's page that compare ranks: heat maps of step times, waits, bandwidths of collectives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from muster.tracing.analysis.run_analysis import Report
from muster.tracing.formatting import format_bytes, format_number, format_seconds
from muster.tracing.page.charts import ChartSection
from muster.tracing.page.metric_sections import MAX_CURVES
from muster.tracing.page.rank_charts import (
    HEAT_LEVELS,
    HeatCell,
    HeatMap,
    ValueBar,
    ValueRow,
    heat_map_chart,
    value_bar_chart,
)
from muster.tracing.ranks.collective_stats import CollectiveStats, RankWait
from muster.tracing.ranks.step_grid import StepGrid

MAX_WAIT_ROWS = 64
MIN_RANGE = 1.2  # of a colour scale: smaller differences are not drawn as large ones


def rank_sections(report: Report) -> list[ChartSection]:
    """What is known of several ranks; empty for one rank."""
    sections = []
    if report.without_waiting is not None:
        sections.append(_map_without_waiting(report.without_waiting))
    if report.waits:
        sections.append(_waits(report.waits))
    if report.collectives:
        sections.append(_bandwidth(report.collectives))
    if report.step_time_grid is not None and len(report.step_times) > MAX_CURVES:
        sections.append(_map_of_all_ranks(report.step_time_grid))
    return sections


def step_time_heat_maps(report: Report) -> list[ChartSection]:
    """The heat maps by rank and step, the one that names a slow rank first; empty for one rank."""
    maps = [] if report.without_waiting is None else [_map_without_waiting(report.without_waiting)]
    return maps if report.step_time_grid is None else [*maps, _map_of_all_ranks(report.step_time_grid)]


def _map_without_waiting(grid: StepGrid) -> ChartSection:
    hint = (
        "The time of each traced step without the time in which the rank waited for others in collectives and "
        "computed nothing: a rank that all others wait for stands out. Waiting in sends and receives is included."
    )
    return _heat_map("Step time without waiting", grid, hint)


def _map_of_all_ranks(grid: StepGrid) -> ChartSection:
    hint = "As each rank measured it, so it includes the time in which it waited for others."
    return _heat_map("Step time of all ranks", grid, hint)


def _heat_map(title: str, grid: StepGrid, hint: str) -> ChartSection:
    known = [seconds for row in grid.seconds for seconds in row if seconds is not None]
    low, high = np.quantile(known, (0.02, 0.98)).tolist()
    bounds = np.linspace(low, max(high, low * MIN_RANGE, 1e-9), HEAT_LEVELS + 1)[1:-1]
    rows = tuple(_numbers("rank", *ranks) for ranks in grid.ranks)
    columns = tuple(f"{first:,}" for first, _ in grid.steps)
    cells = tuple(
        tuple(
            None
            if seconds is None
            else HeatCell(
                int(np.searchsorted(bounds, seconds, side="right")),
                f"rank {slowest}, {_numbers('step', *steps)}: {format_seconds(seconds)}",
            )
            for seconds, slowest, steps in zip(of_row, slowest_of_row, grid.steps, strict=True)
        )
        for of_row, slowest_of_row in zip(grid.seconds, grid.slowest, strict=True)
    )
    chart = heat_map_chart(HeatMap(f"{title}, per rank and step", rows, columns, cells, "step"))
    texts = [format_seconds(bound) for bound in bounds.tolist()]
    names = [f"below {texts[0]}", *(f"{a} to {b}" for a, b in pairwise(texts)), f"from {texts[-1]}"]
    legend = tuple((f"h{level}", name) for level, name in enumerate(names))
    return ChartSection(title, chart, legend, " ".join([hint, *_aggregation(grid)]))


def _aggregation(grid: StepGrid) -> list[str]:
    """What a cell stands for, if not for one rank and step."""
    sentences = []
    if grid.steps_per_column > 1:
        sentences.append(f"Each cell is the mean of {grid.steps_per_column} steps.")
    if grid.ranks_per_row > 1:
        sentences.append(f"Each row is the slowest of {grid.ranks_per_row} ranks.")
    return sentences


def _numbers(name: str, first: int, last: int) -> str:
    """`rank 3` or `ranks 0–3`."""
    return f"{name} {first:,}" if first == last else f"{name}s {first:,}–{last:,}"


def _waits(waits: tuple[RankWait, ...]) -> ChartSection:
    shown = sorted(waits, key=lambda wait: (-wait.awaited_ms, wait.rank))[:MAX_WAIT_ROWS]
    rows = [
        ValueRow(
            f"rank {wait.rank}",
            (
                ValueBar(
                    "communication",
                    wait.waits_ms / 1e3,
                    f"waits {format_seconds(wait.waits_ms / 1e3)} per step for others",
                ),
                ValueBar(
                    "c1", wait.awaited_ms / 1e3, f"others wait {format_seconds(wait.awaited_ms / 1e3)} per step for it"
                ),
            ),
        )
        for wait in sorted(shown, key=lambda wait: wait.rank)
    ]
    hint = (
        "Per step, while nothing is computed: how long a rank waits in collectives for ranks that come later, and how "
        "long the median other rank waits for this one, the last to come."
    )
    if len(shown) < len(waits):
        hint += f" {len(shown)} of {len(waits)} ranks are shown: those that others wait for longest."
    return ChartSection(
        title="Waiting per rank",
        chart=value_bar_chart(rows, "Waiting per rank and step", as_time=True),
        legend=(("communication", "waits for others"), ("c1", "others wait for it")),
        hint=hint,
    )


def _bandwidth(collectives: tuple[CollectiveStats, ...]) -> ChartSection:
    rows = [
        ValueRow(
            f"{kind.name}, {format_bytes(kind.message_bytes)}",
            (ValueBar("communication", kind.bus_gb_s, _describe(kind), (kind.low_gb_s, kind.high_gb_s)),),
            f"{format_number(kind.bus_gb_s)} GB/s, {format_seconds(kind.transfer_ms / 1e3)}",
        )
        for kind in collectives
    ]
    return ChartSection(
        title="Bandwidth of collectives",
        chart=value_bar_chart(rows, "Bus bandwidth of collectives", suffix=" GB/s"),
        hint="NCCL's bus bandwidth from the entry of the last rank to the end: the median, and a line from the 10th to "
        "the 90th percentile. Those that take the longest come first.",
    )


def _describe(kind: CollectiveStats) -> str:
    bandwidths = [format_number(value) for value in (kind.bus_gb_s, kind.low_gb_s, kind.high_gb_s)]
    calls = f"{format_number(kind.calls)} per step on {kind.ranks} ranks"
    return f"median {bandwidths[0]} GB/s, {bandwidths[1]} to {bandwidths[2]}; {calls}"
