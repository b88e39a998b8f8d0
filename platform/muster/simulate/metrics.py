"""The metrics of a simulation, as docs/tasks/simulation.md defines them: waiting times, GPU usage, lost work.

They are integrals over virtual time or lists of durations. A free GPU is usable if a pod of some waiting job fits on
its node, and the nodes that the job may use together (one domain of the level it requires, else one flavor) have
capacity for its whole gang at its smallest size.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.api import spec
from muster.cluster import NodeView, PodView, RecordEvent
from muster.simulate.pods import SimulationObserver
from muster.simulate.trace_csv import TraceJob
from muster.simulate.workload import GPU, GPU_TYPE_LABEL
from muster.usage.causes import CAUSES, LOST, PRODUCTIVE, RUNNING
from muster.usage.goodput import by_main_cause
from muster.usage.time_spent import time_spent
from muster.workload.conditions import COMPLETE, EVICTED, find_condition, is_admitted, is_condition_true, is_finished

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GangDemand:
    """The resources that a job needs. Memory in bytes."""

    pods: int  # at its smallest size
    gpus: int  # per pod, as the following
    cpu_milli: int
    memory: int
    flavors: tuple[str, ...] = ()  # empty: any
    level: str = ""  # the topology level that all pods must share


class IdleCapacity:
    """The free capacity of each node: GPUs, milli-cores, bytes."""

    def __init__(self, nodes: Sequence[NodeView], levels: Iterable[spec.TopologyLevel]) -> None:
        self._free = np.array(
            [[node.allocatable.get(name) for name in (GPU, "cpu", "memory")] for node in nodes], dtype=np.int64
        )
        self._row_of_node = {node.name: i for i, node in enumerate(nodes)}
        gpu_types = [node.labels[GPU_TYPE_LABEL] for node in nodes]
        self._gpu_types = np.array(gpu_types)
        self._groups: dict[str, Counts] = {"": _group_indices(gpu_types)}
        path = gpu_types
        for level in levels:
            path = [f"{a}/{node.labels.get(level.node_label, '')}" for a, node in zip(path, nodes, strict=True)]
            self._groups[level.name] = _group_indices(path)

    def adjust(self, node: str, demand: GangDemand, sign: int) -> None:
        """Add (1) or remove (-1) a pod."""
        self._free[self._row_of_node[node]] -= sign * np.array(
            (demand.gpus, demand.cpu_milli, demand.memory), dtype=np.int64
        )

    def unusable_gpus(self, waiting: Mapping[GangDemand, int]) -> int:
        """The number of free GPUs that no waiting job can use."""
        idle = self._free[:, 0] > 0
        for demand in sorted(waiting, key=lambda d: (d.pods * d.gpus, d.gpus, d.cpu_milli, d.memory)):
            if not idle.any():
                return 0
            idle &= ~self._usable(demand)
        return int(self._free[idle, 0].sum())

    def _usable(self, demand: GangDemand) -> npt.NDArray[np.bool_]:
        slots = self._free[:, 0] // demand.gpus
        for column, amount in ((1, demand.cpu_milli), (2, demand.memory)):
            if amount:
                slots = np.minimum(slots, self._free[:, column] // amount)
        if demand.flavors:
            slots = np.where(np.isin(self._gpu_types, demand.flavors), slots, 0)
        group = self._groups.get(demand.level, self._groups[""])
        free = np.bincount(group, weights=slots)
        usable: npt.NDArray[np.bool_] = (slots > 0) & (free[group] >= demand.pods)
        return usable


def demand_of(row: TraceJob, flavors: Mapping[str, str]) -> GangDemand:
    """The demand of a row; `flavors` is by GPU type."""
    names = tuple(flavors.get(gpu_type, gpu_type) for gpu_type in row.gpu_types)
    return GangDemand(row.min_pods, row.gpus_per_pod, row.cpu_milli, row.memory_mib << 20, names, row.topology)


def _group_indices(names: Sequence[str]) -> Counts:
    return np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True, slots=True)
class PodRun:
    """One run of one pod on one node."""

    job: str  # uid
    pod: str
    node: str
    start_s: float
    end_s: float
    outcome: str


@dataclass(slots=True)
class MetricsRecorder(SimulationObserver):
    """Records the metrics while a simulation runs."""

    idle_capacity: IdleCapacity
    demands: dict[str, GangDemand] = field(default_factory=dict)  # by job uid
    started: dict[str, float] = field(default_factory=dict)  # first admission
    finished: dict[str, float] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)
    pod_runs: list[PodRun] = field(default_factory=list)
    preemptions: int = 0
    lost_pod_s: float = 0.0
    time_ms: Counter[str] = field(default_factory=Counter)  # of jobs that have ended, by cause
    lost_s: float = 0.0  # of jobs
    gpu_seconds: float = 0.0
    unusable_gpu_seconds: float = 0.0  # free, while no waiting job could use them
    contended_s: float = 0.0  # time during which some job waited for GPUs
    _waiting: Counter[GangDemand] = field(default_factory=Counter)
    _waiting_uids: set[str] = field(default_factory=set)
    _running_since: dict[str, float] = field(default_factory=dict)
    _busy_gpus: int = 0
    _unusable_gpus: int = 0
    _stale: bool = True
    _updated_at: float | None = None

    def pod_placed(self, job: spec.TrainingJob, pod: PodView, now: float) -> None:
        self._accumulate(now)
        demand = self.demands[job.metadata.uid]
        self.idle_capacity.adjust(pod.node, demand, 1)
        self._busy_gpus += demand.gpus
        self._running_since[pod.name] = now
        self._stale = True

    def pod_released(self, job: spec.TrainingJob, pod: PodView, now: float) -> None:
        start = self._running_since.pop(pod.name, None)
        if start is None:
            return
        self._accumulate(now)
        uid = job.metadata.uid
        demand = self.demands[uid]
        self.idle_capacity.adjust(pod.node, demand, -1)
        self._busy_gpus -= demand.gpus
        self.pod_runs.append(PodRun(uid, pod.name, pod.node, start, now, _outcome(job, pod)))
        self._stale = True

    def status_written(self, job: spec.TrainingJob, now: float) -> None:
        self._accumulate(now)
        uid, status = job.metadata.uid, job.status
        finished = is_finished(status)
        if status.admitted_at is not None:
            self.started.setdefault(uid, status.admitted_at)
        if finished and uid not in self.finished:
            self.finished[uid] = now if status.finished_at is None else status.finished_at
            if is_condition_true(status, COMPLETE):
                self.completed.add(uid)
            for cause, spent_ms in by_main_cause(time_spent(job, now)).items():
                self.time_ms[cause] += spent_ms
        self._update_waiting(uid, waits=not finished and not is_admitted(status))

    def work_lost(self, job: spec.TrainingJob, pod_s: float) -> None:
        self.lost_pod_s += pod_s
        self.lost_s += pod_s / max(1, job.status.pods_wanted)

    def time_by_cause(self) -> dict[str, float]:
        """Seconds of jobs that have ended; of the time that pods ran, what was not lost is productive."""
        seconds = {cause: spent_ms / 1000 for cause, spent_ms in self.time_ms.items()}
        running_s = seconds.pop(RUNNING, 0.0)
        seconds[LOST] = min(self.lost_s, running_s)
        seconds[PRODUCTIVE] = running_s - seconds[LOST]
        return {cause: seconds[cause] for cause in CAUSES if seconds.get(cause)}

    def event_recorded(self, event: RecordEvent, now: float) -> None:
        """Count gangs that were preempted: evicted or shrunk for another gang."""
        if event.preemptor is not None:
            self.preemptions += 1

    def cycle_finished(self, now: float) -> None:
        """After a cycle, capacity that is still free is what waiting jobs could not use."""
        self._accumulate(now)
        if self._stale:
            self._unusable_gpus = self.idle_capacity.unusable_gpus(self._waiting) if self._waiting else 0
            self._stale = False

    def _update_waiting(self, uid: str, *, waits: bool) -> None:
        demand = self.demands[uid]
        if demand.gpus == 0 or waits == (uid in self._waiting_uids):
            return
        if waits:
            self._waiting_uids.add(uid)
            self._waiting[demand] += 1
            self._stale = self._stale or self._waiting[demand] == 1
        else:
            self._waiting_uids.discard(uid)
            self._waiting[demand] -= 1
            if self._waiting[demand] == 0:
                del self._waiting[demand]
                self._stale = True

    def _accumulate(self, now: float) -> None:
        if self._updated_at is not None and now > self._updated_at:
            elapsed = now - self._updated_at
            self.gpu_seconds += self._busy_gpus * elapsed
            if self._waiting:
                self.contended_s += elapsed
                self.unusable_gpu_seconds += self._unusable_gpus * elapsed
        self._updated_at = now


def _outcome(job: spec.TrainingJob, pod: PodView) -> str:
    """completed, failed, lost, or why it was stopped: preempted, reclaimed, resized, suspended, cancelled, ..."""
    if pod.phase in ("Succeeded", "Failed", "Lost"):
        return {"Succeeded": "completed", "Failed": "failed", "Lost": "lost"}[pod.phase]
    status = job.status
    if is_admitted(status) and pod.attempt != status.attempt:
        return "resized" if status.resized_at is not None and status.resized_at == status.requeue_after else "restarted"
    if is_condition_true(status, EVICTED):
        evicted = find_condition(status, EVICTED)
        return evicted.reason.lower() if evicted is not None else "evicted"
    ended = next(
        (c for c in status.conditions if c.type in ("Failed", "Cancelled", "Suspended") and c.status == "True"), None
    )
    return "stopped" if ended is None else ended.reason.lower()


PLACEMENT_COLUMNS = ("job", "pod", "node", "gpus", "cpu_milli", "memory_mib", "start_s", "end_s", "outcome")


@dataclass(frozen=True, slots=True)
class DurationStats:
    """The distribution of a duration over jobs, in seconds, with linear interpolation; zeros without jobs."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> DurationStats:
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0)
        array = np.array(values, dtype=np.float64)
        p50, p95, p99 = (float(value) for value in np.percentile(array, (50, 95, 99)))
        return cls(float(array.mean()), p50, p95, p99)

    def to_json(self) -> dict[str, float]:
        """Rounded to milliseconds."""
        return {name: round(getattr(self, name), 3) for name in ("mean", "p50", "p95", "p99")}


@dataclass(frozen=True, slots=True)
class RefusedJob:
    """A job that could not start even in the empty cluster."""

    job: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The metrics of one policy (docs/tasks/simulation.md). `notes` are sentences for the user."""

    policy: str
    jobs: int
    completed: int
    refused: int
    wait_s: DurationStats
    jct_s: DurationStats
    gpu_utilization: float
    fragmentation: float
    preemptions: int
    lost_work_s: float
    makespan_s: float
    wall_s: float
    time_s: Mapping[str, float]  # of jobs that ended, by cause
    refused_jobs: tuple[RefusedJob, ...] = ()
    pod_runs: tuple[PodRun, ...] = ()
    job_rows: Mapping[str, TraceJob] = field(default_factory=dict)  # by job uid, as in `pod_runs`
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The keys of `muster simulate --json`."""
        return {
            "policy": self.policy,
            "jobs": self.jobs,
            "completed": self.completed,
            "refused": self.refused,
            "wait_s": self.wait_s.to_json(),
            "jct_s": self.jct_s.to_json(),
            "gpu_utilization": round(self.gpu_utilization, 6),
            "fragmentation": round(self.fragmentation, 6),
            "preemptions": self.preemptions,
            "lost_work_s": round(self.lost_work_s, 3),
            "makespan_s": round(self.makespan_s, 3),
            "wall_s": round(self.wall_s, 3),
            "time_s": {cause: round(seconds, 3) for cause, seconds in self.time_s.items()},
        }


def write_placements(path: Path, pod_runs: Sequence[PodRun], rows: Mapping[str, TraceJob]) -> None:
    """Write one line per run of a pod on a node, by start; `rows` are `SimulationResult.job_rows`. Raises OSError."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(PLACEMENT_COLUMNS)
        for run in sorted(pod_runs, key=lambda run: (run.start_s, run.job, run.pod)):
            row = rows[run.job]
            pod = row.name + run.pod.removeprefix(run.job)
            amounts = (row.gpus_per_pod, row.cpu_milli, row.memory_mib)
            times = (f"{run.start_s:.6f}", f"{run.end_s:.6f}")
            writer.writerow((row.name, pod, run.node, *amounts, *times, run.outcome))
