"""The page of `muster describe` for an object of another kind that queues."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.api.spec import WorkloadRecord
from muster.cli.views import job_text
from muster.text import format_duration, format_time
from muster.visibility.columns import run_time_s
from muster.workload.placement import describe


def object_details_view(record: WorkloadRecord, now: float) -> RenderableType:
    """State, why it waits, and where it runs."""
    reference, status = record.spec.object_ref, record.status
    name, style = f"{record.metadata.namespace}/{reference.name}", job_text.PHASE_STYLES[status.phase]
    phase = f"{job_text.PHASE_SYMBOLS[status.phase]} {status.phase}"
    code, message = job_text.phase_reason(status)
    parts: list[RenderableType] = [
        Text.assemble((name, "bold"), f"  {reference.kind}  ", (phase, f"bold {style}")),
    ]
    if status.phase != "Running" and (code or message):
        parts.append(Padding(Text.assemble((f"{code}: ", style), message), (0, 0, 0, 2)))
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for title, value in _rows(record, now):
        table.add_row(title, Text(value))
    parts.append(Padding(table, (1, 0, 0, 2)))
    return Group(*parts)


def object_line(record: WorkloadRecord, now: float) -> str:
    """Kind, name and state in one line: why it waits, where it runs, how it ended."""
    reference, status = record.spec.object_ref, record.status
    code, message = job_text.phase_reason(status)
    why = f"{code}: {message}" if message else code
    parts = [f"{reference.kind.lower()} {record.metadata.namespace}/{reference.name}: {status.phase}"]
    if status.phase == "Pending" and status.queue_position is not None:
        parts.append(f"position {status.queue_position}")
        if status.estimated_start is not None:
            parts.append(f"starts about {format_time(status.estimated_start, now)}")
    if status.phase == "Running":
        parts.append(", ".join(sorted({share.node for part in status.placement for share in part.nodes})))
    elif why and code != status.phase:
        parts.append(why)
    return "; ".join(part for part in parts if part)


def _rows(record: WorkloadRecord, now: float) -> Iterator[tuple[str, str]]:
    reference, status = record.spec.object_ref, record.status
    priority = "" if status.priority is None else f", priority {status.priority}"
    yield "queue", f"{record.spec.queue}{priority}"
    if status.queue_position is not None:
        yield "position", str(status.queue_position)
    if status.estimated_start is not None:
        yield "starts about", format_time(status.estimated_start, now)
    if status.placement:
        yield "placement", describe(status.placement)
        yield "nodes", ", ".join(sorted({share.node for part in status.placement for share in part.nodes}))
    if status.phase in ("Admitted", "Running"):
        yield "pods ready", f"{status.pods_ready} of {status.pods_wanted}"
    for title, at in (
        ("submitted", status.submitted_at),
        ("admitted", status.admitted_at),
        ("started", status.started_at),
        ("finished", status.finished_at),
    ):
        if at is not None:
            yield title, format_time(at, now)
    ran = run_time_s(status, now)
    if ran is not None:
        yield "ran for", format_duration(ran)
    yield "attempt", str(status.attempt)
    yield "events", f"kubectl describe -n {record.metadata.namespace} {reference.kind.lower()} {reference.name}"
