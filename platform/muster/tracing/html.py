"""The report as one self-contained page: no network, no scripts, light and dark by the reader's own setting.

Names of jobs, operators and files come from outside and may hold anything: all text goes through `escape`.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files

from muster.tracing.formatting import format_bytes, format_count, format_number, format_percent, format_seconds
from muster.tracing.run_analysis import Report
from muster.tracing.sections import metric_charts, time_breakdown_section, timeline_section
from muster.tracing.tables import hta_table, operator_tables


def render_page(report: Report) -> str:
    """The whole HTML document."""
    style = files("muster.tracing").joinpath("style.css").read_text(encoding="utf-8")
    body = "".join(
        (
            _header(report),
            _findings(report),
            metric_charts(report),
            time_breakdown_section(report),
            timeline_section(report),
            operator_tables(report),
            _skipped(report),
            hta_table(report),
            _footer(),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.summary.name)} · Muster report</title><style>{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _header(report: Report) -> str:
    facts = report.summary
    cards: list[tuple[str, str, str]] = []
    if facts.steps is not None:
        cards.append(("steps", f"{facts.steps:,}", ""))
    if facts.first_loss is not None and facts.last_loss is not None:
        cards.append(("loss", f"{format_number(facts.first_loss)} → {format_number(facts.last_loss)}", ""))
    if facts.step_time_s is not None:
        cards.append(("step time, median", format_seconds(facts.step_time_s), ""))
    if facts.tokens_per_s is not None:
        cards.append(("tokens per second", format_count(facts.tokens_per_s), ""))
    if facts.mfu is not None:
        cards.append(("MFU", format_percent(facts.mfu), ""))
    if facts.peak_memory_bytes is not None:
        cards.append(("peak memory", format_bytes(facts.peak_memory_bytes), "per rank"))
    on = ", ".join(filter(None, (facts.device, facts.backend)))
    if facts.world_size is not None:
        cards.append(("ranks", f"{facts.world_size:,}", on))
    elif facts.device is not None:
        cards.append(("device", facts.device, ""))
    if report.traces:
        cards.append(("traces", f"{len(report.traces):,}", _traced_steps(report)))
    if facts.attempts > 1:
        cards.append(("attempts", str(facts.attempts), ""))
    shown = "".join(
        f'<div class="fact"><dt>{escape(name)}</dt><dd>{escape(value)}'
        f"{f' <small>{escape(extra)}</small>' if extra else ''}</dd></div>"
        for name, value, extra in cards
    )
    return (
        f'<header><div class="eyebrow">Muster report</div><h1>{escape(facts.name)}</h1>'
        f'<div class="where">{escape(facts.folder)}</div><dl class="facts">{shown}</dl></header>'
    )


def _traced_steps(report: Report) -> str:
    if report.traced_steps is not None:
        return f"steps {report.traced_steps[0]}–{report.traced_steps[1] - 1}"
    return ""


def _findings(report: Report) -> str:
    if not report.findings:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in report.findings)
    return f'<section><h2>What the data shows</h2><ul class="findings">{items}</ul></section>'


def _skipped(report: Report) -> str:
    if not report.skipped:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(s.file)}</code></td><td>{escape(s.reason)}</td></tr>" for s in report.skipped
    )
    return (
        '<section><h2>Not used</h2><p class="hint">Files that could not be read; everything above is without them.</p>'
        f"<table><tbody>{rows}</tbody></table></section>"
    )


def _footer() -> str:
    return "<footer>Made by Muster. How each number is computed: docs/tracing.md.</footer>"
