"""Builds the report of a job from its run folder and traces: a `Report`, an HTML page, JSON, text for a terminal.

    from muster.tracing.report import build, render_terminal
    report = build("runs/llama-8b")          # writes report/report.html and report/report.json there
    render_terminal(report, rich.console.Console())

It also accepts any folder of torch.profiler traces, or a list of traces; the report then has no metrics.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console, Group
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from muster.errors import InvalidTrace
from muster.text_layout import wrap_parts
from muster.tracing.analysis.run_analysis import Report, analyse_run
from muster.tracing.formatting import (
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_seconds,
    shorten_middle,
)
from muster.tracing.page.account_text import account_lines, efficiency_lines
from muster.tracing.page.html_report import render_page
from muster.tracing.ranks.critical_path import path_lines
from muster.tracing.read.json_stream import DEFAULT_LIMITS, TraceLimits
from muster.tracing.runs.compilation import COLUMNS, cause_lines, rank_rows
from muster.tracing.runs.run_folder import read_traces
from muster.tracing.runs.trace_sources import expand
from muster.tracing.shared_folder import SharedFolder
from muster.tracing.work.hta_breakdown import KernelType
from muster.tracing.work.operator_stats import OperatorStats, short_name
from muster.tracing.work.work_kinds import TimeCategory, kernel_type

__all__ = ["Report", "build", "json_path", "load", "render_terminal"]

_MAX_STEM_LENGTH = 60  # characters of at most four bytes each; a file name may have 255 bytes
_SPARK_BLOCKS = "▁▂▃▄▅▆▇█"
# Different characters distinguish the kinds without colour.
_CATEGORY_MARKS = {
    TimeCategory.COMPUTE: ("█", "blue", "compute"),
    TimeCategory.OPTIMIZER: ("▓", "bright_cyan", "optimizer"),
    TimeCategory.COMMUNICATION: ("▒", "yellow", "communication, exposed"),
    TimeCategory.MEMORY: ("+", "magenta", "memory copies"),
    TimeCategory.DATA: ("d", "green", "waiting for data"),
    TimeCategory.OTHER: ("·", "bright_black", "no operator"),
}
_MAX_ROWS = 16
_WIDE_COLUMNS = 100  # columns of the terminal


def build(
    run: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    workers: int = 1,
    limits: TraceLimits = DEFAULT_LIMITS,
    with_critical_path: bool = False,
) -> Report:
    """Analyse a run folder, any folder of traces, or a list of traces, archives, folders and patterns, and write an
    HTML page and a JSON file.

    The files of a folder are report.html and report.json; those of traces have other names. `out` is the folder for
    both (default: `report` in the folder, or next to the first trace); `name` is the job's name, for a folder that does
    not contain it; `workers` is the number of processes that read traces: with more than one, the calling script needs
    the `__main__` guard of multiprocessing; `with_critical_path` adds the critical path. Traces that exceed `limits`
    are listed in `skipped`.
    Raises InvalidTrace if there is nothing to report, OSError if the report cannot be written.
    """
    paths = [Path(run)] if isinstance(run, str | os.PathLike) else [Path(path) for path in run]
    if not paths:
        raise InvalidTrace("must name a folder or at least one trace")
    run_folder = read_traces(paths)
    first, of_traces = paths[0], run_folder.selected
    paths = expand(paths) if of_traces else paths
    report = _utf8_safe(
        analyse_run(run_folder, name=name, workers=workers, limits=limits, with_critical_path=with_critical_path)
    )
    folder_of_first = paths[0].parent if of_traces else first
    target = Path(out) if out is not None else folder_of_first / "report"
    target.mkdir(parents=True, exist_ok=True)
    page = target / f"{_page_name(paths) if of_traces else 'report'}.html"
    report = replace(report, page=str(page))
    folder, owner = (
        SharedFolder(target),
        f"report-{os.getpid()}",
    )  # the daemon and a user may build the same report at the same time
    folder.write(json_path(page).name, msgspec.json.encode(_utf8_safe(report)), owner=owner)
    folder.write(page.name, render_page(report).encode(), owner=owner)
    return report


def _utf8_safe(report: Report) -> Report:
    """The report with lone surrogates replaced: file names and event names may contain text invalid in UTF-8."""
    return msgspec.convert(_replace_invalid(msgspec.to_builtins(report)), Report)


def _replace_invalid(value: Any) -> Any:
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
        case dict():
            return {_replace_invalid(key): _replace_invalid(item) for key, item in value.items()}
        case list() | tuple():
            return [_replace_invalid(item) for item in value]
        case _:
            return value


def _page_name(traces: Sequence[Path]) -> str:
    """The file name of the page of these traces, without suffix: unique per set of traces."""
    first = traces[0].name.removesuffix(".gz").removesuffix(".json")
    if len(traces) == 1 and len(first) <= _MAX_STEM_LENGTH:
        return f"report-of-{first}"
    digest = hashlib.sha256("\0".join(sorted(str(path.absolute()) for path in traces)).encode()).hexdigest()[:8]
    stem = f"{len(traces)}-traces" if len(traces) > 1 else first[:_MAX_STEM_LENGTH]
    return f"report-of-{stem}-{digest}"


def json_path(page_path: str | os.PathLike[str]) -> Path:
    """The JSON file of a page. A page's name may contain dots."""
    path = Path(page_path)
    return path.with_name(path.name.removesuffix(".html") + ".json")


def load(page_path: str | os.PathLike[str]) -> Report:
    """Load the report of a page from its JSON file. Raises InvalidTrace if it is invalid, OSError if unreadable."""
    path = json_path(page_path)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidTrace(f"{path}: not a report of this version: {error}") from error


def render_terminal(report: Report, console: Console) -> None:
    """Print summary, findings and charts, at most as wide as the console; rich honours NO_COLOR."""
    console.print(Rule(Text(report.summary.name, style="bold"), style="bright_black"))
    width = min(console.width, 110)
    console.print(*wrap_parts(summary_parts(report), console.width), sep="\n")
    if report.headline:
        console.print(Text(f"\n{report.headline}\n", style="bold"))
    if report.run_time:
        console.print(Text(f"Time of the pods: {report.run_time}\n"))
    if findings := [sentence for sentence in report.findings if sentence != report.headline]:
        console.print(_sentences(findings))
    parts: list[Text | Table] = [*(account_lines(report, width) or _time_breakdown(report, width))]
    parts += _metric_lines(report, width - 24)
    working = [op for op in report.kernels if kernel_type(op.name) is not KernelType.COMMUNICATION]
    parts += _operators("Top kernels", working, width) or _operators("Top operators", report.operators, width)
    parts += efficiency_lines(report, width)
    parts += critical_path_lines(report)
    parts += _compilation(report)
    if report.notes:
        parts += [Text("\nAbout this analysis", style="bold"), _sentences(report.notes)]
    parts += _skipped(report)
    console.print(Group(*parts))


def _sentences(sentences: Sequence[str]) -> Table:
    """A bullet list with hanging indentation."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=2)
    table.add_column(overflow="fold")
    for sentence in sentences:
        table.add_row(" •", Text(sentence))
    return table


def summary_parts(report: Report) -> list[str]:
    """The key values that are known, each as text: "60 steps", "loss 5.63 → 2.30", "2 ranks"."""
    summary = report.summary
    parts = []
    if summary.steps is not None:
        parts.append(f"{summary.steps:,} steps")
    if summary.first_loss is not None and summary.last_loss is not None:
        parts.append(f"loss {format_number(summary.first_loss)} → {format_number(summary.last_loss)}")
    if summary.step_time_s is not None:
        parts.append(f"median {format_seconds(summary.step_time_s)} a step")
    if summary.tokens_per_s is not None:
        parts.append(f"median {format_count(summary.tokens_per_s)} tokens/s")
    if summary.mfu is not None:
        parts.append(f"median MFU {format_percent(summary.mfu)}")
    if summary.peak_memory_bytes is not None:
        parts.append(f"peak memory {format_bytes(summary.peak_memory_bytes)}")
    if summary.world_size is not None:
        parts.append(f"{summary.world_size} rank{'s' if summary.world_size > 1 else ''}")
    if summary.device is not None:
        parts.append(summary.device)
    if summary.attempts > 1:
        parts.append(f"{summary.attempts} attempts")
    return parts


def _sparkline(values: Sequence[float], width: int) -> str:
    """Values as at most `width` blocks of eight heights, each the mean of a range of values."""
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return ""
    if len(array) > width:
        array = np.array([part.mean() for part in np.array_split(array, width)])
    low, high = float(array.min()), float(array.max())
    scaled = np.zeros(len(array)) if high <= low else (array - low) / (high - low)
    return "".join(_SPARK_BLOCKS[min(int(v * len(_SPARK_BLOCKS)), len(_SPARK_BLOCKS) - 1)] for v in scaled)


def _metric_lines(report: Report, width: int) -> list[Text]:
    out: list[Text] = []
    if report.loss is not None:
        values = report.loss.values
        ends = f"{format_number(values[0])} → {format_number(values[-1])}"
        out += [Text("\nLoss", style="bold"), Text(f"  {_sparkline(values, width)}  {ends}")]
    if report.step_times:
        out.append(Text("\nStep time per rank", style="bold"))
        excluded = {overhead.step for overhead in report.profiler_overheads}
        for series in report.step_times[:_MAX_ROWS]:
            points = zip(series.steps, series.values, strict=True)
            median = float(np.median([value for step, value in points if step not in excluded] or series.values))
            # Without a cut, a step that compiles for a minute would flatten all others.
            line = _sparkline(np.minimum(series.values, 3 * median).tolist(), width - 12)
            out.append(Text(f"  rank {series.rank:<4} {line}  median {format_seconds(median)}"))
    return out


def _time_breakdown(report: Report, width: int) -> list[Text]:
    rows = [row for row in report.traces if row.trace.window_s > 0][:_MAX_ROWS]
    if not rows:
        return []
    label_width = min(max(len(row.label) for row in rows), 40)
    bar_width = max(20, width - label_width - 24)
    out = [Text("\nTime per kind of work", style="bold")]
    shown: set[TimeCategory] = set()
    for row in rows:
        line = Text(f"  {shorten_middle(row.label, label_width):<{label_width}} ")
        start = 0.0  # column of the next part
        for kind in TimeCategory:
            mark, style, _ = _CATEGORY_MARKS[kind]
            end = start + row.trace.share(kind) * bar_width
            line.append(mark * (round(end) - round(start)), style=style)
            if round(end) > round(start):
                shown.add(kind)
            start = end
        ratio = row.trace.overlap_ratio
        if ratio is not None:
            line.append(f"  {format_percent(ratio)} overlapped", style="bright_black")
        out.append(line)
    legend = []
    for kind in TimeCategory:
        mark, style, name = _CATEGORY_MARKS[kind]
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


def critical_path_lines(report: Report) -> list[Text | Table]:
    """The critical path as a list; empty without one."""
    if report.critical_path is None:
        return []
    title = f"\nCritical path: {format_seconds(report.critical_path.step_ms / 1e3)} a step"
    return [Text(title, style="bold"), *(Text(f"  {line}") for line in path_lines(report.critical_path))]


def _compilation(report: Report) -> list[Text]:
    if report.compilation is None:
        return []
    lines = [Text("\nCompilation", style="bold")]
    for label, values in rank_rows(report.compilation)[:_MAX_ROWS]:
        named = ", ".join(f"{name} {value}" for name, value in zip(COLUMNS, values, strict=True))
        lines.append(Text(f"  {label:<9} {named}"))
    return lines + [Text(f"  {line}") for line in cause_lines(report.compilation)]


def _skipped(report: Report) -> list[Text]:
    if not report.skipped:
        return []
    return [Text("\nSkipped files", style="bold"), *(Text(f"  {s.file}: {s.reason}") for s in report.skipped)]
