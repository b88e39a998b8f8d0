"""The report in a terminal: the page's facts, sentences and pictures in text. NO_COLOR is honoured by rich."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console, Group
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from muster.text.wrap import wrap_parts
from muster.tracing.formatting import format_bytes, format_count, format_number, format_percent, format_seconds
from muster.tracing.operator_stats import OperatorStats, short_name
from muster.tracing.run_analysis import Report
from muster.tracing.time_breakdown import TimeCategory

SPARK_BLOCKS = "▁▂▃▄▅▆▇█"
# Letters tell kinds apart where there is no colour.
CATEGORY_MARKS = {
    TimeCategory.COMPUTE: ("█", "blue", "compute"),
    TimeCategory.OPTIMIZER: ("▓", "bright_cyan", "optimizer"),
    TimeCategory.COMMUNICATION: ("▒", "yellow", "communication, not hidden"),
    TimeCategory.MEMORY: ("+", "magenta", "memory copies"),
    TimeCategory.DATA: ("d", "green", "waiting for data"),
    TimeCategory.OTHER: ("·", "bright_black", "no operator"),
}
MAX_ROWS = 16
_WIDE_COLUMNS = 100  # columns of the terminal


def render_report(report: Report, console: Console) -> None:
    """Print the report; at most as wide as the console."""
    console.print(Rule(Text(report.summary.name, style="bold"), style="bright_black"))
    width = min(console.width, 110)
    console.print(*wrap_parts(_summary(report), console.width), sep="\n")
    if report.findings:
        console.print(_findings(report.findings))
    parts: list[Text | Table] = [*_metric_lines(report, width - 24), *_time_breakdown(report, width)]
    parts += _operators("Top kernels", report.kernels, width) or _operators("Top operators", report.operators, width)
    parts += _skipped(report)
    console.print(Group(*parts))


def _findings(sentences: Sequence[str]) -> Table:
    """A list whose sentences go on below themselves."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=2)
    table.add_column(overflow="fold")
    for sentence in sentences:
        table.add_row(" •", Text(sentence))
    return table


def _summary(report: Report) -> list[str]:
    facts = report.summary
    told = []
    if facts.steps is not None:
        told.append(f"{facts.steps:,} steps")
    if facts.first_loss is not None and facts.last_loss is not None:
        told.append(f"loss {format_number(facts.first_loss)} → {format_number(facts.last_loss)}")
    if facts.step_time_s is not None:
        told.append(f"{format_seconds(facts.step_time_s)} a step")
    if facts.tokens_per_s is not None:
        told.append(f"{format_count(facts.tokens_per_s)} tokens/s")
    if facts.mfu is not None:
        told.append(f"MFU {format_percent(facts.mfu)}")
    if facts.peak_memory_bytes is not None:
        told.append(f"peak memory {format_bytes(facts.peak_memory_bytes)}")
    if facts.world_size is not None:
        told.append(f"{facts.world_size} rank{'s' if facts.world_size > 1 else ''}")
    if facts.device is not None:
        told.append(facts.device)
    if facts.attempts > 1:
        told.append(f"{facts.attempts} attempts")
    return told


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as blocks of eight heights, the mean of each stretch; the least is the lowest block."""
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return ""
    if len(array) > width:
        array = np.array([part.mean() for part in np.array_split(array, width)])
    low, high = float(array.min()), float(array.max())
    scaled = np.zeros(len(array)) if high <= low else (array - low) / (high - low)
    return "".join(SPARK_BLOCKS[min(int(v * len(SPARK_BLOCKS)), len(SPARK_BLOCKS) - 1)] for v in scaled)


def _metric_lines(report: Report, width: int) -> list[Text]:
    out: list[Text] = []
    if report.loss is not None:
        values = report.loss.values
        ends = f"{format_number(values[0])} → {format_number(values[-1])}"
        out += [Text("\nLoss", style="bold"), Text(f"  {sparkline(values, width)}  {ends}")]
    if report.step_times:
        out.append(Text("\nStep time per rank", style="bold"))
        after_pauses = {pause.step for pause in report.profiler_overheads}
        for series in report.step_times[:MAX_ROWS]:
            of_steps = zip(series.steps, series.values, strict=True)
            usual = float(np.median([value for step, value in of_steps if step not in after_pauses] or series.values))
            # A compile of a minute would flatten all that follows.
            line = sparkline(np.minimum(series.values, 3 * usual).tolist(), width - 12)
            out.append(Text(f"  rank {series.rank:<4} {line}  median {format_seconds(usual)}"))
    return out


def _time_breakdown(report: Report, width: int) -> list[Text]:
    rows = [row for row in report.traces if row.trace.window_s > 0][:MAX_ROWS]
    if not rows:
        return []
    room = min(max(len(row.label) for row in rows), 32)
    wide = max(20, width - room - 20)
    out = [Text("\nTime per kind of work", style="bold")]
    shown: set[TimeCategory] = set()
    for row in rows:
        line = Text(f"  {row.label[:room]:<{room}} ")
        drawn = 0.0  # of the bar
        for kind in TimeCategory:
            mark, style, _ = CATEGORY_MARKS[kind]
            upto = drawn + row.trace.share(kind) * wide
            line.append(mark * (round(upto) - round(drawn)), style=style)
            if round(upto) > round(drawn):
                shown.add(kind)
            drawn = upto
        ratio = row.trace.overlap_ratio
        if ratio is not None:
            line.append(f"  {format_percent(ratio) if ratio >= 0.005 else 'none'} hidden", style="bright_black")
        out.append(line)
    legend = []
    for kind in TimeCategory:
        mark, style, name = CATEGORY_MARKS[kind]
        if kind in shown:
            name = "idle" if kind is TimeCategory.OTHER and any(row.trace.on_device for row in rows) else name
            legend.append(Text.assemble((mark, style), (f" {name}", "bright_black")))
    out += wrap_parts(legend, width, separator="   ", prefix="  ")
    if any(row.trace.overlap_ratio is not None for row in rows):
        words = ["hidden:", "the", "part", "of", "communication", "that", "runs", "while", "something", "computes"]
        out += [Text.assemble(line, style="bright_black") for line in wrap_parts(words, width, " ", prefix="  ")]
    return out


def _operators(title: str, operators: Sequence[OperatorStats], width: int) -> list[Text | Table]:
    if not operators:
        return []
    wide = width >= _WIDE_COLUMNS
    table = Table(box=None, padding=(0, 2 if wide else 0, 0, 2), show_edge=False)
    table.add_column("", overflow="fold")
    table.add_column("", no_wrap=True)
    for name in ("total", "calls", "mean"):
        table.add_column(name, justify="right", header_style="bright_black", no_wrap=True)
    longest, bar_width = operators[0].total_ns or 1, 16 if wide else 8
    for op in operators[:8]:
        bar = "█" * max(1, round(bar_width * op.total_ns / longest))
        # Text, not markup: names hold square brackets.
        table.add_row(
            Text(short_name(op.name, 44 if wide else max(12, width - 46))),
            Text(bar, style="blue"),
            format_seconds(op.total_ns / 1e9),
            f"{op.calls:,}",
            format_seconds(op.mean_ns / 1e9),
        )
    return [Text(f"\n{title}", style="bold"), table]


def _skipped(report: Report) -> list[Text]:
    if not report.skipped:
        return []
    return [Text("\nNot used", style="bold"), *(Text(f"  {s.file}: {s.reason}") for s in report.skipped)]
