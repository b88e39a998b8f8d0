"""The tables of the HTML report: time breakdown, top operators, HTA's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from muster.tracing.formatting import format_percent, format_seconds
from muster.tracing.hta_breakdown import KernelType, kernel_type
from muster.tracing.labelled_traces import LabelledTrace
from muster.tracing.operator_stats import OperatorStats, short_name
from muster.tracing.run_analysis import Report
from muster.tracing.time_breakdown import COMMUNICATION_NAME, FRAME_NAME, TimeCategory

CATEGORY_NAMES = {
    TimeCategory.COMPUTE: "compute",
    TimeCategory.OPTIMIZER: "optimizer",
    TimeCategory.COMMUNICATION: "communication, exposed",
    TimeCategory.MEMORY: "memory copies",
    TimeCategory.DATA: "waiting for data",
    TimeCategory.OTHER: "no operator (Python, waiting)",
}
MAX_TABLE_ROWS = 15


def category_names(*, device: bool) -> Mapping[TimeCategory, str]:
    """The legend's name of each kind of work; on a device the remaining time is idle."""
    return {**CATEGORY_NAMES, TimeCategory.OTHER: "idle"} if device else CATEGORY_NAMES


def breakdown_table(
    rows: Sequence[LabelledTrace], categories: Sequence[TimeCategory], names: Mapping[TimeCategory, str]
) -> str:
    """The data of the bar chart as a table."""
    heads = "".join(f'<th class="n">{escape(names[kind].split(",")[0].split(" (")[0])}</th>' for kind in categories)
    cells = "".join(
        f"<tr><td>{escape(row.label)}</td>"
        + "".join(f'<td class="n">{time_and_share(row, kind)}</td>' for kind in categories)
        + f'<td class="n">{"–" if row.trace.overlap_ratio is None else format_percent(row.trace.overlap_ratio)}</td>'
        + f'<td class="n">{row.trace.events:,}</td></tr>'
        for row in rows
    )
    return (
        '<details><summary>Table</summary><div class="scroll"><table><thead><tr><th></th>'
        f'{heads}<th class="n">communication overlapped</th><th class="n">events</th></tr></thead>'
        f"<tbody>{cells}</tbody></table></div></details>"
    )


def time_and_share(row: LabelledTrace, category: TimeCategory) -> str:
    """Such as `260 ms (32.1%)`."""
    return (
        f"{format_seconds(row.trace.time_by_category_s[category.name.lower()])} "
        f"({format_percent(row.trace.share(category))})"
    )


def operator_tables(report: Report) -> str:
    """Tables of the top kernels (with device work) and the top CPU operators."""
    out = ""
    if report.kernels:
        total = sum(row.trace.kernels_s for row in report.traces)
        out += _table("Top kernels", "Device work by duration", report.kernels, total, kernel_style)
    if report.operators:
        total = sum(row.trace.operators_s for row in report.traces)
        hint = "CPU operators by self time, without the operators they call"
        out += _table("Top operators", hint, report.operators, total, operator_style)
    return out


def kernel_style(name: str) -> str:
    """The style class of a kernel's bar, by its kind of work."""
    return {KernelType.COMMUNICATION: "communication", KernelType.MEMORY: "memory"}.get(kernel_type(name), "compute")


def operator_style(name: str) -> str:
    """The style class of an operator's bar, by the kind of work of its name."""
    return "communication" if COMMUNICATION_NAME.match(name) else "other" if FRAME_NAME.match(name) else "compute"


def _table(
    title: str, hint: str, operators: Sequence[OperatorStats], total_s: float, style: Callable[[str], str]
) -> str:
    longest = max((op.total_ns for op in operators), default=0) or 1
    rows = "".join(_row(op, op.total_ns / longest, total_s, style(op.name)) for op in operators[:MAX_TABLE_ROWS])
    heads = "".join(f'<th class="n">{name}</th>' for name in ("share", "total", "calls", "mean"))
    return (
        f'<section><h2>{title}</h2><p class="hint">{hint}; sum of all traces: {format_seconds(total_s)}.</p>'
        f'<div class="scroll"><table class="ops"><thead><tr><th></th><th></th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _row(op: OperatorStats, length: float, total_s: float, style: str) -> str:
    share = format_percent(op.total_ns / 1e9 / total_s) if total_s > 0 else ""
    return (
        f'<tr><td><code title="{escape(op.name)}">{escape(short_name(op.name, 56))}</code></td>'
        f'<td class="bars"><span class="bar {style}" style="width:{100 * length:.1f}%"></span></td>'
        f'<td class="n">{share}</td><td class="n">{format_seconds(op.total_ns / 1e9)}</td>'
        f'<td class="n">{op.calls:,}</td>'
        f'<td class="n">{format_seconds(op.mean_ns / 1e9)}</td></tr>'
    )


def hta_table(report: Report) -> str:
    """The numbers of HolisticTraceAnalysis, collapsed; empty without device work."""
    rows = [row for row in report.traces if row.trace.hta is not None]
    if not rows:
        return ""
    cells = "".join(
        f'<tr><td>{escape(row.label)}</td><td class="n">{h.idle_us:,}</td><td class="n">{h.compute_us:,}</td>'
        f'<td class="n">{h.non_compute_us:,}</td><td class="n">{h.kernel_us:,}</td>'
        f'<td class="n">{"–" if h.overlap_percent is None else h.overlap_percent}</td></tr>'
        for row in rows
        if (h := row.trace.hta) is not None
    )
    heads = "".join(
        f'<th class="n">{t}</th>' for t in ("idle µs", "compute µs", "non-compute µs", "kernel time µs", "overlap %")
    )
    summary = "For comparison: numbers of HolisticTraceAnalysis (whole microseconds, without the last step)"
    return (
        f'<section><details class="bare"><summary>{summary}</summary><div class="scroll"><table><thead><tr><th></th>'
        f"{heads}</tr></thead><tbody>{cells}</tbody></table></div></details></section>"
    )
