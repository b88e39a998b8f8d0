"""Renders a report in a terminal: summary, findings and charts as text. rich honours NO_COLOR."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console, Group
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from muster.text_layout import wrap_parts
from muster.tracing.formatting import format_bytes, format_count, format_number, format_percent, format_seconds
from muster.tracing.operator_stats import OperatorStats, short_name
from muster.tracing.run_analysis import Report
from muster.tracing.time_breakdown import TimeCategory

SPARK_BLOCKS = "▁▂▃▄▅▆▇█"
# Different characters distinguish the kinds without colour.
CATEGORY_MARKS = {
    TimeCategory.COMPUTE: ("█", "blue", "compute"),
    TimeCategory.OPTIMIZER: ("▓", "bright_cyan", "optimizer"),
    TimeCategory.COMMUNICATION: ("▒", "yellow", "communication, exposed"),
    TimeCategory.MEMORY: ("+", "magenta", "memory copies"),
    TimeCategory.DATA: ("d", "green", "waiting for data"),
    TimeCategory.OTHER: ("·", "bright_black", "no operator"),
}
MAX_ROWS = 16
_WIDE_COLUMNS = 100  # columns of the terminal


def render_report(report: Report, console: Console) -> None:
    """Print the report, at most as wide as the console."""
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
    """A bullet list with hanging indentation."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=2)
    table.add_column(overflow="fold")
    for sentence in sentences:
        table.add_row(" •", Text(sentence))
    return table


def _summary(report: Report) -> list[str]:
    summary = report.summary
    parts = []
    if summary.steps is not None:
        parts.append(f"{summary.steps:,} steps")
    if summary.first_loss is not None and summary.last_loss is not None:
        parts.append(f"loss {format_number(summary.first_loss)} → {format_number(summary.last_loss)}")
    if summary.step_time_s is not None:
        parts.append(f"{format_seconds(summary.step_time_s)} a step")
    if summary.tokens_per_s is not None:
        parts.append(f"{format_count(summary.tokens_per_s)} tokens/s")
    if summary.mfu is not None:
        parts.append(f"MFU {format_percent(summary.mfu)}")
    if summary.peak_memory_bytes is not None:
        parts.append(f"peak memory {format_bytes(summary.peak_memory_bytes)}")
    if summary.world_size is not None:
        parts.append(f"{summary.world_size} rank{'s' if summary.world_size > 1 else ''}")
    if summary.device is not None:
        parts.append(summary.device)
    if summary.attempts > 1:
        parts.append(f"{summary.attempts} attempts")
    return parts


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as at most `width` blocks of eight heights, each the mean of a range of values."""
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
        excluded = {overhead.step for overhead in report.profiler_overheads}
        for series in report.step_times[:MAX_ROWS]:
            points = zip(series.steps, series.values, strict=True)
            median = float(np.median([value for step, value in points if step not in excluded] or series.values))
            # Without a cut, a step that compiles for a minute would flatten all others.
            line = sparkline(np.minimum(series.values, 3 * median).tolist(), width - 12)
            out.append(Text(f"  rank {series.rank:<4} {line}  median {format_seconds(median)}"))
    return out


def _time_breakdown(report: Report, width: int) -> list[Text]:
    rows = [row for row in report.traces if row.trace.window_s > 0][:MAX_ROWS]
    if not rows:
        return []
    label_width = min(max(len(row.label) for row in rows), 32)
    bar_width = max(20, width - label_width - 24)
    out = [Text("\nTime per kind of work", style="bold")]
    shown: set[TimeCategory] = set()
    for row in rows:
        line = Text(f"  {row.label[:label_width]:<{label_width}} ")
        start = 0.0  # column of the next part
        for kind in TimeCategory:
            mark, style, _ = CATEGORY_MARKS[kind]
            end = start + row.trace.share(kind) * bar_width
            line.append(mark * (round(end) - round(start)), style=style)
            if round(end) > round(start):
                shown.add(kind)
            start = end
        ratio = row.trace.overlap_ratio
        if ratio is not None:
            line.append(f"  {format_percent(ratio) if ratio >= 0.005 else 'none'} overlapped", style="bright_black")
        out.append(line)
    legend = []
    for kind in TimeCategory:
        mark, style, name = CATEGORY_MARKS[kind]
        if kind in shown:
            name = "idle" if kind is TimeCategory.OTHER and any(row.trace.on_device for row in rows) else name
            legend.append(Text.assemble((mark, style), (f" {name}", "bright_black")))
    out += wrap_parts(legend, width, separator="   ", prefix="  ")
    if any(row.trace.overlap_ratio is not None for row in rows):
        words = ["overlapped:", "the", "part", "of", "communication", "that", "runs", "during", "computation"]
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
        # Text, not markup: names contain square brackets.
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
    return [Text("\nSkipped files", style="bold"), *(Text(f"  {s.file}: {s.reason}") for s in report.skipped)]
