"""Renders a report as one self-contained HTML page, without scripts or network access unless it is served.

Names of jobs, operators and files are not trusted: Jinja2 escapes all text in `templates/report.html` except the
charts, which escape their own. The charts are built here, because chart libraries need scripts in the
page or are slow to import.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from muster.tracing.analysis.run_analysis import Report
from muster.tracing.analysis.summary import LabelledTrace
from muster.tracing.efficiency.device_limits import Precision
from muster.tracing.formatting import format_bytes, format_count, format_number, format_percent, format_seconds
from muster.tracing.page.account_section import account_chart, cause_rows, longer_chart
from muster.tracing.page.bars import BarChart, BarLane, BarRow, stacked
from muster.tracing.page.metric_sections import metric_sections
from muster.tracing.page.rank_sections import heat_maps, rank_bars
from muster.tracing.page.timeline_section import timeline_chart
from muster.tracing.page.work_tables import SHAPES_NOT_RECORDED, efficiency_table, work_tables
from muster.tracing.ranks.critical_path import path_lines
from muster.tracing.runs.compilation import COLUMNS, cause_lines, rank_rows
from muster.tracing.work.operator_stats import short_name
from muster.tracing.work.pipeline_bubble import bubble_sentence
from muster.tracing.work.work_kinds import TimeCategory

MAX_ROWS = 64
MAX_TIMELINES = 16  # each has three lanes
MAX_TABLE_ROWS = 15
MIN_VISIBLE_SHARE = 0.002  # smaller parts of a bar have less than two pixels
CATEGORY_NAMES = {
    TimeCategory.COMPUTE: "compute",
    TimeCategory.OPTIMIZER: "optimizer",
    TimeCategory.COMMUNICATION: "communication, exposed",
    TimeCategory.MEMORY: "memory copies",
    TimeCategory.DATA: "waiting for data",
    TimeCategory.OTHER: "no operator (Python, waiting)",
}


@dataclass(frozen=True, slots=True)
class NumberTable:
    """A table of values; each row has a label."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A trace in the list of files: its label, its path below the report's folder, and its number of events."""

    label: str
    file: str
    events: int


def render_page(report: Report, *, perfetto_url: str | None = None) -> str:
    """The whole HTML document. With `perfetto_url`, for a server: each trace has a button that opens it there.

    The buttons need a script, and the traces at the relative addresses `traces/0`, `traces/1`, ....
    """
    environment = Environment(
        loader=PackageLoader("muster.tracing.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "percent": format_percent,
        "seconds": format_seconds,
        "short_name": short_name,
        "thousands": "{:,}".format,
    }
    script = (
        "" if perfetto_url is None else files("muster.tracing.page").joinpath("templates/open_trace.js").read_text()
    )
    return environment.get_template("report.html").render(
        report=report,
        facts=_facts(report),
        metrics=metric_sections(report),
        rank_bars=rank_bars(report),
        heat_maps=heat_maps(report),
        account=account_chart(report),
        longer=longer_chart(report.account),
        causes=cause_rows(report),
        bubble="" if report.pipeline is None else bubble_sentence(report.pipeline),
        others=_other_findings(report),
        breakdown=_breakdown_chart(report),
        breakdown_table=_breakdown_table(report),
        timeline=timeline_chart(report),
        work_tables=work_tables(report),
        efficiency=efficiency_table(report),
        shapes_not_recorded=SHAPES_NOT_RECORDED if report.account is not None and report.efficiency is None else "",
        hta_table=_hta_table(report),
        critical_path=() if report.critical_path is None else path_lines(report.critical_path),
        compilation_table=_compilation_table(report),
        compilation_causes=() if report.compilation is None else cause_lines(report.compilation),
        traces=_trace_rows(report),
        perfetto_url=perfetto_url,
        script=script,
        content_security_policy=_content_security_policy(script),
    )


def _other_findings(report: Report) -> tuple[str, ...]:
    """Those that are neither the headline nor in the list of causes."""
    shown_text = {cause.anchor for cause in cause_rows(report)}
    first = len(shown_text) + (report.pipeline is not None) if report.account is not None else 0
    return tuple(sentence for sentence in report.findings[first:] if sentence != report.headline)


def _content_security_policy(script: str) -> str:
    """What the page may do: only this script runs, if any, and it loads from the page's own server only."""
    policy = ["default-src 'none'", "style-src 'unsafe-inline'", "base-uri 'none'", "form-action 'none'"]
    if script:
        digest = b64encode(sha256(script.encode()).digest()).decode()
        policy += [f"script-src 'sha256-{digest}'", "connect-src 'self'"]
    return "; ".join(policy)


def _trace_rows(report: Report) -> list[TraceRow]:
    folder = Path(report.summary.folder)
    paths = [Path(row.trace.source).absolute() for row in report.traces]
    names = [str(path.relative_to(folder)) if folder in path.parents else path.name for path in paths]
    return [TraceRow(row.label, name, row.trace.events) for row, name in zip(report.traces, names, strict=True)]


def _facts(report: Report) -> list[tuple[str, str, str]]:
    """Name, value and note of each key value that is known."""
    summary = report.summary
    facts: list[tuple[str, str, str]] = []
    if summary.steps is not None:
        facts.append(("steps", f"{summary.steps:,}", ""))
    if summary.first_loss is not None and summary.last_loss is not None:
        facts.append(("loss", f"{format_number(summary.first_loss)} → {format_number(summary.last_loss)}", ""))
    if summary.step_time_s is not None:
        facts.append(("step time, median", format_seconds(summary.step_time_s), ""))
    elif report.account is not None:
        facts.append(("step time", format_seconds(report.account.step_ms / 1e3), "traced"))
    if report.account is not None:
        lost, step = report.account.lost_ms, report.account.step_ms
        facts.append(
            ("lost time", format_seconds(lost / 1e3), f"{format_percent(lost / step if step else 0)} of a step")
        )
    if summary.tokens_per_s is not None:
        facts.append(("tokens per second, median", format_count(summary.tokens_per_s), ""))
    if summary.mfu is not None:
        facts.append(("MFU, median", format_percent(summary.mfu), ""))
    elif (used := _used_of_peak(report)) is not None:
        facts.append(used)
    if summary.peak_memory_bytes is not None:
        facts.append(("peak memory", format_bytes(summary.peak_memory_bytes), "per rank"))
    if summary.world_size is not None:
        devices = ", ".join(filter(None, (summary.device, summary.backend)))
        facts.append(("ranks", f"{summary.world_size:,}", devices))
    elif summary.device is not None:
        facts.append(("device", summary.device, ""))
    if report.pipeline is not None:
        ideal = f"{format_percent(report.pipeline.ideal)} with equal stages"
        facts.append(("pipeline bubble", format_percent(report.pipeline.bubble), ideal))
    if report.traces:
        steps = report.traced_steps
        facts.append(("traces", f"{len(report.traces):,}", "" if steps is None else f"steps {steps[0]}–{steps[1] - 1}"))
    if summary.attempts > 1:
        facts.append(("attempts", str(summary.attempts), ""))
    return facts


def _used_of_peak(report: Report) -> tuple[str, str, str] | None:
    """The operations of a step by the shapes of its operators, as a share of the peak of the device."""
    found, account = report.efficiency, report.account
    if found is None or account is None or found.limits is None or not account.step_ms:
        return None
    flop_s = found.flops / found.steps / (account.step_ms / 1e3)
    share = format_percent(flop_s / found.limits.flop_s[Precision.BFLOAT16])
    return "MFU, by shapes", share, "of the peak in bfloat16, with recomputed work"


def _breakdown_rows(report: Report) -> tuple[list[LabelledTrace], list[TimeCategory], Mapping[TimeCategory, str]]:
    """The traces shown, the kinds of work that are visible in any of them, and the names of all kinds."""
    rows = [row for row in report.traces if row.trace.window_s > 0][:MAX_ROWS]
    present = [kind for kind in TimeCategory if any(row.trace.share(kind) >= MIN_VISIBLE_SHARE for row in rows)]
    idle = {TimeCategory.OTHER: "idle"} if any(row.trace.on_device for row in rows) else {}
    return rows, present, {**CATEGORY_NAMES, **idle}


def _breakdown_chart(report: Report) -> BarChart | None:
    """Without an account: a bar per trace with its time by kind of work; None without traces."""
    rows, present, names = _breakdown_rows(report)
    if not rows or report.account is not None:
        return None
    bars = tuple(
        BarRow(
            row.label,
            (
                BarLane(
                    bars=stacked(
                        [
                            (
                                kind.name.lower(),
                                row.trace.share(kind),
                                f"{names[kind]} {_time_and_share(row, kind)}",
                                format_percent(row.trace.share(kind)),
                            )
                            for kind in present
                        ],
                        1.0,
                    )
                ),
            ),
            format_seconds(row.trace.window_s),
            f"{row.label}: " + ", ".join(f"{names[kind]} {_time_and_share(row, kind)}" for kind in present),
        )
        for row in rows
    )
    hint = (
        "The time of each device between its first and its last traced kernel."
        if any(row.trace.on_device for row in rows)
        else "The time of each rank in the traced steps; every instant counts for one kind of work."
    )
    more = f" {len(rows)} of {len(report.traces)} traces are shown." if len(rows) < len(report.traces) else ""
    return BarChart(
        "Time per kind of work",
        bars,
        tuple((float(at), f"{at}%") for at in (0, 25, 50, 75, 100)),
        tuple((kind.name.lower(), names[kind]) for kind in present),
        f"{hint} Communication overlapped by computation counts as computation.{more}",
    )


def _breakdown_table(report: Report) -> NumberTable:
    """The data of the bar chart."""
    rows, present, names = _breakdown_rows(report)
    return NumberTable(
        columns=(
            *(names[kind].split(",")[0].split(" (")[0] for kind in present),
            "communication overlapped",
            "events",
        ),
        rows=tuple(
            (
                row.label,
                (
                    *(_time_and_share(row, kind) for kind in present),
                    "–" if row.trace.overlap_ratio is None else format_percent(row.trace.overlap_ratio),
                    f"{row.trace.events:,}",
                ),
            )
            for row in rows
        ),
    )


def _time_and_share(row: LabelledTrace, category: TimeCategory) -> str:
    """Such as `260 ms (32.1%)`."""
    seconds = row.trace.time_by_category_s[category.name.lower()]
    return f"{format_seconds(seconds)} ({format_percent(row.trace.share(category))})"


def _compilation_table(report: Report) -> NumberTable | None:
    """What each rank compiled; None if nothing was."""
    if report.compilation is None:
        return None
    return NumberTable(COLUMNS, tuple(rank_rows(report.compilation)[:MAX_ROWS]))


def _hta_table(report: Report) -> NumberTable:
    """The numbers of HolisticTraceAnalysis; without rows where no trace has device work."""
    return NumberTable(
        columns=("idle µs", "compute µs", "non-compute µs", "kernel time µs", "overlap %"),
        rows=tuple(
            (
                row.label,
                (
                    *(f"{us:,}" for us in (hta.idle_us, hta.compute_us, hta.non_compute_us, hta.kernel_us)),
                    "–" if hta.overlap_percent is None else str(hta.overlap_percent),
                ),
            )
            for row in report.traces
            if (hta := row.trace.hta) is not None
        ),
    )
