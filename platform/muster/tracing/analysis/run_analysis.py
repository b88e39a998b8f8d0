"""Combines the run folder and the traces of all ranks into a `Report`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from muster.errors import InvalidTrace
from muster.text import pluralize
from muster.tracing import HOW_TO_TRACE
from muster.tracing.analysis.captures import Capture, newest_capture
from muster.tracing.analysis.completeness import comparable, derive_notes, missing, missing_ranks
from muster.tracing.analysis.findings import (
    SLOW_STEP_FACTOR,
    derive_findings,
    is_single_job,
    missing_trace_reasons,
)
from muster.tracing.analysis.headline import headline, telling_step, use_of
from muster.tracing.analysis.source_lines import source_place
from muster.tracing.analysis.summary import (
    LabelledTrace,
    ProfilerOverhead,
    RunSummary,
    choose_timeline_step,
    in_common_steps,
    label_traces,
    profiler_overheads,
    steady_median,
    summarise_run,
)
from muster.tracing.analysis.trace_summary import AnalysedTrace, TraceSummary, UnreadableTrace, summarise_trace_files
from muster.tracing.efficiency.advice import EfficiencyAdvice, efficiency_advice
from muster.tracing.efficiency.operator_efficiency import Efficiency, merge_efficiencies
from muster.tracing.formatting import format_seconds
from muster.tracing.ranks.attribution import account
from muster.tracing.ranks.collective_stats import (
    CollectiveStats,
    CollectiveTime,
    RankWait,
    collective_stats,
    collective_times,
    rank_waits,
)
from muster.tracing.ranks.critical_path import CriticalPath, critical_path
from muster.tracing.ranks.rank_comparison import ClockOffset, RankComparison, compare_ranks, different_runs
from muster.tracing.ranks.step_account import StepAccount, step_account, with_slots
from muster.tracing.ranks.step_grid import StepGrid, grid_without_waiting, step_grid
from muster.tracing.read.json_stream import DEFAULT_LIMITS, TraceLimits
from muster.tracing.runs.compilation import Compilation, steady_compilations, summarise_compilation
from muster.tracing.runs.launches import run_sentence
from muster.tracing.runs.run_folder import Float64, RankMetrics, RunFolder, SkippedFile, StepWindow
from muster.tracing.runs.trackers import TrackerFiles, find_trackers
from muster.tracing.verdicts import Verdict, derive_verdicts, describe
from muster.tracing.work.compiled_regions import compiled_places, name_graphs
from muster.tracing.work.operator_stats import OperatorStats, merge_operators
from muster.tracing.work.pipeline_bubble import PipelineBubble, bubble_sentence

MAX_LOSS_POINTS = 1200
MAX_CURVE_POINTS = 300
MAX_SLOW_STEPS = 60


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """A curve: parallel steps and values."""

    rank: int
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A step that took more than twice the median of its rank."""

    rank: int
    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report.

    Long curves are downsampled: `loss` to its extremes, `step_times` to medians of ranges of steps; `slow_steps` has
    the slowest steps (at most 60, by time). `traced_steps` are half-open bounds; `traces` has one entry per trace of
    the newest window; `timeline_step` is the step of the timeline, None without one;
    `profiler_overheads` are times that tracing took between steps; `verdicts` say what costs time and why, costliest
    first. `headline` is the first sentence; `findings` are sentences about the run, those of the verdicts first, and
    `notes` are about the analysis, such as files that are not used, and with `missing` what the traces lack for a
    comparison of all ranks. `account` is None unless the ranks can be compared,
    `efficiency` unless shapes of operators were recorded. `clocks` are the differences of the ranks' clocks. `memory`
    is each rank's memory in use, in bytes:
    maxima of ranges of steps. `step_time_grid` is from the metrics, `without_waiting` from the traces (None unless they
    can be compared), as are `waits` and `collectives`. `critical_path` is None unless it was wanted, `pipeline`
    without a pipeline of Muster's trainer. `trackers` are files of experiment trackers. `page` is the path
    of the HTML file.
    """

    summary: RunSummary
    findings: tuple[str, ...]
    loss: MetricSeries | None
    step_times: tuple[MetricSeries, ...]
    slow_steps: tuple[SlowStep, ...]
    traced_steps: tuple[int, int] | None
    traces: tuple[LabelledTrace, ...]
    timeline_step: int | None
    operators: tuple[OperatorStats, ...]
    kernels: tuple[OperatorStats, ...]
    skipped: tuple[SkippedFile, ...]
    profiler_overheads: tuple[ProfilerOverhead, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    clocks: tuple[ClockOffset, ...] = ()
    compilation: Compilation | None = None
    memory: tuple[MetricSeries, ...] = ()
    step_time_grid: StepGrid | None = None
    without_waiting: StepGrid | None = None
    waits: tuple[RankWait, ...] = ()
    collectives: tuple[CollectiveStats, ...] = ()
    critical_path: CriticalPath | None = None
    pipeline: PipelineBubble | None = None
    trackers: tuple[TrackerFiles, ...] = ()
    missing: tuple[str, ...] = ()
    headline: str = ""
    notes: tuple[str, ...] = ()
    account: StepAccount | None = None
    efficiency: Efficiency | None = None
    collective_times: tuple[CollectiveTime, ...] = ()
    source_line: str = ""
    """Where the first verdict's time is lost, `train.py(5): load`; only of traces with stacks."""
    run_time: str = ""
    """What the time of all pods was spent on; of a run folder."""
    page: str | None = None


def analyse_run(
    folder: RunFolder,
    *,
    name: str | None = None,
    workers: int = 1,
    limits: TraceLimits = DEFAULT_LIMITS,
    with_critical_path: bool = False,
) -> Report:
    """Analyse a run folder, with the critical path if wanted.

    Raises InvalidTrace if it has neither metrics nor a readable trace.
    """
    window, found, unreadable = _newest_readable(folder, workers, limits, with_critical_path)
    capture = Capture(tuple(found)) if folder.is_muster_run else newest_capture(found)
    analysed, left_out = comparable(capture.traces)
    unreadable += left_out
    summaries = [trace.summary for trace in analysed]
    if not summaries and not folder.metrics:
        raise InvalidTrace(_nothing_to_report(folder, unreadable))
    comparison, apart = None, ""
    single = is_single_job(folder, summaries)
    if single:
        records = [trace.record for trace in analysed if trace.record is not None]
        if len({record.rank for record in records}) == len(records) == len(analysed):
            last_step = {m.rank: int(m.step[-1]) for m in folder.metrics}
            comparison = compare_ranks(records, steady_compilations(folder.compilation, last_step))
        if comparison is not None and not folder.is_muster_run:
            apart = different_runs(comparison)
            comparison = None if apart else comparison
        if not apart:
            summaries = [_with_named_graphs(folder, trace) for trace in in_common_steps(summaries)]
    verdicts = derive_verdicts(comparison) if comparison is not None else ()
    lone = comparison.records[0] if comparison is not None and len(comparison.records) == 1 else None
    if lone is not None and (summaries[0].world_size or 1) > 1:  # nothing is known of the other ranks
        verdicts = tuple(replace(verdict, ranks=(lone.rank,)) for verdict in verdicts)
    rows = label_traces(summaries)
    overheads = profiler_overheads(folder.metrics)
    summary = summarise_run(folder, summaries, overheads, name=name)
    skipped = (*folder.skipped, *(SkippedFile(_relative_path(folder.path, u.source), u.reason) for u in unreadable))
    report = Report(
        summary=summary,
        findings=(),
        loss=_loss_series(folder.metrics),
        step_times=tuple(
            _downsample(m, m.step_time_s, np.median) for m in folder.metrics if np.isfinite(m.step_time_s).any()
        ),
        slow_steps=_slow_steps(folder.metrics, overheads),
        traced_steps=window.steps if window is not None else None,
        traces=rows,
        timeline_step=choose_timeline_step(summaries),
        operators=merge_operators([row.trace.operators for row in rows])[:30],
        kernels=merge_operators([row.trace.kernels for row in rows])[:30],
        skipped=skipped,
        profiler_overheads=overheads,
        verdicts=verdicts,
        clocks=comparison.clocks if comparison is not None else (),
        compilation=summarise_compilation(folder.compilation),
        memory=tuple(
            _downsample(m, m.memory_bytes, np.max) for m in folder.metrics if np.isfinite(m.memory_bytes).any()
        ),
        step_time_grid=step_grid([(m.rank, m.step, m.step_time_s) for m in folder.metrics]),
        without_waiting=grid_without_waiting(comparison) if comparison is not None else None,
        waits=rank_waits(comparison) if comparison is not None else (),
        collectives=collective_stats(comparison) if comparison is not None else (),
        critical_path=critical_path(comparison) if comparison is not None else None,
        pipeline=comparison.pipeline_bubble() if comparison is not None else None,
        efficiency=merge_efficiencies([t.efficiency for t in summaries if t.efficiency is not None])
        if single
        else None,
        trackers=find_trackers(folder.path) if folder.is_muster_run else (),
        missing=missing(summaries, comparison, apart),
    )
    if comparison is not None:
        report = _with_account(report, comparison, limits)
    steps = report.account.step_ms if report.account is not None else 0.0
    everyone = "The only process" if lone is not None else "All ranks"
    findings = [describe(verdict, steps, everyone) for verdict in report.verdicts]
    findings += [bubble_sentence(report.pipeline)] if report.pipeline is not None else []
    findings += [one.sentence for one in _advice(report)]
    findings += derive_findings(folder, rows, overheads, compared=report.account is not None)
    notes = (
        *capture.notes,
        *report.missing,
        *_other_windows(folder, window),
        *derive_notes(rows, skipped, compared=single and not apart),
    )
    spent = run_sentence(folder.path) if folder.is_muster_run else ""
    headline = _headline(report, findings)
    return replace(report, findings=tuple(findings), notes=notes, headline=headline, run_time=spent)


def _with_account(report: Report, ranks: RankComparison, limits: TraceLimits) -> Report:
    """The report with the account of the ranks, and a step for the timeline in which the first verdict shows."""
    found = step_account(account(ranks), ranks)
    step = telling_step(ranks, report.verdicts) or report.timeline_step
    if step is not None:
        found = with_slots(found, ranks, step)
    report = replace(report, account=found, timeline_step=step, collective_times=collective_times(ranks))
    return _with_source(report, found, limits)


def _with_source(report: Report, found: StepAccount, limits: TraceLimits) -> Report:
    """With the line and the module of the first verdict's longest span in the shown step, if its rank's trace has
    stacks. The module is the place of a verdict that otherwise names no annotation but an operator or a kernel."""
    first = report.verdicts[0] if report.verdicts else None
    run = found.longest_run(use_of(first.cause), first.ranks) if first is not None else None
    if first is None or run is None:
        return report
    slots, begin, end = run
    traces = [row.trace for row in report.traces if (row.trace.rank or 0) == slots.rank and row.trace.with_stack]
    if not traces:
        return report
    where = source_place(Path(traces[0].source), slots.span(begin, end), first.work, limits)
    if where.module and (first.work or not first.place):
        first = replace(first, place=where.module, evidence=f"{first.evidence}, in module {where.module}")
    return replace(report, source_line=where.line, verdicts=(first, *report.verdicts[1:]))


def _advice(report: Report) -> Sequence[EfficiencyAdvice]:
    return () if report.efficiency is None else efficiency_advice(report.efficiency)


def _headline(report: Report, findings: Sequence[str]) -> str:
    """Without an account, the first finding."""
    if report.account is not None:
        untraced = missing_ranks([row.trace for row in report.traces])
        unknown = report.efficiency is None and any(row.trace.on_device for row in report.traces)
        advice = None if unknown else _advice(report)
        return headline(report.account, report.verdicts, advice, untraced, report.source_line)
    if not report.traces and report.summary.step_time_s is not None:
        step = format_seconds(report.summary.step_time_s)
        return f"The median step takes {step}; there is no trace that says where the time goes."
    return " ".join([*findings[:1], *report.missing[:1]])


def _with_named_graphs(folder: RunFolder, trace: TraceSummary) -> TraceSummary:
    """Compiled graphs by the function and line in the trainer's records."""
    places = compiled_places(folder.compilation.get(-1 if trace.rank is None else trace.rank, ()))
    return replace(trace, operators=name_graphs(trace.operators, trace.compiled_regions, places))


def _other_windows(folder: RunFolder, window: StepWindow | None) -> list[str]:
    """A sentence if the run has traces of other steps too."""
    others = len(folder.windows) - 1
    if window is None or window.steps is None or others < 1:
        return []
    first, end = window.steps
    return [f"Traces of steps {first} to {end - 1} are analysed; {pluralize(others, 'other window')} of steps not."]


def _newest_readable(
    folder: RunFolder, workers: int, limits: TraceLimits, with_critical_path: bool
) -> tuple[StepWindow | None, list[AnalysedTrace], list[UnreadableTrace]]:
    """The newest window with at least one readable trace, its traces, and the traces that cannot be read."""
    unreadable: list[UnreadableTrace] = []
    for window in folder.windows:
        found = summarise_trace_files(window.files, workers=workers, limits=limits, critical_path=with_critical_path)
        # A plain folder may contain other JSON files, which are not reported.
        named = folder.is_muster_run or folder.selected
        unreadable += [f for f in found if isinstance(f, UnreadableTrace) and (f.is_trace or named)]
        analysed = sorted((f for f in found if isinstance(f, AnalysedTrace)), key=_by_rank)
        if analysed:
            return window, _each_once(analysed, unreadable), unreadable
    return None, [], unreadable


def _each_once(traces: Sequence[AnalysedTrace], skipped: list[UnreadableTrace]) -> list[AnalysedTrace]:
    """The traces without copies of others, which are added to `skipped`."""
    kept: dict[object, AnalysedTrace] = {}
    for trace in traces:
        one = trace.summary
        origin_us = None if trace.record is None else trace.record.origin_us
        times = tuple((step.step, step.duration_s, *step.time_by_category_s.values()) for step in one.steps)
        counts = (one.events, one.window_s, one.communication_s, one.collectives, one.operators, one.kernels)
        content = (one.rank, one.world_size, origin_us, times, counts)
        if content in kept:
            reason = f"has the same events as {Path(kept[content].summary.source).name}"
            skipped.append(UnreadableTrace(one.source, reason))
        else:
            kept[content] = trace
    return list(kept.values())


def _by_rank(trace: AnalysedTrace) -> tuple[bool, int, str]:
    return trace.summary.rank is None, trace.summary.rank or 0, trace.summary.source


def _nothing_to_report(folder: RunFolder, unreadable: Sequence[UnreadableTrace]) -> str:
    broken = [f"{Path(u.source).name} ({u.reason})" for u in unreadable] + [
        f"{s.file} ({s.reason})" for s in folder.skipped
    ]
    unreadable_files = f"; unreadable: {', '.join(broken[:5])}" if broken else ""
    missing = "".join(
        f"; {sentence[:1].lower()}{sentence[1:].removesuffix('.')}" for sentence in missing_trace_reasons(folder)
    )
    hint = unreadable_files + missing or f"; {HOW_TO_TRACE}"
    return f"{folder.path}: nothing to report: no metrics and no readable trace (.json, .json.gz){hint}"


def _relative_path(base: Path, source: str) -> str:
    path = Path(source)
    return str(path.relative_to(base)) if base in path.parents else path.name


def _loss_series(metrics: Sequence[RankMetrics]) -> MetricSeries | None:
    known = next((m for m in metrics if np.isfinite(m.loss).any()), None)
    return None if known is None else _downsample_extremes(known, known.loss)


def _downsample_extremes(metrics: RankMetrics, values: Float64) -> MetricSeries:
    """At most 1200 points: the minimum and maximum of each range of steps, so that peaks remain."""
    keep = np.flatnonzero(np.isfinite(values))
    if len(keep) > MAX_LOSS_POINTS:
        ranges = np.array_split(keep, MAX_LOSS_POINTS // 2)
        extremes = [(part[np.argmin(values[part])], part[np.argmax(values[part])]) for part in ranges]
        keep = np.unique(np.array(extremes).ravel())
    return MetricSeries(metrics.rank, tuple(metrics.step[keep].tolist()), tuple(values[keep].tolist()))


def _downsample(metrics: RankMetrics, values: Float64, reduce: Callable[[Float64], float]) -> MetricSeries:
    """At most 300 points, each of a range of steps, so that curves of many ranks remain readable."""
    keep = np.flatnonzero(np.isfinite(values))
    ranges = np.array_split(keep, min(len(keep), MAX_CURVE_POINTS))
    return MetricSeries(
        rank=metrics.rank,
        steps=tuple(int(metrics.step[part[len(part) // 2]]) for part in ranges),
        values=tuple(float(reduce(values[part])) for part in ranges),
    )


def _slow_steps(metrics: Sequence[RankMetrics], overheads: Sequence[ProfilerOverhead]) -> tuple[SlowStep, ...]:
    found = []
    for m in metrics:
        limit = SLOW_STEP_FACTOR * (steady_median(m, m.step_time_s, overheads) or np.inf)
        found += [
            SlowStep(m.rank, int(m.step[i]), float(m.step_time_s[i])) for i in np.flatnonzero(m.step_time_s > limit)
        ]
    return tuple(sorted(found, key=lambda s: (-s.seconds, s.step, s.rank))[:MAX_SLOW_STEPS])
