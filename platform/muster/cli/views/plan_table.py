"""The decisions of a plan as a table and as JSON rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.lifecycle.placement import to_status
from muster.model import Admit, Decision, Evict, Nominate, Placement, Resize, Snapshot, Wait
from muster.text.humanize import format_time, pluralize

_STYLES = {"Admit": "green", "Wait": "yellow", "HoldRoom": "cyan", "Evict": "red", "Resize": "magenta"}


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
