"""TrainingJob: what the user wants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from muster.model import MAX_AMOUNT
from muster.quantity import format_quantity, parse_quantity
from muster.spec.depth import check_spec_depth
from muster.spec.fields import MAX_JOB_NAME, MAX_REPLICAS, MAX_SECONDS, ListMapKey, Name, ObjectName, Seconds
from muster.spec.job_status import TrainingJobStatus
from muster.spec.limits import check_roles_size
from muster.spec.meta import ObjectMeta, StrictModel
from muster.spec.pod_request import pod_request
from muster.spec.pods import PodTemplate

MAX_POD_NAME = 63  # it is a host's name too
POD_NAME_SUFFIX_LENGTH = len("---") + 5  # of <job>-<role>-<index>-<hash5>

FlavorNames = Annotated[list[ObjectName], Field(max_length=32)]


def max_job_name_length(roles: Iterable[tuple[str, int]]) -> int:
    """How long the name of a job with these roles (name, replicas) may be; 0 or less when a role's name is too long.

    Pods are called `<job>-<role>-<index>-<hash5>`, and that is a host's name too.
    """
    longest = max((len(name) + len(str(replicas - 1)) for name, replicas in roles), default=0)
    return min(MAX_JOB_NAME, MAX_POD_NAME - POD_NAME_SUFFIX_LENGTH - longest)


class TopologyRequest(StrictModel):
    """Level names of the flavor: all pods in one domain of `required`, of `preferred` when there is room."""

    required: Annotated[str, Field(max_length=MAX_JOB_NAME)] | None = None
    """The level of which one domain must hold all pods, e.g. block."""
    preferred: Annotated[str, Field(max_length=MAX_JOB_NAME)] | None = None
    """A narrower level of which one domain shall hold them when there is room, e.g. rack."""


class RoleSpec(StrictModel):
    """Pods that are alike."""

    name: Name
    """The role's name, part of its pods' names."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Number of pods."""
    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Makes the role elastic: it runs with this many pods up to `replicas`. Left out: all of them or none."""
    essential: bool = True
    """The job is complete when the pods of all essential roles have exited with 0."""
    flavors: FlavorNames = []
    """Kinds of node, tried in order; left out: the job's."""
    topology: TopologyRequest | None = None
    """Where the role's pods are to lie together; left out: the job's, together with all other roles that leave it
    out."""
    template: PodTemplate
    """The pods: a PodTemplateSpec. Unknown fields are kept; nodeName, schedulerName, priorityClassName and any
    restartPolicy but Never are refused."""

    @model_validator(mode="after")
    def _min_within_replicas(self) -> RoleSpec:
        if self.min_replicas is not None and self.min_replicas > self.replicas:
            raise ValueError(
                f"minReplicas: {self.min_replicas} is above replicas {self.replicas}; write at most {self.replicas}"
            )
        return self

    @model_validator(mode="after")
    def _total_can_be_counted(self) -> RoleSpec:
        pod = self.template.spec
        for resources in (*(container.resources for container in pod.containers), pod.resources):
            for name, value in {**resources.limits, **resources.requests}.items():
                if parse_quantity(value, name) * self.replicas > MAX_AMOUNT:
                    raise ValueError(
                        f"replicas: {self.replicas} pods of {name} {value} are more than anything can have; "
                        "lower replicas or the request"
                    )
        for name, amount in pod_request(self.template.spec):
            if amount * self.replicas > MAX_AMOUNT:
                pods = "1 pod" if self.replicas == 1 else f"{self.replicas} pods"
                raise ValueError(
                    f"replicas: {pods} of {name} {format_quantity(amount, name)}, all containers together, are more "
                    "than anything can have; lower replicas or the requests"
                )
        return self

    @property
    def is_elastic(self) -> bool:
        """Whether it may have fewer pods than `replicas`."""
        return self.min_replicas is not None and self.min_replicas < self.replicas


class FailureRule(StrictModel):
    """What to do when the first failed container ended with one of these codes, or with this pod condition."""

    on_exit_codes: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(max_length=255)] = []
    """Exit codes; 128 + signal when a signal ended it."""
    on_pod_conditions: Annotated[list[Annotated[str, Field(max_length=316)]], Field(max_length=64)] = []
    """Types of pod conditions that are True, e.g. DisruptionTarget."""
    action: Literal["RestartGang", "RestartElsewhere", "FailJob"]
    """RestartGang: a new attempt. RestartElsewhere: one that avoids the node. FailJob: no further attempt."""

    @model_validator(mode="after")
    def _matches_something(self) -> FailureRule:
        if not self.on_exit_codes and not self.on_pod_conditions:
            raise ValueError("matches nothing; write onExitCodes or onPodConditions")
        return self


class FailurePolicy(StrictModel):
    """Rules are tried in order; without a match the gang is restarted until `maxRestarts` is used up."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 3
    """How often a failed gang is started anew. Evictions, resizes, lost nodes and start timeouts do not count."""
    max_start_retries: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """How often in a row a gang that is not ready within `startTimeoutSeconds` is queued again; absent: without limit.
    The count ends when all pods are ready."""
    rules: Annotated[list[FailureRule], Field(max_length=64)] = []
    """The rules."""


class TraceRequest(StrictModel):
    """Profile `steps` steps from `startStep` (1 is the first) on `ranks`; empty: all."""

    start_step: Annotated[int, Field(ge=1, le=10**9)]
    """The first step of the trace, counted from 1."""
    steps: Annotated[int, Field(ge=1, le=1000)]
    """Number of steps."""
    ranks: Annotated[list[Annotated[int, Field(ge=0, le=10**9)]], Field(max_length=4096)] = []
    """The ranks that write a trace; left out: all."""


class TrainingJobSpec(StrictModel):
    """One gang and how it is to be treated."""

    queue: ObjectName = "default"
    """The queue whose quota the job uses."""
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    """Higher goes first, within the queue only."""
    priority_class_name: ObjectName | None = None
    """A PriorityClass whose value is the priority; instead of `priority`. The job waits until it exists."""
    max_runtime_seconds: Seconds | None = None
    """Bounds each stay, restarts included: then SIGTERM, grace, and the job has failed. Lets others start behind a
    reservation, and gives estimates."""
    start_timeout_seconds: Seconds = 600
    """All pods must be ready within this time, or the gang is torn down and queued again."""
    stall_timeout_seconds: Seconds | None = None
    """No step for so long is a failure: a hung collective looks alive. Left out: never."""
    suspend: bool = False
    """Releases everything; false again queues the job where it was."""
    cancel: bool = False
    """Stops the job for good and keeps its record. One way."""
    flavors: FlavorNames = []
    """Kinds of node, tried in order; left out: all that the queue names."""
    topology: TopologyRequest | None = None
    """Where all pods are to lie together."""
    roles: Annotated[list[RoleSpec], Field(min_length=1, max_length=32), ListMapKey("name", "give every role its own")]
    """One gang; usually one role."""
    elastic_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """How many pods the one elastic role may have now, from its `minReplicas` to its `replicas`: what `kubectl scale`
    and a HorizontalPodAutoscaler set. Left out: its `replicas`."""
    failure_policy: FailurePolicy = FailurePolicy()
    """What a failure leads to."""
    trace: TraceRequest | None = None
    """Which steps to profile."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = None
    """The job is deleted so long after its end; left out: kept."""

    @model_validator(mode="after")
    def _one_priority(self) -> TrainingJobSpec:
        if self.priority_class_name is not None and self.priority != 0:
            raise ValueError("priorityClassName: priority is set too; write one of them")
        return self

    @model_validator(mode="after")
    def _one_elastic_role(self) -> TrainingJobSpec:
        elastic = [role.name for role in self.roles if role.is_elastic]
        if self.elastic_replicas is not None and len(elastic) != 1:
            raise ValueError(
                "elasticReplicas: needs exactly one elastic role (minReplicas below replicas); elastic are: "
                f"{', '.join(elastic) or 'none'}"
            )
        return self

    @model_validator(mode="after")
    def _elastic_within_role(self) -> TrainingJobSpec:
        for role in self.roles if self.elastic_replicas is not None else ():
            least, most = role.min_replicas, role.replicas
            if least is not None and least < most and not least <= (self.elastic_replicas or 0) <= most:
                raise ValueError(
                    f"elasticReplicas: must be from minReplicas ({least}) to replicas ({most}) of role {role.name}; "
                    f"got {self.elastic_replicas}"
                )
        return self

    @property
    def elastic_role(self) -> RoleSpec | None:
        """The role that is scaled by one number; None where none or several are elastic."""
        elastic = [role for role in self.roles if role.is_elastic]
        return elastic[0] if len(elastic) == 1 else None

    def max_replicas(self, role: RoleSpec) -> int:
        """How many pods a role of the job may have now."""
        return self.elastic_replicas if self.elastic_replicas is not None and role.is_elastic else role.replicas

    @model_validator(mode="after")
    def _can_complete(self) -> TrainingJobSpec:
        if not any(role.essential for role in self.roles):
            raise ValueError("roles: none is essential; at least one must be, or the job could never complete")
        return self


def _was_accepted(document: Any) -> bool:
    """Whether the status tells that the job was taken, maybe before its roles had bounds."""
    status = document.get("status") if isinstance(document, dict) else None
    return isinstance(status, dict) and status.get("submittedAt") is not None


class TrainingJob(StrictModel):
    """One training job: one gang, whose pods start all together or not at all."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["TrainingJob"] = "TrainingJob"
    metadata: ObjectMeta
    spec: TrainingJobSpec
    """What the user wants."""
    status: TrainingJobStatus = TrainingJobStatus()
    """What became of it."""

    @model_validator(mode="before")
    @classmethod
    def _check_size_and_depth(cls, document: Any) -> Any:
        check_spec_depth(document)
        return document if _was_accepted(document) else check_roles_size(document)

    @field_validator("metadata")
    @classmethod
    def _name_fits_into_pod_names(cls, metadata: ObjectMeta) -> ObjectMeta:
        if len(metadata.name) > MAX_JOB_NAME or "." in metadata.name:
            raise ValueError(
                f"name: {metadata.name!r} cannot begin the names of pods; write at most {MAX_JOB_NAME} lower-case "
                "letters, digits and '-'"
            )
        return metadata

    @model_validator(mode="after")
    def _pod_names_fit_into_host_names(self) -> TrainingJob:
        most = max_job_name_length((role.name, role.replicas) for role in self.spec.roles)
        if len(self.metadata.name) > most:
            raise ValueError(
                f"metadata.name: with its role and index, {self.metadata.name!r} makes names of pods of more than "
                f"{MAX_POD_NAME} characters; write at most {max(most, 0)}, or shorter names of roles"
            )
        return self
