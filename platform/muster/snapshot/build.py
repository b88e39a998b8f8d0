"""From the world to the planner's snapshot, looking only at what changed.

The planner finds differences by identity. So whatever comes out equal to last time is handed out as the very object of
last time, and what went in unchanged is not looked at again: when one job of thousands changed, that costs one
job's work and a walk over the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from muster import model, spec
from muster.admission import QueueVerdict, namespace_allowed, queue_verdicts
from muster.changes import Alarms, Changes
from muster.cluster import NOTHING_UNREADABLE, NodeView, PodView, Unreadable, World
from muster.lifecycle.failure import shared_blame
from muster.model import Snapshot, Usage, Wait
from muster.snapshot.jobs import FOREVER, JobView, Surroundings, to_gang, to_roles, view
from muster.snapshot.nodes import overlaps, to_flavor, to_node
from muster.snapshot.queues import to_queue

T = TypeVar("T")
_MOST_SPECS = 20_000


@dataclass(frozen=True, slots=True)
class Built:
    """A snapshot, and what was found on the way to it.

    `refused`: jobs that the planner does not see, and why. `wake_at`: when it would differ by time alone.
    """

    snapshot: Snapshot
    refused: tuple[Wait, ...]
    verdicts: Mapping[str, QueueVerdict]  # by queue
    overlaps: Mapping[str, str]  # by flavor: a sentence about nodes that match two
    wake_at: float | None


@dataclass(slots=True)
class _KnownJob:
    job: spec.TrainingJob
    view: JobView
    gang: model.Gang
    roles: tuple[model.Role, ...]


@dataclass(slots=True)
class _KnownNode:
    view: NodeView
    node: model.Node


@dataclass(slots=True)
class Cache:
    """What the last snapshot was made from. Mutable, and of use to `build` alone; an empty one is always right."""

    node_views: tuple[NodeView, ...] | None = None
    flavors_in: tuple[object, ...] = ()
    nodes_in: dict[str, _KnownNode] = field(default_factory=dict)
    nodes: tuple[model.Node, ...] = ()
    flavors: tuple[model.Flavor, ...] = ()
    overlaps: Mapping[str, str] = field(default_factory=dict)
    flavor_of: Mapping[str, str] = field(default_factory=dict)
    queues_in: tuple[object, ...] = ()
    unreadable: Unreadable = NOTHING_UNREADABLE
    queues: tuple[model.Queue, ...] = ()
    verdicts: Mapping[str, QueueVerdict] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] | None = None
    priorities: Mapping[str, int] | None = None
    around: Surroundings | None = None
    changes: Changes = field(default_factory=Changes)
    alarms: Alarms = field(default_factory=Alarms)
    observed: dict[str, spec.TrainingJob] = field(default_factory=dict)
    roles_of: dict[int, tuple[spec.TrainingJobSpec, tuple[model.Role, ...]]] = field(default_factory=dict)
    jobs: dict[str, _KnownJob] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()
    waiting: dict[str, model.Gang] = field(default_factory=dict)
    running: dict[str, model.Running] = field(default_factory=dict)
    holds: dict[str, model.Hold] = field(default_factory=dict)
    refused: dict[str, Wait] = field(default_factory=dict)
    blamed: dict[str, list[spec.BlamedNode]] = field(default_factory=dict)
    last: Snapshot | None = None


def build(
    world: World,
    cache: Cache,
    usage: tuple[Usage, ...] = (),
    newest: Mapping[str, spec.TrainingJob] = MappingProxyType({}),
) -> Built:
    """The snapshot of a world. `newest` has jobs, by uid, that are about to be written and count already."""
    _look_at_nodes(world, cache)
    _look_at_queues(world, cache)
    _look_at_jobs(world, cache, newest)
    last, now = cache.last, world.now
    shared = shared_blame(cache.blamed, now, len(world.nodes)) if cache.blamed else {}
    snapshot = Snapshot(
        now=now,
        nodes=cache.nodes,
        flavors=cache.flavors,
        queues=cache.queues,
        waiting=_same(cache.waiting.values(), last.waiting if last else ()),
        running=_same(cache.running.values(), last.running if last else ()),
        holds=_same(cache.holds.values(), last.holds if last else ()),
        usage=usage,
        avoid=_keep(last.avoid if last else None, frozenset(shared)),
    )
    cache.last = snapshot
    times = [*shared.values(), *([] if (first := cache.alarms.next()) is None else [first])]
    refused = tuple(cache.refused.values())
    return Built(snapshot, refused, cache.verdicts, cache.overlaps, min(times, default=None))


def _look_at_nodes(world: World, cache: Cache) -> None:
    key = tuple(item for flavor in world.flavors for item in (flavor.spec, flavor.metadata.name))
    same_flavors = _identical(key, cache.flavors_in)
    if same_flavors and world.nodes is cache.node_views:
        return
    if not same_flavors:
        cache.flavors = _same([to_flavor(flavor) for flavor in world.flavors], cache.flavors)
        cache.flavors_in = key
    known, fresh = cache.nodes_in, {}
    for seen in world.nodes:
        entry = known.get(seen.name)
        if entry is None or entry.view is not seen or not same_flavors:
            node = to_node(seen, world.flavors)
            entry = _KnownNode(seen, node if entry is None else _keep(entry.node, node))
        fresh[seen.name] = entry
    cache.nodes_in, cache.node_views = fresh, world.nodes
    cache.nodes = _same([entry.node for entry in fresh.values()], cache.nodes)
    cache.overlaps = overlaps(world.nodes, world.flavors)
    cache.flavor_of = _keep(cache.flavor_of, {node.name: node.flavor or "" for node in cache.nodes})


def _look_at_queues(world: World, cache: Cache) -> None:
    key = tuple(
        item for queue in world.queues for item in (queue.spec, queue.metadata.name, queue.metadata.deletion_timestamp)
    )
    if _identical(key, cache.queues_in) and world.unreadable == cache.unreadable:
        return
    cache.queues_in, cache.unreadable = key, world.unreadable
    cache.verdicts = queue_verdicts(world.queues, world.unreadable.queues)
    before = {queue.name: queue for queue in cache.queues}
    fresh = [to_queue(queue, cache.verdicts[queue.metadata.name]) for queue in world.queues]
    cache.queues = _same([_keep(before.get(queue.name), queue) for queue in fresh], cache.queues)
    cache.around = None


def _look_at_jobs(world: World, cache: Cache, newest: Mapping[str, spec.TrainingJob]) -> None:
    """Bring what is known of the jobs up to date: those that changed, those whose time has come, or all."""
    around = cache.around
    everyone = _surroundings(world, cache) is not around
    difference = cache.changes.since_last(world.jobs, world.pods, world.rejections)
    for uid in difference.gone:
        cache.alarms.set(uid, None)
        for kept in (
            cache.jobs,
            cache.observed,
            cache.waiting,
            cache.running,
            cache.holds,
            cache.refused,
            cache.blamed,
        ):
            kept.pop(uid, None)
    for job in difference.jobs:
        cache.observed[job.metadata.uid] = job
    due = cache.alarms.due(world.now)
    look_at: Iterable[str] = cache.observed
    if not everyone:
        fresh = [job.metadata.uid for job in difference.jobs]
        others = {*difference.beside, *due, *newest, *(cache.overridden & cache.observed.keys())}
        look_at = [*fresh, *sorted(others - set(fresh))]
    cache.overridden = frozenset(newest)
    no_pods: tuple[PodView, ...] = ()
    for uid in look_at:
        _note(newest.get(uid, cache.observed[uid]), world.pods.get(uid, no_pods), world, cache)


def _note(job: spec.TrainingJob, pods: tuple[PodView, ...], world: World, cache: Cache) -> None:
    uid = job.metadata.uid
    known = cache.jobs[uid] = _look_at_job(job, pods, world.now, cache, cache.jobs.get(uid))
    seen, rejection = known.view, world.rejections.get(uid)
    if seen.waiting is not None and rejection is not None:
        seen = replace(seen, waiting=None, refused=Wait(uid, "PodRejected", rejection))
    _put(cache.waiting, uid, seen.waiting)
    _put(cache.running, uid, seen.running)
    _put(cache.holds, uid, seen.hold)
    _put(cache.refused, uid, seen.refused)
    _put(cache.blamed, uid, job.status.blamed_nodes or None)
    cache.alarms.set(uid, None if seen.until == FOREVER else seen.until)


def _put(known: dict[str, T], uid: str, value: T | None) -> None:
    if value is None:
        known.pop(uid, None)
    else:
        known[uid] = value


def _surroundings(world: World, cache: Cache) -> Surroundings:
    """What jobs depend on beside themselves; when it changed, every job is looked at anew."""
    around = cache.around
    if (
        around is not None
        and around.flavor_of is cache.flavor_of
        and cache.namespaces == world.namespaces
        and cache.priorities == world.priority_classes
    ):
        return around
    cache.namespaces, cache.priorities = world.namespaces, world.priority_classes
    cache.around = Surroundings(
        flavor_of=cache.flavor_of,
        queues={queue.metadata.name: queue for queue in world.queues},
        allowed=_Allowed(world.queues, world.namespaces),
        priorities=world.priority_classes,
        unreadable=world.unreadable,
    )
    return cache.around


class _Allowed(dict[tuple[str, str], bool]):
    """Whether a namespace may use a queue, worked out when first asked."""

    def __init__(self, queues: tuple[spec.Queue, ...], namespaces: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__()
        self._queues = queues
        self._namespaces = namespaces

    def __missing__(self, key: tuple[str, str]) -> bool:
        queue, name = key
        labels = {"kubernetes.io/metadata.name": name, **self._namespaces.get(name, {})}
        self[key] = namespace_allowed(queue, self._queues, labels)
        return self[key]


def _look_at_job(
    job: spec.TrainingJob, pods: tuple[PodView, ...], now: float, cache: Cache, known: _KnownJob | None
) -> _KnownJob:
    around = cache.around
    assert around is not None
    if known is None:
        roles = _roles(job.spec, cache)
        gang = to_gang(job, now, around.priorities, roles)
        return _KnownJob(job, view(job, pods, now, around, gang), gang, roles)
    roles = known.roles if known.job.spec is job.spec else _keep(known.roles, _roles(job.spec, cache))
    gang = _keep(known.gang, to_gang(job, now, around.priorities, roles))
    fresh, old = view(job, pods, now, around, gang), known.view
    kept = JobView(
        waiting=fresh.waiting,
        running=_keep(old.running, fresh.running),
        hold=_keep(old.hold, fresh.hold),
        refused=_keep(old.refused, fresh.refused),
        until=fresh.until,
    )
    return _KnownJob(job, kept, gang, roles)


def _roles(wanted: spec.TrainingJobSpec, cache: Cache) -> tuple[model.Role, ...]:
    """The roles of a spec, worked out once for all jobs that share it."""
    written, roles = cache.roles_of.get(id(wanted), (None, ()))
    if written is not wanted:  # the entry keeps the spec, so that nothing else has its identity
        roles = to_roles(wanted)
        if len(cache.roles_of) >= _MOST_SPECS:
            cache.roles_of.clear()  # only costs working them out again
        cache.roles_of[id(wanted)] = (wanted, roles)
    return roles


def _keep(old: T | None, new: T) -> T:
    """The old object when it equals the new one."""
    return old if old is not None and old == new else new


def _same(new: Iterable[T], old: tuple[T, ...]) -> tuple[T, ...]:
    """A tuple of the new items; the old tuple when it holds the very same objects."""
    items = tuple(new)
    return old if _identical(items, old) else items


def _identical(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
