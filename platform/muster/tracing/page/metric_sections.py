"""The sections of a report's page about its metrics: loss, step time and memory over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

import numpy as np

from muster.tracing.analysis.run_analysis import MetricSeries, Report, SlowStep
from muster.tracing.analysis.summary import ProfilerOverhead, slow_step_cause
from muster.tracing.formatting import binary_unit, format_bytes, format_seconds
from muster.tracing.page.charts import ChartSection, LinePlot, LineSeries, Outlier, line_chart
from muster.tracing.work.memory_curve import MemoryCurve

MAX_CURVES = 4


def metric_sections(report: Report) -> list[ChartSection]:
    """Loss, step time and memory, as far as they are known: two in a row."""
    sections: list[ChartSection] = []
    if report.loss is not None:
        loss = _line_series(report.loss, "loss", 0)
        sections.append(ChartSection("Loss", line_chart([loss], LinePlot("Loss over steps"))))
    if report.step_times:
        sections.append(_step_times(report))
    if report.memory:
        sections.append(_memory(report.memory))
    traced = {row.label: row.trace.memory for row in report.traces if row.trace.memory is not None}
    if traced:
        sections.append(_traced_memory(traced))
    return sections


def _step_times(report: Report) -> ChartSection:
    shown = _select_series(report.step_times)
    curves = [_line_series(series, label, i) for i, (series, label) in enumerate(shown)]
    values = np.concatenate([np.array(series.values) for series, _ in shown])
    median = float(np.median(values))
    slow = [s for s in report.slow_steps if s.rank in {series.rank for series, _ in shown}]
    cut = any(s.seconds > 4 * median for s in slow) or float(values.max()) > 4 * median
    top = 2.5 * max(float(np.quantile(values, 0.9)), median) if cut else max(float(values.max()) * 1.2, 1.6 * median)
    styles = {series.rank: curve.style for (series, _), curve in zip(shown, curves, strict=True)}
    plot = LinePlot(
        title="Step time over steps, per rank",
        y_from_zero=True,
        y_is_time=True,
        show_value=format_seconds,
        y_limit=top,
        outliers=tuple(
            Outlier(s.step, s.seconds, styles[s.rank], _slow_step_label(s, report.profiler_overheads))
            for s in slow
            if s.seconds > top
        ),
        shaded_range=None
        if report.traced_steps is None
        else _traced_range(report.traced_steps, report.profiler_overheads),
    )
    return ChartSection(
        title="Step time per rank" if len(shown) > 1 else f"Step time of rank {shown[0][0].rank}",
        chart=line_chart(curves, plot),
        legend=tuple((curve.style, curve.label) for curve in curves) if len(curves) > 1 else (),
    )


def _memory(memory: Sequence[MetricSeries]) -> ChartSection:
    shown = _select_series(memory, ("least", "median", "most"))
    curves = {label: tuple(zip(series.steps, series.values, strict=True)) for series, label in shown}
    return ChartSection(
        title="Memory per rank" if len(shown) > 1 else f"Memory of rank {shown[0][0].rank}",
        hint="In use at the end of each step: of torch's allocator on a GPU, else resident memory of the process.",
        **_memory_chart(curves, LinePlot("Memory in use over steps, per rank")),
    )


def _traced_memory(traced: Mapping[str, MemoryCurve]) -> ChartSection:
    """Above `MAX_CURVES` traces those with the lowest, the middle and the highest peak."""
    labels = sorted(traced, key=lambda label: max(traced[label].bytes))
    if len(labels) > MAX_CURVES:
        labels = [labels[0], labels[len(labels) // 2], labels[-1]]
    curves = {}
    for label in [label for label in traced if label in labels]:
        slot_s = traced[label].duration_s / len(traced[label].bytes)
        curves[label] = tuple(((i + 0.5) * slot_s, float(held)) for i, held in enumerate(traced[label].bytes))
    less = f" Least, median and highest of {len(traced)} traces." if len(labels) < len(traced) else ""
    return ChartSection(
        title="Memory during the traced steps",
        hint=f"In use by torch's allocator; on the CPU, counted from the start of the profiler.{less}",
        **_memory_chart(curves, LinePlot("Memory during the traced steps", x_is_time=True)),
    )


class _ChartAndLegend(TypedDict):
    chart: str
    legend: tuple[tuple[str, str], ...]


def _memory_chart(curves: Mapping[str, tuple[tuple[float, float], ...]], plot: LinePlot) -> _ChartAndLegend:
    """Curves of bytes by label, with their largest values in the legend."""
    largest = {label: max(value for _, value in points) for label, points in curves.items()}
    unit, name = binary_unit(max(largest.values()))
    series = [
        LineSeries(label, f"c{i}", tuple((x, value / unit) for x, value in points))
        for i, (label, points) in enumerate(curves.items())
    ]
    plot = replace(plot, y_from_zero=True, y_suffix=f" {name}", show_value=lambda value: format_bytes(value * unit))
    return {
        "chart": line_chart(series, plot),
        "legend": tuple((one.style, f"{one.label}, up to {format_bytes(largest[one.label])}") for one in series),
    }


def _slow_step_label(step: SlowStep, overheads: Sequence[ProfilerOverhead]) -> str:
    cause = slow_step_cause(step.step, overheads)
    return f"step {step.step}: {format_seconds(step.seconds)}{f', {cause}' if cause else ''}"


def _traced_range(steps: tuple[int, int], overheads: Sequence[ProfilerOverhead]) -> tuple[float, float, str]:
    written = next((overhead for overhead in overheads if overhead.step == steps[1] and overhead.write_s), None)
    after = "" if written is None else f"; written before step {written.step} in {format_seconds(written.write_s)}"
    return steps[0] - 0.5, steps[1] - 0.5, f"traced{after}"


def _select_series(
    series: Sequence[MetricSeries], names: tuple[str, str, str] = ("fastest", "median", "slowest")
) -> list[tuple[MetricSeries, str]]:
    """All ranks, or above `MAX_CURVES` those with the lowest, the middle and the highest median, with labels."""
    if len(series) <= MAX_CURVES:
        return [(s, f"rank {s.rank}") for s in series]
    by_median = sorted(series, key=lambda s: (float(np.median(s.values)), s.rank))
    chosen = (by_median[0], by_median[len(by_median) // 2], by_median[-1])
    return [(s, f"{name}: rank {s.rank}") for name, s in zip(names, chosen, strict=True)]


def _line_series(series: MetricSeries, label: str, index: int) -> LineSeries:
    return LineSeries(label, f"c{index}", tuple(zip(series.steps, series.values, strict=True)))
