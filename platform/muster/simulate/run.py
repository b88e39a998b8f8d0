"""Replays a workload: jobs arrive at their recorded times, the engine decides as on a real cluster, and the clock jumps
from event to event."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from muster.api import spec
from muster.engine import MUSTER, Engine, Policy, replay, run_cycle
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.model import Wait
from muster.simulate.cluster import SimCluster
from muster.simulate.metrics import (
    DurationStats,
    IdleCapacity,
    MetricsRecorder,
    RefusedJob,
    SimulationResult,
    demand_of,
)
from muster.simulate.trace_csv import TraceJob
from muster.simulate.workload import (
    JobFactory,
    RecordedWorkload,
    WorkloadAssumptions,
    build_flavors,
    build_nodes,
    build_queues,
    flavor_names,
)
from muster.state import snapshot_of
from muster.workload.observed import ObservedState

INFEASIBLE_CODES = frozenset({
    "QueueNotFound", "QueueInactive", "QueueNotAllowed", "PriorityClassNotFound", "PriorityTooHigh", "FlavorNotFound",
    "FlavorNotAllowed", "UnknownTopologyLevel", "ResourceProvidedByDRA", "LargerThanQuota", "LargerThanCluster",
})  # fmt: skip
"""Reasons why a job cannot start even in the empty cluster."""


@dataclass(frozen=True, slots=True)
class SimulationProgress:
    """The progress of a simulation."""

    finished: int
    jobs: int
    now_s: float  # virtual
    waiting: int


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """How a workload is replayed. `queue_tree` None: the workload's queues share the cluster equally."""

    assumptions: WorkloadAssumptions = field(default_factory=WorkloadAssumptions)
    queue_tree: tuple[spec.Queue, ...] | None = None
    progress: Callable[[SimulationProgress], None] | None = None
    progress_every_s: float = 0.25  # wall time


def run(
    workload: RecordedWorkload, policy: Policy = MUSTER, config: SimulationConfig = SimulationConfig()
) -> SimulationResult:
    """Replay the workload under one policy."""
    return _Replay(workload, policy, config).run()


class _Replay:
    """One run."""

    def __init__(self, workload: RecordedWorkload, policy: Policy, config: SimulationConfig) -> None:
        self.workload = workload
        self.policy = policy
        self.config = config
        names = flavor_names(workload.nodes)
        self.jobs = JobFactory(names, config.assumptions)
        self.names = names
        flavors = build_flavors(workload.nodes, names)
        tree = list(config.queue_tree) if config.queue_tree is not None else build_queues(workload, names)
        nodes = tuple(build_nodes(workload.nodes, names))
        self.metrics = MetricsRecorder(IdleCapacity(nodes, flavors[0].spec.topology))
        first = min(row.submit_s for row in workload.jobs)
        ranks = {(row.queue, config.assumptions.priority(row)) for row in workload.jobs}
        evictions = policy.preempts and len(ranks) > 1  # jobs of one queue and priority never preempt each other
        self.cluster = SimCluster(nodes, flavors, tree, now=first, observer=self.metrics, report_checkpoints=evictions)
        self.engine = Engine(policy, status_refresh_s=inf)
        self.rows: dict[str, TraceJob] = {}
        self.arrivals = 0

    def run(self) -> SimulationResult:
        started = time.perf_counter()
        refused = self._schedule_arrivals()
        self._run_events()
        wall_s = time.perf_counter() - started
        return self._summarize(refused, wall_s)

    def _schedule_arrivals(self) -> tuple[RefusedJob, ...]:
        """Schedule the arrival of every job that could start; returns the others."""
        rows = sorted(self.workload.jobs, key=lambda row: row.submit_s)
        jobs = [self.jobs.job(row, number) for number, row in enumerate(rows)]
        infeasible = _find_infeasible(jobs, self.cluster.observe())
        refused = []
        for row, job in zip(rows, jobs, strict=True):
            wait = infeasible.get(id(job.spec))
            if wait is not None:
                refused.append(RefusedJob(row.name, wait.reason, wait.message))
                continue
            uid = job.metadata.uid
            self.rows[uid] = row
            self.metrics.demands[uid] = demand_of(row, self.names)
            self.cluster.schedule(row.submit_s, partial(self._submit, job, row))
        return tuple(refused)

    def _submit(self, job: spec.TrainingJob, row: TraceJob) -> None:
        self.cluster.submit(job, self.jobs.behavior(row))
        self.arrivals += 1

    def _run_events(self) -> None:
        """Advance from event to event until none is left."""
        cluster, engine = self.cluster, self.engine
        reported_at, wake_at = 0.0, None
        while True:
            times = [at for at in (cluster.next_event_time(), wake_at) if at is not None]
            if not times:
                return
            cluster.advance(max(cluster.now, min(times)))
            wake_at = run_cycle(cluster, engine).wake_at
            self.metrics.cycle_finished(cluster.now)
            if self.config.progress is not None and time.perf_counter() - reported_at >= self.config.progress_every_s:
                reported_at = time.perf_counter()
                self._report_progress()

    def _report_progress(self) -> None:
        if self.config.progress is not None:
            finished = len(self.metrics.finished)
            waiting = self.arrivals - len(self.metrics.started)
            self.config.progress(SimulationProgress(finished, len(self.rows), self.cluster.now, waiting))

    def _summarize(self, refused: tuple[RefusedJob, ...], wall_s: float) -> SimulationResult:
        self._report_progress()
        records, rows = self.metrics, self.rows
        waits = [records.started[uid] - rows[uid].submit_s for uid in rows if uid in records.started]
        ends = [records.finished[uid] - rows[uid].submit_s for uid in rows if uid in records.completed]
        first = min((row.submit_s for row in rows.values()), default=0.0)
        makespan_s = max(records.finished.values(), default=first) - first
        gpus = self.workload.gpus
        return SimulationResult(
            policy=self.policy.name,
            jobs=len(self.workload.jobs),
            completed=len(records.completed),
            refused=len(refused),
            wait_s=DurationStats.from_values(waits),
            jct_s=DurationStats.from_values(ends),
            gpu_utilization=_ratio(records.gpu_seconds, gpus * makespan_s),
            fragmentation=_ratio(records.unusable_gpu_seconds, gpus * records.contended_s),
            preemptions=records.preemptions,
            lost_work_s=records.lost_pod_s,
            makespan_s=makespan_s,
            wall_s=wall_s,
            time_s=records.time_by_cause(),
            refused_jobs=refused,
            pod_runs=tuple(records.pod_runs),
            job_rows=rows,
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        workload, notes = self.workload, []
        if workload.fractional_jobs:
            notes.append(f"{workload.fractional_jobs} jobs request a fraction of a GPU; each got a whole GPU")
        if workload.never_scheduled:
            notes.append(
                f"{workload.never_scheduled} jobs never ran in the recording; each runs for the time that it existed"
            )
        if workload.invalid_rows:
            rows = "1 row" if len(workload.invalid_rows) == 1 else f"{len(workload.invalid_rows)} rows"
            was = "was" if len(workload.invalid_rows) == 1 else "were"
            notes.append(f"{rows} could not be read and {was} skipped; the first: {workload.invalid_rows[0]}")
        failed = len(self.metrics.finished) - len(self.metrics.completed)
        if failed:
            notes.append(f"{failed} jobs failed (for example, because they exceeded their maximum run time)")
        unfinished = [uid for uid in self.rows if uid not in self.metrics.finished]
        if unfinished:
            names = ", ".join(self.rows[uid].name for uid in unfinished[:5])
            notes.append(f"{len(unfinished)} jobs never finished: {names}")
        return tuple(notes)


def _find_infeasible(jobs: Sequence[spec.TrainingJob], observed: ObservedState) -> dict[int, Wait]:
    """By identity of its spec: each job that could not start even in the empty cluster, and why."""
    by_spec = {id(job.spec): job for job in jobs}
    key_of = {job.metadata.uid: key for key, job in by_spec.items()}
    waits: list[Wait] = []
    built = snapshot_of(replace(observed, workloads=tuple(map(TrainingJobWorkload, by_spec.values()))))
    waits.extend(built.rejected)
    waits.extend(decision for decision in replay(built.snapshot) if isinstance(decision, Wait))
    return {key_of[wait.gang_uid]: wait for wait in waits if wait.reason in INFEASIBLE_CODES}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
