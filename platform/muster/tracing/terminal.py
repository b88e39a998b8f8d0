"""The report in a terminal: the page's facts, sentences and pictures in text. NO_COLOR is honoured by rich."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console, Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from muster.tracing.figures import count, digits, percent, seconds, size
from muster.tracing.job import Report
from muster.tracing.operators import Operator, short_name
from muster.tracing.work import Work

BLOCKS = "▁▂▃▄▅▆▇█"
# Letters tell kinds apart where there is no colour.
MARKS = {
    Work.COMPUTE: ("█", "blue", "compute"),
    Work.OPTIMIZER: ("▓", "bright_cyan", "optimizer"),
    Work.COMMUNICATION: ("▒", "yellow", "communication, not hidden"),
    Work.MEMORY: ("+", "magenta", "memory copies"),
    Work.DATA: ("d", "green", "waiting for data"),
    Work.OTHER: ("·", "bright_black", "no operator"),
}
MOST_ROWS = 16


def render(report: Report, console: Console) -> None:
    """Print the report; at most as wide as the console."""
    console.print(Rule(Text(report.facts.name, style="bold"), style="bright_black"))
    console.print(_facts(report))
    for sentence in report.findings:
        console.print(Padding(Text(f"• {sentence}"), (0, 0, 0, 1)))
    width = min(console.width, 110)
    parts: list[Text | Table] = [*_curves(report, width - 24), *_kinds(report, width)]
    parts += _operators("Top kernels", report.kernels) or _operators("Top operators", report.operators)
    parts += _skipped(report)
    console.print(Group(*parts))


def _facts(report: Report) -> Text:
    facts = report.facts
    told = []
    if facts.steps is not None:
        told.append(f"{facts.steps:,} steps")
    if facts.loss_from is not None and facts.loss_to is not None:
        told.append(f"loss {digits(facts.loss_from)} → {digits(facts.loss_to)}")
    if facts.step_time_s is not None:
        told.append(f"{seconds(facts.step_time_s)} a step")
    if facts.tokens_per_s is not None:
        told.append(f"{count(facts.tokens_per_s)} tokens/s")
    if facts.mfu is not None:
        told.append(f"MFU {percent(facts.mfu)}")
    if facts.peak_memory_bytes is not None:
        told.append(f"peak memory {size(facts.peak_memory_bytes)}")
    if facts.world_size is not None:
        told.append(f"{facts.world_size} rank{'s' if facts.world_size > 1 else ''}")
    if facts.device is not None:
        told.append(facts.device)
    if facts.attempts > 1:
        told.append(f"{facts.attempts} attempts")
    return Text(" · ".join(told))


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as blocks of eight heights, the mean of each stretch; the least is the lowest block."""
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return ""
    if len(array) > width:
        array = np.array([part.mean() for part in np.array_split(array, width)])
    low, high = float(array.min()), float(array.max())
    scaled = np.zeros(len(array)) if high <= low else (array - low) / (high - low)
    return "".join(BLOCKS[min(int(v * len(BLOCKS)), len(BLOCKS) - 1)] for v in scaled)


def _curves(report: Report, width: int) -> list[Text]:
    out: list[Text] = []
    if report.loss is not None:
        values = report.loss.values
        ends = f"{digits(values[0])} → {digits(values[-1])}"
        out += [Text("\nLoss", style="bold"), Text(f"  {sparkline(values, width)}  {ends}")]
    if report.step_times:
        out.append(Text("\nStep time per rank", style="bold"))
        for series in report.step_times[:MOST_ROWS]:
            usual = float(np.median(series.values))
            # A compile of a minute would flatten all that follows.
            line = sparkline(np.minimum(series.values, 3 * usual).tolist(), width - 12)
            out.append(Text(f"  rank {series.rank:<4} {line}  median {seconds(usual)}"))
    return out


def _kinds(report: Report, width: int) -> list[Text]:
    rows = [row for row in report.rows if row.trace.window_s > 0][:MOST_ROWS]
    if not rows:
        return []
    room = min(max(len(row.label) for row in rows), 32)
    wide = max(20, width - room - 20)
    out = [Text("\nTime per kind of work", style="bold")]
    shown: set[Work] = set()
    for row in rows:
        line = Text(f"  {row.label[:room]:<{room}} ")
        drawn = 0.0  # of the bar
        for kind in Work:
            mark, style, _ = MARKS[kind]
            upto = drawn + row.trace.share(kind) * wide
            line.append(mark * (round(upto) - round(drawn)), style=style)
            if round(upto) > round(drawn):
                shown.add(kind)
            drawn = upto
        ratio = row.trace.overlap_ratio
        if ratio is not None:
            line.append(f"  {percent(ratio) if ratio >= 0.005 else 'none'} hidden", style="bright_black")
        out.append(line)
    legend = Text("  ")
    for kind in Work:
        mark, style, name = MARKS[kind]
        if kind in shown:
            name = "idle" if kind is Work.OTHER and any(row.trace.on_device for row in rows) else name
            legend.append(mark, style=style).append(f" {name}   ", style="bright_black")
    if any(row.trace.overlap_ratio is not None for row in rows):
        out_of_sight = Text(
            "  hidden: the part of communication that runs while something computes", style="bright_black"
        )
        return [*out, legend, out_of_sight]
    return [*out, legend]


def _operators(title: str, operators: Sequence[Operator]) -> list[Text | Table]:
    if not operators:
        return []
    table = Table(box=None, padding=(0, 2, 0, 2), show_edge=False)
    table.add_column("", overflow="fold")
    table.add_column("")
    for name in ("total", "calls", "mean"):
        table.add_column(name, justify="right", header_style="bright_black")
    longest = operators[0].total_ns or 1
    for op in operators[:8]:
        bar = "█" * max(1, round(16 * op.total_ns / longest))
        # Text, not markup: names hold square brackets.
        table.add_row(
            Text(short_name(op.name, 44)),
            Text(bar, style="blue"),
            seconds(op.total_ns / 1e9),
            f"{op.calls:,}",
            seconds(op.mean_ns / 1e9),
        )
    return [Text(f"\n{title}", style="bold"), table]


def _skipped(report: Report) -> list[Text]:
    if not report.skipped:
        return []
    return [Text("\nNot used", style="bold"), *(Text(f"  {s.file}: {s.reason}") for s in report.skipped)]
