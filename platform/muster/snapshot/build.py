"""Builds the planner's snapshot from the observed state, reading only what changed.

The planner finds differences by identity. So a result equal to the last one is returned as the same object, and
unchanged input is not read again: one changed job of thousands costs one job's work and a walk over the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from muster import model, spec
from muster.change_tracker import ChangeTracker, TimerQueue
from muster.cluster import NO_DECODE_ERRORS, DecodeErrors, NodeView, ObservedState, PodView
from muster.lifecycle.failure import shared_blamed_nodes
from muster.model import DecayedUsage, Snapshot, Wait
from muster.snapshot.jobs import NEVER, JobContext, JobProjection, project_job, to_gang, to_roles
from muster.snapshot.nodes import flavor_overlaps, to_flavor, to_node
from muster.snapshot.queues import to_queue
from muster.validation import QueueReadiness, namespace_allowed, queue_readiness

T = TypeVar("T")
_MAX_SPECS = 20_000


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A snapshot, and what was found while building it.

    `refused`: jobs that the planner does not see, and why. `wake_at`: when the snapshot would differ by time alone.
    """

    snapshot: Snapshot
    rejected: tuple[Wait, ...]
    queue_verdicts: Mapping[str, QueueReadiness]  # by queue
    overlaps: Mapping[str, str]  # by flavor: a sentence about nodes that match two
    wake_at: float | None


@dataclass(slots=True)
class _CachedJob:
    job: spec.TrainingJob
    view: JobProjection
    gang: model.Gang
    roles: tuple[model.Role, ...]


@dataclass(slots=True)
class _CachedNode:
    view: NodeView
    node: model.NodeInfo


@dataclass(slots=True)
class SnapshotCache:
    """What the last snapshot was built from. Mutable, used by `build_snapshot` only; an empty one is always valid."""

    observed_nodes: tuple[NodeView, ...] | None = None
    flavor_key: tuple[object, ...] = ()
    cached_nodes: dict[str, _CachedNode] = field(default_factory=dict)
    nodes: tuple[model.NodeInfo, ...] = ()
    flavors: tuple[model.FlavorInfo, ...] = ()
    overlaps: Mapping[str, str] = field(default_factory=dict)
    flavor_of: Mapping[str, str] = field(default_factory=dict)
    queue_key: tuple[object, ...] = ()
    unreadable: DecodeErrors = NO_DECODE_ERRORS
    queues: tuple[model.QueueInfo, ...] = ()
    queue_verdicts: Mapping[str, QueueReadiness] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] | None = None
    priorities: Mapping[str, int] | None = None
    context: JobContext | None = None
    changes: ChangeTracker = field(default_factory=ChangeTracker)
    timers: TimerQueue = field(default_factory=TimerQueue)
    observed_jobs: dict[str, spec.TrainingJob] = field(default_factory=dict)
    roles_by_spec: dict[int, tuple[spec.TrainingJobSpec, tuple[model.Role, ...]]] = field(default_factory=dict)
    jobs: dict[str, _CachedJob] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()
    pending: dict[str, model.Gang] = field(default_factory=dict)
    running: dict[str, model.RunningGang] = field(default_factory=dict)
    nominations: dict[str, model.Nomination] = field(default_factory=dict)
    rejected: dict[str, Wait] = field(default_factory=dict)
    blamed: dict[str, list[spec.BlamedNode]] = field(default_factory=dict)
    last_snapshot: Snapshot | None = None


def build_snapshot(
    state: ObservedState,
    cache: SnapshotCache,
    usage: tuple[DecayedUsage, ...] = (),
    updated_jobs: Mapping[str, spec.TrainingJob] = MappingProxyType({}),
) -> BuildResult:
    """The snapshot of the observed state. `newest` has jobs, by uid, that are about to be written and count already."""
    _update_nodes(state, cache)
    _update_queues(state, cache)
    _update_jobs(state, cache, updated_jobs)
    last, now = cache.last_snapshot, state.now
    shared = shared_blamed_nodes(cache.blamed, now, len(state.nodes)) if cache.blamed else {}
    snapshot = Snapshot(
        now=now,
        nodes=cache.nodes,
        flavors=cache.flavors,
        queues=cache.queues,
        pending=_reuse_tuple(cache.pending.values(), last.pending if last else ()),
        running=_reuse_tuple(cache.running.values(), last.running if last else ()),
        nominations=_reuse_tuple(cache.nominations.values(), last.nominations if last else ()),
        usage=usage,
        excluded_nodes=_reuse_equal(last.excluded_nodes if last else None, frozenset(shared)),
    )
    cache.last_snapshot = snapshot
    times = [*shared.values(), *([] if (first := cache.timers.next_time()) is None else [first])]
    refused = tuple(cache.rejected.values())
    return BuildResult(snapshot, refused, cache.queue_verdicts, cache.overlaps, min(times, default=None))


def _update_nodes(state: ObservedState, cache: SnapshotCache) -> None:
    key = tuple(item for flavor in state.flavors for item in (flavor.spec, flavor.metadata.name))
    same_flavors = _same_objects(key, cache.flavor_key)
    if same_flavors and state.nodes is cache.observed_nodes:
        return
    if not same_flavors:
        cache.flavors = _reuse_tuple([to_flavor(flavor) for flavor in state.flavors], cache.flavors)
        cache.flavor_key = key
    known, fresh = cache.cached_nodes, {}
    for seen in state.nodes:
        entry = known.get(seen.name)
        if entry is None or entry.view is not seen or not same_flavors:
            node = to_node(seen, state.flavors)
            entry = _CachedNode(seen, node if entry is None else _reuse_equal(entry.node, node))
        fresh[seen.name] = entry
    cache.cached_nodes, cache.observed_nodes = fresh, state.nodes
    cache.nodes = _reuse_tuple([entry.node for entry in fresh.values()], cache.nodes)
    cache.overlaps = flavor_overlaps(state.nodes, state.flavors)
    cache.flavor_of = _reuse_equal(cache.flavor_of, {node.name: node.flavor or "" for node in cache.nodes})


def _update_queues(state: ObservedState, cache: SnapshotCache) -> None:
    key = tuple(
        item for queue in state.queues for item in (queue.spec, queue.metadata.name, queue.metadata.deletion_timestamp)
    )
    if _same_objects(key, cache.queue_key) and state.decode_errors == cache.unreadable:
        return
    cache.queue_key, cache.unreadable = key, state.decode_errors
    cache.queue_verdicts = queue_readiness(state.queues, state.decode_errors.queues)
    before = {queue.name: queue for queue in cache.queues}
    fresh = [to_queue(queue, cache.queue_verdicts[queue.metadata.name]) for queue in state.queues]
    cache.queues = _reuse_tuple([_reuse_equal(before.get(queue.name), queue) for queue in fresh], cache.queues)
    cache.context = None


def _update_jobs(state: ObservedState, cache: SnapshotCache, updated_jobs: Mapping[str, spec.TrainingJob]) -> None:
    """Update what is known of the jobs: those that changed, those whose timer is due, or all."""
    around = cache.context
    everyone = _job_context(state, cache) is not around
    difference = cache.changes.diff(state.jobs, state.pods, state.pod_rejections)
    for uid in difference.removed:
        cache.timers.schedule(uid, None)
        for kept in (
            cache.jobs,
            cache.observed_jobs,
            cache.pending,
            cache.running,
            cache.nominations,
            cache.rejected,
            cache.blamed,
        ):
            kept.pop(uid, None)
    for job in difference.changed:
        cache.observed_jobs[job.metadata.uid] = job
    due = cache.timers.pop_due(state.now)
    look_at: Iterable[str] = cache.observed_jobs
    if not everyone:
        fresh = [job.metadata.uid for job in difference.changed]
        others = {*difference.touched, *due, *updated_jobs, *(cache.overridden & cache.observed_jobs.keys())}
        look_at = [*fresh, *sorted(others - set(fresh))]
    cache.overridden = frozenset(updated_jobs)
    no_pods: tuple[PodView, ...] = ()
    for uid in look_at:
        _update_job(updated_jobs.get(uid, cache.observed_jobs[uid]), state.pods.get(uid, no_pods), state, cache)


def _update_job(job: spec.TrainingJob, pods: tuple[PodView, ...], state: ObservedState, cache: SnapshotCache) -> None:
    uid = job.metadata.uid
    known = cache.jobs[uid] = _read_job(job, pods, state.now, cache, cache.jobs.get(uid))
    seen, rejection = known.view, state.pod_rejections.get(uid)
    if seen.pending is not None and rejection is not None:
        seen = replace(seen, pending=None, rejected=Wait(uid, "PodRejected", rejection))
    _set_or_remove(cache.pending, uid, seen.pending)
    _set_or_remove(cache.running, uid, seen.running)
    _set_or_remove(cache.nominations, uid, seen.nomination)
    _set_or_remove(cache.rejected, uid, seen.rejected)
    _set_or_remove(cache.blamed, uid, job.status.blamed_nodes or None)
    cache.timers.schedule(uid, None if seen.changes_at == NEVER else seen.changes_at)


def _set_or_remove(entries: dict[str, T], uid: str, value: T | None) -> None:
    if value is None:
        entries.pop(uid, None)
    else:
        entries[uid] = value


def _job_context(state: ObservedState, cache: SnapshotCache) -> JobContext:
    """What all jobs depend on; when it changed, every job is converted again."""
    around = cache.context
    if (
        around is not None
        and around.flavor_of is cache.flavor_of
        and cache.namespaces == state.namespaces
        and cache.priorities == state.priority_classes
    ):
        return around
    cache.namespaces, cache.priorities = state.namespaces, state.priority_classes
    cache.context = JobContext(
        flavor_of=cache.flavor_of,
        queues={queue.metadata.name: queue for queue in state.queues},
        allowed_namespaces=_AllowedNamespaces(state.queues, state.namespaces),
        priority_classes=state.priority_classes,
        unreadable=state.decode_errors,
    )
    return cache.context


class _AllowedNamespaces(dict[tuple[str, str], bool]):
    """Whether a namespace may use a queue, computed at the first use."""

    def __init__(self, queues: tuple[spec.Queue, ...], namespaces: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__()
        self._queues = queues
        self._namespaces = namespaces

    def __missing__(self, key: tuple[str, str]) -> bool:
        queue, name = key
        labels = {"kubernetes.io/metadata.name": name, **self._namespaces.get(name, {})}
        self[key] = namespace_allowed(queue, self._queues, labels)
        return self[key]


def _read_job(
    job: spec.TrainingJob, pods: tuple[PodView, ...], now: float, cache: SnapshotCache, cached: _CachedJob | None
) -> _CachedJob:
    around = cache.context
    assert around is not None
    if cached is None:
        roles = _roles(job.spec, cache)
        gang = to_gang(job, now, around.priority_classes, roles)
        return _CachedJob(job, project_job(job, pods, now, around, gang), gang, roles)
    roles = cached.roles if cached.job.spec is job.spec else _reuse_equal(cached.roles, _roles(job.spec, cache))
    gang = _reuse_equal(cached.gang, to_gang(job, now, around.priority_classes, roles))
    fresh, old = project_job(job, pods, now, around, gang), cached.view
    kept = JobProjection(
        pending=fresh.pending,
        running=_reuse_equal(old.running, fresh.running),
        nomination=_reuse_equal(old.nomination, fresh.nomination),
        rejected=_reuse_equal(old.rejected, fresh.rejected),
        changes_at=fresh.changes_at,
    )
    return _CachedJob(job, kept, gang, roles)


def _roles(job_spec: spec.TrainingJobSpec, cache: SnapshotCache) -> tuple[model.Role, ...]:
    """The roles of a spec, computed once for all jobs that share it."""
    written, roles = cache.roles_by_spec.get(id(job_spec), (None, ()))
    if written is not job_spec:  # the entry holds the spec, so that its id is not reused
        roles = to_roles(job_spec)
        if len(cache.roles_by_spec) >= _MAX_SPECS:
            cache.roles_by_spec.clear()  # dropping entries only costs computing them again
        cache.roles_by_spec[id(job_spec)] = (job_spec, roles)
    return roles


def _reuse_equal(old: T | None, new: T) -> T:
    """The old object if it equals the new one."""
    return old if old is not None and old == new else new


def _reuse_tuple(new: Iterable[T], old: tuple[T, ...]) -> tuple[T, ...]:
    """A tuple of the new items; the old tuple if it has the same objects."""
    items = tuple(new)
    return old if _same_objects(items, old) else items


def _same_objects(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
