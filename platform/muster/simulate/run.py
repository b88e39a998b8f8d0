"""Replay a workload: jobs arrive when they did, the engine decides as it would on a real cluster, and time jumps from
one event to the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from muster import spec
from muster.cluster import World
from muster.engine import MUSTER, POLICIES, Engine, Policy, replay
from muster.model import Wait
from muster.simulate.cluster import SimCluster
from muster.simulate.idle import IdleRoom, demand_of
from muster.simulate.records import Records
from muster.simulate.result import Refusal, Result, Spread
from muster.simulate.rows import JobRow
from muster.simulate.workload import Habits, Jobs, Workload, flavor_names, flavors, node_views, queues
from muster.snapshot import Cache, build

NEVER = frozenset({
    "QueueNotFound", "QueueInactive", "QueueNotAllowed", "PriorityClassNotFound", "PriorityTooHigh", "UnknownFlavor",
    "UnknownTopologyLevel", "LargerThanQuota", "LargerThanCluster",
})  # fmt: skip
"""Why a job could not start even on the empty cluster."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a simulation has come."""

    finished: int
    jobs: int
    now_s: float  # virtual
    waiting: int


@dataclass(frozen=True, slots=True)
class Setup:
    """How a workload is replayed. `queue_tree` None: the recording's queues share the cluster equally."""

    habits: Habits = field(default_factory=Habits)
    queue_tree: tuple[spec.Queue, ...] | None = None
    progress: Callable[[Progress], None] | None = None
    progress_every_s: float = 0.25  # wall time


def run(workload: Workload, policy: Policy = MUSTER, setup: Setup = Setup()) -> Result:
    """Replay the workload under one policy."""
    return _Replay(workload, policy, setup).result()


def compare(
    workload: Workload,
    policies: Iterable[Policy] = POLICIES.values(),
    setup: Setup = Setup(),
) -> tuple[Result, ...]:
    """The same workload under each policy, in their order."""
    return tuple(run(workload, policy, setup) for policy in policies)


class _Replay:
    """One run in the making."""

    def __init__(self, workload: Workload, policy: Policy, setup: Setup) -> None:
        self.workload = workload
        self.policy = policy
        self.setup = setup
        names = flavor_names(workload.nodes)
        self.jobs = Jobs(names, setup.habits)
        self.names = names
        kinds = flavors(workload.nodes, names)
        tree = list(setup.queue_tree) if setup.queue_tree is not None else queues(workload, names)
        nodes = tuple(node_views(workload.nodes, names))
        self.records = Records(IdleRoom(nodes, kinds[0].spec.topology))
        first = min(row.submit_s for row in workload.jobs)
        standing = {(row.queue, setup.habits.priority(row)) for row in workload.jobs}
        evictions = policy.evicts and len(standing) > 1  # equals of one queue never make way for each other
        self.cluster = SimCluster(nodes, kinds, tree, now=first, observer=self.records, shows_checkpoints=evictions)
        self.engine = Engine(self.cluster, policy, news_s=inf)
        self.rows: dict[str, JobRow] = {}
        self.arrivals = 0

    def result(self) -> Result:
        started = time.perf_counter()
        refused = self._line_up()
        self._play()
        wall_s = time.perf_counter() - started
        return self._sum_up(refused, wall_s)

    def _line_up(self) -> tuple[Refusal, ...]:
        """Put every arrival on the agenda, but for jobs that could never start."""
        rows = sorted(self.workload.jobs, key=lambda row: row.submit_s)
        jobs = [self.jobs.job(row, number) for number, row in enumerate(rows)]
        impossible = _impossible(jobs, self.cluster.observe())
        refused = []
        for row, job in zip(rows, jobs, strict=True):
            wait = impossible.get(id(job.spec))
            if wait is not None:
                refused.append(Refusal(row.name, wait.code, wait.message))
                continue
            uid = job.metadata.uid
            self.rows[uid] = row
            self.records.demands[uid] = demand_of(row, self.names)
            self.cluster.at(row.submit_s, partial(self._arrive, job, row))
        return tuple(refused)

    def _arrive(self, job: spec.TrainingJob, row: JobRow) -> None:
        self.cluster.submit(job, self.jobs.work(row))
        self.arrivals += 1

    def _play(self) -> None:
        """Jump from event to event until nothing is left to happen."""
        cluster, engine, records = self.cluster, self.engine, self.records
        shown_at, wake_at = 0.0, None
        while True:
            times = [at for at in (cluster.next_event(), wake_at) if at is not None]
            if not times:
                return
            cluster.advance(max(cluster.now, min(times)))
            wake_at = engine.step().wake_at
            records.looked(cluster.now)
            if self.setup.progress is not None and time.perf_counter() - shown_at >= self.setup.progress_every_s:
                shown_at = time.perf_counter()
                self._show()

    def _show(self) -> None:
        if self.setup.progress is not None:
            done = len(self.records.finished)
            waiting = self.arrivals - len(self.records.started)
            self.setup.progress(Progress(done, len(self.rows), self.cluster.now, waiting))

    def _sum_up(self, refused: tuple[Refusal, ...], wall_s: float) -> Result:
        self._show()
        records, rows = self.records, self.rows
        waits = [records.started[uid] - rows[uid].submit_s for uid in rows if uid in records.started]
        ends = [records.finished[uid] - rows[uid].submit_s for uid in rows if uid in records.completed]
        first = min((row.submit_s for row in rows.values()), default=0.0)
        makespan_s = max(records.finished.values(), default=first) - first
        gpus = self.workload.gpus
        return Result(
            policy=self.policy.name,
            jobs=len(self.workload.jobs),
            completed=len(records.completed),
            refused=len(refused),
            wait_s=Spread.of(waits),
            jct_s=Spread.of(ends),
            gpu_utilization=_share(records.gpu_seconds, gpus * makespan_s),
            fragmentation=_share(records.useless_gpu_seconds, gpus * records.contended_s),
            preemptions=records.preemptions,
            lost_work_s=records.lost_pod_s,
            makespan_s=makespan_s,
            wall_s=wall_s,
            refusals=refused,
            stays=tuple(records.stays),
            rows=rows,
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        workload, notes = self.workload, []
        if workload.fractions:
            notes.append(f"{workload.fractions} jobs ask for a part of a GPU; each got a whole one")
        if workload.never_ran:
            notes.append(f"{workload.never_ran} jobs never ran in the recording; each runs for as long as it existed")
        if workload.bad:
            rows = "1 row" if len(workload.bad) == 1 else f"{len(workload.bad)} rows"
            was = "was" if len(workload.bad) == 1 else "were"
            notes.append(f"{rows} could not be read and {was} skipped; the first: {workload.bad[0]}")
        failed = len(self.records.finished) - len(self.records.completed)
        if failed:
            notes.append(f"{failed} jobs failed (such as by running longer than the bound they declared)")
        stuck = [uid for uid in self.rows if uid not in self.records.finished]
        if stuck:
            names = ", ".join(self.rows[uid].name for uid in stuck[:5])
            notes.append(f"{len(stuck)} jobs never finished: {names}")
        return tuple(notes)


def _impossible(jobs: Sequence[spec.TrainingJob], world: World) -> dict[int, Wait]:
    """By identity of their spec: jobs that could not start even on the empty cluster, and why."""
    alike = {id(job.spec): job for job in jobs}
    key_of = {job.metadata.uid: key for key, job in alike.items()}
    waits: list[Wait] = []
    snapshot = build(replace(world, jobs=tuple(alike.values())), Cache())
    waits.extend(snapshot.refused)
    waits.extend(decision for decision in replay(snapshot.snapshot) if isinstance(decision, Wait))
    return {key_of[wait.gang]: wait for wait in waits if wait.code in NEVER}


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
