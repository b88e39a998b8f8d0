"""The table of `muster jobs`: what runs, what waits and why, what ended."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from muster.cli.views import job_words
from muster.cli.views.amounts import duration, moment
from muster.spec import TrainingJob

_MOST_WORDS = 100  # of what a failed pod wrote last, in characters
_ORDER = ("Running", "Admitted", "Pending", "Suspended", "Failed", "Succeeded")


def in_order(jobs: Sequence[TrainingJob]) -> list[TrainingJob]:
    """Running first, then waiting in the order of their queue, then what ended, newest first."""

    def key(job: TrainingJob) -> tuple[int, str, int, float, str]:
        status = job.status
        over = -(status.finished_at or 0.0) if job_words.is_over(job) else (status.submitted_at or 0.0)
        rank = _ORDER.index("Failed" if job_words.is_over(job) else status.phase)
        queue = "" if job_words.is_over(job) else job.spec.queue
        return rank, queue, status.queue_position or 1 << 30, over, job_words.label(job)

    return sorted(jobs, key=key)


def job_table(jobs: Sequence[TrainingJob], now: float) -> Table:
    """One line a job; the namespace only where there are several."""
    several = len({job.metadata.namespace or "default" for job in jobs}) > 1
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("JOB", "QUEUE"):
        table.add_column(title, no_wrap=True, overflow="ellipsis", max_width=40)
    table.add_column("PRIO", justify="right", no_wrap=True)
    table.add_column("PHASE", no_wrap=True)
    table.add_column("PODS", justify="right", no_wrap=True)
    table.add_column("AGE", justify="right", no_wrap=True)
    table.add_column("RAN", justify="right", no_wrap=True)
    table.add_column("WHY", ratio=1, overflow="fold")
    for job in in_order(jobs):
        phase, ran = job.status.phase, job_words.ran_for(job, now)
        style = job_words.STYLES[phase]
        born = job.status.submitted_at or job.metadata.creation_timestamp
        table.add_row(
            Text(job_words.label(job) if several else job.metadata.name),
            Text(job.spec.queue),
            str(job.spec.priority),
            Text(f"{job_words.MARKS[phase]} {phase}", style=style),
            job_words.pods(job),
            "" if born is None else duration(now - born),
            "" if ran is None else duration(ran),
            _why(job, now),
        )
    return table


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
    elif status.phase == "Failed":
        code, message = job_words.reason(job)
        text.append(f"{code}: " if code else "", style="red")
        text.append(message)
        words = job_words.last_words(job)
        text.append(f"{'; ' if message else ''}{job_words.shortened(words, _MOST_WORDS)}" if words else "", style="dim")
    elif status.phase in ("Running", "Admitted"):
        text.append(", ".join(sorted({share.node for role in status.placement for share in role.nodes})), style="dim")
    if status.restarts:
        text.append(f"  restarts {status.restarts}", style="dim")
    return text
