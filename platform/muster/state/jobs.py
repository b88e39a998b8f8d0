"""One job as the planner sees it: a pending gang, a running one, a nomination, or nothing.

Suspended, finished, cancelled and backing-off jobs are not pending, nor is a job with pods of an old attempt. A job
whose queue is missing or does not admit its namespace, or whose PriorityClass is missing, gets its `Wait` here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from muster import model, spec
from muster.cluster import DecodeErrors, PodView
from muster.lifecycle import (
    ACTIVE_POD_PHASES,
    Timeouts,
    from_status,
    is_admitted,
    is_evicting,
    is_finished,
    max_grace_period_s,
    retained_placement,
    retained_until,
)
from muster.lifecycle.conditions import SUSPENDED, is_condition_true
from muster.model import Gang, Nomination, Placement, Resources, RolePlacement, RunningGang, Wait
from muster.spec.pod_request import pod_request
from muster.state.requests import max_amount_per_pod, node_affinity, tolerations
from muster.validation import invalid_dependency

NEVER = float("inf")
_SLOT = Resources.of({"pods": 1})
_MAX_TERMINATING_AMOUNT = 2**56  # of anything, by one gang: pods created by other tools may request more than their job
_TIMEOUTS = Timeouts()  # how long capacity is retained is an estimate until the nomination is written


@dataclass(frozen=True, slots=True)
class JobProjection:
    """At most one of `pending`, `running` and `rejected` is set. `changes_at`: when it may change by time alone."""

    pending: Gang | None = None
    running: RunningGang | None = None
    nomination: Nomination | None = None
    rejected: Wait | None = None
    changes_at: float = NEVER


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a job's projection depends on beside the job: changes rarely."""

    flavor_of: Mapping[str, str]  # by node
    queues: Mapping[str, spec.Queue]
    namespaces: Mapping[str, Mapping[str, str]]  # labels by name
    allowed_namespaces: Mapping[tuple[str, str], bool]  # by (queue, namespace)
    priority_classes: Mapping[str, int]  # values by name
    decode_errors: DecodeErrors


def project_job(
    job: spec.TrainingJob, pods: Sequence[PodView], now: float, context: JobContext, gang: Gang
) -> JobProjection:
    """The projection of a job now; `gang` is the result of `to_gang`."""
    status = job.status
    hold = _nomination(job, gang, now)
    hold_until = NEVER if hold is None else hold.expires_at
    deleted = job.metadata.deletion_timestamp is not None
    if is_admitted(status) and not (is_finished(status) or deleted):
        return JobProjection(running=_running_gang(job, pods, gang, now))
    if any(pod.phase in ACTIVE_POD_PHASES for pod in pods):
        gang, left = _remaining_pods(pods, gang, context.flavor_of)
        admitted_at = status.admitted_at if status.admitted_at is not None else now
        leaving = RunningGang(gang, left, admitted_at=admitted_at, started_at=status.started_at, state="terminating")
        return JobProjection(running=leaving if left else None, nomination=hold, changes_at=hold_until)
    if deleted or is_finished(status) or is_condition_true(status, SUSPENDED) or job.spec.suspend or job.spec.cancel:
        return JobProjection()
    expiries = [entry.until for entry in status.blamed_nodes if entry.until > now]
    if status.requeue_after is not None and now < status.requeue_after:
        return JobProjection(nomination=hold, changes_at=min(status.requeue_after, hold_until))
    refused = _rejection(job, context)
    if refused is not None:
        return JobProjection(rejected=refused, nomination=hold, changes_at=hold_until)
    return JobProjection(pending=gang, nomination=hold, changes_at=min([*expiries, hold_until]))


def to_gang(
    job: spec.TrainingJob, now: float, priority_classes: Mapping[str, int], roles: tuple[model.Role, ...]
) -> Gang:
    """The gang of a job; `roles` is the result of `to_roles` for its spec."""
    meta, wanted, status = job.metadata, job.spec, job.status
    priority = priority_of(wanted, priority_classes)
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
        grace_s=max_grace_period_s(job),
        start_timeout_s=float(wanted.start_timeout_seconds),
        excluded_nodes=frozenset(entry.node for entry in status.blamed_nodes if entry.until > now),
    )


def priority_of(job_spec: spec.TrainingJobSpec, classes: Mapping[str, int]) -> int | None:
    """The effective priority: the job's own, or the value of its PriorityClass. None: the class does not exist."""
    return job_spec.priority if job_spec.priority_class_name is None else classes.get(job_spec.priority_class_name)


def to_roles(job_spec: spec.TrainingJobSpec) -> tuple[model.Role, ...]:
    """The roles of a gang, each with the request of one of its pods."""
    requests = [pod_request(role.template.spec) for role in job_spec.roles]
    most = max_amount_per_pod((role.replicas, request) for role, request in zip(job_spec.roles, requests, strict=True))
    return tuple(
        model.Role(
            name=role.name,
            replicas=job_spec.max_replicas(role),
            min_replicas=role.replicas if role.min_replicas is None else role.min_replicas,
            request=request.capped(most),
            flavors=tuple(role.flavors),
            topology=_topology(role.topology),
            node_selector=tuple(sorted(role.template.spec.node_selector.items())),
            affinity=node_affinity(role.template.spec.affinity),
            tolerations=tolerations(role.template.spec.tolerations),
        )
        for role, request in zip(job_spec.roles, requests, strict=True)
    )


def namespace(job: spec.TrainingJob) -> str:
    """The job's namespace; `default` if it names none."""
    return job.metadata.namespace or "default"


def _running_gang(job: spec.TrainingJob, pods: Sequence[PodView], gang: Gang, now: float) -> RunningGang:
    status = job.status
    roles = {role.name for role in gang.roles}
    # A gang whose roles were removed while it was admitted is evicted; the requests of those pods are unknown.
    placement = tuple(part for part in from_status(status.placement) if part.role in roles)
    stale = [pod for pod in pods if pod.attempt != status.attempt and pod.phase in ACTIVE_POD_PHASES]
    taken = _with_stale_pods(placement, stale) if stale else placement
    resizing = taken != placement
    kept = tuple(part for part in from_status(retained_placement(status, job.spec, now)) if part.role in roles)
    checkpoint = status.last_checkpoint
    return RunningGang(
        gang=gang,
        placement=taken,
        admitted_at=status.admitted_at if status.admitted_at is not None else gang.submitted_at,
        started_at=status.started_at,
        checkpoint_at=None if checkpoint is None else checkpoint.at,
        resized_at=status.resized_at,
        state="evicting" if is_evicting(status) or resizing else "admitted",
        preemptor=None if status.eviction is None else status.eviction.beneficiary or None,
        retained_placement=placement if resizing and not is_evicting(status) else kept,
        retained_until=retained_until(job, _TIMEOUTS) if kept else None,
    )


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


def _remaining_pods(pods: Sequence[PodView], gang: Gang, flavor_of: Mapping[str, str]) -> tuple[Gang, Placement]:
    """Pods that still take capacity, by role and flavor, as a gang. Pods on deleted nodes take none."""
    here = [pod for pod in pods if pod.phase in ACTIVE_POD_PHASES and pod.node in flavor_of]
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


def _nomination(job: spec.TrainingJob, gang: Gang, now: float) -> Nomination | None:
    hold = job.status.nomination
    if hold is None or now >= hold.expires_at or job.metadata.deletion_timestamp is not None:
        return None
    return Nomination(
        job.metadata.uid, from_status(hold.placement), tuple(hold.victims), hold.expires_at, nominated_gang=gang
    )


def _rejection(job: spec.TrainingJob, context: JobContext) -> Wait | None:
    queue = job.spec.queue
    if queue not in context.queues:
        known = ", ".join(sorted(context.queues)[:8]) or "none"
        message = f"queue {queue} does not exist; existing queues: {known}"
        return Wait(job.metadata.uid, "QueueNotFound", message)
    fault = invalid_dependency(job, context.queues, context.decode_errors.queues, context.decode_errors.flavors)
    if fault is not None:
        return Wait(job.metadata.uid, *fault)
    if not context.allowed_namespaces[queue, namespace(job)]:
        message = f"queue {queue} does not admit jobs of namespace {namespace(job)} (its namespaceSelector)"
        return Wait(job.metadata.uid, "QueueNotAllowed", message)
    if priority_of(job.spec, context.priority_classes) is None:
        message = f"spec.priorityClassName: PriorityClass {job.spec.priority_class_name!r} does not exist"
        return Wait(job.metadata.uid, "PriorityClassNotFound", message)
    return None


def _topology(request: spec.TopologyRequest | None) -> model.Topology | None:
    return None if request is None else model.Topology(request.required, request.preferred)
