"""TrainingJob as a `Workload`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster import model
from muster.api import spec
from muster.api.spec.pods import pod_request
from muster.cluster import PodView
from muster.lifecycle import (
    Timeouts,
    ended_pods,
    from_status,
    held_placement,
    is_admitted,
    is_evicting,
    is_finished,
    max_grace_period_s,
    retained_placement,
    retained_until,
)
from muster.lifecycle.conditions import (
    CANCELLED,
    COMPLETE,
    EVICTED,
    FAILED,
    SUSPENDED,
    find_condition,
    is_condition_true,
)
from muster.model import Gang, Nomination
from muster.workload import Admission
from muster.workload.requests import max_amount_per_pod, node_affinity, tolerations

_TIMEOUTS = Timeouts()  # how long capacity is retained is an estimate until the nomination is written


class TrainingJobWorkload:
    """See `Workload`."""

    __slots__ = ("_job", "_max_grace_s")

    def __init__(self, job: spec.TrainingJob, max_grace_s: float = spec.DEFAULT_MAX_GRACE_PERIOD_S) -> None:
        """`max_grace_s`: the longest grace period that the job's queue allows."""
        self._job = job
        self._max_grace_s = max_grace_s

    @property
    def uid(self) -> str:
        """The job's uid."""
        return self._job.metadata.uid

    @property
    def namespace(self) -> str:
        """The job's namespace; `default` if it names none."""
        return self._job.metadata.namespace or "default"

    @property
    def priority_class(self) -> str | None:
        """`spec.priorityClassName`."""
        return self._job.spec.priority_class_name

    @property
    def roles_key(self) -> object:
        """The spec: jobs that were created alike share it."""
        return self._job.spec

    @property
    def wants_capacity(self) -> bool:
        """See `Workload`."""
        job = self._job
        return not (
            job.metadata.deletion_timestamp is not None
            or is_finished(job.status)
            or is_condition_true(job.status, SUSPENDED)
            or job.spec.suspend
            or job.spec.cancel
        )

    @property
    def admitted_at(self) -> float | None:
        """`status.admittedAt`."""
        return self._job.status.admitted_at

    @property
    def started_at(self) -> float | None:
        """`status.startedAt`."""
        return self._job.status.started_at

    @property
    def stopping_since(self) -> float | None:
        """See `Workload`."""
        found = (find_condition(self._job.status, kind) for kind in (COMPLETE, FAILED, CANCELLED, EVICTED))
        return max(
            (one.last_transition_time for one in found if one is not None and one.status == "True"), default=None
        )

    @property
    def requeue_after(self) -> float | None:
        """`status.requeueAfter`."""
        return self._job.status.requeue_after

    @property
    def blamed_nodes(self) -> Sequence[spec.BlamedNode]:
        """`status.blamedNodes`."""
        return self._job.status.blamed_nodes

    def roles(self) -> tuple[model.Role, ...]:
        """See `Workload`."""
        return to_roles(self._job.spec)

    def priority(self, priority_classes: Mapping[str, int]) -> int | None:
        """See `Workload`."""
        return priority_of(self._job.spec, priority_classes)

    def gang(self, now: float, priority_classes: Mapping[str, int], roles: tuple[model.Role, ...]) -> Gang:
        """See `Workload`."""
        meta, wanted, status = self._job.metadata, self._job.spec, self._job.status
        priority = priority_of(wanted, priority_classes)
        if priority is None:  # the class of a running job may be deleted
            priority = status.priority or 0
        return Gang(
            uid=meta.uid,
            name=f"{self.namespace}/{meta.name}",
            queue=wanted.queue,
            priority=priority,
            submitted_at=status.submitted_at if status.submitted_at is not None else now,
            roles=roles,
            flavors=tuple(wanted.flavors),
            topology=_topology(wanted.topology),
            max_runtime_s=None if wanted.max_runtime_seconds is None else float(wanted.max_runtime_seconds),
            grace_s=max_grace_period_s(self._job, self._max_grace_s),
            start_timeout_s=float(wanted.start_timeout_seconds),
            excluded_nodes=frozenset(entry.node for entry in status.blamed_nodes if entry.until > now),
            borrowing_head_since=status.borrowing_head_since,
            evictions=tuple(model.PastEviction(one.at, one.queue) for one in status.evictions),
        )

    def admission(self, now: float, pods: Sequence[PodView]) -> Admission | None:
        """See `Workload`."""
        job, status = self._job, self._job.status
        if not is_admitted(status) or is_finished(status) or job.metadata.deletion_timestamp is not None:
            return None
        retained = retained_placement(status, job.spec, now)
        return Admission(
            placement=held_placement(status, pods, retained),
            pods_ended=bool(ended_pods(status, pods)),
            attempt=status.attempt,
            evicting=is_evicting(status),
            checkpoint_at=None if status.last_checkpoint is None else status.last_checkpoint.at,
            resized_at=status.resized_at,
            preemptor=None if status.eviction is None else status.eviction.beneficiary or None,
            retained_placement=from_status(retained),
            retained_until=retained_until(job, _TIMEOUTS, self._max_grace_s) if retained else None,
        )

    def nomination(self, now: float, gang: Gang) -> Nomination | None:
        """See `Workload`."""
        nomination = self._job.status.nomination
        if nomination is None or now >= nomination.expires_at or self._job.metadata.deletion_timestamp is not None:
            return None
        placement, victims = from_status(nomination.placement), tuple(nomination.victims)
        return Nomination(self.uid, placement, victims, nomination.expires_at, nominated_gang=gang)


def to_gang(job: spec.TrainingJob, now: float, priority_classes: Mapping[str, int]) -> Gang:
    """The gang of a job."""
    return TrainingJobWorkload(job).gang(now, priority_classes, to_roles(job.spec))


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


def _topology(request: spec.TopologyRequest | None) -> model.Topology | None:
    return None if request is None else model.Topology(request.required, request.preferred)
