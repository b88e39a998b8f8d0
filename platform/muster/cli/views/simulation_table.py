"""The metrics of a simulation, one column per policy; the best value of each line is highlighted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.text.humanize import format_duration

if TYPE_CHECKING:
    from muster.simulate import SimulationResult

_Metric = tuple[str, "Callable[[SimulationResult], float]", Callable[[float], str], Literal["low", "high", "any"]]
_METRICS: tuple[_Metric | None, ...] = (
    ("jobs", lambda r: r.jobs, lambda v: f"{v:.0f}", "any"),
    ("completed", lambda r: r.completed, lambda v: f"{v:.0f}", "high"),
    ("refused", lambda r: r.refused, lambda v: f"{v:.0f}", "any"),
    None,
    ("wait, mean", lambda r: r.wait_s.mean, format_duration, "low"),
    ("wait, p50", lambda r: r.wait_s.p50, format_duration, "low"),
    ("wait, p95", lambda r: r.wait_s.p95, format_duration, "low"),
    ("wait, p99", lambda r: r.wait_s.p99, format_duration, "low"),
    None,
    ("completion, mean", lambda r: r.jct_s.mean, format_duration, "low"),
    ("completion, p50", lambda r: r.jct_s.p50, format_duration, "low"),
    ("completion, p95", lambda r: r.jct_s.p95, format_duration, "low"),
    ("completion, p99", lambda r: r.jct_s.p99, format_duration, "low"),
    None,
    ("GPU utilization", lambda r: r.gpu_utilization, lambda v: f"{v:.2%}", "high"),
    ("fragmentation", lambda r: r.fragmentation, lambda v: f"{v:.2%}", "low"),
    ("preemptions", lambda r: r.preemptions, lambda v: f"{v:.0f}", "low"),
    ("lost work", lambda r: r.lost_work_s, format_duration, "low"),
    ("makespan", lambda r: r.makespan_s, format_duration, "low"),
    None,
    ("took", lambda r: r.wall_s, lambda v: f"{v:.1f}s", "any"),
)


def simulation_table(results: Sequence[SimulationResult], gpus: int) -> RenderableType:
    """One column per policy."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column(f"{gpus} GPUs", no_wrap=True)
    for result in results:
        table.add_column(result.policy, justify="right", no_wrap=True)
    for line in _METRICS:
        if line is None:
            table.add_row()
            continue
        title, metric, formatted, better = line
        values = [metric(result) for result in results]
        best = {"low": min(values), "high": max(values), "any": None}[better]
        highlight = len(results) > 1 and len(set(values)) > 1
        cells = [Text(formatted(value), style="bold green" if highlight and value == best else "") for value in values]
        table.add_row(Text(title, style="dim"), *cells)
    return Group(table, *_notes(results))


def _notes(results: Sequence[SimulationResult]) -> list[Text]:
    """The notes of all policies; a note that does not concern all is prefixed with its policies."""
    policies_by_note: dict[str, list[str]] = {}
    for result in results:
        for note in result.notes:
            policies_by_note.setdefault(note, []).append(result.policy)
        for refusal in result.refused_jobs[:3]:
            note = f"refused {refusal.job}: {refusal.code}: {refusal.message}"
            policies_by_note.setdefault(note, []).append(result.policy)
    notes = []
    for note, policies in policies_by_note.items():
        prefix = "" if len(policies) == len(results) else f"{', '.join(policies)}: "
        notes.append(Text(f"note: {prefix}{note}", style="yellow"))
    return [Text(), *notes] if notes else []
