"""Findings: sentences about a run, derived from its metrics and traces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.tracing.analysis.summary import LabelledTrace, ProfilerOverhead, steady_median
from muster.tracing.analysis.trace_summary import TraceSummary
from muster.tracing.formatting import format_list, format_number, format_percent, format_seconds
from muster.tracing.runs.run_folder import RunEvent, RunFolder, finite_values
from muster.tracing.work.work_kinds import TimeCategory

# Minimum share of a step for a finding; smaller differences vary from run to run.
NOTABLE_SHARE = 0.05
SLOW_STEP_FACTOR = 2.0  # times the median
NEGLIGIBLE_SHARE = 0.005
_MAX_MESSAGE_LENGTH = 500  # characters of a message

CATEGORY_PHRASES = {
    TimeCategory.COMPUTE: "computing",
    TimeCategory.OPTIMIZER: "in the optimizer",
    TimeCategory.COMMUNICATION: "waiting for communication",
    TimeCategory.MEMORY: "copying memory",
    TimeCategory.DATA: "waiting for data",
    TimeCategory.OTHER: "outside of any operator (Python, or waiting)",
}


def derive_findings(
    folder: RunFolder,
    rows: Sequence[LabelledTrace],
    overheads: Sequence[ProfilerOverhead],
    *,
    compared: bool,
) -> list[str]:
    """Sentences about the run, the most general first. Unless the ranks are `compared`, which says where their time
    goes, each trace is described."""
    sentences = [
        *_loss(folder),
        *_slow_steps(folder, overheads),
        *_profiler_overhead(folder, overheads),
        *_slow_rank(folder, overheads),
        *missing_trace_reasons(folder),
    ]
    return [*sentences, *(_overlap([row.trace for row in rows]) if compared else map(_describe_trace, rows))]


def missing_trace_reasons(folder: RunFolder) -> list[str]:
    """Sentences about the newest attempt configured for tracing: traces that could not be written and, if there is no
    trace at all, that its steps were not reached, or not yet."""
    events = [event for event in folder.events if event.kind in ("trace_planned", "trace_missed", "trace_failed")]
    attempt = max((event.attempt for event in events), default=0)
    newest = [event for event in events if event.attempt == attempt]
    found = {kind: [event for event in newest if event.kind == kind] for kind in ("trace_failed", "trace_missed")}
    if found["trace_failed"] or folder.windows:
        return [_event_sentence(event) for event in found["trace_failed"]]
    if found["trace_missed"]:
        return [_event_sentence(found["trace_missed"][-1])]
    return [
        f"No trace yet: {event.message[:_MAX_MESSAGE_LENGTH]}, and {_newest_step_phrase(folder)}."
        for event in newest[-1:]
    ]


def _event_sentence(event: RunEvent) -> str:
    message = event.message[:_MAX_MESSAGE_LENGTH]
    return f"{_capitalize(message)}."


def _newest_step_phrase(folder: RunFolder) -> str:
    steps = [heartbeat.step for heartbeat in folder.heartbeats if heartbeat.step is not None]
    steps += [int(metrics.step[-1]) for metrics in folder.metrics]
    return f"the newest step is {max(steps)}" if steps else "no step is known"


def is_single_job(folder: RunFolder, traces: Sequence[TraceSummary]) -> bool:
    """Whether all traces are of one job; in a plain folder: of one job's name, world size, device and kind."""
    runs = {(t.world_size, t.device, t.on_device, t.job) for t in traces}
    return bool(traces) and (folder.is_muster_run or len(runs) == 1)


def _loss(folder: RunFolder) -> list[str]:
    for metrics in folder.metrics:
        known = np.flatnonzero(np.isfinite(metrics.loss))
        if not len(known):
            continue
        first, last = float(metrics.loss[known[0]]), float(metrics.loss[known[-1]])
        sentences = []
        if len(known) > 1:
            verb = "fell" if last < first else "rose" if last > first else "went"
            sentences.append(
                f"The loss {verb} from {format_number(first)} to {format_number(last)} over {len(metrics):,} steps."
            )
        # The trainer writes null for NaN; steps before the first and after the last number may have no loss.
        not_finite = np.flatnonzero(~np.isfinite(metrics.loss[known[0] : known[-1] + 1])) + known[0]
        if len(not_finite):
            step = metrics.step[not_finite[0]]
            sentences.append(f"The loss was not a finite number in {len(not_finite)} steps, first in step {step}.")
        return sentences
    return []


def _slow_steps(folder: RunFolder, overheads: Sequence[ProfilerOverhead]) -> list[str]:
    for metrics in folder.metrics:
        if len(finite_values(metrics.step_time_s)) < 10:
            continue
        median = steady_median(metrics, metrics.step_time_s, overheads) or 0.0
        slow = np.flatnonzero(metrics.step_time_s > SLOW_STEP_FACTOR * median)
        if len(slow) == 1:
            step, step_time_s = metrics.step[slow[0]], metrics.step_time_s[slow[0]]
            cause = " (compilation)" if int(step) in _compiling_steps(folder) else ""
            return [f"Step {step} took {format_seconds(step_time_s)}{cause}; the median is {format_seconds(median)}."]
        if len(slow):
            named = format_list([str(int(metrics.step[i])) for i in slow], max_items=5)
            extra = float((metrics.step_time_s[slow] - median).sum())
            several = (
                f"{len(slow)} of {len(metrics):,} steps took more than twice the median of {format_seconds(median)}"
            )
            return [f"{several}: steps {named}, together {format_seconds(extra)} longer."]
        return []
    return []


def _compiling_steps(folder: RunFolder) -> set[int]:
    """The steps that include compilation, by the trainer's events: the first step of an attempt."""
    return {event.step + 1 for event in folder.events if event.kind == "compiling" and event.step is not None}


def _profiler_overhead(folder: RunFolder, overheads: Sequence[ProfilerOverhead]) -> list[str]:
    """The longest start and the longest write of the profiler that took at least `NOTABLE_SHARE` of a step."""
    medians = [median for m in folder.metrics if (median := steady_median(m, m.step_time_s, overheads)) is not None]
    least = NOTABLE_SHARE * min(medians, default=0.0)
    starts = [("the profiler was started", one.start_s, one) for one in overheads]
    writes = [("the trace was written", one.write_s, one) for one in overheads]
    longest = [max(times, key=lambda part: (part[1], -part[2].step)) for times in (starts, writes) if times]
    parts = [part for part in longest if part[1] > 0 and part[1] >= least]
    if not parts:
        return []
    actions = " and ".join(f"before step {one.step} {action} ({_took(time_s, one)})" for action, time_s, one in parts)
    steps, pronoun = ("this step", "it") if len(parts) == 1 else ("these steps", "them")
    uneven = any(one.spread_s >= least for _, _, one in parts)
    waits = f"; in {pronoun}, faster ranks wait for the others" if uneven else ""
    return [f"{_capitalize(actions)}. Step times do not include this; medians exclude {steps}{waits}."]


def _took(duration_s: float, one: ProfilerOverhead) -> str:
    more = f" on rank {one.rank}, {format_seconds(one.spread_s)} more than on the fastest"
    return f"{format_seconds(duration_s)}{more if round(one.spread_s, 3) else ''}"


def _overlap(traces: Sequence[TraceSummary]) -> list[str]:
    communication_s, total_s = sum(t.communication_s for t in traces), sum(t.window_s for t in traces)
    if communication_s <= 0 or total_s <= 0:
        return []
    part = format_percent(sum(t.overlapped_s for t in traces) / communication_s)
    return [f"Communication runs {format_percent(communication_s / total_s)} of the time; {part} of it is overlapped."]


def _describe_trace(row: LabelledTrace) -> str:
    trace = row.trace
    phrases = {**CATEGORY_PHRASES, TimeCategory.OTHER: "idle"} if trace.on_device else CATEGORY_PHRASES
    ordered = sorted(TimeCategory, key=lambda kind: (-trace.share(kind), kind))
    parts = [
        f"{format_percent(trace.share(kind))} {phrases[kind]}"
        for kind in ordered
        if trace.share(kind) >= NEGLIGIBLE_SHARE
    ]
    ratio = trace.overlap_ratio
    overlapped = "" if ratio is None else f"; {format_percent(ratio)} of the communication is overlapped"
    return f"{_capitalize(row.label)}: {format_list(parts)}{overlapped}."


def _slow_rank(folder: RunFolder, overheads: Sequence[ProfilerOverhead]) -> list[str]:
    """The rank with the largest median step time; usually collectives make the step times of all ranks equal."""
    measured = [m for m in folder.metrics if len(finite_values(m.step_time_s)) >= 10]
    medians = [(steady_median(m, m.step_time_s, overheads) or 0.0, m.rank) for m in measured]
    if len(medians) < 2:
        return []
    median, (slowest, rank) = float(np.median([m for m, _ in medians])), max(medians)
    if slowest < (1 + NOTABLE_SHARE) * median:
        return []
    return [f"Steps of rank {rank} take {format_seconds(slowest)}, those of the median rank {format_seconds(median)}."]


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
