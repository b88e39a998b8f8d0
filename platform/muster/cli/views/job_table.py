"""The table of `muster jobs`: what runs, what waits and why, what ended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.amounts import duration, moment
from muster.cli.views import job_words
from muster.progress import figures, told
from muster.spec import ENDED_PHASES, TrainingJob

_NUMBERS = ("PRIO", "PODS", "AGE", "RAN")
_LEAST_WANTED = ("PRIO", "AGE", "QUEUE", "RAN", "PODS")  # what goes first in a narrow terminal
_GAP, _LONGEST_QUEUE, _WHY_WANTED = 2, 40, 30  # columns of the terminal
_MOST_WORDS = 100  # of what a failed pod wrote last, in characters
_ORDER = ("Running", "Terminating", "Admitted", "Pending", "Suspended", "Ended")


def in_order(jobs: Sequence[TrainingJob]) -> list[TrainingJob]:
    """Running first, then waiting in the order of their queue, then what ended, newest first: what still stops before
    all others."""

    def key(job: TrainingJob) -> tuple[int, str, int, float, str]:
        status = job.status
        ended = -math.inf if status.finished_at is None else -status.finished_at
        has_ended = status.phase in ENDED_PHASES
        over = ended if has_ended else (status.submitted_at or 0.0)
        rank = _ORDER.index("Ended" if has_ended else status.phase)
        queue = "" if has_ended else job.spec.queue
        return rank, queue, status.queue_position or 1 << 30, over, job_words.label(job)

    return sorted(jobs, key=key)


def job_table(jobs: Sequence[TrainingJob], now: float, width: int = 160) -> RenderableType:
    """One line a job; the namespace only where there are several. A name is always shown whole: where `width` columns
    are too few, others go first, and at last what explains a job stands below it."""
    several = len({job.metadata.namespace or "default" for job in jobs}) > 1
    rows = [_row(job, now, several) for job in in_order(jobs)]
    widths = {title: max(cell_len(title), *(row[title].cell_len for row in rows)) for title in rows[0]} if rows else {}
    shown = list(_columns(widths, width - _WHY_WANTED))
    beside = _taken(widths[title] for title in shown) + _WHY_WANTED <= width
    if not beside:
        shown = list(_columns(widths, width))
    whys = [_why(job, now) for job in in_order(jobs)]
    tables = [_table(shown, widths, width)]
    if beside:
        tables[0].add_column("WHY", ratio=1, overflow="fold")
    parts: list[RenderableType] = [tables[0]]
    for row, why in zip(rows, whys, strict=True):
        tables[-1].add_row(*(row[title] for title in shown), *((why,) if beside else ()))
        if not beside and why:
            tables.append(_table(shown, widths, width, header=False))
            parts += [Padding(why, (0, 0, 0, _GAP)), tables[-1]]
    return Group(*(part for part in parts if not isinstance(part, Table) or part.row_count or part is tables[0]))


def _table(shown: Sequence[str], widths: Mapping[str, int], width: int, *, header: bool = True) -> Table:
    """Each as wide as any other of the same widths, so that several stand one below the other as one."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0), show_header=header)
    for title in shown:
        fits = widths[title] <= width
        table.add_column(
            title, justify="right" if title in _NUMBERS else "left", no_wrap=fits, overflow="fold",
            min_width=widths[title] if fits else None,
        )  # fmt: skip
    return table


def _taken(widths: Iterable[int]) -> int:
    """Columns of the terminal that columns of these widths take, with what parts them from the next one."""
    return sum(width + _GAP for width in widths)


def _columns(widths: Mapping[str, int], width: int) -> Iterator[str]:
    """The titles of the columns, all but WHY, for which there is room."""
    kept = dict(widths)
    for title in _LEAST_WANTED:
        if _taken(kept.values()) <= width:
            break
        kept.pop(title, None)
    yield from kept


def _row(job: TrainingJob, now: float, with_namespace: bool) -> dict[str, Text]:
    phase, ran = job.status.phase, job_words.ran_for(job, now)
    born = job.status.submitted_at or job.metadata.creation_timestamp
    return {
        "JOB": Text(job_words.label(job) if with_namespace else job.metadata.name),
        "QUEUE": Text(job_words.shortened(job.spec.queue, _LONGEST_QUEUE)),
        "PRIO": Text(job_words.priority(job)),
        "PHASE": Text(f"{job_words.MARKS[phase]} {phase}", style=job_words.STYLES[phase]),
        "PODS": Text(job_words.pods(job)),
        "AGE": Text("" if born is None else duration(now - born)),
        "RAN": Text("" if ran is None else duration(ran)),
    }


def _why(job: TrainingJob, now: float) -> Text:
    status, text = job.status, Text()
    if status.phase == "Pending":
        code, message = job_words.reason(job)
        if status.queue_position:
            text.append(f"#{status.queue_position} ", style="bold")
        if status.estimated_start is not None:
            text.append(f"~{moment(status.estimated_start, now)} ", style="cyan")
        text.append(f"{code}: " if code else "", style="yellow")
        text.append(message)
    elif status.phase in ("Failed", "Cancelled", "Terminating"):
        code, message = job_words.reason(job)
        text.append(f"{code}: " if code else "", style="red")
        text.append(message)
        words = job_words.last_words(job)
        text.append(f"{'; ' if message else ''}{job_words.shortened(words, _MOST_WORDS)}" if words else "", style="dim")
    elif status.phase in ("Running", "Admitted"):
        if status.progress is not None and status.progress.attempt == status.attempt:
            text.append(f"{figures(told(status.progress))}  ")
        text.append(", ".join(sorted({share.node for role in status.placement for share in role.nodes})), style="dim")
    if status.restarts:
        text.append(f"  restarts {status.restarts}", style="dim")
    return text
