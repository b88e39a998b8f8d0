"""One job as the planner sees it: a pending gang, a running one, a nomination, or nothing.

Suspended, finished, cancelled and backing-off jobs are not pending, nor is a job with pods of an old attempt. A job for
which a gate is closed gets its `Wait` here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster import model
from muster.cluster import PodView
from muster.model import Gang, Nomination, Placement, Resources, RolePlacement, RunningGang, Wait
from muster.workload.conditions import is_admitted
from muster.workload.gates import GateState, first_closed
from muster.workload.observation import pods_left
from muster.workload.planning import (
    Admission,
    admission_of,
    nomination_of,
    stopping_since,
    wants_capacity,
)
from muster.workload.protocol import Workload
from muster.workload.requests import max_amount_per_pod

NEVER = float("inf")
_SLOT = Resources.of({"pods": 1})
_MAX_TERMINATING_AMOUNT = 2**56  # of anything, by one gang: pods created by other tools may request more than their job


@dataclass(frozen=True, slots=True)
class JobProjection:
    """At most one of `pending`, `running` and `rejected` is set. `changes_at`: when it may change by time alone.
    `uncharged`: by node, what pods use beyond what their gang is charged for."""

    pending: Gang | None = None
    running: RunningGang | None = None
    nomination: Nomination | None = None
    rejected: Wait | None = None
    changes_at: float = NEVER
    uncharged: Mapping[str, Resources] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a job's projection depends on, the job itself aside; it changes rarely."""

    flavor_of: Mapping[str, str]  # by node
    max_grace_s: Mapping[str, float]  # longest grace period, by queue
    gates: GateState


def project_job(
    workload: Workload, pods: Sequence[PodView], now: float, context: JobContext, gang: Gang
) -> JobProjection:
    """The projection of a workload now; `gang` is its gang."""
    if workload.is_group:
        return _project_group(workload, now, context, gang)
    admission = admission_of(workload, now, pods, context.max_grace_s[workload.queue])
    if admission is not None:
        running = _running_gang(workload, admission, pods, gang)
        requests = {role.name: role.request for role in running.gang.roles}
        return JobProjection(running=running, uncharged=_uncharged_usage(requests, running.placement, pods))
    nomination = nomination_of(workload, now, gang)
    expires_at = NEVER if nomination is None else nomination.expires_at
    if any(pod.holds_capacity for pod in pods):
        gang, left = remaining_pods(_charged_pods(workload, pods, context), gang, context.flavor_of)
        uncharged = _uncharged_usage({role.name: role.request for role in gang.roles}, left, pods)
        status = workload.status
        admitted_at = now if status.admitted_at is None else status.admitted_at
        terminating = RunningGang(
            gang,
            left,
            admitted_at=admitted_at,
            started_at=status.started_at,
            state="terminating",
            stopping_since=stopping_since(workload),
            waits_for=waits_for(pods),
        )
        ending = terminating if left else None
        return JobProjection(running=ending, nomination=nomination, changes_at=expires_at, uncharged=uncharged)
    if not wants_capacity(workload):
        return JobProjection()
    requeue_after = workload.status.requeue_after
    if requeue_after is not None and now < requeue_after:
        return JobProjection(nomination=nomination, changes_at=min(requeue_after, expires_at))
    rejected, recheck_at = _check_gates(workload, now, context, gang)
    if rejected is not None:
        return JobProjection(rejected=rejected, nomination=nomination, changes_at=min(recheck_at, expires_at))
    blames_end = [entry.until for entry in workload.status.blamed_nodes if entry.until > now]
    return JobProjection(pending=gang, nomination=nomination, changes_at=min([*blames_end, expires_at]))


def _charged_pods(workload: Workload, pods: Sequence[PodView], context: JobContext) -> list[PodView]:
    """Those that the queue of a job that is not admitted is charged for, each with what it is charged.

    Any user can make up pods of a job that names any queue, or that was never admitted, which must not take quota.
    """
    status, namespace = workload.status, workload.metadata.namespace or "default"
    was_admitted = status.attempt > 0 or bool(status.placement)
    if not was_admitted or not context.gates.allowed_namespaces[workload.queue, namespace]:
        return []
    genuine = [pod for pod in pods if not pod.is_made_up]
    return [pod if pod.charged is None else replace(pod, request=pod.charged) for pod in genuine]


def _project_group(workload: Workload, now: float, context: JobContext, gang: Gang) -> JobProjection:
    """Its gangs are projected themselves; it has only why none of them may start."""
    if not wants_capacity(workload) or is_admitted(workload.status):
        return JobProjection()
    rejected, recheck_at = _check_gates(workload, now, context, gang)
    return JobProjection(rejected=rejected, changes_at=recheck_at)


def _check_gates(workload: Workload, now: float, context: JobContext, gang: Gang) -> tuple[Wait | None, float]:
    """Why the planner does not see it, and when that may change by time alone."""
    closed = first_closed(workload, gang, context.gates, now)
    if closed is None:
        return None, NEVER
    return Wait(gang.uid, closed.reason, closed.message), NEVER if closed.recheck_at is None else closed.recheck_at


def _running_gang(workload: Workload, admission: Admission, pods: Sequence[PodView], gang: Gang) -> RunningGang:
    status = workload.status
    if admission.pods_ended:  # it cannot be resized: that is a restart, which needs the capacity of all pods
        gang = replace(gang, roles=tuple(replace(role, min_replicas=role.replicas) for role in gang.roles))
    roles = {role.name for role in gang.roles}
    # A gang whose roles were removed while it was admitted is evicted; the requests of those pods are unknown.
    placement = tuple(part for part in admission.placement if part.role in roles)
    genuine = [pod for pod in pods if not pod.is_made_up]
    if workload.replaces_pods:
        placement = _with_surplus(placement, [pod for pod in genuine if pod.attempt == admission.attempt])
        gang = _sized(gang, placement)
    stale = [pod for pod in genuine if pod.attempt != admission.attempt and pod.holds_capacity]
    taken = _with_stale_pods(placement, stale) if stale else placement
    resizing = taken != placement
    retained = tuple(part for part in admission.retained_placement if part.role in roles)
    return RunningGang(
        gang=gang,
        placement=taken,
        admitted_at=gang.submitted_at if status.admitted_at is None else status.admitted_at,
        started_at=status.started_at,
        checkpoint_at=admission.checkpoint_at,
        resized_at=admission.resized_at,
        state="evicting" if admission.evicting or resizing else "admitted",
        preemptor=admission.preemptor,
        retained_placement=placement if resizing and not admission.evicting else retained,
        retained_until=admission.retained_until if retained else None,
        stopping_since=stopping_since(workload) if admission.evicting else None,
        waits_for=waits_for(pods if admission.evicting else stale) if admission.evicting or resizing else "",
    )


def _with_surplus(placement: Placement, pods: Iterable[PodView]) -> Placement:
    """The placement, extended by pods that run beyond its number, on the nodes where there are more than it has. Fewer
    on one node and more on another are none: kube-scheduler chooses among the nodes of the template."""
    runs = Counter[tuple[str, str]]()
    for pod in pods:
        if pod.node and pod.holds_capacity and not pod.gated and pod.pending_reason != "Unschedulable":
            runs[pod.role, pod.node] += 1
    extended = []
    for part in placement:
        nodes = Counter[str]()
        for node, count in part.nodes:
            nodes[node] += count
        surplus = sum(count for (role, _), count in runs.items() if role == part.role) - part.replicas
        for (role, node), count in sorted(runs.items()):
            more = min(surplus, count - nodes[node]) if role == part.role else 0
            if more > 0:
                nodes[node] += more
                surplus -= more
        changed = sum(nodes.values()) != part.replicas
        extended.append(RolePlacement(part.role, part.flavor, tuple(nodes.items())) if changed else part)
    return tuple(extended)


def _sized(gang: Gang, placement: Placement) -> Gang:
    """The gang with roles of at least the size of the placement, which cannot shrink to less."""
    placed = Counter[str]()
    for part in placement:
        placed[part.role] += part.replicas
    if all(placed[role.name] <= role.replicas for role in gang.roles):
        return gang
    sizes = {role.name: max(role.replicas, placed[role.name]) for role in gang.roles}
    return replace(
        gang,
        roles=tuple(replace(role, replicas=sizes[role.name], min_replicas=sizes[role.name]) for role in gang.roles),
    )


def waits_for(pods: Iterable[PodView]) -> str:
    """What has to become true until these pods take no capacity; "" if they take none."""
    left = pods_left(pods)
    return left and f"{left} ended"


def _uncharged_usage(
    requests: Mapping[str, Resources], placement: Placement, pods: Iterable[PodView]
) -> dict[str, Resources]:
    """By node, what pods use beyond the requests of the roles on the nodes of the placement.

    Users can create pods under the names of a job's pods, and admission plugins may change requests. Such pods must not
    hide what they use. Pods that kube-scheduler has not bound use nothing.
    """
    surplus = Counter[tuple[str, Resources]]()  # pods, by node and request
    for pod in pods:
        if pod.holds_capacity and pod.pending_reason != "Unschedulable":
            surplus[pod.node, pod.request or requests.get(pod.role, _SLOT)] += 1
    for part in placement:
        for node, count in part.nodes:
            surplus[node, requests[part.role]] -= count
    usage: dict[str, Resources] = {}
    for (node, request), count in surplus.items():
        if count:
            usage[node] = usage.get(node, Resources()).plus(request.times(count))
    excess = {node: Resources.of({name: max(0, one) for name, one in total}) for node, total in usage.items()}
    return {node: amounts for node, amounts in excess.items() if amounts}


def _with_stale_pods(placement: Placement, stale: Iterable[PodView]) -> Placement:
    """The placement, extended by pods of an older attempt on other nodes."""
    counts: dict[str, dict[str, int]] = {}
    for pod in stale:
        nodes = counts.setdefault(pod.role, {})
        nodes[pod.node] = nodes.get(pod.node, 0) + 1
    return tuple(_with_stale_nodes(part, counts.get(part.role, {})) for part in placement)


def _with_stale_nodes(part: RolePlacement, stale: Mapping[str, int]) -> RolePlacement:
    nodes: dict[str, int] = {}
    for node, count in part.nodes:
        nodes[node] = nodes.get(node, 0) + count
    if all(count <= nodes.get(node, 0) for node, count in stale.items()):
        return part
    for node, count in sorted(stale.items()):
        nodes[node] = max(nodes.get(node, 0), count)
    return RolePlacement(part.role, part.flavor, tuple(nodes.items()))


def remaining_pods(pods: Sequence[PodView], gang: Gang, flavor_of: Mapping[str, str]) -> tuple[Gang, Placement]:
    """Pods that still take capacity, by role and flavor, as a gang. Pods on deleted nodes take none."""
    here = [pod for pod in pods if pod.holds_capacity and pod.node in flavor_of]
    gang, role_of = _with_actual_requests(here, gang)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for pod in here:
        nodes = counts.setdefault((role_of[pod.name], flavor_of[pod.node]), {})
        nodes[pod.node] = nodes.get(pod.node, 0) + 1
    return gang, tuple(RolePlacement(role, flavor, tuple(sorted(by.items()))) for (role, flavor), by in counts.items())


def _with_actual_requests(pods: Sequence[PodView], gang: Gang) -> tuple[Gang, Mapping[str, str]]:
    """The gang with roles that have the requests of these pods, and the role of each pod, by name.

    A gang that is not admitted may be edited while its old pods terminate, so its roles differ from those of its pods;
    and admission plugins may have changed the requests of pods.
    """
    now = {role.name: role.request for role in gang.roles}
    requests = {pod.name: pod.request or now.get(pod.role, _SLOT) for pod in pods}
    most = max_amount_per_pod(((1, request) for request in requests.values()), _MAX_TERMINATING_AMOUNT)
    requests = {name: request.capped(most) for name, request in requests.items()}
    if all(requests[pod.name] == now.get(pod.role) for pod in pods):
        return gang, {pod.name: pod.role for pod in pods}
    sizes = Counter((pod.role, requests[pod.name]) for pod in pods)
    names: dict[tuple[str, Resources], str] = {}
    roles: list[model.Role] = []
    for (role, request), size in sorted(sizes.items(), key=lambda entry: (entry[0][0], entry[0][1].items)):
        name = names[role, request] = f"{role}.{len(roles)}"  # pods of one role may differ; no role name has a dot
        roles.append(model.Role(name, size, size, request))
    return replace(gang, roles=tuple(roles)), {pod.name: names[pod.role, requests[pod.name]] for pod in pods}
