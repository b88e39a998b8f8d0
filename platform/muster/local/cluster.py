"""The `muster.cluster.Cluster` of this host: observes the state for the engine and applies its writes.

All writes of a cycle are committed in one transaction before `PodSupervisor` starts or stops processes. After a crash
the database has either none of them or all, and the supervisor completes the rest.
"""

from __future__ import annotations

import logging
import operator
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from muster.api import spec
from muster.api.spec.pods import pod_request
from muster.backoff import Backoff
from muster.cluster import (
    CreatePod,
    DeletePod,
    Heartbeat,
    NodeView,
    PodView,
    RecordEvent,
    RemoveJob,
    Write,
    WriteFlavorStatus,
    WriteQueueStatus,
    WriteStatus,
)
from muster.errors import Conflict, MusterError
from muster.kinds.trainingjob.adapter import TrainingJobWorkload, reuse
from muster.kinds.trainingjob.array_changes import array_event, with_array_status
from muster.kinds.trainingjob.array_workloads import ArrayView, array_view
from muster.kinds.trainingjob.arrays import index_key, split_index_key
from muster.local.home import Home
from muster.local.job_checks import namespace_labels, used_queues
from muster.local.nodes import GPU, free_port
from muster.local.pod_supervisor import PodSupervisor
from muster.local.run_folder import HeartbeatReader
from muster.local.store import EventRecord, PodRecord, SqliteStore
from muster.workload import transitions
from muster.workload.conditions import CANCELLED, has_terminated, is_admitted, is_finished, with_status_fields
from muster.workload.observed import ObservedState

_LOG = logging.getLogger("muster.local")
QUARANTINE_S, _MAX_QUARANTINE_S = 60.0, 960.0


@dataclass(slots=True)
class Quarantine:
    """Jobs of which a status cannot be written, and until when they are paused: for a minute, then twice as long each
    time, 16 minutes at most.

    A cycle is one transaction, and the next one would decide the same again: a single job whose status the database
    rejects would otherwise stop the scheduling of all jobs. Times are Unix seconds.
    """

    _backoffs: dict[str, Backoff] = field(default_factory=dict)  # by job uid

    def add(self, uid: str, now: float) -> float:
        """A status of this job was rejected; seconds for which it is paused."""
        new = Backoff(QUARANTINE_S, _MAX_QUARANTINE_S, reset_after_s=4 * _MAX_QUARANTINE_S)
        return self._backoffs.setdefault(uid, new).fail(now)

    def active(self, now: float, jobs: Collection[str]) -> frozenset[str]:
        """The uids of the jobs that are paused now, of those that exist."""
        self._backoffs = {uid: backoff for uid, backoff in self._backoffs.items() if uid in jobs}
        return frozenset(uid for uid, backoff in self._backoffs.items() if now < backoff.retry_at)

    def next_end(self, now: float) -> float | None:
        return min((one.retry_at for one in self._backoffs.values() if now < one.retry_at), default=None)


@dataclass(slots=True)
class _CachedPodViews:
    """The records and views of the last observation, so that unchanged pods yield the same object."""

    records: tuple[PodRecord, ...]
    views: tuple[PodView, ...]


class LocalCluster:
    """This host. `lock` guards the store and everything that writes to it."""

    def __init__(
        self,
        home: Home,
        store: SqliteStore,
        supervisor: PodSupervisor,
        nodes: tuple[NodeView, ...],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lock = threading.RLock()
        self.nodes = nodes
        self._home = home
        self._store = store
        self._supervisor = supervisor
        self._clock = clock
        self._heartbeats = HeartbeatReader()
        self._quarantine = Quarantine()
        self._previously_live: frozenset[str] | None = None  # at the last observation; None before the first
        self._cached_pod_views: dict[str, _CachedPodViews] = {}
        self._workloads: dict[str, TrainingJobWorkload] = {}
        self._arrays: dict[str, ArrayView] = {}
        self._index_statuses: dict[str, dict[int, spec.TrainingJobStatus]] = {}  # by array, of the present transaction
        self._ended_indices: list[str] = []  # in the present transaction
        self._array_versions: dict[str, str] = {}  # of arrays that were written in it
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._random = random.Random()

    # ---- observation

    def read_state(self) -> ObservedState:
        """All objects now, for readers: without heartbeats. Changes nothing of what `observe` compares with."""
        with self.lock:
            jobs = tuple(self._store.jobs.values())
            return ObservedState(
                now=self._clock(),
                nodes=self.nodes,
                flavors=tuple(self._store.flavors.values()),
                queues=tuple(self._store.queues.values()),
                workloads=self._observe_workloads(jobs),
                pods=self._observe_pods(),
                namespaces=self._namespace_labels(jobs),
            )

    def observe(self) -> ObservedState:
        with self.lock:
            now, jobs = self._clock(), tuple(self._store.jobs.values())
            workloads = self._observe_workloads(jobs)
            return ObservedState(
                now=now,
                nodes=self.nodes,
                flavors=tuple(self._store.flavors.values()),
                queues=tuple(self._store.queues.values()),
                workloads=workloads,
                pods=self._observe_pods(),
                heartbeats=self._read_heartbeats([one.job for one in workloads], now),
                namespaces=self._namespace_labels(jobs),
                recorded_usage=dict(self._store.counted_usage),
                paused=self._quarantine.active(now, self._workloads.keys()),
            )

    def quarantine_ends_at(self) -> float | None:
        """When a job whose status could not be written is tried again; None if there is none."""
        with self.lock:
            return self._quarantine.next_end(self._clock())

    def _read_heartbeats(self, jobs: Sequence[spec.TrainingJob], now: float) -> dict[str, Heartbeat]:
        """The newest heartbeats of jobs that are admitted or have live pods, and once more after the last pod has
        ended, which may have written a checkpoint at SIGTERM. The first observation reads those of all jobs."""
        before, self._previously_live = self._previously_live, self._jobs_with_live_pods()
        read = [
            job
            for job in jobs
            if (is_admitted(job.status) and not is_finished(job.status))
            or before is None
            or job.metadata.uid in before
            or job.metadata.uid in self._previously_live
        ]
        return self._heartbeats.read(((job.metadata.uid, self.run_dir(job)) for job in read), now)

    def _jobs_with_live_pods(self) -> frozenset[str]:
        """The uids of jobs with pods that have not ended."""
        pods = self._store.pods.items()
        return frozenset(uid for uid, records in pods if any(not pod.finished for pod in records.values()))

    def run_dir(self, job: spec.TrainingJob) -> Path:
        return self._home.run_dir(job.metadata.namespace or "default", job.metadata.name, job.metadata.uid)

    def _observe_workloads(self, jobs: Iterable[spec.TrainingJob]) -> tuple[TrainingJobWorkload, ...]:
        """Jobs as the engine sees them; the same object as long as a job is the same."""
        before, arrays = self._workloads, self._arrays
        self._workloads, self._arrays = {}, {}
        for job in jobs:
            uid = job.metadata.uid
            if job.spec.array is None:
                self._workloads[uid] = reuse(before.get(uid), job)
                continue
            view = self._arrays[uid] = array_view(job, arrays.get(uid))
            self._workloads |= {one.key: one for one in view.workloads()}
        return tuple(self._workloads.values())

    def _observe_pods(self) -> dict[str, tuple[PodView, ...]]:
        cache: dict[str, _CachedPodViews] = {}
        for uid, records in self._store.pods.items():
            before, now = self._cached_pod_views.get(uid), tuple(records.values())
            if not now:
                continue
            if before is not None and len(before.records) == len(now) and all(map(operator.is_, before.records, now)):
                cache[uid] = before
            else:
                pairs = zip(before.records, before.views, strict=True) if before is not None else ()
                known = {id(record): view for record, view in pairs}
                cache[uid] = _CachedPodViews(now, tuple(known.get(id(record)) or record.to_view() for record in now))
        self._cached_pod_views = cache
        return {uid: entry.views for uid, entry in cache.items()}

    def _namespace_labels(self, jobs: Sequence[spec.TrainingJob]) -> Mapping[str, Mapping[str, str]]:
        names = frozenset(job.metadata.namespace or "default" for job in jobs) | {"default"}
        if names != frozenset(self._namespaces):
            self._namespaces = {name: namespace_labels(name) for name in sorted(names)}
        return self._namespaces

    # ---- writes

    def apply(self, writes: Sequence[Write]) -> None:
        """Carry out the writes in order, up to one that is refused. Raises `Conflict`, or `ClusterError` when the
        database cannot be written: then none of them happened."""
        refused: Conflict | None = None
        with self.lock:
            if writes:
                with self._store.transaction():
                    for write in writes:
                        try:
                            self._apply_write(write)
                        except (MusterError, sqlite3.Error) as error:
                            if not isinstance(error, Conflict):
                                raise
                            refused = error
                            break
                        except Exception as error:  # would fail in every cycle: quarantine the job
                            refused = self._quarantine_job(write, error)
                            break
                    self._flush_index_statuses()
                    self.finish_deletions()
                removed = [write.job_uid for write in writes if isinstance(write, RemoveJob)]
                self._remove_pod_folders([*removed, *self._ended_indices])
                self._ended_indices.clear()
            self._supervisor.sync()
        if refused is not None:
            raise refused

    def _quarantine_job(self, write: Write, error: Exception) -> Conflict:
        """Quarantine the job of a write that fails; return the error to raise. Raises `error` itself if the write does
        not concern a job."""
        if isinstance(write, WriteQueueStatus | WriteFlavorStatus):
            raise error
        now = self._clock()
        pause_s = self._quarantine.add(write.job_uid, now)
        cause = f"{type(error).__name__}: {error}"
        message = f"failed to persist the status; retrying in {pause_s:g} s: {cause}"
        _LOG.error("job %s: %s", write.job_uid, message, exc_info=error)
        self._store.add_event(EventRecord(write.job_uid, now, "Warning", "StatusWriteFailed", message))
        return Conflict(f"job {write.job_uid} is quarantined: {cause}")

    def _apply_write(self, write: Write) -> None:
        if isinstance(write, WriteStatus):
            self._write_status(write)
        elif isinstance(write, CreatePod):
            self._create_pod(write)
        elif isinstance(write, DeletePod):
            self._delete_pod(write)
        elif isinstance(write, WriteQueueStatus):
            queue = self._store.queues.get(write.queue)
            if queue is not None:
                self._store.put(queue.model_copy(update={"status": write.status}))
        elif isinstance(write, WriteFlavorStatus):
            flavor = self._store.flavors.get(write.flavor)
            if flavor is not None:
                self._store.put(flavor.model_copy(update={"status": write.status}))
        elif isinstance(write, RecordEvent):
            event = array_event(write)
            if event is not None and event.job_uid in self._store.jobs:
                self._store.add_event(
                    EventRecord(event.job_uid, self._clock(), event.type, event.reason, event.message)
                )
        elif isinstance(write, RemoveJob):
            self._remove_job(write.job_uid)
        else:
            raise TypeError(f"no way to write {write!r}")

    def _write_status(self, write: WriteStatus) -> None:
        uid, index = split_index_key(write.job_uid)
        job, status = self._store.jobs.get(uid), write.status
        assert isinstance(status, spec.TrainingJobStatus)
        observed = self._workloads.get(write.job_uid) if job is not None and job.spec.array is not None else None
        if observed is not None and job is not None:
            version = job.metadata.resource_version
            known = (self._arrays[uid].job.metadata.resource_version, self._array_versions.get(uid))
            if version not in known or observed.metadata.resource_version != write.resource_version:
                raise Conflict(f"array {uid} was changed since it was observed")
            if index is not None:
                self._index_statuses.setdefault(uid, {})[index] = status
            else:
                old = write.old if isinstance(write.old, spec.TrainingJobStatus) else job.status
                self._store.put(with_array_status(job, old, status))
                self._array_versions[uid] = self._store.jobs[uid].metadata.resource_version
            return
        if job is None or index is not None or job.metadata.resource_version != write.resource_version:
            raise Conflict(f"job {write.job_uid} was changed since it was observed")
        self._store.put(job.model_copy(update={"status": status}))

    def _flush_index_statuses(self) -> None:
        """Write all indices of an array at once: its object has the statuses of all of them."""
        written, self._index_statuses = self._index_statuses, {}
        self._array_versions.clear()
        for uid, statuses in written.items():
            if uid not in self._store.jobs:
                continue
            self._store.put_indices(uid, statuses, self._clock())
            for index, status in statuses.items():
                if has_terminated(status):  # its logs stay
                    self._ended_indices.append(index_key(uid, index))
                    for pod in list(self._store.pods.get(index_key(uid, index), {}).values()):
                        self._store.remove_pod(pod)

    def _create_pod(self, write: CreatePod) -> None:
        job = self._store.find_job(write.job_uid)
        peers = self._store.pods.get(write.job_uid, {})
        if job is None or write.name in peers:
            return
        role = next((role for role in job.spec.roles if role.name == write.role), None)
        if role is None:
            return
        request = pod_request(role.template.spec)
        record = PodRecord(
            name=write.name,
            job_uid=write.job_uid,
            role=write.role,
            index=write.index,
            replicas=write.replicas,
            attempt=write.attempt,
            node=write.node,
            flavor=write.flavor,
            port=self._rendezvous_port(write, peers.values()),
            gpus=request.get(GPU),
            grace_s=write.grace_s,
            request=request,
        )
        self._store.put_pod(record)

    def _rendezvous_port(self, write: CreatePod, peers: Iterable[PodRecord]) -> int:
        """The port of the role's attempt, shared by its pods; each attempt has its own."""
        for pod in peers:
            if (pod.role, pod.attempt) == (write.role, write.attempt):
                return pod.port
        taken = {pod.port for pods in self._store.pods.values() for pod in pods.values()}
        return free_port(taken, self._random)

    def _delete_pod(self, write: DeletePod) -> None:
        pod = self._store.pods.get(write.job_uid, {}).get(write.name)
        if pod is None:
            return
        if pod.finished:
            self._store.remove_pod(pod)
            return
        deleting_at = self._clock() if pod.deleting_at is None else pod.deleting_at
        self._store.put_pod(replace(pod, deleting_at=deleting_at, grace_s=0.0 if write.force else write.grace_s))

    def _remove_job(self, key: str) -> None:
        job, now = self._store.find_job(key), self._clock()
        pods = list(self._store.pods.get(key, {}).values())
        if job is None or any(not pod.finished for pod in pods):
            return  # its pods must end first; the engine repeats the write
        for pod in pods:
            self._store.remove_pod(pod)
        uid, index = split_index_key(key)
        if index is None:
            self._store.remove(job, now)
        else:  # its array is being deleted
            ended = transitions.finish(job.status, CANCELLED, "Deleted", "", now)
            self._index_statuses.setdefault(uid, {})[index] = with_status_fields(ended, {"finished_at": now})

    def finish_deletions(self) -> None:
        """Remove deleted queues that no job keeps (`keeps_queue`) and no child queue references, children before
        parents. Call it inside a transaction."""
        queues = self._store.queues
        deleting = {name: queue for name, queue in queues.items() if queue.metadata.deletion_timestamp is not None}
        named = used_queues(self._store.jobs.values(), queues.values()) if deleting else set[str]()
        while removable := deleting.keys() - named - {queue.spec.parent for queue in queues.values()}:
            for name in sorted(removable):
                self._store.remove(deleting.pop(name), self._clock())

    def _remove_pod_folders(self, uids: Iterable[str]) -> None:
        """Remove the folders shared with shims; the run folder with its checkpoints is kept."""
        for uid in uids:
            if uid not in self._store.jobs:
                shutil.rmtree(self._home.job_pods_dir(uid), ignore_errors=True)
