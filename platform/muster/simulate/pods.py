"""What simulated pods do: come up, work, exit, stop when they are told to, or get lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from muster import spec
from muster.cluster import CreatePod, DeletePod, NodeView, PodView, RecordEvent
from muster.lifecycle import ACTIVE_POD_PHASES
from muster.model import Resources
from muster.simulate.event_queue import EventQueue
from muster.simulate.work import Attempt, JobBehavior
from muster.snapshot import pod_request


class SimulationObserver(Protocol):
    """Whoever keeps the records of a simulation."""

    def pod_placed(self, job: spec.TrainingJob, pod: PodView, now: float) -> None:
        """A pod took its place."""

    def pod_released(self, job: spec.TrainingJob, pod: PodView, now: float) -> None:
        """A pod gave its place back; `pod` is how it was last seen."""

    def status_written(self, job: spec.TrainingJob, now: float) -> None:
        """A job got a new status."""

    def work_lost(self, job: spec.TrainingJob, pod_s: float) -> None:
        """Pod-seconds were thrown away."""

    def event_recorded(self, event: RecordEvent, now: float) -> None:
        """Something happened to a job."""


class NullObserver:
    """Keeps no records."""

    def pod_placed(self, job: spec.TrainingJob, pod: PodView, now: float) -> None: ...
    def pod_released(self, job: spec.TrainingJob, pod: PodView, now: float) -> None: ...
    def status_written(self, job: spec.TrainingJob, now: float) -> None: ...
    def work_lost(self, job: spec.TrainingJob, pod_s: float) -> None: ...
    def event_recorded(self, event: RecordEvent, now: float) -> None: ...


@dataclass(slots=True)
class SimJob:
    """A job, what it does, and its pods by name."""

    job: spec.TrainingJob
    behavior: JobBehavior
    pods: dict[str, PodView] = field(default_factory=dict)
    attempt: Attempt | None = None  # while the whole gang works
    completed_work_s: float = 0.0  # of work, at full size, that a stop would leave behind
    _requests: tuple[spec.TrainingJobSpec, dict[str, Resources]] | None = None  # by role, of one spec

    @property
    def uid(self) -> str:
        """The job's uid."""
        return self.job.metadata.uid

    def request(self, role: str) -> Resources:
        """What a pod of the role asks for if it is made now; nothing for a role that the job does not have."""
        requested = self.job.spec
        if self._requests is None or self._requests[0] is not requested:
            self._requests = requested, {part.name: pod_request(part.template.spec) for part in requested.roles}
        return self._requests[1].get(role, Resources())


class SimulatedPods:
    """All pods of a simulated cluster. `nodes` is the cluster's own, by name, and may change."""

    def __init__(self, event_queue: EventQueue, nodes: Mapping[str, NodeView], observer: SimulationObserver) -> None:
        self._event_queue = event_queue
        self._nodes = nodes
        self._observer = observer
        self._views: dict[str, tuple[PodView, ...]] = {}
        self._changed_jobs: dict[str, SimJob] = {}

    def views(self) -> Mapping[str, tuple[PodView, ...]]:
        """Every job's pods by uid; the tuples of jobs whose pods did not change stay the same."""
        for uid, entry in self._changed_jobs.items():
            if entry.pods:
                self._views[uid] = tuple(entry.pods.values())
            else:
                self._views.pop(uid, None)
        self._changed_jobs.clear()
        return self._views

    def create(self, entry: SimJob, write: CreatePod) -> None:
        """Start a pod; nothing if it is there already."""
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
        """Stop a pod: at once if nothing runs in it, else within its grace; a lost one only with its node."""
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
            gone_at = self._event_queue.now + min(entry.behavior.stop_s, write.grace_s)
            self._event_queue.schedule(gone_at, lambda: self.remove(entry, write.name))

    def mark_lost(self, entry: SimJob, pod: PodView) -> None:
        """A pod's node is gone or silent."""
        self.stop_work(entry, graceful=False)
        self._update(entry, replace(pod, phase="Lost", ready=False))

    def remove(self, entry: SimJob, name: str) -> None:
        """A pod is gone for good."""
        pod = entry.pods.pop(name, None)
        if pod is None:
            return
        self._changed_jobs[entry.uid] = entry
        if pod.phase in ACTIVE_POD_PHASES:
            self._observer.pod_released(entry.job, pod, self._event_queue.now)

    def remove_all(self, entry: SimJob) -> None:
        """A job is gone, and its pods with it."""
        for name in list(entry.pods):
            self.remove(entry, name)

    def stop_work(self, entry: SimJob, *, graceful: bool) -> None:
        """The gang stops working: what no checkpoint kept is lost."""
        attempt, entry.attempt = entry.attempt, None
        if attempt is not None:
            now = self._event_queue.now
            entry.completed_work_s = attempt.saved_s(now, graceful=graceful)
            self._observer.work_lost(entry.job, attempt.lost_pod_s(now, graceful=graceful))

    def _become_ready(self, entry: SimJob, name: str) -> None:
        """A pod is ready; when it is the last of its gang, the work begins."""
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
