"""What the time of jobs was spent on: `muster usage --goodput`, and a line of `muster describe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from muster.api.spec import TrainingJob
from muster.errors import MusterError
from muster.text import format_duration, sanitize
from muster.tracing.runs.launches import read_run_time
from muster.usage.causes import RUNNING
from muster.usage.goodput import by_main_cause, job_time
from muster.usage.goodput_text import goodput_sentence
from muster.usage.time_spent import time_spent
from muster.workload.placement import nodes_of

if TYPE_CHECKING:
    from muster.client import ClusterClient


@dataclass(frozen=True, slots=True)
class JobGoodput:
    """The seconds of a job since its submission, by cause (docs/tasks/goodput.md); waiting by reason. `nodes`: those of
    its last attempt."""

    namespace: str
    job: str
    queue: str
    phase: str
    restarts: int
    attempt: int
    nodes: Sequence[str]
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
    return JobGoodput(
        namespace,
        job.metadata.name,
        job.spec.queue,
        job.status.phase,
        job.status.restarts,
        job.status.attempt,
        sorted(nodes_of(job.status.placement)),
        seconds,
    )


def goodput_text(found: JobGoodput) -> str:
    """The account as a sentence; empty without time."""
    return goodput_sentence({cause: round(amount * 1000) for cause, amount in found.seconds.items()}, found.attempt)


def goodput_table(found: Sequence[JobGoodput], by: Literal["queue", "node"] = "queue") -> Group:
    """The whole time, and the part of each cause in percent: a line per job, below one per queue that several jobs
    share; or a line per node, of the jobs that are placed there, or were last."""
    groups: dict[str, list[JobGoodput]] = {}
    for one in found:
        for name in [one.queue] if by == "queue" else one.nodes:
            groups.setdefault(name, []).append(one)
    sums = {name: _sum_of(jobs) for name, jobs in groups.items()}
    present = by_main_cause({cause: round(s * 1000) for one in sums.values() for cause, s in one.items()})
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(by.upper(), no_wrap=True)
    table.add_column("JOB", no_wrap=True)
    table.add_column("TIME", no_wrap=True, justify="right")
    for cause in present:
        table.add_column(cause.upper(), no_wrap=True, justify="right")
    for name, jobs in groups.items() if by == "queue" else sorted(groups.items()):
        if len(jobs) > 1:
            style = "bold" if by == "queue" else ""
            table.add_row(sanitize(name), f"({len(jobs)} jobs)", *_cells(sums[name], present), style=style)
        for one in jobs if by == "queue" or len(jobs) == 1 else ():
            table.add_row(sanitize(name), f"{one.namespace}/{one.job}", *_cells(one.seconds, present))
    note = (
        "PRODUCTIVE: steps that count; LOST: steps done again; RUNNING: time of pods whose steps are not recorded here"
    )
    return Group(table, Text(note, style="dim"))


def _sum_of(jobs: Sequence[JobGoodput]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for one in jobs:
        for cause, amount in one.seconds.items():
            sums[cause] = sums.get(cause, 0.0) + amount
    return sums


def _cells(seconds: Mapping[str, float], causes: Mapping[str, int]) -> list[str]:
    sums = by_main_cause({cause: round(amount * 1000) for cause, amount in seconds.items()})
    whole = sum(sums.values())
    parts = ["" if not sums.get(cause) or not whole else f"{sums[cause] / whole:.1%}" for cause in causes]
    return [format_duration(whole / 1000), *parts]
