"""The report's pictures as sections of its page: curves over steps, kinds of work per rank, one step as a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from muster.tracing.charts import Bar, Beyond, Curve, Lane, Plot, Segment, Track, line_chart, stacked_bars, timeline
from muster.tracing.figures import percent, seconds
from muster.tracing.job import Report, Series, SlowStep
from muster.tracing.pauses import Pause, slow_because
from muster.tracing.rows import Row
from muster.tracing.tables import kind_names, numbers, time_and_part
from muster.tracing.timeline import StepPicture
from muster.tracing.work import Work

MOST_CURVES = 4
MOST_ROWS = 64
VISIBLE = 0.002  # less than two pixels is no part of a picture


def curves(report: Report) -> str:
    """Loss and step time; empty without metrics."""
    sections = []
    if report.loss is not None:
        loss = line_chart([_curve(report.loss, "loss", 0)], Plot(title="Loss over steps"))
        sections.append(f'<section><div class="head"><h2>Loss</h2></div>{loss}</section>')
    if report.step_times:
        sections.append(_step_times(report))
    return f'<div class="pair">{"".join(sections)}</div>' if sections else ""


def _step_times(report: Report) -> str:
    shown = _told_apart(report.step_times)
    curves_ = [_curve(series, label, i) for i, (series, label) in enumerate(shown)]
    values = np.concatenate([np.array(series.values) for series, _ in shown])
    usual = float(np.median(values))
    slow = [s for s in report.slow_steps if s.rank in {series.rank for series, _ in shown}]
    cut = any(s.seconds > 4 * usual for s in slow) or float(values.max()) > 4 * usual
    top = 2.5 * max(float(np.quantile(values, 0.9)), usual) if cut else max(float(values.max()) * 1.2, 1.6 * usual)
    styles = {series.rank: curve.style for (series, _), curve in zip(shown, curves_, strict=True)}
    plot = Plot(
        title="Step time over steps, per rank",
        from_zero=True,
        time=True,
        top=top,
        beyond=tuple(
            Beyond(s.step, s.seconds, styles[s.rank], _slow(s, report.pauses)) for s in slow if s.seconds > top
        ),
        shade=None if report.traced is None else _traced(report.traced, report.pauses),
    )
    legend = _legend([(f"key {c.style}", c.label) for c in curves_]) if len(curves_) > 1 else ""
    title = "Step time per rank" if len(shown) > 1 else f"Step time of rank {shown[0][0].rank}"
    head = f'<div class="head"><h2>{title}</h2>{legend}</div>'
    return f"<section>{head}{line_chart(curves_, plot)}</section>"


def _slow(step: SlowStep, pauses: Sequence[Pause]) -> str:
    why = slow_because(step.step, pauses)
    return f"step {step.step}: {seconds(step.seconds)}{f', {why}' if why else ''}"


def _traced(steps: tuple[int, int], pauses: Sequence[Pause]) -> tuple[float, float, str]:
    written = next((pause for pause in pauses if pause.step == steps[1] and pause.written_s), None)
    after = "" if written is None else f"; written before step {written.step} in {seconds(written.written_s)}"
    return steps[0] - 0.5, steps[1] - 0.5, f"traced{after}"


def _told_apart(series: Sequence[Series]) -> list[tuple[Series, str]]:
    """All ranks while they can be told apart; beyond that the fastest, the median and the slowest."""
    if len(series) <= MOST_CURVES:
        return [(s, f"rank {s.rank}") for s in series]
    by_median = sorted(series, key=lambda s: (float(np.median(s.values)), s.rank))
    chosen = [("fastest", by_median[0]), ("median", by_median[len(by_median) // 2]), ("slowest", by_median[-1])]
    return [(s, f"{what}: rank {s.rank}") for what, s in chosen]


def _curve(series: Series, label: str, index: int) -> Curve:
    return Curve(label, f"c{index}", tuple(zip(series.steps, series.values, strict=True)))


def kinds_of_work(report: Report) -> str:
    """A bar per rank: what its time went to; empty without traces."""
    rows = [row for row in report.rows if row.trace.window_s > 0][:MOST_ROWS]
    if not rows:
        return ""
    present = [kind for kind in Work if any(row.trace.share(kind) >= VISIBLE for row in rows)]
    device = any(row.trace.on_device for row in rows)
    names = kind_names(device=device)
    bars = [
        Bar(
            row.label,
            tuple(
                Segment(kind.name.lower(), row.trace.share(kind), f"{names[kind]} {time_and_part(row, kind)}")
                for kind in present
            ),
            seconds(row.trace.window_s),
        )
        for row in rows
    ]
    what = (
        "Where each device's time went between its first and its last traced kernel."
        if device
        else "Where each rank's time went in the traced steps: every instant counts for one kind of work."
    )
    more = f" {len(rows)} of {len(report.rows)} traces are shown." if len(rows) < len(report.rows) else ""
    legend = _legend([(f"key {kind.name.lower()}", names[kind]) for kind in present])
    picture = f'<div class="scroll">{stacked_bars(bars, "Time per kind of work, per rank")}</div>'
    return (
        f'<section><h2>Time per kind of work</h2><p class="hint">{what} Communication that runs while something '
        f"computes counts as computing here.{more}</p>{legend}{picture}{numbers(rows, present, names)}</section>"
    )


def one_step(report: Report) -> str:
    """Computation and communication side by side in one step; empty if the profiler was not told of steps."""
    step = report.picture_step
    pictures = [(row, p) for row in report.rows for p in row.trace.pictures if p.step == step]
    alone = False
    if len(pictures) < len(report.rows):
        # Traces of different jobs share no step: then each shows one of its own.
        pictures = [(row, _middle(row, step)) for row in report.rows if row.trace.pictures]
        alone = len({p.step for _, p in pictures}) > 1
    if not pictures:
        return ""
    pictures = pictures[:MOST_ROWS]
    tracks = [_track(row, p, alone) for row, p in pictures]
    kinds = [kind for kind in Work if any(kind.name.lower() in p.rows for _, p in pictures)]
    names = {**kind_names(device=True), Work.DATA: "loading data"}
    legend = _legend([(f"key {kind.name.lower()}", names[kind].split(",")[0]) for kind in kinds])
    title = "Computation and communication" if alone else f"Computation and communication in step {step}"
    return (
        f'<section><h2>{title}</h2><p class="hint">One step of each rank, from its own beginning: clocks of different '
        "hosts are not compared. The paler a moment, the less of it was busy.</p>"
        f'{legend}<div class="scroll">{timeline(tracks, title)}</div></section>'
    )


def _middle(row: Row, step: int | None) -> StepPicture:
    pictures = row.trace.pictures
    wanted = next((p for p in pictures if p.step == step), None)
    return wanted or sorted(pictures, key=lambda p: (p.duration_s, p.step))[(len(pictures) - 1) // 2]


def _track(row: Row, picture: StepPicture, alone: bool) -> Track:
    def layers(*kinds: Work) -> tuple[tuple[str, str], ...]:
        return tuple((k.name.lower(), picture.rows[k.name.lower()]) for k in kinds if k.name.lower() in picture.rows)

    lanes = [Lane("compute", layers(Work.COMPUTE, Work.OPTIMIZER))]
    if communication := layers(Work.COMMUNICATION):
        lanes.append(Lane("comm.", communication))
    if rest := layers(Work.MEMORY, Work.DATA):
        lanes.append(Lane(", ".join("copies" if style == "memory" else style for style, _ in rest), rest))
    label = f"{row.label}, step {picture.step}" if alone else row.label
    return Track(label, picture.duration_s, tuple(lanes), _hidden(picture))


def _hidden(picture: StepPicture) -> str:
    told = seconds(picture.duration_s)
    if picture.communication_s <= 0:
        return told
    part = picture.overlapped_s / picture.communication_s
    how = f"{percent(part)} of it" if part >= 0.005 else "none of it"
    return f"{told}, of which communication runs {seconds(picture.communication_s)}; {how} hidden behind computation"


def _legend(items: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<li><span class="{style}"></span>{escape(name)}</li>' for style, name in items)
    return f'<ul class="legend">{keys}</ul>'
