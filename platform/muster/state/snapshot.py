"""Builds the planner's snapshot from the state, converting only what changed.

A result equal to the last one is returned as the same object: one changed job of thousands costs one job's work and a
walk over the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from muster.api.spec import BlamedNode, QueueingStatus
from muster.api.validation import QueueReadiness
from muster.cluster import PodView, RefusedChange, RefusedStatus
from muster.model import DecayedUsage, NodeInfo, Resources, Role, Snapshot, Wait
from muster.state.cluster_state import Changes, ClusterState, JobEntry, RolesByKey
from muster.state.jobs import JobContext, JobProjection, project_job
from muster.state.orphans import project_orphans
from muster.state.projection import AllowedNamespaces, reuse_equal, reuse_tuple
from muster.workload.blame import AvoidedNode, avoided_nodes
from muster.workload.gates import GateState
from muster.workload.observed import ObservedState
from muster.workload.placement import nodes_of
from muster.workload.planning import gang_of, namespace_of, split_gang_key
from muster.workload.protocol import Workload

T = TypeVar("T")
_MAX_ROLES = 20_000


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A snapshot, and what was found while building it.

    `nodes_changed`: nodes, flavors or nodes excluded for all gangs differ from those of the last snapshot. `rejected`:
    jobs that the planner does not see, and why. `avoided_nodes`: nodes excluded for all gangs, by name. `wake_at`: when
    the snapshot would differ by time alone; the timers of the jobs are in the state.
    """

    snapshot: Snapshot
    nodes_changed: bool
    rejected: tuple[Wait, ...]
    queue_readiness: Mapping[str, QueueReadiness]  # by queue
    overlaps: Mapping[str, str]  # by flavor: a sentence about nodes that match two
    avoided_nodes: Mapping[str, AvoidedNode]
    wake_at: float | None


def snapshot_of(observed: ObservedState) -> BuildResult:
    """The snapshot of an observed state alone, without usage."""
    state = ClusterState()
    return build_snapshot(state, observed, state.update(observed))


def build_snapshot(
    state: ClusterState,
    observed: ObservedState,
    changes: Changes,
    usage: tuple[DecayedUsage, ...] = (),
    updated_jobs: Mapping[str, Workload] = MappingProxyType({}),
) -> BuildResult:
    """The snapshot now. `updated_jobs` has jobs, by uid, that are about to be written and count already."""
    state.node_projection.update(observed.nodes, observed.flavors)
    if state.queue_projection.update(observed.queues, observed.flavors, observed.decode_errors):
        state.context = None
    _project_jobs(state, observed, changes, updated_jobs)
    last, now = state.last_snapshot, observed.now
    avoided = _avoided_nodes(state, now, len(observed.nodes))
    state.last_snapshot = snapshot = Snapshot(
        now=now,
        nodes=_with_usage(
            state.node_projection.nodes,
            [*state.uncharged.values(), _negative(state.orphans.managed_usage)],
            last.nodes if last else (),
        ),
        flavors=state.node_projection.flavors,
        queues=state.queue_projection.queues,
        pending=reuse_tuple(state.pending.values(), last.pending if last else ()),
        running=reuse_tuple([*state.running.values(), *state.orphans.gangs.values()], last.running if last else ()),
        nominations=reuse_tuple(state.nominations.values(), last.nominations if last else ()),
        usage=usage,
        excluded_nodes=reuse_equal(last.excluded_nodes if last else None, frozenset(avoided)),
        paused=observed.paused.union(_refused(observed, "Eviction")),
        not_grown=frozenset(_refused(observed, "Growth")),
    )
    return BuildResult(
        snapshot=snapshot,
        nodes_changed=last is None or not _same_nodes(last, snapshot),
        rejected=tuple(state.rejected.values()),
        queue_readiness=state.queue_projection.readiness,
        overlaps=state.node_projection.overlaps,
        avoided_nodes=avoided,
        wake_at=min((one.until for one in avoided.values()), default=None),
    )


def _refused(observed: ObservedState, *changes: RefusedChange) -> dict[str, RefusedStatus]:
    """Jobs of which one of these changes is refused."""
    return {one.job_uid: one for one in observed.refused if one.change in changes}


def _avoided_nodes(state: ClusterState, now: float, node_count: int) -> dict[str, AvoidedNode]:
    """Nodes that all jobs avoid now. Tenants differ in queue and namespace: both may be shared, and one tenant may have
    several. Where all jobs share both, each is a tenant of its own: there are no jobs of others that they could keep
    away."""
    if len(state.blamed) < 2:
        return {}
    workloads = (entry.workload for entry in state.jobs.values())
    first = next(workloads)
    queue, namespace = first.queue, namespace_of(first)
    several = [False, False]
    for one in workloads:
        several = [several[0] or one.queue != queue, several[1] or namespace_of(one) != namespace]
        if all(several):
            break
    tenants = {}
    for key in state.blamed:
        workload = state.jobs[key].workload
        of_job = zip(several, (workload.queue, namespace_of(workload)), strict=True)
        tenants[key] = tuple(value for differs, value in of_job if differs) or (split_gang_key(key)[0],)
    blamed = [entry for entries in state.blamed.values() for entry in entries]
    last_starts = _last_starts(state.started.values(), blamed)
    return avoided_nodes(state.blamed, tenants, last_starts, now, node_count)


def _last_starts(statuses: Iterable[QueueingStatus], blamed: Sequence[BlamedNode]) -> dict[str, float]:
    """When a gang last started on each of these nodes, of those that run or have run there to their end."""
    nodes = {entry.node for entry in blamed}
    since = min(entry.at or 0.0 for entry in blamed)
    starts: dict[str, float] = {}
    for status in statuses:
        if status.started_at is not None and status.started_at > since:
            for node in nodes & nodes_of(status.placement):
                starts[node] = max(status.started_at, starts.get(node, 0.0))
    return starts


def _negative(usage: Mapping[str, Resources]) -> Mapping[str, Resources]:
    return {node: amounts.times(-1) for node, amounts in usage.items()}


def _with_usage(
    nodes: tuple[NodeInfo, ...], usages: Iterable[Mapping[str, Resources]], before: tuple[NodeInfo, ...]
) -> tuple[NodeInfo, ...]:
    """The nodes, with more unmanaged usage by node: what pods of gangs use uncharged, less what those of deleted jobs
    are charged for. Reuses nodes of `before`."""
    total: dict[str, Resources] = {}
    for usage in usages:
        for name, amount in usage.items():
            total[name] = total.get(name, Resources()).plus(amount)
    if not total:
        return nodes
    known = {node.name: node for node in before if node.name in total}
    fresh = (
        reuse_equal(known.get(node.name), replace(node, unmanaged_usage=node.unmanaged_usage.plus(total[node.name])))
        if node.name in total
        else node
        for node in nodes
    )
    return reuse_tuple(fresh, before)


def _same_nodes(a: Snapshot, b: Snapshot) -> bool:
    return a.nodes is b.nodes and a.flavors is b.flavors and a.excluded_nodes is b.excluded_nodes


def _project_jobs(
    state: ClusterState, observed: ObservedState, changes: Changes, updated_jobs: Mapping[str, Workload]
) -> None:
    """Project the jobs that changed, or all if what they depend on changed."""
    before = state.context
    context = _job_context(state, observed)
    uids: Iterable[str] = state.jobs
    if context is before:
        others = (changes.project | updated_jobs.keys()) - set(changes.jobs)
        uids = [*changes.jobs, *sorted(others)]
    orphans = project_orphans(observed.orphans, context)
    gangs = {uid: reuse_equal(state.orphans.gangs.get(uid), gang) for uid, gang in orphans.gangs.items()}
    state.orphans = replace(orphans, gangs=gangs)
    state.projected_early = frozenset(updated_jobs)
    no_pods: tuple[PodView, ...] = ()
    not_started = _refused(observed, "Nomination", "Admission")
    for uid in uids:
        entry = state.jobs[uid]
        workload = updated_jobs.get(uid, entry.workload)
        status = workload.status
        _project_job(state, entry, workload, observed.pods.get(uid, no_pods), observed.now, context)
        projection, rejection = entry.projection, observed.pod_rejections.get(uid)
        if projection.pending is not None and rejection is not None:
            projection = replace(projection, pending=None, rejected=Wait(uid, "PodRejected", rejection))
        if projection.pending is not None and uid in not_started:
            refused = not_started[uid]
            wait = Wait(uid, "StatusWriteFailed", f"its {refused.change.lower()} is refused: {refused.message}")
            projection = replace(projection, pending=None, rejected=wait)
        if uid in observed.paused:
            projection = replace(projection, pending=None, rejected=None)
        _set_or_remove(state.pending, uid, projection.pending)
        _set_or_remove(state.running, uid, projection.running)
        _set_or_remove(state.nominations, uid, projection.nomination)
        _set_or_remove(state.rejected, uid, projection.rejected)
        _set_or_remove(state.uncharged, uid, projection.uncharged or None)
        _set_or_remove(state.blamed, uid, status.blamed_nodes or None)
        _set_or_remove(state.started, uid, status if status.started_at is not None else None)
        state.schedule(uid)


def _set_or_remove(entries: dict[str, T], uid: str, value: T | None) -> None:
    if value is None:
        entries.pop(uid, None)
    else:
        entries[uid] = value


def _job_context(state: ClusterState, observed: ObservedState) -> JobContext:
    """What all jobs depend on; when it changed, every job is projected again."""
    context, flavor_of = state.context, state.node_projection.flavor_of
    device_classes = _unlisted_device_classes(observed)
    if (
        context is not None
        and context.flavor_of is flavor_of
        and context.gates.namespaces == observed.namespaces
        and context.gates.priority_classes == observed.priority_classes
        and context.gates.device_classes == device_classes
    ):
        return context
    gates = GateState(
        queues={queue.metadata.name: queue for queue in observed.queues},
        allowed_namespaces=AllowedNamespaces(observed.queues, observed.namespaces),
        priority_classes=observed.priority_classes,
        decode_errors=observed.decode_errors,
        device_classes=device_classes,
        related=state.related,
        namespaces=observed.namespaces,
    )
    state.context = JobContext(flavor_of, state.max_grace_s, gates)
    return state.context


def _unlisted_device_classes(observed: ObservedState) -> dict[str, str]:
    """The device classes, by extended resource, of which no node lists the resource."""
    classes = observed.device_classes
    if not classes:
        return {}
    listed = {name for node in observed.nodes for name, amount in node.allocatable if amount}
    return {name: one for name, one in classes.items() if name not in listed}


def _project_job(
    state: ClusterState,
    entry: JobEntry,
    workload: Workload,
    pods: tuple[PodView, ...],
    now: float,
    context: JobContext,
) -> None:
    """Set gang and projection of the entry; parts equal to the old ones stay the same objects."""
    roles = _roles(workload, state.roles_by_key)
    if entry.gang is not None:
        roles = roles if roles is entry.gang.roles else reuse_equal(entry.gang.roles, roles)
    fresh_gang = gang_of(workload, now, context.gates.priority_classes, roles, context.max_grace_s[workload.queue])
    entry.gang = gang = reuse_equal(entry.gang, fresh_gang)
    old = entry.projection
    fresh = project_job(workload, pods, now, context, gang)
    entry.projection = JobProjection(
        pending=fresh.pending,
        running=reuse_equal(old.running, fresh.running),
        nomination=reuse_equal(old.nomination, fresh.nomination),
        rejected=reuse_equal(old.rejected, fresh.rejected),
        changes_at=fresh.changes_at,
        uncharged=fresh.uncharged,
    )


def _roles(workload: Workload, known: RolesByKey) -> tuple[Role, ...]:
    """The roles of a workload, computed once for all that share their key."""
    wanted = workload.roles_key
    key, roles = known.get(id(wanted), (None, ()))
    if key is not wanted:  # the entry holds the key, so that its id is not reused
        roles = workload.roles()
        if len(known) >= _MAX_ROLES:
            known.clear()  # dropping entries only costs computing them again
        known[id(wanted)] = (wanted, roles)
    return roles
