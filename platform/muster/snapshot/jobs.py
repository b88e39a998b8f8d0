"""One job as the planner sees it: a gang that waits, one that takes up room, room held for it, or nothing at all.

Suspended, finished, cancelled and backing-off jobs do not wait for the planner, nor does one whose old pods are still
there. A job whose queue is missing or closed to its namespace, or whose PriorityClass is missing, gets its `Wait` here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from muster import model, spec
from muster.admission import fault_around
from muster.cluster import NOTHING_UNREADABLE, PodView, Unreadable
from muster.lifecycle import (
    LIVE_PHASES,
    Bounds,
    from_status,
    is_admitted,
    is_finished,
    is_leaving,
    kept_places,
    kept_until,
    max_grace,
)
from muster.lifecycle.conditions import SUSPENDED, is_true
from muster.model import Gang, Hold, Placement, Resources, RolePlacement, Running, Wait
from muster.snapshot.requests import most_of_one, node_affinity, tolerations
from muster.spec.requests import pod_request

FOREVER = float("inf")
_SLOT = Resources.of({"pods": 1})
_MOST_THAT_LEAVES = 2**56  # of anything, by one gang: pods made by hand may ask for more than their job, and many may
_BOUNDS = Bounds()  # for how long room is kept is a guess until the hold is written, whatever the engine's own are


@dataclass(frozen=True, slots=True)
class JobView:
    """At most one of `waiting`, `running` and `refused` is set. `until`: when the view may change by time alone."""

    waiting: Gang | None = None
    running: Running | None = None
    hold: Hold | None = None
    refused: Wait | None = None
    until: float = FOREVER


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job's view depends on beside the job: changes seldom."""

    flavor_of: Mapping[str, str]  # by node
    queues: Mapping[str, spec.Queue]
    allowed: Mapping[tuple[str, str], bool]  # by (queue, namespace)
    priorities: Mapping[str, int]  # value of priority classes
    unreadable: Unreadable = NOTHING_UNREADABLE


def view(job: spec.TrainingJob, pods: Sequence[PodView], now: float, around: Surroundings, gang: Gang) -> JobView:
    """The job now; `gang` is what `to_gang` made of it."""
    status = job.status
    hold = _hold(job, gang, now)
    hold_until = FOREVER if hold is None else hold.expires_at
    deleted = job.metadata.deletion_timestamp is not None
    if is_admitted(status) and not (is_finished(status) or deleted):
        return JobView(running=_running(job, pods, gang, now))
    if any(pod.phase in LIVE_PHASES for pod in pods):
        gang, left = _what_is_left(pods, gang, around.flavor_of)
        admitted_at = status.admitted_at if status.admitted_at is not None else now
        leaving = Running(gang, left, admitted_at=admitted_at, started_at=status.started_at, state="leaving")
        return JobView(running=leaving if left else None, hold=hold, until=hold_until)
    if deleted or is_finished(status) or is_true(status, SUSPENDED) or job.spec.suspend or job.spec.cancel:
        return JobView()
    expiries = [entry.until for entry in status.blamed_nodes if entry.until > now]
    if status.requeue_after is not None and now < status.requeue_after:
        return JobView(hold=hold, until=min(status.requeue_after, hold_until))
    refused = _refused(job, around)
    if refused is not None:
        return JobView(refused=refused, hold=hold, until=hold_until)
    return JobView(waiting=gang, hold=hold, until=min([*expiries, hold_until]))


def to_gang(job: spec.TrainingJob, now: float, priorities: Mapping[str, int], roles: tuple[model.Role, ...]) -> Gang:
    """The gang of a job; `roles` is what `to_roles` made of its spec."""
    meta, wanted, status = job.metadata, job.spec, job.status
    priority = priority_of(wanted, priorities)
    return Gang(
        uid=meta.uid,
        name=f"{namespace(job)}/{meta.name}",
        queue=wanted.queue,
        priority=(status.priority or 0) if priority is None else priority,  # a class may be deleted under a running job
        submitted_at=status.submitted_at if status.submitted_at is not None else now,
        roles=roles,
        flavors=tuple(wanted.flavors),
        topology=_topology(wanted.topology),
        max_runtime_s=None if wanted.max_runtime_seconds is None else float(wanted.max_runtime_seconds),
        grace_s=max_grace(job),
        start_timeout_s=float(wanted.start_timeout_seconds),
        avoid=frozenset(entry.node for entry in status.blamed_nodes if entry.until > now),
    )


def priority_of(wanted: spec.TrainingJobSpec, classes: Mapping[str, int]) -> int | None:
    """The priority that counts: the job's own, or the value of its PriorityClass. None: there is no such class."""
    return wanted.priority if wanted.priority_class_name is None else classes.get(wanted.priority_class_name)


def to_roles(wanted: spec.TrainingJobSpec) -> tuple[model.Role, ...]:
    """The roles of a gang, each with what one of its pods asks for."""
    requests = [pod_request(role.template.spec) for role in wanted.roles]
    most = most_of_one((role.replicas, request) for role, request in zip(wanted.roles, requests, strict=True))
    return tuple(
        model.Role(
            name=role.name,
            replicas=wanted.most_replicas(role),
            min_replicas=role.replicas if role.min_replicas is None else role.min_replicas,
            request=request.capped(most),
            flavors=tuple(role.flavors),
            topology=_topology(role.topology),
            node_selector=tuple(sorted(role.template.spec.node_selector.items())),
            affinity=node_affinity(role.template.spec.affinity),
            tolerations=tolerations(role.template.spec.tolerations),
        )
        for role, request in zip(wanted.roles, requests, strict=True)
    )


def namespace(job: spec.TrainingJob) -> str:
    """The job's namespace; `default` when it names none."""
    return job.metadata.namespace or "default"


def _running(job: spec.TrainingJob, pods: Sequence[PodView], gang: Gang, now: float) -> Running:
    status = job.status
    roles = {role.name for role in gang.roles}
    # Who edits roles away under an admitted gang has it torn down; what its pods asked for nobody knows any more.
    placement = tuple(part for part in from_status(status.placement) if part.role in roles)
    stale = [pod for pod in pods if pod.attempt != status.attempt and pod.phase in LIVE_PHASES]
    taken = _union(placement, stale) if stale else placement
    resizing = taken != placement
    kept = tuple(part for part in from_status(kept_places(status, job.spec, now)) if part.role in roles)
    checkpoint = status.last_checkpoint
    return Running(
        gang=gang,
        placement=taken,
        admitted_at=status.admitted_at if status.admitted_at is not None else gang.submitted_at,
        started_at=status.started_at,
        checkpoint_at=None if checkpoint is None else checkpoint.at,
        resized_at=status.resized_at,
        state="evicting" if is_leaving(status) or resizing else "admitted",
        evicted_for=None if status.eviction is None else status.eviction.beneficiary or None,
        keeps=placement if resizing and not is_leaving(status) else kept,
        kept_until=kept_until(job, _BOUNDS) if kept else None,
    )


def _union(placement: Placement, stale: Iterable[PodView]) -> Placement:
    """The placement, larger where pods of an older attempt still sit outside of it."""
    counts: dict[str, dict[str, int]] = {}
    for pod in stale:
        nodes = counts.setdefault(pod.role, {})
        nodes[pod.node] = nodes.get(pod.node, 0) + 1
    return tuple(_joined(part, counts.get(part.role, {})) for part in placement)


def _joined(part: RolePlacement, stale: Mapping[str, int]) -> RolePlacement:
    nodes: dict[str, int] = {}
    for node, count in part.nodes:
        nodes[node] = nodes.get(node, 0) + count
    if all(count <= nodes.get(node, 0) for node, count in stale.items()):
        return part
    for node, count in sorted(stale.items()):
        nodes[node] = max(nodes.get(node, 0), count)
    return RolePlacement(part.role, part.flavor, tuple(nodes.items()))


def _what_is_left(pods: Sequence[PodView], gang: Gang, flavor_of: Mapping[str, str]) -> tuple[Gang, Placement]:
    """Pods that still take up room, by role and flavor, and the gang that they are. A node that is no more has none to
    take."""
    here = [pod for pod in pods if pod.phase in LIVE_PHASES and pod.node in flavor_of]
    gang, role_of = _as_asked(here, gang)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for pod in here:
        nodes = counts.setdefault((role_of[pod.name], flavor_of[pod.node]), {})
        nodes[pod.node] = nodes.get(pod.node, 0) + 1
    return gang, tuple(RolePlacement(role, flavor, tuple(sorted(by.items()))) for (role, flavor), by in counts.items())


def _as_asked(pods: Sequence[PodView], gang: Gang) -> tuple[Gang, Mapping[str, str]]:
    """The gang with roles that ask for what these pods ask for, and the role of each pod, by name.

    A gang that is not admitted may be edited while its old pods stop: its roles are others then than those of its
    pods. And what admission plugins added to a pod is in no role.
    """
    now = {role.name: role.request for role in gang.roles}
    asked = {pod.name: pod.request or now.get(pod.role, _SLOT) for pod in pods}
    most = most_of_one(((1, request) for request in asked.values()), _MOST_THAT_LEAVES)
    asked = {name: request.capped(most) for name, request in asked.items()}
    if all(asked[pod.name] == now.get(pod.role) for pod in pods):
        return gang, {pod.name: pod.role for pod in pods}
    sizes = Counter((pod.role, asked[pod.name]) for pod in pods)
    names: dict[tuple[str, Resources], str] = {}
    roles: list[model.Role] = []
    for (role, request), size in sorted(sizes.items(), key=lambda entry: (entry[0][0], entry[0][1].items)):
        name = names[role, request] = f"{role}.{len(roles)}"  # one role's pods may differ; no role has a dot
        roles.append(model.Role(name, size, size, request))
    return replace(gang, roles=tuple(roles)), {pod.name: names[pod.role, asked[pod.name]] for pod in pods}


def _hold(job: spec.TrainingJob, gang: Gang, now: float) -> Hold | None:
    hold = job.status.hold
    if hold is None or now >= hold.expires_at or job.metadata.deletion_timestamp is not None:
        return None
    return Hold(job.metadata.uid, from_status(hold.placement), tuple(hold.victims), hold.expires_at, holder=gang)


def _refused(job: spec.TrainingJob, around: Surroundings) -> Wait | None:
    queue = job.spec.queue
    if queue not in around.queues:
        known = ", ".join(sorted(around.queues)[:8]) or "none"
        message = f"queue {queue} does not exist; there are: {known}"
        return Wait(job.metadata.uid, "QueueNotFound", message)
    fault = fault_around(job, around.queues, around.unreadable.queues, around.unreadable.flavors)
    if fault is not None:
        return Wait(job.metadata.uid, *fault)
    if not around.allowed[queue, namespace(job)]:
        message = f"queue {queue} does not admit jobs of namespace {namespace(job)} (its namespaceSelector)"
        return Wait(job.metadata.uid, "QueueNotAllowed", message)
    if priority_of(job.spec, around.priorities) is None:
        message = f"spec.priorityClassName: PriorityClass {job.spec.priority_class_name!r} does not exist"
        return Wait(job.metadata.uid, "PriorityClassNotFound", message)
    return None


def _topology(wanted: spec.TopologyRequest | None) -> model.Topology | None:
    return None if wanted is None else model.Topology(wanted.required, wanted.preferred)
