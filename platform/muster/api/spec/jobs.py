"""TrainingJob and its spec."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from muster.api.quantity import format_quantity, parse_quantity
from muster.api.spec.arrays import ARRAY_NAME_LENGTH, ArraySpec
from muster.api.spec.fields import (
    MAX_JOB_NAME,
    MAX_REPLICAS,
    MAX_SECONDS,
    GivenTime,
    ListMapKey,
    Name,
    ObjectMeta,
    ObjectName,
    Seconds,
    StrictModel,
)
from muster.api.spec.job_status import TrainingJobStatus
from muster.api.spec.limits import check_roles_size, check_spec_depth
from muster.api.spec.pods import PodTemplate, pod_request
from muster.api.spec.start import MAX_DEPENDENCIES, JobDependency
from muster.model import MAX_AMOUNT

MAX_POD_NAME = 63  # it is also the pod's host name
POD_NAME_SUFFIX_LENGTH = len("---") + 5  # of <job>-<role>-<index>-<hash5>

FlavorNames = Annotated[list[ObjectName], Field(max_length=32)]


def max_job_name_length(roles: Iterable[tuple[str, int]]) -> int:
    """The maximum length of the name of a job with these roles (name, replicas); at most 0 if none is valid.

    Pods are named `<job>-<role>-<index>-<hash5>`, which is also their host name.
    """
    longest = max((len(name) + len(str(replicas - 1)) for name, replicas in roles), default=0)
    return min(MAX_JOB_NAME, MAX_POD_NAME - POD_NAME_SUFFIX_LENGTH - longest)


class TopologyRequest(StrictModel):
    """Topology levels of the flavor: all pods in one domain of `required`, and of `preferred` if it has capacity."""

    required: Annotated[str, Field(max_length=MAX_JOB_NAME)] | None = None
    """The level at which one domain must contain all pods, e.g. block."""
    preferred: Annotated[str, Field(max_length=MAX_JOB_NAME)] | None = None
    """A narrower level at which one domain should contain all pods if it has capacity, e.g. rack."""


class RoleSpec(StrictModel):
    """A role is a set of pods with the same template."""

    name: Name
    """Name of the role, unique in a job. Part of the names of its pods."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Number of pods."""
    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Minimum number of pods. Makes the role elastic: it runs with `minReplicas` to `replicas` pods. Default:
    `replicas`."""
    essential: bool = True
    """Whether the role counts for completion: the job is complete when all pods of all essential roles have exited with
    0. At least one role must be essential."""
    flavors: FlavorNames = []
    """Flavors, tried in order. Default: those of the job."""
    topology: TopologyRequest | None = None
    """Topology constraint of the role's pods. Default: that of the job, together with all other roles that do not set
    it."""
    template: PodTemplate
    """A PodTemplateSpec. Unknown fields are preserved; nodeName, schedulerName, priorityClassName and any restartPolicy
    other than Never are refused."""

    @model_validator(mode="after")
    def _min_within_replicas(self) -> RoleSpec:
        if self.min_replicas is not None and self.min_replicas > self.replicas:
            raise ValueError(f"minReplicas: must be at most replicas ({self.replicas}); got {self.min_replicas}")
        return self

    @model_validator(mode="after")
    def _total_can_be_counted(self) -> RoleSpec:
        pod = self.template.spec
        for resources in (*(container.resources for container in pod.containers), pod.resources):
            for name, value in {**resources.limits, **resources.requests}.items():
                if parse_quantity(value, name) * self.replicas > MAX_AMOUNT:
                    raise ValueError(
                        f"replicas: {name} of all pods together must be less than 2^62; got {self.replicas} pods of "
                        f"{value}; lower replicas or the request"
                    )
        for name, amount in pod_request(self.template.spec):
            if amount * self.replicas > MAX_AMOUNT:
                pods = "1 pod" if self.replicas == 1 else f"{self.replicas} pods"
                raise ValueError(
                    f"replicas: {name} of all pods together must be less than 2^62; got {pods} of "
                    f"{format_quantity(amount, name)}; lower replicas or the requests of the containers"
                )
        return self

    @property
    def is_elastic(self) -> bool:
        return self.min_replicas is not None and self.min_replicas < self.replicas


class FailureRule(StrictModel):
    """The action if the first failed container ended with one of these exit codes, or its pod has one of these
    conditions."""

    on_exit_codes: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(max_length=255)] = []
    """Exit codes; 128 + signal if a signal ended the container."""
    on_pod_conditions: Annotated[list[Annotated[str, Field(max_length=316)]], Field(max_length=64)] = []
    """Types of pod conditions with status True, e.g. DisruptionTarget."""
    action: Literal["RestartGang", "RestartElsewhere", "FailJob"]
    """RestartGang: a new attempt. RestartElsewhere: a new attempt that avoids the node. FailJob: no further attempt."""

    @model_validator(mode="after")
    def _matches_something(self) -> FailureRule:
        if not self.on_exit_codes and not self.on_pod_conditions:
            raise ValueError("must have onExitCodes or onPodConditions; got neither")
        return self


PERMANENT_EXIT_CODES = (2, 78, 126, 127)
"""Exit codes of a container that would fail again: those of a shell and of argparse for a command that is wrong or
cannot be started, and EX_CONFIG, with which Muster's launcher and trainer end if code cannot be imported."""


class FailurePolicy(StrictModel):
    """Rules are tried in order. Without a match the gang restarts until `maxRestarts` is reached."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 3
    """Maximum number of restarts of a failed gang. Evictions, resizes, lost nodes and start timeouts do not count."""
    max_start_retries: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Maximum number of consecutive start timeouts (`startTimeoutSeconds`) after which the gang is queued again.
    Default: unlimited. The count is reset when all pods are ready."""
    rules: Annotated[list[FailureRule], Field(max_length=64)] = [
        FailureRule(on_exit_codes=list(PERMANENT_EXIT_CODES), action="FailJob")
    ]
    """Failure rules. The default fails the job for exit codes that a restart does not change: 2 (wrong usage), 78 (a
    Python module is missing or has a syntax error, as Muster's launcher finds), 126 and 127 (the command cannot be
    started). `[]` restarts for every exit code."""


class TraceRequest(StrictModel):
    """Profile `steps` steps from `startStep` (the first step is 1) on `ranks` (empty: all), once or repeatedly."""

    start_step: Annotated[int, Field(ge=1, le=10**9)] = 20
    """The first step of the trace, counted from 1."""
    steps: Annotated[int, Field(ge=1, le=1000)] = 5
    """Number of steps."""
    ranks: Annotated[list[Annotated[int, Field(ge=0, le=10**9)]], Field(max_length=4096)] = []
    """The ranks that write a trace. Default: all ranks."""
    every: Annotated[int, Field(ge=2, le=10**9)] | None = None
    """Profile as many steps again every so many steps. Must be above `steps`. Default: once."""
    when_slower: Annotated[float, Field(ge=1.1, le=100)] | None = None
    """Profile as many steps also after a step that takes so many times the median of the rank's last 100, such as 1.5.
    At most once in 100 steps. Default: not."""

    @model_validator(mode="after")
    def _every_above_steps(self) -> TraceRequest:
        if self.every is not None and self.every <= self.steps:
            raise ValueError(f"every: must be above steps ({self.steps}); got {self.every}")
        return self


class TrainingJobSpec(StrictModel):
    """The desired state of a TrainingJob."""

    queue: ObjectName = "default"
    """The queue whose quota the job uses."""
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    """Priority within the queue. Jobs with a higher value are admitted first."""
    priority_class_name: ObjectName | None = None
    """Name of a PriorityClass whose value is the priority. Must not be set together with `priority`. The job waits
    until the class exists."""
    max_runtime_seconds: Seconds | None = None
    """Maximum run time of each admission in seconds, including restarts. After it the pods get SIGTERM and their grace
    period, and the job fails. Enables backfill and estimated start times. Default: unlimited."""
    start_timeout_seconds: Seconds = 600
    """Seconds within which all pods must be ready; otherwise the gang is deleted and queued again."""
    stall_timeout_seconds: Seconds | None = None
    """Seconds without a new step, from the first step of an attempt on, after which the attempt fails, for example
    because a collective hangs. Default: unlimited."""
    first_step_timeout_seconds: Seconds | None = None
    """Seconds from the start of an attempt, when all pods are ready, to its first step or checkpoint, with imports and
    compilation; otherwise the attempt fails. Default: unlimited."""
    checkpoint_dir: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Folder in the pods in which the job's own checkpoints are looked for, absolute or relative to the run folder.
    They count if it is in a volume that outlives the pods. Default: the run folder."""
    depends_on: Annotated[
        list[JobDependency], Field(max_length=MAX_DEPENDENCIES), ListMapKey("job", "name each job once")
    ] = []
    """Jobs of the same namespace that have to end before this one is queued for capacity."""
    singleton: Name | None = None
    """Of the jobs of the namespace with the same value, one runs at a time, in the order of submission."""
    begin_time: GivenTime | None = None
    """Time before which the job does not start."""
    start_deadline: GivenTime | None = None
    """Time at which the job fails if it has not started. A job that has run may start again after it."""
    cancel_if_unsatisfiable: bool = False
    """Whether the job is cancelled once a job of `dependsOn` has ended otherwise than it has to. Default: it waits."""
    suspend: bool = False
    """Whether the job is suspended. true releases all its resources; false queues the job again at its former
    position."""
    cancel: bool = False
    """Whether the job is cancelled: it stops permanently, and its record is kept. Must not be changed from true to
    false."""
    flavors: FlavorNames = []
    """Flavors, tried in order. Default: all flavors of the queue."""
    topology: TopologyRequest | None = None
    """Topology constraint of all pods."""
    roles: Annotated[list[RoleSpec], Field(min_length=1, max_length=32), ListMapKey("name", "give every role its own")]
    """The roles of the gang; usually one."""
    array: ArraySpec | None = None
    """Makes the job an array: many gangs with these roles, each with an index in its environment
    (`MUSTER_ARRAY_INDEX`)."""
    elastic_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Number of pods of the only elastic role, from its `minReplicas` to its `replicas`; set by `kubectl scale` and a
    HorizontalPodAutoscaler. Default: its `replicas`."""
    failure_policy: FailurePolicy = FailurePolicy()
    """What happens after a failure."""
    trace: TraceRequest | None = None
    """The steps to profile."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = None
    """Seconds after its end until the job is deleted. Default: never."""

    @model_validator(mode="after")
    def _one_priority(self) -> TrainingJobSpec:
        if self.priority_class_name is not None and self.priority != 0:
            raise ValueError(f"priorityClassName: must not be set together with priority; got priority {self.priority}")
        return self

    @model_validator(mode="after")
    def _one_elastic_role(self) -> TrainingJobSpec:
        elastic = [role.name for role in self.roles if role.is_elastic]
        if self.elastic_replicas is not None and len(elastic) != 1:
            raise ValueError(
                "elasticReplicas: requires exactly one elastic role (minReplicas less than replicas); got "
                f"{', '.join(elastic) or 'none'}"
            )
        return self

    @model_validator(mode="after")
    def _elastic_within_role(self) -> TrainingJobSpec:
        for role in self.roles if self.elastic_replicas is not None else ():
            least, limit = role.min_replicas, role.replicas
            if least is not None and least < limit and not least <= (self.elastic_replicas or 0) <= limit:
                raise ValueError(
                    f"elasticReplicas: must be from minReplicas ({least}) to replicas ({limit}) of role {role.name}; "
                    f"got {self.elastic_replicas}"
                )
        return self

    @model_validator(mode="after")
    def _each_index_of_an_array(self) -> TrainingJobSpec:
        if self.array is None and any(one.each_index for one in self.depends_on):
            raise ValueError("dependsOn: eachIndex must not be true without array: the job has no indices")
        return self

    @model_validator(mode="after")
    def _array_without_traces(self) -> TrainingJobSpec:
        if self.array is not None and self.trace is not None:
            raise ValueError("trace: must not be set together with array; submit one job of it to record a trace")
        return self

    @model_validator(mode="after")
    def _deadline_after_begin(self) -> TrainingJobSpec:
        if self.begin_time is not None and self.start_deadline is not None and self.start_deadline <= self.begin_time:
            raise ValueError("startDeadline: must be after beginTime; got an earlier or the same time")
        return self

    @property
    def elastic_role(self) -> RoleSpec | None:
        """The only elastic role; None if none or several are elastic."""
        elastic = [role for role in self.roles if role.is_elastic]
        return elastic[0] if len(elastic) == 1 else None

    @property
    def has_step_timeout(self) -> bool:
        return self.stall_timeout_seconds is not None or self.first_step_timeout_seconds is not None

    def max_replicas(self, role: RoleSpec) -> int:
        """The maximum number of pods of a role: `elasticReplicas` for the elastic role if set, else `replicas`."""
        return self.elastic_replicas if self.elastic_replicas is not None and role.is_elastic else role.replicas

    @model_validator(mode="after")
    def _can_complete(self) -> TrainingJobSpec:
        if not any(role.essential for role in self.roles):
            raise ValueError("roles: at least one role must be essential, else the job cannot complete")
        return self


def _was_accepted(document: Any) -> bool:
    """Whether the job has been accepted before, perhaps by a version without limits on the size of roles."""
    status = document.get("status") if isinstance(document, dict) else None
    return isinstance(status, dict) and status.get("submittedAt") is not None


class TrainingJob(StrictModel):
    """TrainingJob is a gang of pods: they all start together, or none does."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["TrainingJob"] = "TrainingJob"
    metadata: ObjectMeta
    spec: TrainingJobSpec
    """The desired state."""
    status: TrainingJobStatus = TrainingJobStatus()
    """The observed state."""

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
                f"name: must be at most {MAX_JOB_NAME} lower-case letters, digits and '-', because names of pods begin "
                f"with it; got {metadata.name!r}"
            )
        return metadata

    @model_validator(mode="after")
    def _depends_on_others(self) -> TrainingJob:
        if any(one.job == self.metadata.name for one in self.spec.depends_on):
            raise ValueError(f"spec.dependsOn: must not name the job itself; got {self.metadata.name!r}")
        return self

    @model_validator(mode="after")
    def _pod_names_fit_into_host_names(self) -> TrainingJob:
        array = self.spec.array
        is_index = "/" in self.metadata.uid  # of an array, as readers show it
        infix = 0 if array is None or is_index else ARRAY_NAME_LENGTH
        limit = max_job_name_length((role.name, role.replicas) for role in self.spec.roles) - infix
        if len(self.metadata.name) > limit:
            form = "JOB-ROLE-INDEX-12345" if array is None else "JOB-ARRAYINDEX-ROLE-INDEX-12345"
            raise ValueError(
                f"metadata.name: must have at most {max(limit, 0)} characters, so that names of pods "
                f"({form}) have at most {MAX_POD_NAME}; got {self.metadata.name!r}; shorten it or the "
                "names of roles"
            )
        return self
