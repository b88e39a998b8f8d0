"""Which traces are of one capture of one job, and of which rank each is where the traces do not say it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from muster.text import pluralize
from muster.tracing.analysis.trace_summary import RANK_IN_NAME, AnalysedTrace
from muster.tracing.formatting import format_list
from muster.tracing.runs.trace_files import parse_trace_name

MAX_NAMED_FILES = 6


@dataclass(frozen=True, slots=True)
class Capture:
    """The newest capture among some traces; `notes` are sentences about its ranks and about the other captures."""

    traces: tuple[AnalysedTrace, ...]
    notes: tuple[str, ...] = ()


def newest_capture(traces: Sequence[AnalysedTrace]) -> Capture:
    """The traces of the newest capture, each with its rank. Traces of different numbers of ranks stay together: they
    are of different jobs, which are described one by one."""
    if len({trace.summary.world_size for trace in traces}) > 1:
        return Capture(tuple(traces))
    ranked, note = _with_ranks(traces)
    captures = _captures(ranked)
    notes = [note] if note else []
    if len(captures) > 1:
        others = [f"{_steps(capture)}({_names(capture)})" for capture in captures[1:]]
        newest = f"{_steps(captures[0])}({_names(captures[0])})"
        notes.append(
            f"These are {len(captures)} captures: the newest, {newest}, is analysed; "
            f"not {format_list(others, max_items=MAX_NAMED_FILES)}."
        )
    return Capture(tuple(sorted(captures[0], key=_by_rank)), tuple(notes))


def _by_rank(trace: AnalysedTrace) -> tuple[bool, int, str]:
    return trace.summary.rank is None, trace.summary.rank or 0, trace.summary.source


def _with_ranks(traces: Sequence[AnalysedTrace]) -> tuple[list[AnalysedTrace], str]:
    """The traces with the ranks of their names, or numbered by process, if they do not have one each; and a sentence
    about that."""
    stated = [trace.summary.rank for trace in traces]
    distinct = len(set(stated) - {None})
    if len(traces) < 2 or distinct == len(traces):
        return list(traces), ""
    named = [_rank_of_path(trace.summary.source) for trace in traces]
    if None not in named and len(set(named)) > distinct:
        ranks: list[int | None] = list(named)
        how = "the names of their files"
    else:
        processes = [trace.summary.recording.process for trace in traces]
        ordered = list(dict.fromkeys(processes[i] for i in _in_natural_order(traces)))
        if "" in processes or len(ordered) <= max(distinct, 1) or distinct > 1 or not _overlap(traces):
            return list(traces), ""
        ranks = [ordered.index(process) for process in processes]
        how = "the order of their files, since the names have none"
    count = len(set(ranks))
    found = [_ranked(trace, rank, count) for trace, rank in zip(traces, ranks, strict=True) if rank is not None]
    all_say = f"all say rank {stated[0]}" if distinct == 1 and None not in stated else "do not all say a rank"
    return found, f"The traces {all_say}: ranks are by {how}."


def _ranked(trace: AnalysedTrace, rank: int, count: int) -> AnalysedTrace:
    world = trace.summary.world_size
    summary = replace(trace.summary, rank=rank, world_size=world if world is None or world >= count else None)
    record = trace.record
    if record is not None:
        stage = rank if record.stage is not None and record.stage == record.rank else record.stage
        record = replace(record, rank=rank, stage=stage)
    return AnalysedTrace(summary, record)


def _rank_of_path(source: str) -> int | None:
    """The rank in the name of the file, else of one of the two folders around it."""
    parts = Path(source).parts[-3:]
    return next((int(found[1]) for part in reversed(parts) if (found := RANK_IN_NAME.search(part))), None)


def _in_natural_order(traces: Sequence[AnalysedTrace]) -> list[int]:
    def key(i: int) -> list[tuple[int, str]]:
        parts = re.findall(r"\d+|\D+", Path(traces[i].summary.source).name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]

    return sorted(range(len(traces)), key=key)


def _overlap(traces: Sequence[AnalysedTrace]) -> bool:
    """Whether two processes were traced at the same time."""
    recordings = [trace.summary.recording for trace in traces]
    return any(
        a.process != b.process and a.begin_us < b.end_us and b.begin_us < a.end_us
        for a, b in combinations(sorted(recordings, key=lambda one: one.begin_us)[:1000], 2)
    )


def _captures(traces: Sequence[AnalysedTrace]) -> list[list[AnalysedTrace]]:
    """Traces whose steps or times meet are of one capture, if it then has one trace of each rank; the newest first."""
    owners = [trace.summary.rank if trace.summary.rank is not None else trace.summary.recording.process
              for trace in traces]  # fmt: skip
    if len(set(owners)) == len(traces):
        return [list(traces)]
    names = [parse_trace_name(Path(trace.summary.source).name) for trace in traces]
    windows = {(name.attempt, name.end_step, name.start_step) for name in names if name is not None}
    if None not in names:
        return [
            [
                trace
                for trace, name in zip(traces, names, strict=True)
                if name is not None and (name.attempt, name.end_step, name.start_step) == window
            ]
            for window in sorted(windows, reverse=True)
        ]
    by_steps = [(float(min(t.summary.step_s)), float(max(t.summary.step_s) + 1)) for t in traces if t.summary.step_s]
    by_time = [(t.summary.recording.begin_us, t.summary.recording.end_us) for t in traces]
    marked = all(not trace.summary.recording.steps_from for trace in traces)
    for intervals in (by_steps if marked else [], by_time):
        parts = _components(intervals) if len(intervals) == len(traces) else []
        if len(parts) > 1 and all(len({owners[i] for i in part}) == len(part) for part in parts):
            found = [[traces[i] for i in part] for part in parts]
            return sorted(found, key=lambda part: -max(trace.summary.recording.begin_us for trace in part))
    return [list(traces)]


def _components(intervals: Sequence[tuple[float, float]]) -> list[list[int]]:
    """The positions of the intervals that meet, directly or through others."""
    parts: list[list[int]] = []
    reached = float("-inf")
    for i in sorted(range(len(intervals)), key=lambda i: intervals[i]):
        begin, end = intervals[i]
        if begin >= reached:
            parts.append([])
        parts[-1].append(i)
        reached = max(reached, end)
    return parts


def _steps(capture: Sequence[AnalysedTrace]) -> str:
    """`steps 6 to 7 `, empty if the traces have no numbers of steps."""
    numbers = {number for trace in capture for number in trace.summary.step_s}
    if not numbers or any(trace.summary.recording.steps_from for trace in capture):
        return ""
    return f"steps {min(numbers)} to {max(numbers)} "


def _names(capture: Sequence[AnalysedTrace]) -> str:
    names = [Path(trace.summary.source).name for trace in capture]
    return names[0] if len(names) == 1 else f"{names[0]} and {pluralize(len(names) - 1, 'other file')}"
