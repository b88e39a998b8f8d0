"""The output of `muster trace analyze`: the first sentence, findings, the account of a step, tables, notes."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.text import pluralize
from muster.tracing.analysis.analysis_rows import temporal_rows
from muster.tracing.analysis.run_analysis import Report
from muster.tracing.page.account_text import account_lines, efficiency_lines
from muster.tracing.report import critical_path_lines
from muster.tracing.work.hta_breakdown import HtaVersion

WIDTH = 100
_COLUMNS = ("rank", "idle_us", "compute_us", "non_compute_us", "kernel_us", "overlap_pct")


def analysis_tables(report: Report, *, hta: HtaVersion | None = None) -> RenderableType:
    """The first sentence, findings with those of verdicts first, and tables."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for row in temporal_rows(report, hta=hta):
        table.add_row(*("" if row[name] is None else str(row[name]) for name in _COLUMNS))
    head = pluralize(len(report.traces), "trace")
    if report.traced_steps is not None:
        head += f" of steps {report.traced_steps[0]} to {report.traced_steps[1] - 1}"
    findings = (Text(sentence) for sentence in report.findings if sentence != report.headline)
    skipped = [Text(f"skipped: {one.file}: {one.reason}") for one in report.skipped]
    return Group(
        Text(report.headline, style="bold"),
        *findings,
        *account_lines(report, WIDTH),
        Text(),
        table,
        *efficiency_lines(report, WIDTH),
        *critical_path_lines(report),
        Text(f"\nAnalysed: {head}."),
        *map(Text, report.notes),
        *skipped,
    )
