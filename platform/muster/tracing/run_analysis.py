"""A whole job: its run folder and its traces, put together across ranks into one value, the `Report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from muster.errors import InvalidTrace
from muster.tracing.analysis import TraceSummary, UnreadableTrace, summarise_trace_files
from muster.tracing.findings import SLOW_STEP_FACTOR, derive_findings
from muster.tracing.json_stream import DEFAULT_LIMITS, TraceLimits
from muster.tracing.labelled_traces import LabelledTrace, choose_timeline_step, label_traces
from muster.tracing.missing_traces import missing_trace_reasons
from muster.tracing.operator_stats import OperatorStats, merge_operators
from muster.tracing.profiler_overhead import ProfilerOverhead, profiler_overheads, steady_median
from muster.tracing.recording import HOW_TO_TRACE
from muster.tracing.run_folder import Float64, RankMetrics, RunFolder, SkippedFile, StepWindow
from muster.tracing.steps import StepSkew, step_skews
from muster.tracing.summary import RunSummary, summarise_run

MAX_LOSS_POINTS = 1200
MAX_STEP_TIME_POINTS = 300
MAX_SLOW_STEPS = 60


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """A curve: parallel steps and values."""

    rank: int
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A step that took more than twice the usual time of its rank."""

    rank: int
    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the page shows. `traced` are half-open step bounds.

    Long curves are thinned: `loss` to its extremes, `step_times` to medians of stretches of steps, beside which the
    slowest steps are kept as they are (`slow_steps`, at most 60, by time). `rows` hold one entry per trace of the
    newest window; `picture_step` is the step of the timeline, None without one; `skews` tell per traced step how far
    the ranks were apart; `pauses` what tracing took between steps. `page` is where it was written.
    """

    summary: RunSummary
    findings: tuple[str, ...]
    loss: MetricSeries | None
    step_times: tuple[MetricSeries, ...]
    slow_steps: tuple[SlowStep, ...]
    traced_steps: tuple[int, int] | None
    traces: tuple[LabelledTrace, ...]
    timeline_step: int | None
    skews: tuple[StepSkew, ...]
    operators: tuple[OperatorStats, ...]
    kernels: tuple[OperatorStats, ...]
    skipped: tuple[SkippedFile, ...]
    profiler_overheads: tuple[ProfilerOverhead, ...] = ()
    page: str | None = None


def analyse_run(
    folder: RunFolder, *, name: str | None = None, workers: int = 1, limits: TraceLimits = DEFAULT_LIMITS
) -> Report:
    """The report without writing it."""
    window, summaries, unreadable = _newest_readable(folder, workers, limits)
    if not summaries and not folder.metrics:
        raise InvalidTrace(_nothing_to_report(folder, unreadable))
    rows = label_traces(summaries)
    pauses = profiler_overheads(folder.metrics)
    facts = summarise_run(folder, summaries, pauses, name=name)
    skews = step_skews({t.rank: t.step_s for t in summaries if t.rank is not None}) if folder.is_muster_run else ()
    skipped = (*folder.skipped, *(SkippedFile(_relative_path(folder.path, u.source), u.reason) for u in unreadable))
    report = Report(
        summary=facts,
        findings=(),
        loss=_loss_series(folder.metrics),
        step_times=tuple(
            _downsample_medians(m, m.step_time_s) for m in folder.metrics if np.isfinite(m.step_time_s).any()
        ),
        slow_steps=_slow_steps(folder.metrics, pauses),
        traced_steps=window.steps if window is not None else None,
        traces=rows,
        timeline_step=choose_timeline_step(summaries),
        skews=skews,
        operators=merge_operators([row.trace.operators for row in rows])[:30],
        kernels=merge_operators([row.trace.kernels for row in rows])[:30],
        skipped=skipped,
        profiler_overheads=pauses,
    )
    return replace(report, findings=derive_findings(folder, rows, skews, pauses, skipped))


def _newest_readable(
    folder: RunFolder, workers: int, limits: TraceLimits
) -> tuple[StepWindow | None, list[TraceSummary], list[UnreadableTrace]]:
    """The newest window of which at least one trace can be read; what could not be is returned too."""
    unreadable: list[UnreadableTrace] = []
    for window in folder.windows:
        found = summarise_trace_files(window.files, workers=workers, limits=limits)
        # In a bare folder other JSON may lie about: what is no trace is nobody's loss.
        unreadable += [f for f in found if isinstance(f, UnreadableTrace) and (f.is_trace or folder.is_muster_run)]
        summaries = [f for f in found if isinstance(f, TraceSummary)]
        if summaries:
            return window, sorted(summaries, key=lambda t: (t.rank is None, t.rank or 0, t.source)), unreadable
    return None, [], unreadable


def _nothing_to_report(folder: RunFolder, unreadable: Sequence[UnreadableTrace]) -> str:
    broken = [f"{Path(u.source).name} ({u.reason})" for u in unreadable] + [
        f"{s.file} ({s.reason})" for s in folder.skipped
    ]
    why = f"; unreadable: {', '.join(broken[:5])}" if broken else ""
    untold = "".join(
        f"; {sentence[:1].lower()}{sentence[1:].removesuffix('.')}" for sentence in missing_trace_reasons(folder)
    )
    told = f"{folder.path}: nothing to report on: neither metrics nor a readable trace (.json, .json.gz){why}{untold}"
    return told if why or untold else f"{told}; {HOW_TO_TRACE}"


def _relative_path(base: Path, source: str) -> str:
    path = Path(source)
    return str(path.relative_to(base)) if base in path.parents else path.name


def _loss_series(metrics: Sequence[RankMetrics]) -> MetricSeries | None:
    known = next((m for m in metrics if np.isfinite(m.loss).any()), None)
    return None if known is None else _downsample_extremes(known, known.loss)


def _downsample_extremes(metrics: RankMetrics, values: Float64) -> MetricSeries:
    """At most 1200 points: of each stretch of steps the least and the greatest, so that no peak is lost."""
    keep = np.flatnonzero(np.isfinite(values))
    if len(keep) > MAX_LOSS_POINTS:
        stretches = np.array_split(keep, MAX_LOSS_POINTS // 2)
        extremes = [(part[np.argmin(values[part])], part[np.argmax(values[part])]) for part in stretches]
        keep = np.unique(np.array(extremes).ravel())
    return MetricSeries(metrics.rank, tuple(metrics.step[keep].tolist()), tuple(values[keep].tolist()))


def _downsample_medians(metrics: RankMetrics, values: Float64) -> MetricSeries:
    """At most 300 points: the median of each stretch of steps. Steps of many ranks are a thicket otherwise."""
    keep = np.flatnonzero(np.isfinite(values))
    stretches = np.array_split(keep, min(len(keep), MAX_STEP_TIME_POINTS))
    return MetricSeries(
        rank=metrics.rank,
        steps=tuple(int(metrics.step[part[len(part) // 2]]) for part in stretches),
        values=tuple(float(np.median(values[part])) for part in stretches),
    )


def _slow_steps(metrics: Sequence[RankMetrics], overheads: Sequence[ProfilerOverhead]) -> tuple[SlowStep, ...]:
    found = []
    for m in metrics:
        limit = SLOW_STEP_FACTOR * (steady_median(m, m.step_time_s, overheads) or np.inf)
        found += [
            SlowStep(m.rank, int(m.step[i]), float(m.step_time_s[i])) for i in np.flatnonzero(m.step_time_s > limit)
        ]
    return tuple(sorted(found, key=lambda s: (-s.seconds, s.step, s.rank))[:MAX_SLOW_STEPS])
