"""The traces of a report with the labels used in charts and findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.tracing.analysis import TraceSummary


@dataclass(frozen=True, slots=True)
class LabelledTrace:
    """An analysed trace and its label."""

    label: str
    trace: TraceSummary


def label_traces(summaries: Sequence[TraceSummary]) -> tuple[LabelledTrace, ...]:
    """Label each trace `rank 3`, with the file name added if the rank is not unique."""
    ranks = [t.rank for t in summaries]
    return tuple(
        LabelledTrace(
            label=f"rank {t.rank}"
            if t.rank is not None and ranks.count(t.rank) == 1
            else (f"rank {t.rank} · {_short_source(t.source)}" if t.rank is not None else _short_source(t.source)),
            trace=t,
        )
        for t in summaries
    )


def _short_source(source: str) -> str:
    return Path(source).name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")


def choose_timeline_step(summaries: Sequence[TraceSummary]) -> int | None:
    """Of the steps for which most ranks have a timeline, the one with the median slowest rank."""
    durations: dict[int, list[float]] = {}
    for trace in summaries:
        for timeline in trace.timelines:
            durations.setdefault(timeline.step, []).append(timeline.duration_s)
    if not durations:
        return None
    max_ranks = max(len(times) for times in durations.values())
    common = sorted((max(times), step) for step, times in durations.items() if len(times) == max_ranks)
    return common[(len(common) - 1) // 2][1]
