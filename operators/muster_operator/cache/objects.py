"""Cache of objects of other kinds that queue, and of the Workloads that have their statuses.

An object takes part while it has the label `muster.dev/queue` and its namespace has opted in, or while it is admitted.
One whose controller is itself such an object does not: only the outermost one queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.api import spec
from muster.api.spec import QueueingStatus
from muster.cluster import PodView
from muster.kinds.suspended.numbering import number_pods
from muster.kinds.suspended.table import NAMESPACE_LABEL, KindRow
from muster.kinds.suspended.workload import SuspendedWorkload
from muster.kube.objects import V1PodMeta
from muster.model import Resources
from muster.workload.conditions import is_admitted, is_evicting
from muster.workload.placement import from_status
from muster_operator.cache.cached_object import CachedObject, StoredStatus, WatchedObject, record_name
from muster_operator.cache.cached_pod import CachedPod, JobKey, PodOwner
from muster_operator.cache.object_handlers import ObjectHandler, StatusHandler
from muster_operator.cache.object_pods import object_pod_owner
from muster_operator.cache.observed_requests import ObservedRequests, shown_request


@dataclass(slots=True)
class _Entry:
    known: CachedObject
    visible: SuspendedWorkload | None = None
    released: dict[str, Resources] = field(default_factory=dict)  # by pod set, what its released pods request


class ObjectCache:
    """The objects of all kinds by uid. `set_visible(uid, visible)` is called when the engine begins or ceases to see
    one, `changed` on any change; `namespaces()`: labels of namespaces by name, the same mapping until one changes;
    `on_removed`: with the last state of one that has a status."""

    def __init__(
        self,
        rows: Sequence[KindRow],
        namespaces: Callable[[], Mapping[str, Mapping[str, str]]],
        set_visible: Callable[[str, bool], None],
        changed: Callable[[], None],
        on_removed: Callable[[CachedObject], None] = lambda known: None,
    ) -> None:
        self._namespaces = namespaces
        self._set_visible = set_visible
        self._changed = changed
        self._on_removed = on_removed
        showing = {row.shown_by for row in rows if row.shown_by is not None}
        self._queued_rows = tuple(rows)
        self.handlers = tuple(
            ObjectHandler(row, self._on_object, shows_others=row in showing, on_exists=changed)
            for row in (*rows, *sorted(showing.difference(rows), key=lambda row: row.kind))
        )
        self._owners: dict[str, str] = {}  # uids of watched objects, and of what controls them
        self._shown: dict[JobKey, WatchedObject] = {}  # objects that show the templates of another, by its key
        self.statuses = StatusHandler(self._on_status)
        self._gone: set[str] = set()  # objects with a Workload whose removal watches have delivered
        self._requests = ObservedRequests()
        self._by_uid: dict[str, _Entry] = {}
        self._stored: dict[str, StoredStatus] = {}  # by uid of the object
        self._workloads: tuple[SuspendedWorkload, ...] = ()
        self._seen: tuple[object, ...] | None = None  # what `_workloads` was made from, itself aside
        self._stale = False

    # ---- what is known

    def get(self, uid: str) -> CachedObject | None:
        """An object that takes part; None also for one that is not visible."""
        entry = self._by_uid.get(uid)
        return None if entry is None else entry.known

    def all(self) -> Iterable[CachedObject]:
        """All that have the label."""
        return (entry.known for entry in self._by_uid.values())

    def owner_of(self, meta: V1PodMeta) -> PodOwner | None:
        """The object that a pod belongs to."""
        return object_pod_owner(self._queued_rows, meta)

    def numbered(self, uid: str, pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
        """The pods of an object with the indexes of their places; those of other jobs as they are. A pod that was
        pinned by its template has no signature."""
        entry = self._by_uid.get(uid)
        if entry is None or entry.visible is None:
            return pods
        self._observe_requests(entry, entry.visible, pods)
        if entry.known.object.row.sets_node_affinity:
            pods = tuple(replace(one, charged=None) if one.is_made_up else one for one in pods)
        return number_pods(entry.known.status, entry.visible.needed(), pods)

    def _observe_requests(self, entry: _Entry, visible: SuspendedWorkload, pods: Iterable[PodView]) -> None:
        """What its pods request is known from now on, and counts at the next admission. Of pods that were released it
        counts at once; gated ones that request more are not released."""
        pod_sets = {one.name: one for one in visible.state.pod_sets}
        known, admitted = entry.known, _keeps_requests(visible)
        for pod in pods:
            one = pod_sets.get(pod.role)
            if one is None or pod.attempt != visible.status.attempt:
                continue
            if self._requests.observe(known.namespace, known.object.row, one, pod):
                self._mark_stale()
            unknown = one.known_request is None or pod.phase == "Pending"  # a running pod may have been resized
            charged = entry.released.get(pod.role, one.request)
            if admitted and not pod.gated and unknown and (request := shown_request(charged, pod)) != charged:
                entry.released[pod.role] = request
                self._mark_stale()

    # ---- objects that are gone, or have lost the label

    def charge_of(self, pod: CachedPod) -> tuple[str, Resources] | None:
        """The queue that is charged for a pod of an object that is gone, and what: its Workload is kept until no pod is
        left. Only in the attempt that was admitted, and of pods that were released one by one only those with a
        signature: users can create pods that name the object. Pods that were pinned by their template have none: they
        are charged once they are bound, since one that never starts would take any amount of the quota for ever."""
        stored = None if pod.job is None or pod.job.uid in self._by_uid else self._stored.get(pod.job.uid)
        if stored is None or pod.view is None or job_of(stored) != pod.job:
            return None
        if not is_admitted(stored.status) or pod.view.attempt != stored.status.attempt:
            return None
        if pod.view.charged:
            return stored.spec.queue, pod.view.charged
        handler = self._handler_of(stored)
        if not pod.node or handler is None or not handler.row.sets_node_affinity:
            return None
        return stored.spec.queue, pod.request

    def _handler_of(self, stored: StoredStatus) -> ObjectHandler | None:
        reference = stored.spec.object_ref
        kind = reference.api_version.rpartition("/")[0], reference.kind
        return next((one for one in self.handlers if (one.row.group, one.row.kind) == kind), None)

    def places(self, uid: str) -> dict[tuple[str, str], int]:
        """Of an object that is gone: how many pods were admitted, by role and node."""
        stored = self._stored.get(uid)
        if stored is None:
            return {}
        return {(part.role, node): count for part in from_status(stored.status.placement) for node, count in part.nodes}

    def has_status(self, uid: str) -> bool:
        """Whether there is a Workload of the object of this uid."""
        return uid in self._stored

    def without_object(self) -> list[StoredStatus]:
        """Workloads whose object is gone, or has lost the label, or is of a kind that does not queue any more; and
        those that are not admitted of objects that others control: a child may be seen before its owner."""
        left = []
        for uid, stored in self._stored.items():
            entry, found = self._by_uid.get(uid), self._handler_of(stored)
            if entry is not None:
                is_left = not is_admitted(stored.status) and self._has_queued_owner(entry.known.object)
            else:
                is_left = found is None or uid in self._gone or not found.has(stored)
            if is_left:
                left.append(stored)
        return left

    # ---- what the engine sees

    def workloads(self) -> tuple[SuspendedWorkload, ...]:
        """All that take part."""
        seen = (self._namespaces(),)
        if self._stale or self._seen is None or self._seen[0] is not seen[0]:
            self._stale, self._seen = False, seen
            for uid, entry in self._by_uid.items():
                self._update(uid, entry)
            self._workloads = tuple(entry.visible for entry in self._by_uid.values() if entry.visible is not None)
        return self._workloads

    def rejections(self) -> dict[str, str]:
        """Why objects that take part cannot be read, by uid."""
        entries = self._by_uid.items()
        return {uid: one.known.error for uid, one in entries if one.visible is not None and one.known.error}

    def _update(self, uid: str, entry: _Entry) -> None:
        known, before = entry.known, entry.visible
        takes_part = is_admitted(known.status) or (
            self._namespaces().get(known.namespace, {}).get(NAMESPACE_LABEL) == "enabled"
            and not self._has_queued_owner(known.object)
        )
        if takes_part:
            fresh = self._completed(entry)
            entry.visible = before if before is not None and _same(before, fresh) else fresh
        else:
            entry.visible = None
        if (before is None) != (entry.visible is None):
            self._set_visible(uid, entry.visible is not None)

    def _has_queued_owner(self, one: WatchedObject) -> bool:
        """Whether an object that queues has created it, maybe through others: a Job of a JobSet of a TrainJob."""
        owner_uid, seen = one.owner_uid, {one.uid}
        while owner_uid and owner_uid not in seen:
            if owner_uid in self._by_uid:
                return True
            seen.add(owner_uid)
            owner_uid = self._owners.get(owner_uid, "")
        return False

    def _completed(self, entry: _Entry) -> SuspendedWorkload:
        """As the engine sees it: with what its pods request, as far as that is known, or was when it was admitted."""
        known, fresh = entry.known, entry.known.workload
        if _keeps_requests(fresh):
            before = () if entry.visible is None else entry.visible.state.pod_sets
            if not fresh.state.pod_sets and before:  # what shows its pods is gone
                fresh = replace(fresh, state=replace(fresh.state, pod_sets=before))
            requests = {one.name: one.known_request for one in before} | entry.released
            complete = tuple(replace(one, known_request=requests.get(one.name)) for one in fresh.state.pod_sets)
        else:
            entry.released.clear()
            complete = self._requests.complete(known.namespace, known.object.row, fresh.state.pod_sets)
        if complete == fresh.state.pod_sets:
            return fresh
        return replace(fresh, state=replace(fresh.state, pod_sets=complete))

    # ---- our own writes

    def on_status_written(self, uid: str, status: QueueingStatus, version: int, queue: str) -> None:
        known = self.get(uid)
        if known is None:
            return
        meta = known.metadata.model_copy(
            update={
                "name": record_name(known.object.row, known.metadata.name, uid),
                "uid": "",
                "labels": {},
                "resource_version": str(version),
            }
        )
        reference = spec.WorkloadReference(
            api_version=known.object.row.api_version,
            kind=known.object.row.kind,
            name=known.metadata.name,
            uid=uid,
        )
        written = spec.WorkloadSpec.model_construct(object_ref=reference, queue=queue)
        self.statuses.on_written(StoredStatus(meta, written, status, None))

    def assume_status(self, uid: str, status: QueueingStatus) -> None:
        self._replace(uid, status)

    def end_assumption(self, uid: str) -> None:
        self._replace(uid, None)

    def _replace(self, uid: str, assumed: QueueingStatus | None) -> None:
        entry = self._by_uid.get(uid)
        if entry is not None and entry.known.assumed is not assumed:
            entry.known = replace(entry.known, assumed=assumed)
            self._mark_stale()

    # ---- events

    def _on_object(self, old: WatchedObject | None, new: WatchedObject | None) -> None:
        self._on_shown(old, new)
        if old is not None:
            self._owners.pop(old.uid, None)
        if new is not None and new.owner_uid:
            self._owners[new.uid] = new.owner_uid
        before, now = self._queued(old), self._queued(new)
        if before is not None and (now is None or now.uid != before.uid):
            entry = self._by_uid.pop(before.uid)
            if entry.visible is not None:
                self._set_visible(before.uid, False)
            self._on_removed(entry.known)
            if before.uid in self._stored:
                self._gone.add(before.uid)
        if now is not None:
            self._gone.discard(now.uid)
            entry_now = self._by_uid.get(now.uid)
            if entry_now is None:
                fresh = CachedObject(now, self._stored_of(now))
                self._by_uid[now.uid] = _Entry(replace(fresh, shown=self._shown.get(fresh.name)))
            else:
                entry_now.known = replace(entry_now.known, object=now)
        self._mark_stale()

    def _queued(self, one: WatchedObject | None) -> WatchedObject | None:
        """It, if it has the label and its kind queues."""
        return one if one is not None and one.state.queue and one.row in self._queued_rows else None

    def _on_shown(self, old: WatchedObject | None, new: WatchedObject | None) -> None:
        """An object shows the templates of its controller where it has the same name and namespace: users may name any
        object as the controller of theirs, also one of another namespace."""
        for one in (old, new):
            if one is None or not one.owner_uid:
                continue
            key = JobKey(one.owner_uid, one.metadata.namespace or "default", one.metadata.name, other_kind=True)
            if one is new:
                self._shown[key] = one
            elif self._shown.get(key) is old:
                del self._shown[key]
            entry = self._by_uid.get(key.uid)
            if entry is not None and entry.known.name == key and entry.known.object.row.shown_by is one.row:
                entry.known = replace(entry.known, shown=self._shown.get(key))

    def _on_status(self, old: StoredStatus | None, new: StoredStatus | None) -> None:
        for one in (old, new):
            if one is None:
                continue
            uid = one.spec.object_ref.uid
            if one is new:
                self._stored[uid] = one
            elif new is None or new.spec.object_ref.uid != uid:
                self._stored.pop(uid, None)
                self._gone.discard(uid)
            entry = self._by_uid.get(uid)
            if entry is not None:
                entry.known = replace(entry.known, stored=self._stored_of(entry.known.object), assumed=None)
        self._mark_stale()

    def _stored_of(self, one: WatchedObject) -> StoredStatus | None:
        """The Workload of an object: of its uid, and under the name that it has."""
        found = self._stored.get(one.uid)
        if found is None or found.metadata.namespace != one.metadata.namespace:
            return None
        return found if found.metadata.name == record_name(one.row, one.metadata.name, one.uid) else None

    def _mark_stale(self) -> None:
        self._stale = True
        self._changed()


def _keeps_requests(one: SuspendedWorkload) -> bool:
    return is_admitted(one.status) and not is_evicting(one.status)


def job_of(stored: StoredStatus) -> JobKey:
    """The key of the object of a Workload."""
    reference = stored.spec.object_ref
    return JobKey(reference.uid, stored.metadata.namespace or "default", reference.name, other_kind=True)


def _same(a: SuspendedWorkload, b: SuspendedWorkload) -> bool:
    same = a.metadata.resource_version == b.metadata.resource_version and a.status is b.status
    return same and a.state.pod_sets == b.state.pod_sets
