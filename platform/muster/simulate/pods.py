"""Simulated pods: how they start, work, write checkpoints, exit, stop or get lost, on a virtual clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from muster.api import spec
from muster.api.spec.pods import pod_request
from muster.cluster import CreatePod, DeletePod, NodeView, PodView, RecordEvent
from muster.kinds.trainingjob.adapter import TrainingJobWorkload, reuse
from muster.model import Resources
from muster.workload.observation import ACTIVE_POD_PHASES


class EventQueue:
    """A virtual clock with scheduled events. Events of the same time run in the order in which they were scheduled."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._items: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()

    def schedule(self, when: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._items, (when, next(self._sequence), callback))

    def next_time(self) -> float | None:
        return self._items[0][0] if self._items else None

    def schedule_now(self) -> None:
        """Schedule an empty event now, so that the simulation runs another cycle."""
        if self.next_time() != self.now:
            self.schedule(self.now, _no_op)

    def advance(self, to: float) -> None:
        """Advance the clock to `to` and run all events until then, in order."""
        while self._items and self._items[0][0] <= to:
            when, _, callback = heapq.heappop(self._items)
            self.now = max(self.now, when)
            callback()
        self.now = max(self.now, to)


def _no_op() -> None:
    """The event of `schedule_now`."""


@dataclass(frozen=True, slots=True)
class JobBehavior:
    """How a simulated job behaves. Times in seconds; `runtime_s` is its run time at full size.

    A gang of fewer pods works proportionally slower. Work until the last checkpoint survives a stop; all work does if
    the job also writes a checkpoint at SIGTERM. `exit_codes` are those of attempts 0, 1, ... (then 0); an attempt that
    fails does so after `fails_after_s`. In `stuck_attempts` the last pod never becomes ready. Pods of `endless_roles`
    run until they are stopped.
    """

    runtime_s: float
    start_delay_s: float = 0.0
    stop_s: float = 0.0  # from SIGTERM to exit; at most the grace period
    checkpoint_every_s: float | None = None
    checkpoint_on_stop: bool = False
    exit_codes: tuple[int, ...] = ()
    fails_after_s: float = 0.0
    stuck_attempts: frozenset[int] = frozenset()
    endless_roles: frozenset[str] = frozenset()

    def exit_code(self, attempt: int) -> int:
        """The exit code of this attempt if it is not stopped."""
        return self.exit_codes[attempt] if attempt < len(self.exit_codes) else 0


@dataclass(slots=True)
class Attempt:
    """One run of the whole gang, from the time when all its pods are ready."""

    behavior: JobBehavior
    number: int
    pods: int
    full_size: int
    started_at: float
    prior_work_s: float  # seconds of work, at full size, that earlier attempts saved

    @property
    def rate(self) -> float:
        """Seconds of work per second."""
        return self.pods / self.full_size

    @property
    def ends_at(self) -> float:
        """When it exits if it is not stopped."""
        if self.behavior.exit_code(self.number) != 0:
            return self.started_at + self.behavior.fails_after_s
        return self.started_at + max(0.0, self.behavior.runtime_s - self.prior_work_s) / self.rate

    def checkpoint_count(self, now: float) -> int:
        interval_s = self.behavior.checkpoint_every_s
        return 0 if interval_s is None else int(max(0.0, now - self.started_at) // interval_s)

    def last_checkpoint_at(self, now: float) -> float | None:
        number, interval_s = self.checkpoint_count(now), self.behavior.checkpoint_every_s
        return None if number == 0 or interval_s is None else self.started_at + number * interval_s

    def saved_s(self, now: float, *, graceful: bool) -> float:
        """Seconds of work, at full size, that a stop at `now` keeps."""
        until = now if graceful and self.behavior.checkpoint_on_stop else self.last_checkpoint_at(now)
        gained = 0.0 if until is None else (until - self.started_at) * self.rate
        return min(self.behavior.runtime_s, self.prior_work_s + gained)

    def lost_pod_s(self, now: float, *, graceful: bool) -> float:
        """Pod-seconds of this attempt that a stop at `now` loses."""
        if graceful and self.behavior.checkpoint_on_stop:
            return 0.0
        since = self.last_checkpoint_at(now)
        return (now - (self.started_at if since is None else since)) * self.pods


class SimulationObserver:
    """Receives what happens in a simulation; this one ignores everything."""

    def pod_placed(self, job: spec.TrainingJob, pod: PodView, now: float) -> None:
        """A pod was created on its node."""

    def pod_released(self, job: spec.TrainingJob, pod: PodView, now: float) -> None:
        """A pod released its resources; `pod` is its last state."""

    def status_written(self, job: spec.TrainingJob, now: float) -> None:
        """A job has a new status."""

    def work_lost(self, job: spec.TrainingJob, pod_s: float) -> None:
        """Pod-seconds of work were lost."""

    def event_recorded(self, event: RecordEvent, now: float) -> None:
        """An event of a job was recorded."""


@dataclass(slots=True)
class SimJob:
    """A job, its behavior, and its pods by name."""

    job: spec.TrainingJob
    behavior: JobBehavior
    pods: dict[str, PodView] = field(default_factory=dict)
    attempt: Attempt | None = None  # while the whole gang is ready
    completed_work_s: float = 0.0  # at full size, saved by earlier attempts
    _requests: tuple[spec.TrainingJobSpec, dict[str, Resources]] | None = None  # by role, of one spec
    _workload: TrainingJobWorkload | None = None

    @property
    def uid(self) -> str:
        return self.job.metadata.uid

    @property
    def workload(self) -> TrainingJobWorkload:
        """The job as the engine sees it; the same object while the job is."""
        self._workload = reuse(self._workload, self.job)
        return self._workload

    def request(self, role: str) -> Resources:
        """The requests of a new pod of the role; empty for a role that the job does not have."""
        job_spec = self.job.spec
        if self._requests is None or self._requests[0] is not job_spec:
            self._requests = job_spec, {part.name: pod_request(part.template.spec) for part in job_spec.roles}
        return self._requests[1].get(role, Resources())


class SimulatedPods:
    """All pods of a simulated cluster. `nodes` is the cluster's dict, by name, and changes with it."""

    def __init__(self, event_queue: EventQueue, nodes: Mapping[str, NodeView], observer: SimulationObserver) -> None:
        self._event_queue = event_queue
        self._nodes = nodes
        self._observer = observer
        self.rejecting_nodes: set[str] = set()  # by name: their kubelets reject every new pod
        self._views: dict[str, tuple[PodView, ...]] = {}
        self._changed_jobs: dict[str, SimJob] = {}

    def views(self) -> Mapping[str, tuple[PodView, ...]]:
        """The pods of all jobs, by uid; unchanged tuples are the same objects."""
        for uid, entry in self._changed_jobs.items():
            if entry.pods:
                self._views[uid] = tuple(entry.pods.values())
            else:
                self._views.pop(uid, None)
        self._changed_jobs.clear()
        return self._views

    def create(self, entry: SimJob, write: CreatePod) -> None:
        """Create a pod unless it exists."""
        if write.name in entry.pods:
            return
        pod = PodView(
            name=write.name,
            job_uid=write.job_uid,
            role=write.role,
            index=write.index,
            attempt=write.attempt,
            node=write.node,
            phase="Pending",
            request=entry.request(write.role),
        )
        self._observer.pod_placed(entry.job, pod, self._event_queue.now)
        self._update(entry, pod)
        if write.node in self.rejecting_nodes:
            self._reject(entry, pod)
            return
        stuck = write.attempt in entry.behavior.stuck_attempts and write.index == write.replicas - 1
        if write.node not in self._nodes or stuck:
            return
        if entry.behavior.start_delay_s > 0:
            self._event_queue.schedule(
                self._event_queue.now + entry.behavior.start_delay_s, lambda: self._become_ready(entry, write.name)
            )
        else:
            self._become_ready(entry, write.name)
            self._event_queue.schedule_now()

    def delete(self, entry: SimJob, write: DeletePod) -> None:
        """Stop a pod: at once if nothing runs in it, else within its grace period; a lost one if its node is ready."""
        pod = entry.pods.get(write.name)
        if pod is None:
            return
        self.stop_work(entry, graceful=not write.force)
        node = self._nodes.get(pod.node)
        lost_here = pod.phase == "Lost" and node is not None and node.ready
        if write.force or lost_here or pod.phase in ("Succeeded", "Failed", "Pending"):
            self.remove(entry, write.name)
            self._event_queue.schedule_now()
        elif not pod.deleting and pod.phase == "Running":
            self._update(entry, replace(pod, deleting=True))
            stopped_at = self._event_queue.now + min(entry.behavior.stop_s, write.grace_s)
            self._event_queue.schedule(stopped_at, lambda: self.remove(entry, write.name))

    def remove(self, entry: SimJob, name: str) -> None:
        pod = entry.pods.pop(name, None)
        if pod is None:
            return
        self._changed_jobs[entry.uid] = entry
        if pod.phase in ACTIVE_POD_PHASES:
            self._observer.pod_released(entry.job, pod, self._event_queue.now)

    def remove_all(self, entry: SimJob) -> None:
        """Remove the pods of a removed job."""
        for name in list(entry.pods):
            self.remove(entry, name)

    def stop_work(self, entry: SimJob, *, graceful: bool) -> None:
        """The gang stops working; work that no checkpoint has is lost."""
        attempt, entry.attempt = entry.attempt, None
        if attempt is not None:
            now = self._event_queue.now
            entry.completed_work_s = attempt.saved_s(now, graceful=graceful)
            self._observer.work_lost(entry.job, attempt.lost_pod_s(now, graceful=graceful))

    def _reject(self, entry: SimJob, pod: PodView) -> None:
        reason, message = "UnexpectedAdmissionError", "Pod was rejected: no healthy devices present"
        self._update(entry, replace(pod, phase="Failed", rejected=True, reason=reason, message=message))
        self._observer.pod_released(entry.job, pod, self._event_queue.now)
        self._event_queue.schedule_now()

    def _become_ready(self, entry: SimJob, name: str) -> None:
        """A pod becomes ready; after the last one of the gang, work begins."""
        pod = entry.pods.get(name)
        if pod is None or pod.phase != "Pending" or pod.deleting:
            return
        self._update(entry, replace(pod, phase="Running", ready=True))
        status = entry.job.status
        up = sum(p.attempt == status.attempt and p.phase == "Running" for p in entry.pods.values())
        if up == status.pods_wanted and entry.attempt is None:
            full = sum(role.replicas for role in entry.job.spec.roles)
            attempt = Attempt(entry.behavior, status.attempt, up, full, self._event_queue.now, entry.completed_work_s)
            entry.attempt = attempt
            self._event_queue.schedule(attempt.ends_at, lambda: self._exit(entry, attempt))

    def _exit(self, entry: SimJob, attempt: Attempt) -> None:
        if entry.attempt is not attempt:
            return
        code = attempt.behavior.exit_code(attempt.number)
        if code == 0:
            entry.completed_work_s, entry.attempt = attempt.behavior.runtime_s, None
            self._finish(
                entry, [pod for pod in entry.pods.values() if pod.role not in attempt.behavior.endless_roles], 0
            )
        else:
            self.stop_work(entry, graceful=False)
            self._finish(entry, [pod for pod in entry.pods.values() if pod.phase == "Running"][:1], code)

    def _finish(self, entry: SimJob, pods: Collection[PodView], code: int) -> None:
        now = self._event_queue.now
        for pod in pods:
            if code == 0:
                ended = replace(pod, phase="Succeeded", ready=False, exit_code=0, reason="Completed", finished_at=now)
            else:
                ended = replace(pod, phase="Failed", ready=False, exit_code=code, reason="Error", finished_at=now)
                ended = replace(ended, log_tail=f"exit {code}")
            self._update(entry, ended)
            self._observer.pod_released(entry.job, ended, now)

    def _update(self, entry: SimJob, pod: PodView) -> None:
        entry.pods[pod.name] = pod
        self._changed_jobs[entry.uid] = entry
