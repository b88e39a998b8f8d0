"""The `muster.cluster.Cluster` of this host: what the engine sees, and its writes carried out.

All writes of a round reach the database in one transaction; only then are processes touched (`Replicas`), so a crash
leaves either nothing of a round, or a database from which the rest follows.
"""

from __future__ import annotations

import logging
import operator
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from muster import spec
from muster.cluster import (
    CreatePod,
    DeletePod,
    Heartbeat,
    NodeView,
    ObservedState,
    PodView,
    RecordEvent,
    RemoveJob,
    Write,
    WriteFlavorStatus,
    WriteQueueStatus,
    WriteStatus,
)
from muster.errors import Conflict, MusterError
from muster.lifecycle import is_admitted, is_finished
from muster.local.capacity import GPU
from muster.local.devices import free_port
from muster.local.heartbeats import HeartbeatReader
from muster.local.home import Home
from muster.local.pod_supervisor import PodSupervisor
from muster.local.quarantine import QUARANTINE_S, Quarantine, with_unmanaged_usage
from muster.local.records import EventRecord, PodRecord
from muster.local.store import SqliteStore
from muster.snapshot import pod_request

_LOG = logging.getLogger("muster.local")


@dataclass(slots=True)
class _CachedPodViews:
    """What the last observation was made of, so that the same again is the same object."""

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
        self._previously_live: frozenset[str] | None = None  # as of the last look; None: there was none yet
        self._cached_pod_views: dict[str, _CachedPodViews] = {}
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._random = random.Random()

    # ---- what the engine sees

    def observe(self) -> ObservedState:
        """The world now."""
        with self.lock:
            now = self._clock()
            aside = self._quarantine.active(now)
            jobs = tuple(job for uid, job in self._store.jobs.items() if uid not in aside)
            left_alone = (pod for uid in aside for pod in self._store.pods.get(uid, {}).values())
            return ObservedState(
                now=now,
                nodes=with_unmanaged_usage(self.nodes, left_alone),
                flavors=tuple(self._store.flavors.values()),
                queues=tuple(self._store.queues.values()),
                jobs=jobs,
                pods={uid: views for uid, views in self._observe_pods().items() if uid not in aside},
                heartbeats=self._read_heartbeats(jobs, now),
                namespaces=self._namespace_labels(jobs),
            )

    def _read_heartbeats(self, jobs: Sequence[spec.TrainingJob], now: float) -> dict[str, Heartbeat]:
        """The newest beats of those that run or have replicas, and once more after the last of these has ended: what is
        told to stop writes a checkpoint before it does. A daemon that has just begun reads those of all jobs."""
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
        """The uids of jobs that have replicas which have not ended."""
        pods = self._store.pods.items()
        return frozenset(uid for uid, records in pods if any(not pod.finished for pod in records.values()))

    def run_dir(self, job: spec.TrainingJob) -> Path:
        """The job's run folder."""
        return self._home.run_dir(job.metadata.namespace or "default", job.metadata.name, job.metadata.uid)

    def _observe_pods(self) -> dict[str, tuple[PodView, ...]]:
        seen: dict[str, _CachedPodViews] = {}
        for uid, records in self._store.pods.items():
            before, now = self._cached_pod_views.get(uid), tuple(records.values())
            if not now:
                continue
            if before is not None and len(before.records) == len(now) and all(map(operator.is_, before.records, now)):
                seen[uid] = before
            else:
                pairs = zip(before.records, before.views, strict=True) if before is not None else ()
                known = {id(record): view for record, view in pairs}
                seen[uid] = _CachedPodViews(now, tuple(known.get(id(record)) or record.to_view() for record in now))
        self._cached_pod_views = seen
        return {uid: entry.views for uid, entry in seen.items()}

    def _namespace_labels(self, jobs: Sequence[spec.TrainingJob]) -> Mapping[str, Mapping[str, str]]:
        names = frozenset(job.metadata.namespace or "default" for job in jobs) | {"default"}
        if names != frozenset(self._namespaces):
            self._namespaces = {name: namespace_labels(name) for name in sorted(names)}
        return self._namespaces

    # ---- what the engine wants

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
                        except Exception as error:  # of this one job; again and again, unless it is left alone
                            refused = self._quarantine_job(write, error)
                            break
                    self.finish_deletions()
                self._remove_pod_folders(write.job_uid for write in writes if isinstance(write, RemoveJob))
            self._supervisor.sync()
        if refused is not None:
            raise refused

    def _quarantine_job(self, write: Write, error: Exception) -> Conflict:
        """Leave the job of a write alone that can never be carried out; what to raise. Raises `error` itself where it
        is about no job."""
        if isinstance(write, WriteQueueStatus | WriteFlavorStatus):
            raise error
        now = self._clock()
        self._quarantine.add(write.job_uid, now)
        told = f"{type(error).__name__}: {error}"
        said = (
            f"it is left alone, and tried again every {QUARANTINE_S:g} s: what is decided cannot be written "
            f"down: {told}"
        )
        _LOG.error("job %s: %s", write.job_uid, said, exc_info=error)
        self._store.add_event(EventRecord(write.job_uid, now, "Warning", "StatusWriteFailed", said))
        return Conflict(f"job {write.job_uid} is set aside: {told}")

    def _apply_write(self, write: Write) -> None:
        if isinstance(write, WriteStatus):
            job = self._store.jobs.get(write.job_uid)
            if job is None or job.metadata.resource_version != write.resource_version:
                raise Conflict(f"job {write.job_uid} changed meanwhile")
            self._store.put(job.model_copy(update={"status": write.status}))
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
            if write.job_uid in self._store.jobs:
                event = EventRecord(write.job_uid, self._clock(), write.type, write.reason, write.message)
                self._store.add_event(event)
        else:
            self._remove_job(write.job_uid)

    def _create_pod(self, write: CreatePod) -> None:
        job = self._store.jobs.get(write.job_uid)
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
            grace_s=float(role.template.spec.termination_grace_period_seconds),
            request=request,
        )
        self._store.put_pod(record)

    def _rendezvous_port(self, write: CreatePod, peers: Iterable[PodRecord]) -> int:
        """The port of the role's attempt: its pods share one; another attempt gets another."""
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
        asked_at = self._clock() if pod.deleting_at is None else pod.deleting_at
        self._store.put_pod(replace(pod, deleting_at=asked_at, grace_s=0.0 if write.force else write.grace_s))

    def _remove_job(self, uid: str) -> None:
        job = self._store.jobs.get(uid)
        pods = list(self._store.pods.get(uid, {}).values())
        if job is None or any(not pod.finished for pod in pods):
            return  # its replicas first; the engine asks again
        for pod in pods:
            self._store.remove_pod(pod)
        self._store.remove(job)

    def finish_deletions(self) -> None:
        """Let go of queues that were deleted and that no unfinished job and no queue names any more: with its last
        child goes the parent. Inside a transaction."""
        queues, jobs = self._store.queues, self._store.jobs.values()
        leaving = {name: queue for name, queue in queues.items() if queue.metadata.deletion_timestamp is not None}
        named = {job.spec.queue for job in jobs if not is_finished(job.status)} if leaving else set[str]()
        while going := leaving.keys() - named - {queue.spec.parent for queue in queues.values()}:
            for name in sorted(going):
                self._store.remove(leaving.pop(name))

    def _remove_pod_folders(self, uids: Iterable[str]) -> None:
        """Remove what shims and daemon told each other; the run folder stays, checkpoints and all."""
        for uid in uids:
            if uid not in self._store.jobs:
                shutil.rmtree(self._home.job_pods_dir(uid), ignore_errors=True)


def namespace_labels(name: str) -> dict[str, str]:
    """What Kubernetes puts on every namespace; here they have no others."""
    return {"kubernetes.io/metadata.name": name}
