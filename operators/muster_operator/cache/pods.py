"""Cache of pods: those of visible jobs by job; all others as unmanaged usage of their nodes.

Whether a pod is managed depends on whether its job is visible to the engine: a pod may be listed before its job and may
outlive it. A pod that ended uses nothing; a deleted one may stay visible (`PodTombstones`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol, TypeAlias

from muster.cluster import OrphanedPod, PodView
from muster.kube.objects import V1Pod, V1PodMeta
from muster.kube.resources import TRAINING_JOBS
from muster.model import Resources
from muster_operator.cache.cached_pod import CachedPod, JobKey, OwnerOf, PodOwner, cached_pod
from muster_operator.cache.cached_workload import CachedWorkload
from muster_operator.cache.mutation_cache import MutationCache, WatchedCache
from muster_operator.cache.pod_tombstones import PodTombstones

ChargeOf: TypeAlias = Callable[[CachedPod], tuple[str, Resources] | None]


class PodSignatures(Protocol):
    """What proves that Muster created or released a pod."""

    @property
    def generation(self) -> object:
        """Differs where results may; None: there are none."""

    def charged_request(self, pod: CachedPod) -> Resources | None:
        """What a queue may be charged for a pod, nothing for one that a user has made up; None: that is not known."""


class _UnknownSignatures:
    generation = None

    def charged_request(self, pod: CachedPod) -> Resources | None:
        return None


UNKNOWN_SIGNATURES: PodSignatures = _UnknownSignatures()
"""Nothing is known of any pod."""


class PodCache(WatchedCache[CachedPod]):
    """Event handler and cache of pods.

    `owner_of(meta)` is the job that a pod belongs to; `add_usage(node, resources)` adds to the unmanaged usage of a
    node; `changed(uid)` is called when the pods of a job differ; `job(uid)` is the job of a uid, None if unknown;
    `on_collector_ended` is called for pods with a termination message of their collector; `charge_of(pod)`: which queue
    is charged what for it after its job is gone, None if nothing proves that its job was admitted;
    `numbered(uid, pods)`: the pods of a job with their indexes, where the placement and not the pod says which it is;
    `places(uid)`: how many of its pods without a signature are charged at most after it is gone, by role and node.
    """

    def __init__(
        self,
        owner_of: OwnerOf,
        add_usage: Callable[[str, Resources], None],
        changed: Callable[[str], None],
        job: Callable[[str], CachedWorkload | None],
        on_collector_ended: Callable[[CachedPod], None] = lambda pod: None,
        charge_of: ChargeOf = lambda pod: None,
        numbered: Callable[[str, tuple[PodView, ...]], tuple[PodView, ...]] = lambda uid, pods: pods,
        places: Callable[[str], dict[tuple[str, str], int]] = lambda uid: {},
        signatures: PodSignatures = UNKNOWN_SIGNATURES,
    ) -> None:
        self._signatures = signatures
        self._generation: object = None  # of the signatures, as of the views
        self._places = places
        self._charge_of = charge_of
        self._numbered = numbered
        self._owner_of = owner_of
        self._add_usage = add_usage
        self._changed = changed
        self._job = job
        self._on_collector_ended = on_collector_ended
        self._cache = MutationCache[CachedPod](self._on_change)
        self._by_job: dict[JobKey, dict[str, CachedPod]] = {}
        self._visible: dict[str, JobKey] = {}  # visible jobs
        self._without_job: set[JobKey] = set()  # of `_by_job`, those that are not visible
        self._orphans: tuple[OrphanedPod, ...] = ()
        self._stale: set[str] = set()  # of them, those whose views are to be rebuilt
        self._views: dict[str, tuple[PodView, ...]] = {}
        self._tombstones = PodTombstones()
        self._unbound: set[str] = set()  # unbound pods of jobs, by NAMESPACE/NAME
        self.bound_count = 0  # pods that were bound, in total

    # ---- events of watches

    def on_upsert(self, item: V1Pod) -> None:
        key, version = item.metadata.key, item.metadata.version
        known = self._cache.get(key)
        if self._cache.is_newer(key, version):
            fresh = cached_pod(item, known, self._owner(item.metadata, known))
            self._cache.upsert(key, version, fresh if _same_origin(known, fresh) else self._verified(fresh))
        elif known is not None and known.version == version and item.status.conditions:
            # Our own creation: its response has no status. A pod with a scheduling gate has a condition from the start,
            # and no later event until the gate is removed.
            self._cache.replace(key, cached_pod(item, known, self._owner(item.metadata, known)))

    def _owner(self, meta: V1PodMeta, known: CachedPod | None) -> PodOwner | None:
        """The job that a pod belongs to. An object of another kind loses none: users can change the labels of its pods,
        and would have it start again while these still terminate."""
        if known is not None and known.uid == meta.uid and known.job is not None and known.job.other_kind:
            assert known.view is not None
            return PodOwner(known.job, known.view.role, known.view.index, known.view.attempt)
        return self._owner_of(meta)

    def on_read(self, item: V1Pod) -> None:
        """A GET returned the pod; watches may have delivered newer states."""
        if not self._cache.is_deleted(item.metadata.key, item.metadata.version):
            self.on_upsert(item)

    # ---- our own writes

    def on_created(self, pod: CachedPod) -> None:
        self._cache.on_written(f"{pod.namespace}/{pod.name}", pod.version, self._verified(pod))

    def on_delete_requested(self, pod: CachedPod) -> None:
        """Our deletion request for this state of the pod was acknowledged. Its newest state counts: it may have ended
        by itself just before."""
        if pod.ended and pod.job is not None:
            self.remove_tombstone(pod.job.uid, pod.name)
        key = f"{pod.namespace}/{pod.name}"
        now = self._cache.get(key)
        if now is None or now.uid != pod.uid or now.view is None or (now.ended and not pod.ended):
            return
        self._cache.replace(
            key, replace(now, deletion_requested=True, view=replace(now.view, deleting=True, grace_s=None))
        )

    def remove_tombstone(self, uid: str, name: str) -> None:
        """The job was decided on without this pod, which is deleted."""
        job = self._job_key(uid)
        if job is not None and self._tombstones.remove(job, name):
            self._mark_job_stale(uid)

    def get(self, uid: str, name: str) -> CachedPod | None:
        return self._pods_of(self._job_key(uid)).get(name)

    def all(self) -> Iterable[CachedPod]:
        """All pods of the cluster."""
        return self._cache

    def lead_pod(self, uid: str, role: str) -> CachedPod | None:
        """Pod 0 of a role, of the newest attempt that has begun and has one; of a terminating job the terminating
        one."""
        pods = self._pods_of(self._job_key(uid)).values()
        found = [
            (pod.view.attempt, pod)
            for pod in pods
            if pod.view and (pod.view.role, pod.view.index) == (role, 0) and not self.is_early(pod.view)
        ]
        return max(found, key=lambda one: one[0])[1] if found else None

    def is_early(self, view: PodView) -> bool:
        """Whether its attempt has not begun. Statuses are written before pods, so another client created the pod; or
        the watch of jobs lags."""
        known = self._job(view.job_uid)
        return known is not None and view.attempt > known.status.attempt

    def _may_complete_job(self, view: PodView) -> bool:
        """Whether its attempt has begun and, of a pod that was stopped, is not over. How an object of another kind
        ends, its own controller says, which may run any number of pods one after the other."""
        known = self._job(view.job_uid)
        if known is not None and known.resource != TRAINING_JOBS:
            return False
        attempt = view.attempt if known is None else known.status.attempt
        return view.attempt == attempt or (view.attempt < attempt and not view.deleting)

    def has_pod_in_phase(self, uid: str, phases: Container[str], *, attempt: int | None = None) -> bool:
        """Whether a pod of the job, or of this attempt, is in one of these phases."""
        return any(
            pod.view is not None and pod.view.phase in phases and attempt in (None, pod.view.attempt)
            for pod in self._pods_of(self._job_key(uid)).values()
        )

    def pod_group(self, uid: str, attempt: int) -> str | None:
        """The PodGroup of the pods of an attempt, "" where they have none; None where no pod exists."""
        pods = self._pods_of(self._job_key(uid)).values()
        return max((pod.pod_group for pod in pods if pod.view and pod.view.attempt == attempt), default=None)

    def contains(self, pod: CachedPod) -> bool:
        """Whether this pod (by uid) still exists."""
        now = self._cache.get(f"{pod.namespace}/{pod.name}")
        return now is not None and now.uid == pod.uid

    def has_unbound(self) -> bool:
        """Whether a pod of a job waits for kube-scheduler."""
        return bool(self._unbound)

    # ---- what the engine sees

    def set_visible(self, uid: str, visible: bool) -> None:
        """Mark a job as visible to the engine or not: its pods count as managed, or as unmanaged usage."""
        if (uid in self._visible) == visible:
            return
        job = self._job_key(uid) if visible else self._visible[uid]
        if job is None:
            return
        if visible:
            self._visible[uid] = job
            self._without_job.discard(job)
        else:
            del self._visible[uid]
            self._tombstones.remove_job(job)
            if job in self._by_job:
                self._without_job.add(job)
        for pod in self._pods_of(job).values():
            self._account_usage(pod, -1 if visible else 1)
            self._track_binding(f"{pod.namespace}/{pod.name}", pod)
        self._stale.add(uid)

    def _verified(self, pod: CachedPod) -> CachedPod:
        """The pod with what its queue may be charged for it."""
        if pod.view is None:
            return pod
        charged = self._signatures.charged_request(pod)
        if charged is None:
            self._generation = None  # the key is not known: all are verified then, also if it is the same as before
        if charged == pod.view.charged:
            return pod
        return replace(pod, view=replace(pod.view, charged=charged))

    def _verify_all(self) -> None:
        """Verify all signatures once the key is known, or is another one."""
        generation = self._signatures.generation
        if generation is None or generation == self._generation:
            return
        self._generation = generation
        for pod in list(self._cache):
            if pod.view is not None and (fresh := self._verified(pod)) is not pod:
                self._cache.replace(f"{pod.namespace}/{pod.name}", fresh)

    def views(self) -> Mapping[str, tuple[PodView, ...]]:
        """Pods by job uid; the tuple of a job stays the same until its pods change."""
        self._verify_all()
        for uid in self._stale:
            job = self._visible.get(uid)
            current = (pod.view for pod in self._pods_of(job).values() if pod.view is not None)
            fresh = self._numbered(uid, (*current, *self._tombstones.views_of(job)))
            if not fresh:
                self._views.pop(uid, None)
            elif self._views.get(uid) != fresh:
                self._views[uid] = fresh
        self._stale.clear()
        return dict(self._views)

    def orphans(self) -> tuple[OrphanedPod, ...]:
        """Pods that have not ended, and whose jobs were admitted and do not exist; the same tuple until they change.
        One that terminates before it was bound uses nothing, whatever keeps the object."""
        self._verify_all()
        jobs = (one for one in self._without_job if self._job(one.uid) is None)
        found = tuple(
            OrphanedPod(
                pod.namespace,
                job.name,
                queue,
                replace(view, request=request),
                bool(pod.node),
                pod.grace_s,
                created_at=pod.created_at,
            )
            for job in sorted(jobs, key=lambda one: (one.uid, one.namespace))
            for pod, view, queue, request in self._charged_pods(job)
        )
        if found != self._orphans:
            self._orphans = found
        return self._orphans

    def _charged_pods(self, job: JobKey) -> Iterator[tuple[CachedPod, PodView, str, Resources]]:
        """The pods of a job that is gone for which a queue is charged, and what."""
        places = self._places(job.uid)
        for pod in self._by_job[job].values():
            if pod.view is None or pod.ended or not (pod.node or not pod.view.deleting):
                continue
            charge = self._charge_of(pod)
            if charge is None:
                continue
            if not pod.view.charged:
                place = pod.view.role, pod.node
                if places.get(place, 0) <= 0:
                    continue
                places[place] -= 1
            yield pod, pod.view, *charge

    def are_left(self, job: JobKey) -> bool:
        """Whether pods of this job have not ended, whether it exists or not."""
        return any(not pod.ended for pod in self._pods_of(job).values())

    def find(self, namespace: str, name: str) -> CachedPod | None:
        return self._cache.get(f"{namespace}/{name}")

    def _job_key(self, uid: str) -> JobKey | None:
        known = self._job(uid)
        return None if known is None else known.name

    def _pods_of(self, job: JobKey | None) -> Mapping[str, CachedPod]:
        return {} if job is None else self._by_job.get(job, {})

    def _is_managed(self, pod: CachedPod | None) -> bool:
        return pod is not None and pod.job is not None and self._visible.get(pod.job.uid) == pod.job

    def _on_change(self, key: str, old: CachedPod | None, new: CachedPod | None) -> None:
        was_managed, is_managed = self._is_managed(old), self._is_managed(new)
        if old is not None:
            if not was_managed:
                self._account_usage(old, -1)
            if old.job is not None and (new is None or new.job != old.job):
                self._remove_from_job(old, old.job)
            ended = old.view if new is None and was_managed and old.ended else None
            if old.job is not None and ended is not None and self._may_complete_job(ended):
                self._tombstones.add(old.job, ended)
        if new is not None:
            if not is_managed:
                self._account_usage(new, 1)
            if new.job is not None:
                self._by_job.setdefault(new.job, {})[new.name] = new
                if self._visible.get(new.job.uid) != new.job:
                    self._without_job.add(new.job)
                self._tombstones.remove(new.job, new.name)
        if old is None or new is None or old.view is not new.view:
            for pod in (old, new):
                self._mark_stale(pod)
        if (
            new is not None
            and new.termination_message is not None
            and (old is None or old.termination_message != new.termination_message)
        ):
            self._on_collector_ended(new)
        self._track_binding(key, new)

    def _remove_from_job(self, pod: CachedPod, job: JobKey) -> None:
        pods = self._by_job[job]
        del pods[pod.name]
        if not pods:
            del self._by_job[job]
            self._without_job.discard(job)

    def _mark_stale(self, pod: CachedPod | None) -> None:
        if pod is not None and pod.job is not None and self._is_managed(pod):
            self._mark_job_stale(pod.job.uid)
        elif pod is not None and pod.job is not None and (pod.signature or self._charge_of(pod) is not None):
            self._changed(pod.job.uid)  # perhaps an orphan, which is charged to its queue

    def _mark_job_stale(self, uid: str) -> None:
        self._stale.add(uid)
        self._changed(uid)

    def _track_binding(self, key: str, pod: CachedPod | None) -> None:
        """Track whether this pod waits for kube-scheduler."""
        waits = pod is not None and pod.view is not None and not (pod.node or pod.ended or pod.view.deleting)
        if waits and self._is_managed(pod):
            self._unbound.add(key)
        elif key in self._unbound:
            self._unbound.remove(key)
            self.bound_count += 1

    def _account_usage(self, pod: CachedPod, sign: int) -> None:
        if pod.node and not pod.ended:
            self._add_usage(pod.node, pod.request.times(sign))


def _same_origin(known: CachedPod | None, pod: CachedPod) -> bool:
    """Whether all that a signature covers, and how much it allows, is as it was."""
    if known is None or known.view is None or pod.view is None:
        return False
    return (known.uid, known.job, known.queue, known.signature, known.view.node, known.view.request) == (
        pod.uid, pod.job, pod.queue, pod.signature, pod.view.node, pod.view.request
    )  # fmt: skip
