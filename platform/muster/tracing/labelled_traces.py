"""The traces of one report as rows: each with the name that pictures and sentences give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.tracing.analysis import TraceSummary


@dataclass(frozen=True, slots=True)
class LabelledTrace:
    """One analysed trace under the name that the pictures give it."""

    label: str
    trace: TraceSummary


def label_traces(summaries: Sequence[TraceSummary]) -> tuple[LabelledTrace, ...]:
    """`rank 3`, with the file's name where that alone would not tell two traces apart."""
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
    """Of the steps that most ranks have a picture of, the one whose slowest rank is the median."""
    slowest: dict[int, list[float]] = {}
    for trace in summaries:
        for picture in trace.timelines:
            slowest.setdefault(picture.step, []).append(picture.duration_s)
    if not slowest:
        return None
    most = max(len(times) for times in slowest.values())
    common = sorted((max(times), step) for step, times in slowest.items() if len(times) == most)
    return common[(len(common) - 1) // 2][1]
