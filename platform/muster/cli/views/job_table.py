"""The table of `muster jobs`: TrainingJobs, and objects of other kinds that queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.cli.views.job_rows import COLUMNS, ListedJob, cells, reason_text

_SHOWN = ("JOB", "KIND", "QUEUE", "PRIO", "PHASE", "PODS", "GPUS", "STEP", "ETA", "AGE", "RUNTIME", "REASON")
_SHOWN_OF_ENDED = ("JOB", "KIND", "QUEUE", "PHASE", "GPUS", "EXIT", "AGE", "RUNTIME", "GPU-HOURS", "REASON")
_LEFT_OUT_IF_EMPTY = frozenset({"GPUS", "STEP", "ETA"})
_DROP_ORDER = ("PRIO", "AGE", "KIND", "GPU-HOURS", "QUEUE", "RUNTIME", "PODS", "EXIT", "GPUS", "ETA", "STEP")
"""Columns that are dropped first to last in a narrow terminal, unless they were asked for."""
_GAP, _MIN_REASON_WIDTH = 2, 30  # columns of the terminal


def job_table(
    jobs: Sequence[ListedJob], now: float, width: int = 160, *, wide: bool = True, columns: Sequence[str] = ()
) -> RenderableType:
    """One line per job in the given order, with namespace and kind only if there are several. Job names are never
    truncated: if `width` is too small, other columns are dropped, and at last the reason moves to a line below its job.
    Without `wide`, a reason is cut to one line. `columns`: those to show; none of them is dropped."""
    several = len({job.summary.metadata.namespace or "default" for job in jobs}) > 1 and "NAMESPACE" not in columns
    rows = [cells(job, now, with_namespace=several) for job in jobs]
    titles = [title for title in columns or _default_columns(jobs, rows) if title != "REASON"]
    has_reason = not columns or "REASON" in columns
    widths = {title: max(cell_len(title), *(row[title].cell_len for row in rows)) for title in titles} if rows else {}
    droppable = () if columns else _DROP_ORDER
    shown = list(_columns_that_fit(widths, width - _MIN_REASON_WIDTH, droppable))
    in_line = has_reason and _total_width(widths[title] for title in shown) + _MIN_REASON_WIDTH <= width
    if not in_line:
        shown = list(_columns_that_fit(widths, width, droppable))
    reasons = [reason_text(job, now, shown) if has_reason else Text() for job in jobs]
    if not in_line and not wide:
        for reason in reasons:
            reason.truncate(width - _GAP, overflow="ellipsis")
    tables = [_table(shown, widths, width)]
    if in_line:
        left = width - _total_width(widths[title] for title in shown)
        tables[0].add_column("REASON", max_width=left, overflow="fold" if wide else "ellipsis", no_wrap=not wide)
    parts: list[RenderableType] = [tables[0]]
    for row, reason in zip(rows, reasons, strict=True):
        tables[-1].add_row(*(row[title] for title in shown), *((reason,) if in_line else ()))
        if not in_line and reason:
            tables.append(_table(shown, widths, width, header=False))
            parts += [Padding(reason, (0, 0, 0, _GAP)), tables[-1]]
    return Group(*(part for part in parts if not isinstance(part, Table) or part.row_count or part is tables[0]))


def _default_columns(jobs: Sequence[ListedJob], rows: Sequence[Mapping[str, Text]]) -> Iterator[str]:
    has_kinds = any(job.summary.object_kind != "TrainingJob" for job in jobs)
    for title in _SHOWN_OF_ENDED if jobs and all(job.has_ended for job in jobs) else _SHOWN:
        if title == "KIND" and not has_kinds:
            continue
        if title in _LEFT_OUT_IF_EMPTY and all(row[title].plain in ("", "0") for row in rows):
            continue
        yield title


def _table(shown: Sequence[str], widths: Mapping[str, int], width: int, *, header: bool = True) -> Table:
    """A table with fixed column widths, so that several below each other have aligned columns."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0), show_header=header)
    for title in shown:
        fits = widths[title] <= width
        table.add_column(
            title, justify="right" if COLUMNS[title].right else "left", no_wrap=fits, overflow="fold",
            min_width=widths[title] if fits else None,
        )  # fmt: skip
    return table


def _total_width(widths: Iterable[int]) -> int:
    """Terminal columns that table columns of these widths take, gaps included."""
    return sum(width + _GAP for width in widths)


def _columns_that_fit(widths: Mapping[str, int], width: int, droppable: Sequence[str]) -> Iterator[str]:
    """The titles of the columns that fit into `width`, without REASON."""
    fitting = dict(widths)
    for title in droppable:
        if _total_width(fitting.values()) <= width:
            break
        fitting.pop(title, None)
    yield from fitting
