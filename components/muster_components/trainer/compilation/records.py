"""What torch.compile did on this rank: graphs with their compile time, recompilations and graph breaks with reasons.

torch keeps a record of each compilation (`CompilationMetrics`) and of each graph break in this process.
Their names carry no promise of stability, so a field that a version lacks is read as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from torch._dynamo import utils as dynamo

MAX_RECORDS: Final = 10_000
"""Compilations that torch keeps (64 by default); later ones are not recorded."""
MAX_REASON_CHARACTERS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRecord:
    """One compilation, or one graph break.

    `kind` "graph": a frame was compiled, with the backward pass if that came from the cache; "backward": the backward
    pass of a graph; "graph_break": what ended a graph. `reason`: of a graph break; of a recompilation the guard that
    failed; else None. `function`, `file` and `line` are of the compiled function, or of the statement that broke the
    graph. `cache_hits` and `cache_misses` count graphs of Inductor.
    """

    kind: Literal["graph", "backward", "graph_break"]
    compile_id: str | None = None
    function: str | None = None
    file: str | None = None
    line: int | None = None
    seconds: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    reason: str | None = None


class CompileRecorder:
    """Returns the records since it was created or last read."""

    def __init__(self) -> None:
        dynamo.set_compilation_metrics_limit(MAX_RECORDS)
        self._compilations = len(dynamo.get_compilation_metrics())
        self._breaks = len(dynamo.graph_break_reasons)

    def read(self) -> list[CompileRecord]:
        """The new records: compilations, then graph breaks. Cheap where there are none."""
        compilations, breaks = dynamo.get_compilation_metrics(), dynamo.graph_break_reasons
        new = [_compilation(metrics) for metrics in compilations[self._compilations :]]
        new += [_graph_break(reason) for reason in breaks[self._breaks :]]
        self._compilations, self._breaks = len(compilations), len(breaks)
        return new


def _compilation(metrics: Any) -> CompileRecord:
    def value(name: str) -> Any:
        return getattr(metrics, name, None)

    return CompileRecord(
        kind="backward" if value("is_forward") is False else "graph",
        compile_id=value("compile_id"),
        function=value("co_name"),
        file=value("co_filename"),
        line=value("co_firstlineno"),
        seconds=(value("duration_us") or 0) / 1e6,
        cache_hits=value("inductor_fx_local_cache_hit_count") or 0,
        cache_misses=value("inductor_fx_local_cache_miss_count") or 0,
        reason=_shortened(value("recompile_reason")),
    )


def _graph_break(found: Any) -> CompileRecord:
    frame = found.user_stack[-1] if found.user_stack else None
    return CompileRecord(
        kind="graph_break",
        function=getattr(frame, "name", None),
        file=getattr(frame, "filename", None),
        line=getattr(frame, "lineno", None),
        reason=_shortened(found.reason),
    )


def _shortened(reason: str | None) -> str | None:
    return reason[:MAX_REASON_CHARACTERS] if reason else None


def summary_line(records: Sequence[CompileRecord]) -> str:
    """`compiled 3 graphs in 21.4 s, 4 of 5 from the cache; 1 recompilation, 2 graph breaks`."""
    graphs = [record for record in records if record.kind == "graph"]
    hits = sum(record.cache_hits for record in records)
    lookups = hits + sum(record.cache_misses for record in records)
    recompilations = sum(record.reason is not None for record in graphs)
    breaks = sum(record.kind == "graph_break" for record in records)
    seconds = sum(record.seconds for record in records)
    cached = f", {hits} of {lookups} from the cache" if lookups else ""
    return (
        f"compiled {_counted(len(graphs), 'graph')} in {seconds:.1f} s{cached}; "
        f"{_counted(recompilations, 'recompilation')}, {_counted(breaks, 'graph break')}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
