"""What traces do not have, so that a comparison is not possible or says less."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from muster.text import pluralize
from muster.tracing.analysis.summary import LabelledTrace
from muster.tracing.analysis.trace_summary import AnalysedTrace, TraceSummary, UnreadableTrace
from muster.tracing.formatting import format_list
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.runs.run_folder import SkippedFile
from muster.tracing.work.step_marks import WHOLE_TRACE

MAX_NAMED = 4
MAX_NAMED_RANKS = 16


def comparable(traces: Sequence[AnalysedTrace]) -> tuple[list[AnalysedTrace], list[UnreadableTrace]]:
    """The traces that can be compared with each other, and those that cannot, with the reason: of a truncated trace
    without a complete step, and of one without kernels whose peers have them, nothing could be said."""
    left_out = {}
    for trace in traces:
        one = trace.summary
        if one.recording.truncated and not one.steps:
            left_out[one.source] = f"{one.recording.lost}; none of its steps is complete"
    if len(left_out) == len(traces):
        left_out = {}
    devices = [trace.summary for trace in traces if trace.summary.on_device and trace.summary.source not in left_out]
    sizes = {one.world_size for one in devices}
    for trace in traces:
        one = trace.summary
        if not devices or one.on_device or one.source in left_out or {one.world_size} != sizes:
            continue
        if one.recording.launches:
            left_out[one.source] = one.recording.without or "its kernels are lost"
        elif one.rank not in {other.rank for other in devices} and (one.world_size or 1) > 1:
            left_out[one.source] = (
                "it has no kernels, as the other ranks have: another tool, such as Nsight, DCGM's profiling or a "
                "second profiler, holds CUPTI, or ProfilerActivity.CUDA was not given"
            )
    kept = [trace for trace in traces if trace.summary.source not in left_out]
    return kept, [UnreadableTrace(source, reason) for source, reason in left_out.items()]


def missing(traces: Sequence[TraceSummary], comparison: RankComparison | None, apart: str) -> tuple[str, ...]:
    """Sentences about what is missing for a comparison of all ranks; `apart`: why the traces are of several runs."""
    found = [
        f"{Path(one.source).name}: {one.recording.lost}; the rest is analysed."
        for one in [one for one in traces if one.recording.lost][:MAX_NAMED]
    ]
    found += [
        f"{Path(one.source).name}: {one.recording.without}."
        for one in [one for one in traces if one.recording.without][:MAX_NAMED]
    ]
    found += [f"Steps: {source}." for source in dict.fromkeys(one.recording.steps_from for one in traces) if source]
    if len(traces) == 1 and not apart:
        found += _alone(traces[0])
    if comparison is None and traces:
        found.append(f"The ranks are not compared: {_obstacle(traces, apart)}.")
    return tuple(found)


def _alone(one: TraceSummary) -> list[str]:
    who = "one rank" if one.rank is None else f"rank {one.rank}"
    if one.world_size is not None and one.world_size > 1:
        return [f"Only {who} of {one.world_size} is traced: who waits for whom cannot be known."]
    if one.world_size is None and one.communication_s > 0:
        return [f"Only {who} is traced, and it communicates with others: who waits for whom cannot be known."]
    return []


def _obstacle(traces: Sequence[TraceSummary], apart: str) -> str:
    if apart:
        return f"the traces are of different runs ({apart})"
    sizes, jobs = {one.world_size for one in traces}, {one.job for one in traces}
    if len(sizes) > 1:
        named = format_list(sorted("unknown" if size is None else str(size) for size in sizes))
        return f"the traces are of different runs (of {named} ranks)"
    if len(jobs) > 1:
        return f"the traces are of different runs (jobs {format_list(sorted(job or 'unknown' for job in jobs))})"
    if len({(one.device, one.on_device) for one in traces}) > 1:
        return "the traces are of different runs"
    ranks = [one.rank for one in traces]
    repeated = sorted({rank for rank in ranks if rank is not None and ranks.count(rank) > 1})
    if repeated:
        of = format_list([str(rank) for rank in repeated])
        return f"there are several traces of rank {of}, of the same time"
    if len(traces) > 1 and None in ranks:
        return f"{pluralize(ranks.count(None), 'trace')} of {len(traces)} without a rank, in the trace or its name"
    if any(not one.steps and not one.recording.steps_from.endswith(WHOLE_TRACE) for one in traces):
        return "a trace has no complete step"
    return "no step is in all traces"


def derive_notes(rows: Sequence[LabelledTrace], skipped: Sequence[SkippedFile], *, compared: bool) -> list[str]:
    """Sentences about the analysis: what it does not include. `compared`: the traces are of one job."""
    traces = [row.trace for row in rows]
    of_one_job = [*_missing_ranks(traces), *_different_steps(traces)] if compared else []
    return [*of_one_job, *_invalid_events(rows), *_skipped(skipped)]


def missing_ranks(traces: Sequence[TraceSummary]) -> str:
    """The ranks without a trace: `rank 1`, `ranks 1, 2 and 5 more`; empty without any, or if they are not known."""
    world_sizes = {t.world_size for t in traces if t.world_size}
    ranks = {t.rank for t in traces if t.rank is not None}
    if len(world_sizes) != 1 or len(ranks) >= (world := world_sizes.pop()):
        return ""
    count = world - sum(rank < world for rank in ranks)
    named = list(islice((str(rank) for rank in range(world) if rank not in ranks), MAX_NAMED_RANKS))
    missing = format_list(named, max_items=MAX_NAMED_RANKS)
    if count > len(named):
        missing = f"{', '.join(named[:-1])} and {count - len(named) + 1} more"
    return f"{'rank' if count == 1 else 'ranks'} {missing}"


def _missing_ranks(traces: Sequence[TraceSummary]) -> list[str]:
    missing = missing_ranks(traces)
    if not missing:
        return []
    traced, world = (
        len({t.rank for t in traces if t.rank is not None}),
        next(t.world_size for t in traces if t.world_size),
    )
    of_ranks = f"There are traces of {traced} of {world} ranks; there is none of {missing}."
    return [f"{of_ranks} Findings about ranks cover only those traced."]


def _different_steps(traces: Sequence[TraceSummary]) -> list[str]:
    counts = {len(trace.steps) for trace in traces}
    if len(counts) < 2:
        return []
    common = len(set.intersection(*({step.step for step in trace.steps} for trace in traces)))
    used = f"only the {common} that all have are used" if common else "none is in all of them"
    return [f"The traces have different numbers of steps, {min(counts)} to {max(counts)}; {used}."]


def _invalid_events(rows: Sequence[LabelledTrace]) -> list[str]:
    invalid = [(row.trace.invalid_events, row.label) for row in rows if row.trace.invalid_events]
    if not invalid:
        return []
    total = sum(count for count, _ in invalid)
    where = format_list([f"{label}: {count:,}" for count, label in invalid])
    verbs = ("event has", "is") if total == 1 else ("events have", "are")
    return [f"{total:,} {verbs[0]} no valid time or duration and {verbs[1]} not included ({where})."]


def _skipped(skipped: Sequence[SkippedFile]) -> list[str]:
    if not skipped:
        return []
    files = "1 file" if len(skipped) == 1 else f"{len(skipped)} files"
    named = [f"{s.file} ({s.reason})" for s in skipped]
    return [f"{files} skipped: {format_list(named, max_items=4)}."]
