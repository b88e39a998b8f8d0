"""All caches of the operator, combined into the ObservedState that the engine decides on."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from muster.api import spec
from muster.api.pod_security import PodSecurityLevel
from muster.cluster import DecodeErrors
from muster.kinds.suspended.table import KindRow
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.kinds.trainingjob.failure import has_stalled
from muster.kinds.trainingjob.pods import pod_name
from muster.kinds.trainingjob.stops import is_stopped
from muster.kube.objects import (
    RawCustomObject,
    RawQueuedObject,
    V1Namespace,
    V1ObjectMeta,
    V1Pod,
    V1PodMeta,
    V1PriorityClass,
)
from muster.kube.resources import PODS, TRAINING_JOBS, WORKLOADS
from muster.model import Resources
from muster.visibility.items import PreemptionLog
from muster.workload.conditions import is_admitted
from muster.workload.observed import ObservedState
from muster.workload.protocol import Workload
from muster_operator.cache.cached_job import PodRequirements
from muster_operator.cache.cached_object import CachedObject, resource_of
from muster_operator.cache.cached_pod import CachedPod, OwnerOf, PodOwner
from muster_operator.cache.cached_workload import CachedWorkload, WorkloadStore
from muster_operator.cache.custom_objects import CustomObjectCache
from muster_operator.cache.deleted_usage import DeletedUsage
from muster_operator.cache.heartbeats import HeartbeatCache, HungRanks, StoppedPod, TraceCounts
from muster_operator.cache.jobs import JobCache
from muster_operator.cache.mutation_cache import MutationCache, WatchedCache
from muster_operator.cache.nodes import NodeCache
from muster_operator.cache.objects import ObjectCache
from muster_operator.cache.pod_security import PodSecurityCheck
from muster_operator.cache.pods import UNKNOWN_SIGNATURES, PodCache, PodSignatures
from muster_operator.cache.specs import SpecCache, TemplateCache
from muster_operator.cache.template_bytes import MOST_BYTES
from muster_operator.pod_builder.collector import CollectorSidecarConfig, lead_role
from muster_operator.pod_builder.run_folder import has_durable_checkpoints

_MAX_PENDING_TERMINATIONS = 10_000
_MISSED_POLLS, _SLACK_S = 3.0, 5.0  # three polls without an answer, and scheduling delay


class _Named(Protocol):
    @property
    def metadata(self) -> V1ObjectMeta: ...


O_in = TypeVar("O_in", bound=_Named)
V = TypeVar("V")


class NameIndex(WatchedCache[V], Generic[O_in, V]):
    """Event handler that keeps one value of each object, by name. There are few objects, and they seldom change."""

    def __init__(self, value: Callable[[O_in], V], changed: Callable[[], None]) -> None:
        self._value = value
        self._changed = changed
        self._cache = MutationCache[V](self._on_change)
        self._values: dict[str, V] = {}

    def on_upsert(self, item: O_in) -> None:
        self._cache.upsert(item.metadata.name, item.metadata.version, self._value(item))

    def values(self) -> Mapping[str, V]:
        """Values by name; the same immutable mapping until something changes."""
        return self._values

    def _on_change(self, name: str, old: V | None, new: V | None) -> None:
        if old == new:
            return
        values = dict(self._values)
        if new is None:
            values.pop(name, None)
        else:
            values[name] = new
        self._values = values
        self._changed()


def namespace_labels(namespace: V1Namespace) -> Mapping[str, str]:
    """Labels of a namespace."""
    return namespace.metadata.labels


def priority_value(priority_class: V1PriorityClass) -> int:
    """Value of a PriorityClass."""
    return priority_class.value


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """The installation's collector configuration, and how often collectors are polled."""

    config: CollectorSidecarConfig = CollectorSidecarConfig()
    heartbeat_interval_s: float = 15.0


class ClusterCache:
    """The event handlers of all resources. `changed` is called whenever the engine would see a difference."""

    def __init__(
        self,
        requirements: PodRequirements,
        owner_of: OwnerOf,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.time,
        collectors: CollectorSettings = CollectorSettings(),
        templates: TemplateCache | None = None,
        most_template_bytes: int = MOST_BYTES,
        deleted_usage: DeletedUsage | None = None,
        pod_security: PodSecurityLevel = "privileged",
        signatures: PodSignatures = UNKNOWN_SIGNATURES,
        kinds: Sequence[KindRow] = (),
    ) -> None:
        self._clock = clock
        self._owner_of = owner_of
        self._has_heartbeats = bool(collectors.config.image)
        self.nodes = NodeCache(changed)
        self._changed = changed
        self.trace_counts = TraceCounts()
        self.hung_ranks = HungRanks()
        self.pods = PodCache(
            self._owner,
            self.nodes.add_unmanaged_usage,
            lambda uid: changed(),
            self.workload,
            self._on_collector_ended,
            self._charge_of,
            lambda uid, pods: self.objects.numbered(uid, pods),  # noqa: PLW0108 - it is created below
            lambda uid: self.objects.places(uid),  # noqa: PLW0108
            signatures,
        )
        self.templates = TemplateCache() if templates is None else templates
        specs = SpecCache(collectors.config, self.templates)
        self.preemptions = PreemptionLog()
        self.deleted_usage = DeletedUsage(clock, lambda: None) if deleted_usage is None else deleted_usage
        self.recorded_usage: Mapping[str, int] = {}
        """Number of usage segments in the durable record, by job uid."""
        self._device_classes: Mapping[str, str] = {}
        self.jobs = JobCache(
            requirements,
            self.pods.set_visible,
            changed,
            specs,
            most_template_bytes,
            self.preemptions.observe,
            self.deleted_usage.on_deleted,
        )
        self._pod_security = PodSecurityCheck(pod_security)
        self.queues = CustomObjectCache(spec.Queue, changed)
        self.flavors = CustomObjectCache(spec.Flavor, changed)
        self.namespaces = NameIndex[V1Namespace, Mapping[str, str]](namespace_labels, changed)
        self.priority_classes = NameIndex[V1PriorityClass, int](priority_value, changed)
        self.objects = ObjectCache(
            kinds, self.namespaces.values, self.pods.set_visible, changed, self._on_object_removed
        )
        self.heartbeats = HeartbeatCache(_MISSED_POLLS * collectors.heartbeat_interval_s + _SLACK_S)
        # pods with a termination message whose jobs are not known yet
        self._pending_terminations: deque[CachedPod] = deque(maxlen=_MAX_PENDING_TERMINATIONS)

    def observe(self) -> ObservedState:
        """The current state. It is immutable, so that another thread may read it."""
        now = self._clock()
        self._apply_pending_terminations(now)
        self.jobs.mark_observed()
        jobs, _ = self.jobs.workloads(), self.objects.workloads()
        pods = self.pods.views()
        objects = self.objects.workloads()  # once more: with what their pods request
        return ObservedState(
            now=now,
            nodes=self.nodes.views(),
            flavors=self.flavors.all(),
            queues=self.queues.all(),
            workloads=(*jobs, *objects),
            pods=pods,
            orphans=self.pods.orphans(),
            heartbeats=self.heartbeats.observed(self._stall_monitored(), now),
            namespaces=self.namespaces.values(),
            priority_classes=self.priority_classes.values(),
            pod_rejections=self._rejections(),
            decode_errors=DecodeErrors(self.queues.errors(), self.flavors.errors()),
            recorded_usage=self.recorded_usage,
            device_classes=self._device_classes,
        )

    def _rejections(self) -> Mapping[str, str]:
        """Why objects cannot be admitted as they are, by uid."""
        jobs, objects = self.jobs.rejections(), self.objects.rejections()
        found = self._pod_security.add_rejections(jobs, self.queues.all(), self.jobs.violating())
        return {**found, **objects} if objects else found

    def read_state(self) -> ObservedState:
        """All objects now, for readers: also jobs that the engine does not see yet, and without heartbeats. Changes
        nothing of what `observe` reports."""
        visible = {one.metadata.uid: one for one in self.jobs.workloads()}
        jobs = (visible.get(known.uid) or TrainingJobWorkload(known.job) for known in self.jobs.all())
        return ObservedState(
            now=self._clock(),
            nodes=self.nodes.views(),
            flavors=self.flavors.all(),
            queues=self.queues.all(),
            workloads=(*jobs, *self.objects.workloads()),
            pods=self.pods.views(),
            orphans=self.pods.orphans(),
            namespaces=self.namespaces.values(),
            priority_classes=self.priority_classes.values(),
            decode_errors=DecodeErrors(self.queues.errors(), self.flavors.errors()),
        )

    # ---- objects that queue, of any kind

    def workload(self, uid: str) -> CachedWorkload | None:
        """The object of this uid; None if there is none, or none that queues."""
        return self.jobs.get(uid) or self.objects.get(uid)

    def workloads(self) -> Iterator[CachedWorkload]:
        yield from self.jobs.all()
        yield from self.objects.all()

    def visible_workloads(self) -> tuple[Workload, ...]:
        """All that the engine sees."""
        return (*self.jobs.workloads(), *self.objects.workloads())

    def store(self, uid: str) -> WorkloadStore:
        """What takes our writes of this object over."""
        return self.jobs if self.jobs.get(uid) is not None else self.objects

    def deliver(self, collection: str) -> tuple[type[Any], Callable[[Any], None]] | None:
        """The type of the objects of a collection at a path, and what takes one over that was read; None if unknown."""
        resource = re.sub("/namespaces/[^/]+", "", collection)
        if resource == PODS.path():
            return V1Pod, self.pods.on_read
        if resource == TRAINING_JOBS.path():
            return RawCustomObject, self.jobs.on_read
        if resource == WORKLOADS.path():
            return RawCustomObject, self.objects.statuses.on_read
        for handler in self.objects.handlers:
            if resource == resource_of(handler.row).path():
                return RawQueuedObject, handler.on_read
        return None

    def _owner(self, meta: V1PodMeta) -> PodOwner | None:
        return self._owner_of(meta) or self.objects.owner_of(meta)

    def _charge_of(self, pod: CachedPod) -> tuple[str, Resources] | None:
        """The queue that is charged for a pod whose job does not exist, and what."""
        if pod.job is not None and pod.job.other_kind:
            return self.objects.charge_of(pod)
        charged = None if pod.view is None else pod.view.charged
        return (pod.queue, charged) if charged else None

    def _on_object_removed(self, known: CachedObject) -> None:
        self.deleted_usage.on_deleted(known)

    def on_device_classes(self, by_resource: Mapping[str, str]) -> None:
        """The device classes were listed: by extended resource that they provide."""
        if by_resource != self._device_classes:
            self._device_classes = by_resource
            self._changed()

    def on_usage_recorded(self, counted: Mapping[str, int]) -> None:
        """The durable record of usage was read or written: number of segments in it, by job uid."""
        self.recorded_usage = counted
        self.deleted_usage.drop_recorded(counted)

    def _on_collector_ended(self, pod: CachedPod) -> None:
        if not self._apply_termination(pod, self._clock()):
            self._pending_terminations.append(pod)
        self._changed()

    def _apply_pending_terminations(self, now: float) -> None:
        """Apply termination messages of pods that were listed before their jobs."""
        pending, self._pending_terminations = self._pending_terminations, deque(maxlen=_MAX_PENDING_TERMINATIONS)
        self._pending_terminations += (
            pod for pod in pending if not self._apply_termination(pod, now) and self.pods.contains(pod)
        )

    def _apply_termination(self, pod: CachedPod, now: float) -> bool:
        """Count collected traces; keep where ranks were that did not stop, stalled, or were evicted; a durable
        checkpoint of the lead pod counts as progress. False: the job is not known."""
        known, view, message = (
            self.jobs.get(pod.job.uid) if pod.job is not None else None,
            pod.view,
            pod.termination_message,
        )
        if known is None or view is None or message is None:
            return False
        if known.name != pod.job:
            return True  # a pod that only claims to belong to the job
        if self.pods.is_early(view):
            return False  # it counts once its attempt has begun
        slot, lead = (view.role, view.index), lead_role(known.job.spec)
        if known.job.spec.trace is not None or message.traces:
            self.trace_counts.record_final(known.uid, slot, message.traces)
        was_stopped = has_stalled(known.job, view.attempt) or is_stopped(known.job.status, view.attempt)
        if hung := message.hung or (message.signalled if was_stopped else ""):
            self.hung_ranks.record(known.uid, view.attempt, StoppedPod(pod.name, pod.node, hung, bool(message.hung)))
        if message.checkpoint is not None and slot == (lead.name, 0) and has_durable_checkpoints(known.job.spec, lead):
            self.heartbeats.on_termination(known.uid, pod.name, message.checkpoint, now)
        if slot == (lead.name, 0):
            self.heartbeats.on_final_run_time(known.uid, pod.name, message.run_time, now)
        return True

    def _stall_monitored(self) -> Iterator[tuple[str, str]]:
        """Jobs with a time-out of steps, and the lead pod of each."""
        for job in self.jobs.visible() if self._has_heartbeats else ():
            if job.spec.has_step_timeout and is_admitted(job.status):
                meta = job.metadata
                yield meta.uid, pod_name(meta.name, meta.uid, lead_role(job.spec).name, 0, job.status.attempt)
