"""The sections of a report's page that compare ranks: heat maps of step times, waits, bandwidths of collectives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from muster.tracing.analysis.run_analysis import Report
from muster.tracing.formatting import format_bytes, format_number, format_seconds
from muster.tracing.page.axes import tick_labels, tick_values
from muster.tracing.page.bars import BarChart, BarLane, BarRow, stacked, time_axis
from muster.tracing.page.charts import ChartSection
from muster.tracing.page.metric_sections import MAX_CURVES
from muster.tracing.page.rank_charts import HEAT_LEVELS, HeatCell, HeatMap, heat_map_chart
from muster.tracing.ranks.collective_stats import CollectiveStats, RankWait
from muster.tracing.ranks.step_grid import StepGrid

MAX_WAIT_ROWS = 64
MIN_RANGE = 1.2  # of a colour scale: smaller differences are not drawn as large ones


def rank_bars(report: Report) -> list[BarChart]:
    """How long ranks wait, and how fast collectives are; empty for one rank."""
    waits = [_waits(report.waits)] if report.waits else []
    return [*waits, *([_bandwidth(report.collectives)] if report.collectives else [])]


def heat_maps(report: Report) -> list[ChartSection]:
    """The heat maps of the page by rank and step; empty for one rank."""
    maps = [] if report.without_waiting is None else [_map_without_waiting(report.without_waiting)]
    if report.step_time_grid is not None and len(report.step_times) > MAX_CURVES:
        maps.append(_map_of_all_ranks(report.step_time_grid))
    return maps


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


def _waits(waits: tuple[RankWait, ...]) -> BarChart:
    shown = sorted(waits, key=lambda wait: (-wait.awaited_ms, wait.rank))[:MAX_WAIT_ROWS]
    length, ticks = time_axis(max(max(wait.waits_ms, wait.awaited_ms) for wait in shown) / 1e3)
    rows = []
    for wait in sorted(shown, key=lambda wait: wait.rank):
        waits_s, awaited_s = wait.waits_ms / 1e3, wait.awaited_ms / 1e3
        own = f"waits {format_seconds(waits_s)} per step for others"
        of_others = f"others wait {format_seconds(awaited_s)} per step for it"
        bars = (("waiting", waits_s, own, ""),), (("c1", awaited_s, of_others, ""),)
        lanes = tuple(BarLane(bars=stacked(of_lane, length), thin=True) for of_lane in bars)
        rows.append(BarRow(f"rank {wait.rank}", lanes, f"{own}, {of_others}"))
    hint = (
        "Per step, while nothing is computed: how long a rank waits in collectives for ranks that come later, and how "
        "long the median other rank waits for this one, the last to come."
    )
    if len(shown) < len(waits):
        hint += f" {len(shown)} of {len(waits)} ranks are shown: those that others wait for longest."
    legend = (("waiting", "waits for others"), ("c1", "others wait for it"))
    return BarChart("Waiting per rank", tuple(rows), ticks, legend, hint)


def _bandwidth(collectives: tuple[CollectiveStats, ...]) -> BarChart:
    longest = max(kind.high_gb_s for kind in collectives)
    ticks = [tick for tick in tick_values(0, longest, 5) if tick <= longest]
    rows = tuple(
        BarRow(
            f"{kind.name}, {format_bytes(kind.message_bytes)}",
            (
                BarLane(
                    bars=stacked(
                        [
                            ("communication", kind.low_gb_s, _describe(kind), ""),
                            ("communication l3", kind.bus_gb_s - kind.low_gb_s, _describe(kind), ""),
                            ("communication l1", kind.high_gb_s - kind.bus_gb_s, _describe(kind), ""),
                        ],
                        longest,
                    ),
                    thin=True,
                ),
            ),
            f"{_describe(kind)}, {format_seconds(kind.transfer_ms / 1e3)} each",
        )
        for kind in collectives
    )
    return BarChart(
        title="Bandwidth of collectives",
        rows=rows,
        ticks=tuple((100 * t / longest, f"{name} GB/s") for t, name in zip(ticks, tick_labels(ticks), strict=True)),
        hint="NCCL's bus bandwidth from the entry of the last rank to the end: up to the 10th percentile, the median "
        "and the 90th percentile, each paler. Those that take the longest come first.",
    )


def _describe(kind: CollectiveStats) -> str:
    bandwidths = [format_number(value) for value in (kind.bus_gb_s, kind.low_gb_s, kind.high_gb_s)]
    calls = f"{format_number(kind.calls)} per step on {kind.ranks} ranks"
    return f"median {bandwidths[0]} GB/s, {bandwidths[1]} to {bandwidths[2]}; {calls}"
