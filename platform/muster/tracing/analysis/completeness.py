"""What traces do not have, so that a comparison is not possible or says less."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.text import pluralize
from muster.tracing.analysis.trace_summary import AnalysedTrace, TraceSummary, UnreadableTrace
from muster.tracing.formatting import format_list
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.work.step_marks import WHOLE_TRACE

MAX_NAMED = 4


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
    if len({one.world_size for one in traces}) > 1 or len({(one.device, one.on_device, one.job) for one in traces}) > 1:
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
