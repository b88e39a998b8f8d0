"""The sections of a report's page about its metrics: loss, step time and memory over steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.tracing.charts import ChartSection, LinePlot, LineSeries, Outlier, line_chart
from muster.tracing.formatting import binary_unit, format_bytes, format_seconds
from muster.tracing.run_analysis import MetricSeries, Report, SlowStep
from muster.tracing.summary import ProfilerOverhead, slow_step_cause

MAX_CURVES = 4


def metric_sections(report: Report) -> list[ChartSection]:
    """Loss, step time and memory, as far as they are known."""
    sections = []
    if report.loss is not None:
        loss = line_chart([_line_series(report.loss, "loss", 0)], LinePlot(title="Loss over steps"))
        sections.append(ChartSection("Loss", loss))
    if report.step_times:
        sections.append(_step_times(report))
    if report.memory:
        sections.append(_memory(report.memory, wide=len(sections) % 2 == 0))
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


def _memory(memory: Sequence[MetricSeries], *, wide: bool) -> ChartSection:
    """`wide`: there is no other chart beside it."""
    shown = _select_series(memory, ("least", "median", "most"))
    unit, name = binary_unit(max(max(series.values) for series in memory))
    curves = [
        LineSeries(label, f"c{i}", tuple((step, value / unit) for step, value in zip(s.steps, s.values, strict=True)))
        for i, (s, label) in enumerate(shown)
    ]
    plot = LinePlot(
        title="Memory in use over steps, per rank",
        width=1040 if wide else 520,
        y_from_zero=True,
        y_suffix=f" {name}",
        show_value=lambda value: format_bytes(value * unit),
    )
    return ChartSection(
        title="Memory per rank" if len(shown) > 1 else f"Memory of rank {shown[0][0].rank}",
        chart=line_chart(curves, plot),
        legend=tuple(
            (curve.style, f"{curve.label}, up to {format_bytes(max(s.values))}")
            for curve, (s, _) in zip(curves, shown, strict=True)
        ),
        hint="In use at the end of each step: of torch's allocator on a GPU, else resident memory of the process.",
    )


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
