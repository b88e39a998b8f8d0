"""The tables of `muster replay` and `muster simulate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.model import Admit, Decision, Evict, Nominate, Placement, Resize, Snapshot, Wait
from muster.text import format_duration, format_time, pluralize
from muster.usage.causes import LOST, PRODUCTIVE, WAITING
from muster.workload.placement import to_status

if TYPE_CHECKING:
    from muster.simulate import SimulationResult

_STYLES = {"Admit": "green", "Wait": "yellow", "Nominate": "cyan", "Evict": "red", "Resize": "magenta"}
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
    ("time productive", lambda r: _part(r, PRODUCTIVE), lambda v: f"{v:.2%}", "high"),
    ("time waiting", lambda r: _part(r, WAITING), lambda v: f"{v:.2%}", "low"),
    ("time lost", lambda r: _part(r, LOST), lambda v: f"{v:.2%}", "low"),
    ("makespan", lambda r: r.makespan_s, format_duration, "low"),
    None,
    ("took", lambda r: r.wall_s, lambda v: f"{v:.1f}s", "any"),
)


def _part(result: SimulationResult, cause: str) -> float:
    """The part of the time of all jobs that ended."""
    return result.time_s.get(cause, 0.0) / (sum(result.time_s.values()) or 1.0)


def decision_rows(snapshot: Snapshot, decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """One row per decision, with gangs by name and `placement` as in a job's status."""
    names = _gang_names(snapshot)
    return [_decision_row(decision, names) for decision in decisions]


def plan_table(snapshot: Snapshot, decisions: Sequence[Decision]) -> RenderableType:
    """One line per decision, in the planner's order."""
    names = _gang_names(snapshot)
    queues = {gang.uid: gang.queue for gang in (*snapshot.pending, *(one.gang for one in snapshot.running))}
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("GANG", "QUEUE", "DECISION"):
        table.add_column(title, no_wrap=True)
    table.add_column("DETAILS", overflow="fold")
    for decision in decisions:
        kind = type(decision).__name__
        name, queue = names.get(decision.gang_uid, decision.gang_uid), queues.get(decision.gang_uid, "")
        table.add_row(
            Text(name), Text(queue), Text(kind, style=_STYLES[kind]), _describe_decision(decision, names, snapshot.now)
        )
    counts = [pluralize(sum(type(d).__name__ == kind for d in decisions), kind.lower()) for kind in _STYLES]
    shape = ", ".join(
        (pluralize(len(snapshot.nodes), "node"), f"{len(snapshot.running)} running", f"{len(snapshot.pending)} waiting")
    )
    return Group(
        Text(shape, style="dim"), table, Text(", ".join(c for c in counts if not c.startswith("0 ")), style="dim")
    )


def _gang_names(snapshot: Snapshot) -> dict[str, str]:
    return {gang.uid: gang.name for gang in (*snapshot.pending, *(one.gang for one in snapshot.running))}


def _decision_row(decision: Decision, names: dict[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {"gang": names.get(decision.gang_uid, decision.gang_uid), "decision": type(decision).__name__}
    if isinstance(decision, Wait):
        row |= {"reason": decision.reason, "message": decision.message, "queuePosition": decision.position}
        return row | {"estimatedStart": decision.estimated_start}
    if isinstance(decision, Evict | Resize):
        row |= {"reason": decision.reason, "for": names.get(decision.preemptor or "", decision.preemptor)}
    if isinstance(decision, Nominate):
        row |= {"victims": [names.get(uid, uid) for uid in decision.victims], "expiresAt": decision.expires_at}
    if isinstance(decision, Admit):
        row |= {"backfilled": decision.backfilled}
    if isinstance(decision, Admit | Nominate | Resize):
        row |= {"placement": _placement_rows(decision.placement)}
    return row


def _placement_rows(placement: Placement) -> list[dict[str, Any]]:
    return [part.model_dump(by_alias=True) for part in to_status(placement)]


def _describe_decision(decision: Decision, names: dict[str, str], now: float) -> Text:
    if isinstance(decision, Wait):
        place = f"#{decision.position} " if decision.position else ""
        start = (
            f", starts about {format_time(decision.estimated_start, now)}"
            if decision.estimated_start is not None
            else ""
        )
        return Text.assemble(place, (f"{decision.reason}: ", "yellow"), decision.message, start)
    if isinstance(decision, Evict):
        return Text(f"{decision.reason} for {names.get(decision.preemptor, decision.preemptor)}")
    nodes = [f"{node} ×{count}" for part in decision.placement for node, count in part.nodes]
    text = ", ".join(nodes[:6]) + (f" and {pluralize(len(nodes) - 6, 'node')} more" if len(nodes) > 6 else "")
    if isinstance(decision, Nominate):
        text += f"; from {', '.join(names.get(uid, uid) for uid in decision.victims)}"
    if isinstance(decision, Resize):
        text += f"; {decision.reason}"
    if isinstance(decision, Admit) and decision.backfilled:
        text += "; backfilled"
    return Text(text)


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
