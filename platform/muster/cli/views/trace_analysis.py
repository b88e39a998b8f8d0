"""The output of `muster trace analyze`: verdicts, the temporal table, findings, skipped files."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.text import pluralize
from muster.tracing.analysis.analysis_rows import temporal_rows
from muster.tracing.analysis.run_analysis import Report
from muster.tracing.report import critical_path_lines
from muster.tracing.work.hta_breakdown import HtaVersion

_COLUMNS = ("rank", "idle_us", "compute_us", "non_compute_us", "kernel_us", "overlap_pct")


def analysis_tables(report: Report, *, hta: HtaVersion | None = None) -> RenderableType:
    """Findings, verdicts first, and the temporal table."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for row in temporal_rows(report, hta=hta):
        table.add_row(*("" if row[name] is None else str(row[name]) for name in _COLUMNS))
    head = [pluralize(len(report.traces), "trace")]
    if report.traced_steps is not None:
        head[0] += f" of steps {report.traced_steps[0]} to {report.traced_steps[1] - 1}"
    if not report.verdicts:
        head.append("no verdict: nothing exceeds the thresholds (docs/analysis.md)")
    skipped = [Text(f"skipped: {one.file}: {one.reason}") for one in report.skipped]
    sentences = (Text(sentence) for sentence in (*head, *report.findings))
    return Group(*sentences, Text(), table, *critical_path_lines(report), *skipped)
