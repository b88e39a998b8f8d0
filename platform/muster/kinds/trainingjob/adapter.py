"""TrainingJob as a `Workload`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster import model
from muster.api import spec
from muster.api.spec.pods import pod_request
from muster.cluster import PodView
from muster.kinds.trainingjob.attempt import evaluate_attempt, evaluate_completion, has_done_all_steps
from muster.kinds.trainingjob.pods import matches_spec
from muster.kinds.trainingjob.records import record_checkpoint, record_progress, record_run_time, record_scale
from muster.kinds.trainingjob.running import create_missing_pods, delete_pods
from muster.kinds.trainingjob.stalls import record_stall
from muster.kinds.trainingjob.stops import record_stop
from muster.model import Gang, GangKey
from muster.workload.finished_pods import record_finished_pods
from muster.workload.observation import Observation
from muster.workload.planning import gang_of
from muster.workload.protocol import RunState, RunWrites, Transition, Workload
from muster.workload.requests import max_amount_per_pod, node_affinity, tolerations
from muster.workload.start_conditions import UNCONDITIONAL, StartConditions
from muster.workload.timeouts import Timeouts

_NO_CONDITIONS: dict[str, object] = {"depends_on": [], "singleton": None, "begin_time": None, "start_deadline": None}


@dataclass(frozen=True, slots=True)
class TrainingJobWorkload:
    """See `Workload`. Two of equal jobs are equal."""

    job: spec.TrainingJob

    # ---- the object

    @property
    def kind(self) -> str:
        """TrainingJob."""
        return self.job.kind

    @property
    def metadata(self) -> spec.ObjectMeta:
        return self.job.metadata

    @property
    def key(self) -> GangKey:
        return self.job.metadata.uid

    @property
    def status(self) -> spec.TrainingJobStatus:
        return self.job.status

    def with_status(self, status: spec.QueueingStatus) -> TrainingJobWorkload:
        if status is self.job.status:
            return self
        return TrainingJobWorkload(self.job.model_copy(update={"status": status}))

    # ---- what it asks for

    @property
    def queue(self) -> str:
        return self.job.spec.queue

    @property
    def own_priority(self) -> int:
        return self.job.spec.priority

    @property
    def priority_class(self) -> str | None:
        return self.job.spec.priority_class_name

    @property
    def roles_key(self) -> object:
        """The spec: jobs that were created alike share it."""
        return self.job.spec

    def roles(self) -> tuple[model.Role, ...]:
        return to_roles(self.job.spec)

    @property
    def flavors(self) -> Sequence[str]:
        return self.job.spec.flavors

    @property
    def topology(self) -> model.Topology | None:
        return _topology(self.job.spec.topology)

    @property
    def start_conditions(self) -> StartConditions:
        """`spec.dependsOn` and what is next to it."""
        return start_conditions_of(self.job.spec)

    @property
    def max_runtime_s(self) -> float | None:
        seconds = self.job.spec.max_runtime_seconds
        return None if seconds is None else float(seconds)

    @property
    def start_timeout_s(self) -> float:
        return float(self.job.spec.start_timeout_seconds)

    @property
    def grace_s(self) -> float:
        roles = self.job.spec.roles
        return float(max(role.template.spec.termination_grace_period_seconds for role in roles))

    @property
    def ttl_after_finished_s(self) -> float | None:
        return self.job.spec.ttl_seconds_after_finished

    @property
    def replaces_pods(self) -> bool:
        """False: Muster creates its pods, each under a name of its own."""
        return False

    @property
    def is_suspended(self) -> bool:
        return self.job.spec.suspend

    @property
    def is_cancelled(self) -> bool:
        return self.job.spec.cancel

    @property
    def is_group(self) -> bool:
        return False

    def gang(self, index: int) -> TrainingJobWorkload | None:
        return None

    @property
    def active_gangs(self) -> int:
        return 0

    def allows(self, placement: Sequence[spec.RolePlacementStatus]) -> bool:
        return matches_spec(placement, self.job.spec)

    # ---- how it runs

    @property
    def creates_pods(self) -> bool:
        """False: Muster creates and deletes its pods."""
        return False

    @property
    def checkpoint_at(self) -> float | None:
        checkpoint = self.job.status.last_checkpoint
        return None if checkpoint is None else checkpoint.at

    def observe(self, status: spec.QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunState:
        """See `Workload`: whether the present attempt has completed, or ends for another reason."""
        job, own = self.job, _own(status)
        finished = evaluate_completion(job, own, observation, timeouts)
        following = evaluate_attempt(job, own, observation, timeouts) if finished is None else finished
        return RunState(finished, following)

    def start(self, status: spec.QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunWrites:
        return create_missing_pods(self.job, _own(status), observation, timeouts)

    def stop(self, pods: Sequence[PodView], observation: Observation, timeouts: Timeouts) -> RunWrites:
        return delete_pods(self.job, pods, observation, timeouts)

    def record(self, status: spec.QueueingStatus, observation: Observation, timeouts: Timeouts) -> Transition:
        """See `Workload`: checkpoint, progress, completed pods, a stall, a stop, size."""
        done = has_done_all_steps(_own(status), observation.heartbeat)
        pods = record_finished_pods(self.job.status, status, observation, timeouts, done=done)
        own, checkpoint_due = record_checkpoint(self.job, _own(pods.status), observation, timeouts)
        own, progress_due = record_progress(self.job, own, observation, timeouts)
        own, run_time_due = record_run_time(self.job, own, observation, timeouts)
        due = [at for at in (checkpoint_due, progress_due, run_time_due) if at is not None]
        stall = record_stall(self.job, own, observation)
        stop = record_stop(self.job, _own(stall.status), observation)
        wake_times = (*due, *pods.wake_times, *stall.wake_times)
        return Transition(record_scale(self.job, _own(stop.status)), stop.event or stall.event, wake_times)


def _own(status: spec.QueueingStatus) -> spec.TrainingJobStatus:
    """The status of a TrainingJob: transitions keep its type."""
    assert isinstance(status, spec.TrainingJobStatus)
    return status


def start_conditions_of(wanted: spec.TrainingJobSpec) -> StartConditions:
    """What has to hold before a job with this spec may start."""
    if not (wanted.depends_on or wanted.singleton or wanted.begin_time or wanted.start_deadline):
        return UNCONDITIONAL
    return StartConditions(
        tuple(wanted.depends_on),
        wanted.singleton,
        wanted.begin_time,
        wanted.start_deadline,
        wanted.cancel_if_unsatisfiable,
    )


def reuse(known: TrainingJobWorkload | None, job: spec.TrainingJob) -> TrainingJobWorkload:
    """The workload of a job, which is `known` as long as the job is the same object: changes are found by identity."""
    return known if known is not None and known.job is job else TrainingJobWorkload(job)


def training_jobs(workloads: Iterable[Workload]) -> tuple[spec.TrainingJob, ...]:
    """Those of the workloads that are TrainingJobs: not the indices of arrays."""
    return tuple(one.job for one in workloads if isinstance(one, TrainingJobWorkload) and one.kind == one.job.kind)


def submitted_anew(job: spec.TrainingJob, now: float) -> TrainingJobWorkload:
    """The job as if it were submitted now, neither suspended nor cancelled, and as if it need not wait for others."""
    meta = job.metadata.model_copy(update={"uid": job.metadata.uid or "assessed"})
    wanted = job.spec.model_copy(update={"suspend": False, "cancel": False, **_NO_CONDITIONS})
    status = spec.TrainingJobStatus(submitted_at=now)
    return TrainingJobWorkload(job.model_copy(update={"metadata": meta, "spec": wanted, "status": status}))


def to_gang(job: spec.TrainingJob, now: float, priority_classes: Mapping[str, int]) -> Gang:
    """The gang of a job."""
    return gang_of(TrainingJobWorkload(job), now, priority_classes, to_roles(job.spec), spec.DEFAULT_MAX_GRACE_PERIOD_S)


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
