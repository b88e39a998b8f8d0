"""What the time of jobs was spent on: `muster usage --goodput`, and a line of `muster describe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from muster.api.spec import TrainingJob
from muster.errors import MusterError
from muster.text import format_duration, sanitize
from muster.tracing.runs.launches import read_run_time
from muster.usage.causes import LOST, PRODUCTIVE, RUNNING
from muster.usage.goodput import by_main_cause, job_time
from muster.usage.time_spent import time_spent

if TYPE_CHECKING:
    from muster.client import ClusterClient

_SMALL = 0.005
"""Causes below this part of the whole are not named in sentences."""


@dataclass(frozen=True, slots=True)
class JobGoodput:
    """The seconds of a job since its submission, by cause (docs/tasks/goodput.md); waiting by reason."""

    namespace: str
    job: str
    queue: str
    phase: str
    restarts: int
    seconds: Mapping[str, float]


def job_goodput(client: ClusterClient, job: TrainingJob, now: float) -> JobGoodput:
    """The account of a job: by its status, and by its run folder where that is on this host."""
    namespace = job.metadata.namespace or "default"
    try:
        run_dir = client.run_dir(job.metadata.name, namespace) if RUNNING in time_spent(job, now) else None
    except MusterError:  # deleted meanwhile, or it never ran
        run_dir = None
    until = job.status.finished_at or now
    run = None if run_dir is None else read_run_time(run_dir, job.spec.roles[0].name, until)
    seconds = {cause: amount / 1000 for cause, amount in job_time(job, now, run).items()}
    return JobGoodput(namespace, job.metadata.name, job.spec.queue, job.status.phase, job.status.restarts, seconds)


def goodput_text(found: JobGoodput) -> str:
    """`of 5h12m 88% productive, 4% waiting, 2% start; 22m lost in 2 restarts`; empty without time."""
    sums = by_main_cause({cause: round(amount * 1000) for cause, amount in found.seconds.items()})
    whole = sum(sums.values())
    if not whole:
        return ""
    shares = sorted(
        ((amount, cause) for cause, amount in sums.items() if cause not in (PRODUCTIVE, LOST)), reverse=True
    )
    parts = [f"{sums.get(PRODUCTIVE, 0) / whole:.0%} productive"] if RUNNING not in sums else []
    parts += [f"{amount / whole:.0%} {cause}" for amount, cause in shares if amount / whole >= _SMALL]
    lost = sums.get(LOST, 0) / 1000
    restarts = f" in {found.restarts} restart{'s' if found.restarts != 1 else ''}" if found.restarts else ""
    done_again = f"; {format_duration(lost)} of steps done again{restarts}" if lost else ""
    return f"of {format_duration(whole / 1000)} {', '.join(parts)}{done_again}"


def goodput_table(found: Sequence[JobGoodput]) -> Group:
    """A line per queue that several jobs share, and per job: the whole time, and the part of each cause in percent."""
    queues: dict[str, dict[str, float]] = {}
    for one in found:
        sums = queues.setdefault(one.queue, {})
        for cause, amount in one.seconds.items():
            sums[cause] = sums.get(cause, 0.0) + amount
    in_ms = [by_main_cause({cause: round(s * 1000) for cause, s in one.items()}) for one in queues.values()]
    present = by_main_cause({cause: amount for sums in in_ms for cause, amount in sums.items()})
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("QUEUE", no_wrap=True)
    table.add_column("JOB", no_wrap=True)
    table.add_column("TIME", no_wrap=True, justify="right")
    for cause in present:
        table.add_column(cause.upper(), no_wrap=True, justify="right")
    for queue, sums in queues.items():
        jobs = [one for one in found if one.queue == queue]
        if len(jobs) > 1:
            table.add_row(sanitize(queue), f"({len(jobs)} jobs)", *_cells(sums, present), style="bold")
        for one in jobs:
            table.add_row(sanitize(queue), f"{one.namespace}/{one.job}", *_cells(one.seconds, present))
    note = (
        "PRODUCTIVE: steps that count; LOST: steps done again; RUNNING: time of pods whose steps were not recorded here"
    )
    return Group(table, Text(note, style="dim"))


def _cells(seconds: Mapping[str, float], causes: Mapping[str, int]) -> list[str]:
    sums = by_main_cause({cause: round(amount * 1000) for cause, amount in seconds.items()})
    whole = sum(sums.values())
    parts = ["" if not sums.get(cause) or not whole else f"{sums[cause] / whole:.1%}" for cause in causes]
    return [format_duration(whole / 1000), *parts]
