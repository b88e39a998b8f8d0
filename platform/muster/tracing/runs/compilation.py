"""What torch.compile did in a run: the lines that the trainer writes per rank, and their summary in reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from muster.tracing.formatting import format_seconds

MAX_CAUSES = 20
MAX_CAUSE_CHARACTERS = 300  # in a sentence
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class CompilationRecord(msgspec.Struct):
    """A line of compilation/rank-<r>.jsonl: a compilation or a graph break (docs/reference/run-folder.md)."""

    kind: Literal["graph", "backward", "graph_break"]
    attempt: Count = 0
    step: Count | None = None
    compile_id: str | None = None
    function: str | None = None
    file: str | None = None
    line: int | None = None
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    cache_hits: Count = 0
    cache_misses: Count = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RankCompilation:
    """Compilation of one rank: numbers of graphs, and the seconds that compiling took."""

    rank: int
    graphs: int
    seconds: float
    cache_hits: int
    cache_misses: int
    recompilations: int
    graph_breaks: int


@dataclass(frozen=True, slots=True)
class CompilationCause:
    """Why a graph was compiled again (the guard that failed) or broken, where, and how often over all ranks."""

    kind: Literal["recompilation", "graph break"]
    place: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Compilation:
    """Compilation in the newest attempt of a run. `causes` has at most 20, the most frequent first."""

    attempt: int
    ranks: tuple[RankCompilation, ...]
    causes: tuple[CompilationCause, ...]


def summarise_compilation(records: Mapping[int, Sequence[CompilationRecord]]) -> Compilation | None:
    """The summary of each rank's records; None without records."""
    attempt = max((record.attempt for found in records.values() for record in found), default=None)
    if attempt is None:
        return None
    newest = {rank: [r for r in found if r.attempt == attempt] for rank, found in sorted(records.items())}
    counts: dict[tuple[Literal["recompilation", "graph break"], str, str], int] = {}
    for found in newest.values():
        for record in found:
            if record.reason is None or record.kind == "backward":
                continue
            kind: Literal["recompilation", "graph break"] = "recompilation" if record.kind == "graph" else "graph break"
            cause = (kind, f"{record.function} ({record.file}:{record.line})", _first_line(record.reason))
            counts[cause] = counts.get(cause, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Compilation(
        attempt,
        tuple(_of_rank(rank, found) for rank, found in newest.items() if found),
        tuple(CompilationCause(*cause, count) for cause, count in ordered[:MAX_CAUSES]),
    )


@dataclass(frozen=True, slots=True)
class SteadyCompilation:
    """What torch.compile did on a rank in the newest attempt after its first step, in which it is expected.

    `ms_per_step` is the time of compilation over all `steps` after the first one. `recompilations` are those steps'
    graphs. `graph_breaks` are those of the whole attempt. The causes are the most frequent ones, empty if unknown.
    """

    rank: int
    steps: int
    ms_per_step: float
    recompilations: int
    graph_breaks: int
    cause: str
    break_cause: str


def steady_compilations(
    records: Mapping[int, Sequence[CompilationRecord]], last_step: Mapping[int, int]
) -> tuple[SteadyCompilation, ...]:
    """One for each rank with records in the newest attempt; `last_step` of the ranks, by their metrics."""
    attempt = max((record.attempt for found in records.values() for record in found), default=0)
    steady = []
    for rank, found in sorted(records.items()):
        newest = [record for record in found if record.attempt == attempt]
        known = [record.step for record in newest if record.step is not None]
        if not known:
            continue
        first = min(known)
        later = [record for record in newest if record.step is not None and record.step > first]
        steps = max(last_step.get(rank, 0), *known) - first
        graphs = [record for record in later if record.kind == "graph"]
        breaks = [record for record in newest if record.kind == "graph_break"]
        steady.append(
            SteadyCompilation(
                rank=rank,
                steps=steps,
                ms_per_step=1e3 * sum(record.seconds for record in later) / steps if steps > 0 else 0.0,
                recompilations=len(graphs),
                graph_breaks=len(breaks),
                cause=_most_frequent(graphs),
                break_cause=_most_frequent(breaks),
            )
        )
    return tuple(steady)


def _most_frequent(records: Sequence[CompilationRecord]) -> str:
    causes = Counter(
        f"{record.function} ({record.file}:{record.line}): {_first_line(record.reason)}"
        for record in records
        if record.reason is not None
    )
    return max(causes, key=lambda cause: (causes[cause], cause))[:MAX_CAUSE_CHARACTERS] if causes else ""


def _of_rank(rank: int, records: Sequence[CompilationRecord]) -> RankCompilation:
    graphs = [record for record in records if record.kind == "graph"]
    return RankCompilation(
        rank=rank,
        graphs=len(graphs),
        seconds=sum(record.seconds for record in records),
        cache_hits=sum(record.cache_hits for record in records),
        cache_misses=sum(record.cache_misses for record in records),
        recompilations=sum(record.reason is not None for record in graphs),
        graph_breaks=sum(record.kind == "graph_break" for record in records),
    )


def _first_line(reason: str) -> str:
    """Without the hints that follow a graph break's reason in torch."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    explained = [line for line in lines[1:2] if line.startswith("Explanation:")]
    return " ".join([*lines[:1], *explained])


COLUMNS = ("graphs", "compile time", "from the cache", "recompilations", "graph breaks")


def rank_rows(compilation: Compilation) -> list[tuple[str, tuple[str, ...]]]:
    """A label and the values of `COLUMNS` for each rank."""
    return [
        (
            f"rank {rank.rank}",
            (
                f"{rank.graphs:,}",
                format_seconds(rank.seconds),
                f"{rank.cache_hits:,} of {rank.cache_hits + rank.cache_misses:,}",
                f"{rank.recompilations:,}",
                f"{rank.graph_breaks:,}",
            ),
        )
        for rank in compilation.ranks
    ]


def cause_lines(compilation: Compilation) -> list[str]:
    """A line for each cause."""
    return [f"{cause.kind}, {cause.count}x: {cause.place}: {cause.reason}" for cause in compilation.causes]
