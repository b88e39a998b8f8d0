"""The account of a step and the efficiency of operators as lines of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from rich.table import Table
from rich.text import Text

from muster.text_layout import wrap_parts
from muster.tracing.analysis.headline import USE_NAMES
from muster.tracing.analysis.run_analysis import Report
from muster.tracing.formatting import format_percent, format_seconds
from muster.tracing.page.account_section import select_rows
from muster.tracing.page.work_tables import (
    SHAPES_NOT_RECORDED,
    efficiency_hint,
    shape_columns,
    shape_values,
    shown_operators,
)
from muster.tracing.ranks.step_account import StepAccount, StepRow, Use

MAX_SHAPES = 8
WIDE_COLUMNS = 100
# Different characters distinguish the uses without colour.
MARKS = {
    Use.COMPUTE: ("█", "blue"),
    Use.TRANSFER: ("▒", "yellow"),
    Use.WAITING: ("w", "yellow"),
    Use.STAGES: ("w", "yellow"),
    Use.CHECKPOINT: ("C", "red"),
    Use.COPY: ("+", "magenta"),
    Use.ALLOCATOR: ("a", "magenta"),
    Use.GARBAGE: ("g", "bright_yellow"),
    Use.PREPROCESS: ("p", "green"),
    Use.DATA: ("d", "green"),
    Use.COMPILE: ("c", "cyan"),
    Use.HOST: ("h", "bright_yellow"),
    Use.SYNC: ("s", "bright_yellow"),
    Use.LAUNCH: ("l", "bright_black"),
    Use.UNKNOWN: ("·", "bright_black"),
}


def account_lines(report: Report, width: int) -> list[Text]:
    """A bar per rank, those of much longer steps, and a legend; empty without an account."""
    account = report.account
    if account is None:
        return []
    rows = select_rows(account.ranks, {rank for verdict in report.verdicts for rank in verdict.ranks})
    overlap = {row.trace.rank: row.trace.overlap_ratio for row in report.traces}
    out = [Text("\nWhere the time of a step goes", style="bold")]
    out += _bars(rows, [f"rank {row.rank}" for row in rows], [overlap.get(row.rank) for row in rows], width)
    if account.longer:
        out.append(Text("\nSteps that took much longer", style="bold"))
        labels = [f"step {row.step}, rank {row.rank}" for row in account.longer]
        out += _bars(account.longer, labels, [None] * len(labels), width)
    drawn = {line.plain[span.start] for line in out for span in line.spans if span.end > span.start}
    legend = [
        Text.assemble(MARKS[u], (f" {USE_NAMES[u]}", "bright_black")) for u in Use if _is_shown(u, account, drawn)
    ]
    out += wrap_parts(legend, width, separator="   ", prefix="  ")
    if any(ratio is not None for ratio in overlap.values()):
        words = ["overlapped:", "the", "part", "of", "communication", "that", "runs", "during", "computation"]
        out += [Text.assemble(line, style="bright_black") for line in wrap_parts(words, width, " ", prefix="  ")]
    return out


def _is_shown(use: Use, account: StepAccount, drawn: AbstractSet[str]) -> bool:
    """Of uses with the same mark those that the account has."""
    return MARKS[use][0] in drawn and any(row.of(use) > 0 for row in (*account.ranks, *account.longer))


def _bars(rows: Sequence[StepRow], labels: Sequence[str], overlaps: Sequence[float | None], width: int) -> list[Text]:
    longest = max(row.ms for row in rows) or 1.0
    label_width = max(map(len, labels))
    notes = [f"{format_seconds(row.ms / 1e3)}, {format_percent(row.lost_ms / (row.ms or 1.0))} lost" for row in rows]
    overlapped = ["" if ratio is None else f", {format_percent(ratio)} overlapped" for ratio in overlaps]
    space = max(10, width - label_width - 5 - max(map(len, notes)) - max(map(len, overlapped)))
    out = []
    for row, label, note, more in zip(rows, labels, notes, overlapped, strict=True):
        line = Text(f"  {label:<{label_width}} ")
        start = 0.0
        for part in row.parts:
            end = start + space * part.ms / longest
            mark, style = MARKS[part.use]
            line.append(mark * (round(end) - round(start)), style=style)
            start = end
        line.append(f"  {note}{more}", style="bright_black")
        out.append(line)
    return out


def efficiency_lines(report: Report, width: int) -> list[Text | Table]:
    """Operators by shape; without shapes how to record them."""
    found = report.efficiency
    if found is None or not found.operators:
        return [Text(f"\n{SHAPES_NOT_RECORDED}", style="bright_black")] if report.account is not None else []
    short = {"time a step": "a step", "calls a step": "calls", "of the limit": "of it"}
    columns = ("", "", *(short.get(name, name) for name in shape_columns(found)))
    wide = width >= WIDE_COLUMNS
    table = Table(box=None, padding=(0, 2 if wide else 1, 0, 0), show_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < 2 else "right", header_style="bright_black", overflow="fold")
    for row in shown_operators(found)[:MAX_SHAPES]:
        table.add_row(Text(row.operator.removeprefix("aten::")), Text(row.sizes), *shape_values(found, row))
    hint = Text(efficiency_hint(found), style="bright_black")
    return [Text("\nEfficiency of operators", style="bold"), hint, table]
