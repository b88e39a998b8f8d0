"""Renders a report as one self-contained HTML page, without scripts or network access unless it is served.

Names of jobs, operators and files are not trusted: Jinja2 escapes all text in `templates/report.html` except the
charts, which escape their own. The charts are built here, because chart libraries need scripts in the
page or are slow to import.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from muster.tracing.analysis.run_analysis import Report
from muster.tracing.analysis.summary import LabelledTrace
from muster.tracing.formatting import format_bytes, format_count, format_number, format_percent, format_seconds
from muster.tracing.page.charts import (
    BarSegment,
    ChartSection,
    StackedBar,
    TimelineLane,
    TimelineTrack,
    stacked_bar_chart,
    timeline_chart,
)
from muster.tracing.page.metric_sections import metric_sections
from muster.tracing.page.rank_sections import rank_sections
from muster.tracing.ranks.critical_path import path_lines
from muster.tracing.runs.compilation import COLUMNS, cause_lines, rank_rows
from muster.tracing.work.hta_breakdown import KernelType
from muster.tracing.work.operator_stats import OperatorStats, short_name
from muster.tracing.work.timelines import StepTimeline
from muster.tracing.work.work_kinds import COMMUNICATION_NAME, FRAME_NAME, TimeCategory, kernel_type

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
class OperatorTable:
    """Top operators, each with the CSS class of its bar; `total_s` is the time of all operators."""

    title: str
    hint: str
    total_s: float
    rows: tuple[tuple[OperatorStats, str], ...]

    @property
    def longest_ns(self) -> int:
        return max((op.total_ns for op, _ in self.rows), default=0) or 1


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
        ranks=rank_sections(report),
        breakdown=_breakdown_section(report),
        breakdown_table=_breakdown_table(report),
        timeline=_timeline_section(report),
        operator_tables=_operator_tables(report),
        hta_table=_hta_table(report),
        critical_path=() if report.critical_path is None else path_lines(report.critical_path),
        compilation_table=_compilation_table(report),
        compilation_causes=() if report.compilation is None else cause_lines(report.compilation),
        traces=_trace_rows(report),
        perfetto_url=perfetto_url,
        script=script,
        content_security_policy=_content_security_policy(script),
    )


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
    if summary.tokens_per_s is not None:
        facts.append(("tokens per second, median", format_count(summary.tokens_per_s), ""))
    if summary.mfu is not None:
        facts.append(("MFU, median", format_percent(summary.mfu), ""))
    if summary.peak_memory_bytes is not None:
        facts.append(("peak memory", format_bytes(summary.peak_memory_bytes), "per rank"))
    if summary.world_size is not None:
        devices = ", ".join(filter(None, (summary.device, summary.backend)))
        facts.append(("ranks", f"{summary.world_size:,}", devices))
    elif summary.device is not None:
        facts.append(("device", summary.device, ""))
    if report.traces:
        steps = report.traced_steps
        facts.append(("traces", f"{len(report.traces):,}", "" if steps is None else f"steps {steps[0]}–{steps[1] - 1}"))
    if summary.attempts > 1:
        facts.append(("attempts", str(summary.attempts), ""))
    return facts


def _category_names(*, device: bool) -> Mapping[TimeCategory, str]:
    """The legend's name of each kind of work; on a device the remaining time is idle."""
    return {**CATEGORY_NAMES, TimeCategory.OTHER: "idle"} if device else CATEGORY_NAMES


def _breakdown_rows(report: Report) -> tuple[list[LabelledTrace], list[TimeCategory], Mapping[TimeCategory, str]]:
    """The traces shown, the kinds of work that are visible in any of them, and the names of all kinds."""
    rows = [row for row in report.traces if row.trace.window_s > 0][:MAX_ROWS]
    present = [kind for kind in TimeCategory if any(row.trace.share(kind) >= MIN_VISIBLE_SHARE for row in rows)]
    return rows, present, _category_names(device=any(row.trace.on_device for row in rows))


def _breakdown_section(report: Report) -> ChartSection | None:
    """A bar per rank with its time by kind of work; None without traces."""
    rows, present, names = _breakdown_rows(report)
    if not rows:
        return None
    bars = [
        StackedBar(
            row.label,
            tuple(
                BarSegment(kind.name.lower(), row.trace.share(kind), f"{names[kind]} {_time_and_share(row, kind)}")
                for kind in present
            ),
            format_seconds(row.trace.window_s),
        )
        for row in rows
    ]
    hint = (
        "The time of each device between its first and its last traced kernel."
        if any(row.trace.on_device for row in rows)
        else "The time of each rank in the traced steps; every instant counts for one kind of work."
    )
    more = f" {len(rows)} of {len(report.traces)} traces are shown." if len(rows) < len(report.traces) else ""
    return ChartSection(
        title="Time per kind of work",
        chart=stacked_bar_chart(bars, "Time per kind of work, per rank"),
        legend=tuple((kind.name.lower(), names[kind]) for kind in present),
        hint=f"{hint} Communication overlapped by computation counts as computation.{more}",
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


def _timeline_section(report: Report) -> ChartSection | None:
    """A timeline of one step per rank; None for traces without steps."""
    step = report.timeline_step
    timelines = [(row, t) for row in report.traces for t in row.trace.timelines if t.step == step]
    different_steps = False
    if len(timelines) < len(report.traces):
        # Traces of different jobs have no common step: show one step of each.
        timelines = [(row, _median_timeline(row, step)) for row in report.traces if row.trace.timelines]
        different_steps = len({t.step for _, t in timelines}) > 1
    if not timelines:
        return None
    shown = _select_timelines(timelines, {rank for verdict in report.verdicts for rank in verdict.ranks})
    more = f" {len(shown)} of {len(timelines)} traces are shown." if len(shown) < len(timelines) else ""
    timelines = shown
    tracks = [_timeline_track(row, t, different_steps) for row, t in timelines]
    kinds = [kind for kind in TimeCategory if any(kind.name.lower() in t.busy_levels for _, t in timelines)]
    names = {**_category_names(device=True), TimeCategory.DATA: "loading data"}
    title = "Computation and communication" + ("" if different_steps else f" in step {step}")
    return ChartSection(
        title=title,
        chart=timeline_chart(tracks, title),
        legend=tuple((kind.name.lower(), names[kind].split(",")[0]) for kind in kinds),
        hint="One step of each rank, aligned at its start; clocks of different hosts are not compared. "
        f"Paler colours mean lower utilisation.{more}",
    )


def _select_timelines(
    timelines: list[tuple[LabelledTrace, StepTimeline]], named: AbstractSet[int | None]
) -> list[tuple[LabelledTrace, StepTimeline]]:
    """At most `MAX_TIMELINES`, in their order: those of the ranks named in verdicts first, then spread evenly."""
    count = len(timelines)
    spread = [i * count // MAX_TIMELINES for i in range(MAX_TIMELINES)] if count > MAX_TIMELINES else range(count)
    wanted = [i for i, (row, _) in enumerate(timelines) if row.trace.rank in named] + list(spread)
    return [timelines[i] for i in sorted(list(dict.fromkeys(wanted))[:MAX_TIMELINES])]


def _median_timeline(row: LabelledTrace, step: int | None) -> StepTimeline:
    timelines = row.trace.timelines
    wanted = next((t for t in timelines if t.step == step), None)
    return wanted or sorted(timelines, key=lambda t: (t.duration_s, t.step))[(len(timelines) - 1) // 2]


def _timeline_track(row: LabelledTrace, timeline: StepTimeline, with_step: bool) -> TimelineTrack:
    def layers(*kinds: TimeCategory) -> tuple[tuple[str, str], ...]:
        return tuple(
            (k.name.lower(), timeline.busy_levels[k.name.lower()])
            for k in kinds
            if k.name.lower() in timeline.busy_levels
        )

    lanes = [TimelineLane("compute", layers(TimeCategory.COMPUTE, TimeCategory.OPTIMIZER))]
    if communication := layers(TimeCategory.COMMUNICATION):
        lanes.append(TimelineLane("comm.", communication))
    if rest := layers(TimeCategory.MEMORY, TimeCategory.DATA):
        lanes.append(TimelineLane(", ".join("copies" if style == "memory" else style for style, _ in rest), rest))
    label = f"{row.label}, step {timeline.step}" if with_step else row.label
    return TimelineTrack(label, timeline.duration_s, tuple(lanes), _overlap_note(timeline))


def _overlap_note(timeline: StepTimeline) -> str:
    duration = format_seconds(timeline.duration_s)
    if timeline.communication_s <= 0:
        return duration
    part = format_percent(timeline.overlapped_s / timeline.communication_s)
    return f"{duration}, communication {format_seconds(timeline.communication_s)}, {part} of it overlapped"


def _operator_tables(report: Report) -> list[OperatorTable]:
    """The top kernels (with device work) and the top CPU operators."""
    kernels_s = sum(row.trace.kernels_s for row in report.traces)
    operators_s = sum(row.trace.operators_s for row in report.traces)
    tables = [
        OperatorTable("Top kernels", "Device work by duration", kernels_s, _styled(report.kernels, _kernel_style)),
        OperatorTable(
            title="Top operators",
            hint="CPU operators by self time, without the operators they call",
            total_s=operators_s,
            rows=_styled(report.operators, _operator_style),
        ),
    ]
    return [table for table in tables if table.rows]


def _styled(operators: Iterable[OperatorStats], style: Callable[[str], str]) -> tuple[tuple[OperatorStats, str], ...]:
    return tuple((op, style(op.name)) for op in tuple(operators)[:MAX_TABLE_ROWS])


def _kernel_style(name: str) -> str:
    """The CSS class of a kernel's bar, by its kind of work."""
    return {KernelType.COMMUNICATION: "communication", KernelType.MEMORY: "memory"}.get(kernel_type(name), "compute")


def _operator_style(name: str) -> str:
    """The CSS class of an operator's bar, by the kind of work of its name."""
    return "communication" if COMMUNICATION_NAME.match(name) else "other" if FRAME_NAME.match(name) else "compute"


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
