"""What a simulation is judged by: who waited how long, what the GPUs did, what was thrown away.

Everything is an integral over virtual time or a list of durations; docs/simulation.md defines each figure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from muster import spec
from muster.cluster import PodView, RecordEvent
from muster.lifecycle import is_admitted, is_condition_true, is_finished
from muster.lifecycle.conditions import COMPLETE, EVICTED, find_condition
from muster.simulate.idle_capacity import GangDemand, IdleCapacity


@dataclass(frozen=True, slots=True)
class PodRun:
    """One stay of one pod on one node."""

    job: str  # uid
    pod: str
    node: str
    start_s: float
    end_s: float
    outcome: str


@dataclass(slots=True)
class MetricsRecorder:
    """Kept while a simulation runs; implements `Observer`."""

    idle_capacity: IdleCapacity
    demands: dict[str, GangDemand] = field(default_factory=dict)  # by job uid
    started: dict[str, float] = field(default_factory=dict)  # first admission
    finished: dict[str, float] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)
    pod_runs: list[PodRun] = field(default_factory=list)
    preemptions: int = 0
    lost_pod_s: float = 0.0
    gpu_seconds: float = 0.0
    unusable_gpu_seconds: float = 0.0  # free, and of no use to anyone who waited for GPUs
    contended_s: float = 0.0  # time during which someone waited for GPUs
    _waiting: Counter[GangDemand] = field(default_factory=Counter)
    _waiting_uids: set[str] = field(default_factory=set)
    _running_since: dict[str, float] = field(default_factory=dict)
    _busy_gpus: int = 0
    _unusable_gpus: int = 0
    _stale: bool = True
    _updated_at: float | None = None

    def pod_placed(self, job: spec.TrainingJob, pod: PodView, now: float) -> None:
        """A pod took its place."""
        self._accumulate(now)
        demand = self.demands[job.metadata.uid]
        self.idle_capacity.adjust(pod.node, demand, 1)
        self._busy_gpus += demand.gpus
        self._running_since[pod.name] = now
        self._stale = True

    def pod_released(self, job: spec.TrainingJob, pod: PodView, now: float) -> None:
        """A pod gave its place back."""
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
        """A job got a new status."""
        self._accumulate(now)
        uid, status = job.metadata.uid, job.status
        finished = is_finished(status)
        if status.admitted_at is not None:
            self.started.setdefault(uid, status.admitted_at)
        if finished and uid not in self.finished:
            self.finished[uid] = now if status.finished_at is None else status.finished_at
            if is_condition_true(status, COMPLETE):
                self.completed.add(uid)
        self._update_waiting(uid, waits=not finished and not is_admitted(status))

    def work_lost(self, job: spec.TrainingJob, pod_s: float) -> None:
        """Pod-seconds were thrown away."""
        self.lost_pod_s += pod_s

    def event_recorded(self, event: RecordEvent, now: float) -> None:
        """Count gangs that were evicted or shrunk for another gang."""
        if event.preemptor is not None:
            self.preemptions += 1

    def cycle_finished(self, now: float) -> None:
        """The engine has had its round: what is free now is what those who still wait could not use."""
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
