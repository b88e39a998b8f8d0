"""A cluster in memory with a virtual clock.

It behaves as a real one: a status is written only with the current resource version, pods take time to start and to
stop, and work after the last checkpoint is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count

from muster.api import spec
from muster.cluster import (
    CreatePod,
    DeletePod,
    Heartbeat,
    NodeView,
    RecordEvent,
    RemoveJob,
    Write,
    WriteFlavorStatus,
    WriteQueueStatus,
    WriteStatus,
)
from muster.errors import Conflict
from muster.simulate.pods import EventQueue, JobBehavior, SimJob, SimulatedPods, SimulationObserver
from muster.workload.observed import ObservedState


class SimCluster:
    """Jobs, pods and nodes in memory. Implements `muster.cluster.Cluster`.

    `report_checkpoints`: whether heartbeats report checkpoints. The engine needs them only if gangs can be evicted;
    without them a long simulation has far fewer changes.
    """

    def __init__(
        self,
        nodes: Iterable[NodeView],
        flavors: Iterable[spec.Flavor],
        queues: Iterable[spec.Queue],
        *,
        now: float = 0.0,
        observer: SimulationObserver | None = None,
        report_checkpoints: bool = True,
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.events: list[RecordEvent] = []
        self._node_views: tuple[NodeView, ...] | None = None
        self._flavors = {flavor.metadata.name: flavor for flavor in flavors}
        self._queues = {queue.metadata.name: queue for queue in queues}
        self._jobs: dict[str, SimJob] = {}
        self._heartbeats: dict[str, Heartbeat] = {}
        self._versions = count(1)
        self._observer = observer or SimulationObserver()
        self._event_queue = EventQueue(now)
        self._pods = SimulatedPods(self._event_queue, self.nodes, self._observer)
        self._report_checkpoints = report_checkpoints

    # ---- the engine's interface

    def observe(self) -> ObservedState:
        if self._node_views is None:
            self._node_views = tuple(self.nodes.values())
        if self._report_checkpoints:
            self._update_heartbeats()
        return ObservedState(
            now=self.now,
            nodes=self._node_views,
            flavors=tuple(self._flavors.values()),
            queues=tuple(self._queues.values()),
            workloads=tuple(entry.workload for entry in self._jobs.values()),
            pods=self._pods.views(),
            heartbeats=self._heartbeats,
        )

    def apply(self, writes: Sequence[Write]) -> None:
        """Apply the writes in order. Raises Conflict at the first status that was changed meanwhile."""
        for write in writes:
            self.apply_one(write)

    def apply_one(self, write: Write) -> None:
        if isinstance(write, WriteStatus):
            self._write_status(write)
        elif isinstance(write, WriteQueueStatus):
            if write.queue in self._queues:
                queue = self._queues[write.queue].model_copy(update={"status": write.status})
                self._queues[write.queue] = queue
        elif isinstance(write, WriteFlavorStatus):
            if write.flavor in self._flavors:
                flavor = self._flavors[write.flavor].model_copy(update={"status": write.status})
                self._flavors[write.flavor] = flavor
        elif isinstance(write, RecordEvent):
            self.events.append(write)
            self._observer.event_recorded(write, self.now)
        elif write.job_uid in self._jobs:
            entry = self._jobs[write.job_uid]
            if isinstance(write, CreatePod):
                self._pods.create(entry, write)
            elif isinstance(write, DeletePod):
                self._pods.delete(entry, write)
            elif isinstance(write, RemoveJob):
                self._pods.remove_all(entry)
                del self._jobs[write.job_uid]
                self._heartbeats.pop(write.job_uid, None)

    # ---- users

    def submit(self, job: spec.TrainingJob, behavior: JobBehavior) -> str:
        """Submit a job; returns its uid. Raises Conflict if the name is in use."""
        meta = job.metadata
        uid = meta.uid or f"uid-{meta.namespace or 'default'}-{meta.name}"
        if uid in self._jobs:
            raise Conflict(f"job {meta.name} already exists")
        stored = meta.model_copy(update={"uid": uid, "creation_timestamp": self.now})
        self._jobs[uid] = SimJob(job.model_copy(update={"metadata": stored}), behavior)
        self._bump_resource_version(uid)
        return uid

    # ---- time

    @property
    def now(self) -> float:
        return self._event_queue.now

    def next_event_time(self) -> float | None:
        return self._event_queue.next_time()

    def advance(self, to: float) -> None:
        """Advance the clock to `to` and run all events until then, in order."""
        self._event_queue.advance(to)

    def schedule(self, when: float, callback: Callable[[], None]) -> None:
        self._event_queue.schedule(when, callback)

    # ---- helpers

    def _write_status(self, write: WriteStatus) -> None:
        entry = self._jobs.get(write.job_uid)
        if entry is None or entry.job.metadata.resource_version != write.resource_version:
            raise Conflict(f"job {write.job_uid} was changed meanwhile")
        entry.job = entry.job.model_copy(update={"status": write.status})
        self._bump_resource_version(write.job_uid)
        self._observer.status_written(entry.job, self.now)

    def _bump_resource_version(self, uid: str) -> None:
        """Give a changed job a new resource version."""
        entry = self._jobs[uid]
        meta = entry.job.metadata.model_copy(update={"resource_version": str(next(self._versions))})
        entry.job = entry.job.model_copy(update={"metadata": meta})

    def _update_heartbeats(self) -> None:
        """Update the heartbeats of jobs that have a new checkpoint."""
        for uid, entry in self._jobs.items():
            attempt = entry.attempt
            if attempt is None or attempt.behavior.checkpoint_every_s is None:
                continue
            number, at = attempt.checkpoint_count(self.now), attempt.last_checkpoint_at(self.now)
            old = self._heartbeats.get(uid)
            if at is not None and (old is None or old.checkpoint_at != at):
                self._heartbeats[uid] = Heartbeat(
                    at=at, step=number, step_changed_at=at, checkpoint_step=number, checkpoint_at=at
                )
