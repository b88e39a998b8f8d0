"""The charts of the HTML report: curves over steps, time breakdown per rank, timeline of one step."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from muster.tracing.charts import (
    BarSegment,
    LinePlot,
    LineSeries,
    Outlier,
    StackedBar,
    TimelineLane,
    TimelineTrack,
    line_chart,
    stacked_bar_chart,
    timeline_chart,
)
from muster.tracing.formatting import format_percent, format_seconds
from muster.tracing.labelled_traces import LabelledTrace
from muster.tracing.profiler_overhead import ProfilerOverhead, slow_step_cause
from muster.tracing.run_analysis import MetricSeries, Report, SlowStep
from muster.tracing.tables import breakdown_table, category_names, time_and_share
from muster.tracing.time_breakdown import TimeCategory
from muster.tracing.timeline import StepTimeline

MAX_CURVES = 4
MAX_ROWS = 64
MIN_VISIBLE_SHARE = 0.002  # smaller parts of a bar have less than two pixels


def metric_charts(report: Report) -> str:
    """Loss and step time; empty without metrics."""
    sections = []
    if report.loss is not None:
        loss = line_chart([_line_series(report.loss, "loss", 0)], LinePlot(title="Loss over steps"))
        sections.append(f'<section><div class="head"><h2>Loss</h2></div>{loss}</section>')
    if report.step_times:
        sections.append(_step_times(report))
    return f'<div class="pair">{"".join(sections)}</div>' if sections else ""


def _step_times(report: Report) -> str:
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
    legend = _legend([(f"key {c.style}", c.label) for c in curves]) if len(curves) > 1 else ""
    title = "Step time per rank" if len(shown) > 1 else f"Step time of rank {shown[0][0].rank}"
    head = f'<div class="head"><h2>{title}</h2>{legend}</div>'
    return f"<section>{head}{line_chart(curves, plot)}</section>"


def _slow_step_label(step: SlowStep, overheads: Sequence[ProfilerOverhead]) -> str:
    cause = slow_step_cause(step.step, overheads)
    return f"step {step.step}: {format_seconds(step.seconds)}{f', {cause}' if cause else ''}"


def _traced_range(steps: tuple[int, int], overheads: Sequence[ProfilerOverhead]) -> tuple[float, float, str]:
    written = next((overhead for overhead in overheads if overhead.step == steps[1] and overhead.write_s), None)
    after = "" if written is None else f"; written before step {written.step} in {format_seconds(written.write_s)}"
    return steps[0] - 0.5, steps[1] - 0.5, f"traced{after}"


def _select_series(series: Sequence[MetricSeries]) -> list[tuple[MetricSeries, str]]:
    """All ranks, or above `MAX_CURVES` the fastest, the median and the slowest rank, with labels."""
    if len(series) <= MAX_CURVES:
        return [(s, f"rank {s.rank}") for s in series]
    by_median = sorted(series, key=lambda s: (float(np.median(s.values)), s.rank))
    chosen = [("fastest", by_median[0]), ("median", by_median[len(by_median) // 2]), ("slowest", by_median[-1])]
    return [(s, f"{position}: rank {s.rank}") for position, s in chosen]


def _line_series(series: MetricSeries, label: str, index: int) -> LineSeries:
    return LineSeries(label, f"c{index}", tuple(zip(series.steps, series.values, strict=True)))


def time_breakdown_section(report: Report) -> str:
    """A bar per rank with its time by kind of work; empty without traces."""
    rows = [row for row in report.traces if row.trace.window_s > 0][:MAX_ROWS]
    if not rows:
        return ""
    present = [kind for kind in TimeCategory if any(row.trace.share(kind) >= MIN_VISIBLE_SHARE for row in rows)]
    device = any(row.trace.on_device for row in rows)
    names = category_names(device=device)
    bars = [
        StackedBar(
            row.label,
            tuple(
                BarSegment(kind.name.lower(), row.trace.share(kind), f"{names[kind]} {time_and_share(row, kind)}")
                for kind in present
            ),
            format_seconds(row.trace.window_s),
        )
        for row in rows
    ]
    hint = (
        "The time of each device between its first and its last traced kernel."
        if device
        else "The time of each rank in the traced steps; every instant counts for one kind of work."
    )
    more = f" {len(rows)} of {len(report.traces)} traces are shown." if len(rows) < len(report.traces) else ""
    legend = _legend([(f"key {kind.name.lower()}", names[kind]) for kind in present])
    chart = f'<div class="scroll">{stacked_bar_chart(bars, "Time per kind of work, per rank")}</div>'
    return (
        f'<section><h2>Time per kind of work</h2><p class="hint">{hint} Communication overlapped by computation counts '
        f"as computation.{more}</p>{legend}{chart}{breakdown_table(rows, present, names)}</section>"
    )


def timeline_section(report: Report) -> str:
    """A timeline of one step per rank; empty for traces without steps."""
    step = report.timeline_step
    timelines = [(row, t) for row in report.traces for t in row.trace.timelines if t.step == step]
    different_steps = False
    if len(timelines) < len(report.traces):
        # Traces of different jobs have no common step: show one step of each.
        timelines = [(row, _median_timeline(row, step)) for row in report.traces if row.trace.timelines]
        different_steps = len({t.step for _, t in timelines}) > 1
    if not timelines:
        return ""
    timelines = timelines[:MAX_ROWS]
    tracks = [_timeline_track(row, t, different_steps) for row, t in timelines]
    kinds = [kind for kind in TimeCategory if any(kind.name.lower() in t.busy_levels for _, t in timelines)]
    names = {**category_names(device=True), TimeCategory.DATA: "loading data"}
    legend = _legend([(f"key {kind.name.lower()}", names[kind].split(",")[0]) for kind in kinds])
    title = "Computation and communication" + ("" if different_steps else f" in step {step}")
    return (
        f'<section><h2>{title}</h2><p class="hint">One step of each rank, aligned at its start; clocks of different '
        "hosts are not compared. Paler colours mean lower utilisation.</p>"
        f'{legend}<div class="scroll">{timeline_chart(tracks, title)}</div></section>'
    )


def _median_timeline(row: LabelledTrace, step: int | None) -> StepTimeline:
    timelines = row.trace.timelines
    wanted = next((t for t in timelines if t.step == step), None)
    return wanted or sorted(timelines, key=lambda t: (t.duration_s, t.step))[(len(timelines) - 1) // 2]


def _timeline_track(row: LabelledTrace, timeline: StepTimeline, with_step: bool) -> TimelineTrack:
    def layers(*kinds: TimeCategory) -> tuple[tuple[str, str], ...]:
        return tuple(
            (k.name.lower(), timeline.busy_levels[k.name.lower()])
            for k in kinds
            if k.name.lower() in timeline.busy_levels
        )

    lanes = [TimelineLane("compute", layers(TimeCategory.COMPUTE, TimeCategory.OPTIMIZER))]
    if communication := layers(TimeCategory.COMMUNICATION):
        lanes.append(TimelineLane("comm.", communication))
    if rest := layers(TimeCategory.MEMORY, TimeCategory.DATA):
        lanes.append(TimelineLane(", ".join("copies" if style == "memory" else style for style, _ in rest), rest))
    label = f"{row.label}, step {timeline.step}" if with_step else row.label
    return TimelineTrack(label, timeline.duration_s, tuple(lanes), _overlap_note(timeline))


def _overlap_note(timeline: StepTimeline) -> str:
    duration = format_seconds(timeline.duration_s)
    if timeline.communication_s <= 0:
        return duration
    share = timeline.overlapped_s / timeline.communication_s
    part = format_percent(share) if share >= 0.005 else "none"
    return f"{duration}, communication {format_seconds(timeline.communication_s)}, {part} of it overlapped"


def _legend(items: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<li><span class="{style}"></span>{escape(name)}</li>' for style, name in items)
    return f'<ul class="legend">{keys}</ul>'
