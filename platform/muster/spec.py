"""TrainingJob, Queue and Flavor as users write them: the one source of fields, defaults and the CRDs.

What one object shows wrong is refused here, by field, value and what would be right. What relates objects (an unknown
queue, a cycle) is `muster.admission`'s matter. Field names are those of Kubernetes: camelCase outside, snake_case in
Python.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from muster.quantity import LARGEST, parse_quantity

API_VERSION = "muster.dev/v1alpha1"
MAX_REPLICAS = 100_000
MAX_JOB_NAME = 52  # room for role, index and hash in the name of a pod
MAX_SECONDS = 366 * 24 * 3600

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=MAX_JOB_NAME)]
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", min_length=1, max_length=253)]
NamespaceName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]


def _parse_time(value: Any) -> Any:
    if isinstance(value, str):
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    return value


def _format_time(value: float) -> str:
    return datetime.fromtimestamp(value, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


Time = Annotated[float, BeforeValidator(_parse_time), PlainSerializer(_format_time, when_used="json")]
"""Unix seconds in Python, RFC 3339 with microseconds outside."""


def _check_quantities(amounts: Any) -> Any:
    if isinstance(amounts, dict):
        for name, value in amounts.items():
            parse_quantity(value, str(name))
        return {name: str(value) for name, value in amounts.items()}
    return amounts


Quantities = Annotated[dict[str, str], BeforeValidator(_check_quantities)]


def _check_tolerations(tolerations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for toleration in tolerations:
        operator, effect = toleration.get("operator", "Equal"), toleration.get("effect", "")
        if operator not in ("Equal", "Exists"):
            raise ValueError(f"operator {operator!r} of a toleration is not known; write Equal or Exists")
        if effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise ValueError(
                f"effect {effect!r} of a toleration is not known; write NoSchedule, PreferNoSchedule or NoExecute, "
                "or leave it out for all three"
            )
    return tolerations


Tolerations = Annotated[list[dict[str, Any]], AfterValidator(_check_tolerations)]
"""As in Kubernetes: key, operator, value, effect."""


class Strict(BaseModel):
    """Fields in camelCase outside; an unknown field is an error."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Open(BaseModel):
    """A part of a pod template: what is declared is read or refused, everything else is kept as it is."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True)


class ObjectMeta(Open):
    """The metadata of Kubernetes, as far as it is read."""

    name: ObjectName
    namespace: NamespaceName | None = None
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []


# ---- TrainingJob: what the user wants


class TopologyRequest(Strict):
    """Level names of the flavor: all pods in one domain of `required`, of `preferred` when there is room."""

    required: str | None = None
    preferred: str | None = None


class EnvVar(Open):
    """A literal variable, or one with `valueFrom` (kept for Kubernetes, refused on this host)."""

    name: str
    value: str | None = None


class ContainerResources(Open):
    """Requests and limits; a limit without a request is also the request."""

    requests: Quantities = {}
    limits: Quantities = {}


class Container(Open):
    """A container, as far as it is read."""

    name: str = "main"
    image: str | None = None
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []
    working_dir: str | None = None
    resources: ContainerResources = ContainerResources()
    restart_policy: str | None = None


class PodSpec(Open):
    """A pod's spec, as far as it is read."""

    containers: Annotated[list[Container], Field(min_length=1)]
    init_containers: list[Container] = []
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] = {}
    tolerations: Tolerations = []
    volumes: list[dict[str, Any]] = []
    overhead: Quantities = {}
    termination_grace_period_seconds: Annotated[int, Field(ge=0, le=86_400)] = 30
    restart_policy: Literal["Never"] = "Never"
    node_name: None = None
    scheduler_name: None = None
    priority_class_name: None = None


class TemplateMeta(Open):
    """Labels and annotations of the pods."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodTemplate(Open):
    """A PodTemplateSpec."""

    metadata: TemplateMeta = TemplateMeta()
    spec: PodSpec


class RoleSpec(Strict):
    """Pods that are alike."""

    name: Name
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    essential: bool = True
    flavors: list[ObjectName] = []
    topology: TopologyRequest | None = None
    template: PodTemplate

    @model_validator(mode="after")
    def _min_within_replicas(self) -> RoleSpec:
        if self.min_replicas is not None and self.min_replicas > self.replicas:
            raise ValueError(
                f"minReplicas: {self.min_replicas} is above replicas {self.replicas}; write at most {self.replicas}"
            )
        return self

    @model_validator(mode="after")
    def _total_can_be_counted(self) -> RoleSpec:
        for container in self.template.spec.containers:
            for name, value in {**container.resources.limits, **container.resources.requests}.items():
                if parse_quantity(value, name) * self.replicas > LARGEST:
                    raise ValueError(
                        f"replicas: {self.replicas} pods of {name} {value} are more than anything can have; "
                        "lower replicas or the request"
                    )
        return self


class FailureRule(Strict):
    """What to do when the first failed container ended with one of these codes, or with this pod condition."""

    on_exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = []
    on_pod_conditions: list[str] = []
    action: Literal["RestartGang", "RestartElsewhere", "FailJob"]

    @model_validator(mode="after")
    def _matches_something(self) -> FailureRule:
        if not self.on_exit_codes and not self.on_pod_conditions:
            raise ValueError("matches nothing; write onExitCodes or onPodConditions")
        return self


class FailurePolicy(Strict):
    """Rules are tried in order; without a match the gang is restarted until `maxRestarts` is used up."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 3
    rules: list[FailureRule] = []


class TraceRequest(Strict):
    """Profile `steps` steps from `startStep` (1 is the first) on `ranks`; empty: all."""

    start_step: Annotated[int, Field(ge=1, le=10**9)]
    steps: Annotated[int, Field(ge=1, le=1000)]
    ranks: list[Annotated[int, Field(ge=0)]] = []


class TrainingJobSpec(Strict):
    """One gang and how it is to be treated."""

    queue: ObjectName = "default"
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    priority_class_name: str | None = None
    max_runtime_seconds: Seconds | None = None
    start_timeout_seconds: Seconds = 600
    stall_timeout_seconds: Seconds | None = None
    suspend: bool = False
    cancel: bool = False  # one way: stop the job for good and keep its record
    flavors: list[ObjectName] = []
    topology: TopologyRequest | None = None
    roles: Annotated[list[RoleSpec], Field(min_length=1, max_length=32)]
    failure_policy: FailurePolicy = FailurePolicy()
    trace: TraceRequest | None = None
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> TrainingJobSpec:
        names = [role.name for role in self.roles]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"roles: the name {twice[0]!r} is used twice; give every role its own")
        if self.priority_class_name is not None and self.priority != 0:
            raise ValueError("priorityClassName: priority is set too; write one of them")
        if not any(role.essential for role in self.roles):
            raise ValueError("roles: none is essential; at least one must be, or the job could never complete")
        return self


# ---- TrainingJob: what became of it


class Condition(Open):
    """A standard condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: Time
    observed_generation: int = 0


class NodeShare(Open):
    """Pods `indexes` ("0-7" or "3") of a role on one node."""

    node: str
    indexes: str


class RoleStatusPlacement(Open):
    """Where the pods of one role are."""

    role: str
    flavor: str = ""
    nodes: list[NodeShare] = []


class HoldStatus(Open):
    """Room that is this job's: see docs/words.md."""

    placement: list[RoleStatusPlacement]
    victims: list[str] = []  # uids
    expires_at: Time


class EvictionStatus(Open):
    """For whom this job is leaving, and until when it may take."""

    beneficiary: str = Field(alias="for")  # uid
    reason: str = ""
    deadline: Time


class LastFailure(Open):
    """The earliest failing container of the attempt that failed last."""

    pod: str
    node: str = ""
    exit_code: int | None = None
    reason: str = ""
    log_tail: str = ""
    at: Time | None = None


class CheckpointStatus(Open):
    """The newest durable checkpoint."""

    step: int
    at: Time


class BlamedNode(Open):
    """A node this job avoids until `until`."""

    node: str
    until: Time


class TraceStatus(Open):
    """Where the traces and their report lie."""

    report: str = ""
    files: int = 0


Phase = Literal["Pending", "Admitted", "Running", "Suspended", "Succeeded", "Failed"]


class TrainingJobStatus(Open):
    """Conditions are the truth, `phase` is derived."""

    observed_generation: int = 0
    phase: Phase = "Pending"
    conditions: list[Condition] = []
    queue_position: int | None = None
    estimated_start: Time | None = None
    placement: list[RoleStatusPlacement] = []
    hold: HoldStatus | None = None
    eviction: EvictionStatus | None = None
    submitted_at: Time | None = None
    admitted_at: Time | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    resized_at: Time | None = None
    requeue_after: Time | None = None  # backoff
    attempt: int = 0
    restarts: int = 0
    node_losses: int = 0
    pods_wanted: int = 0
    pods_ready: int = 0
    blamed_nodes: list[BlamedNode] = []
    last_failure: LastFailure | None = None
    last_checkpoint: CheckpointStatus | None = None
    traces: TraceStatus | None = None


class TrainingJob(Strict):
    """One training job: one gang."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["TrainingJob"] = "TrainingJob"
    metadata: ObjectMeta
    spec: TrainingJobSpec
    status: TrainingJobStatus = TrainingJobStatus()

    @field_validator("metadata")
    @classmethod
    def _name_fits_into_pod_names(cls, metadata: ObjectMeta) -> ObjectMeta:
        if len(metadata.name) > MAX_JOB_NAME or "." in metadata.name:
            raise ValueError(
                f"name: {metadata.name!r} cannot begin the names of pods; write at most {MAX_JOB_NAME} lower-case "
                "letters, digits and '-'"
            )
        return metadata


# ---- Queue


def _check_expressions(expressions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for line in expressions:
        operator, values = line.get("operator"), line.get("values", [])
        if not isinstance(line.get("key"), str):
            raise ValueError("a line has no key; write the name of a label")
        if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            raise ValueError(f"operator {operator!r} is not known; write In, NotIn, Exists or DoesNotExist")
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ValueError(f"values {values!r} is no list of texts; write the values of the label, each as text")
        if (operator in ("In", "NotIn")) != bool(values):
            raise ValueError(f"{operator} wants {'values' if operator in ('In', 'NotIn') else 'no values'}")
    return expressions


class LabelSelector(Open):
    """An empty selector selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: Annotated[list[dict[str, Any]], AfterValidator(_check_expressions)] = []


class QueueResources(Strict):
    """Quota of one flavor; see docs/scheduling.md."""

    flavor: ObjectName
    guaranteed: Quantities = {}
    limit: Quantities = {}
    lend: Quantities = {}

    @model_validator(mode="after")
    def _ordered(self) -> QueueResources:
        for name, value in self.guaranteed.items():
            if name in self.limit and parse_quantity(self.limit[name], name) < parse_quantity(value, name):
                raise ValueError(
                    f"guaranteed: {name} {value} is above limit {self.limit[name]}; "
                    "raise the limit or lower the guarantee"
                )
        return self


class QueueSpec(Strict):
    """A node of the queue tree."""

    parent: ObjectName | None = None
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    max_priority: int | None = None
    half_life_seconds: Seconds = 7 * 24 * 3600  # of decayed usage; read on the root
    namespace_selector: LabelSelector | None = None
    resources: list[QueueResources] = []

    @model_validator(mode="after")
    def _flavors_once(self) -> QueueSpec:
        names = [entry.flavor for entry in self.resources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"resources: flavor {twice[0]!r} is listed twice; join the two entries")
        return self


class FairShareUsage(Open):
    """Decayed resource-seconds of one resource of one flavor."""

    flavor: str
    resource: str
    resource_seconds: float


class FairShareStatus(Open):
    """Decayed usage as of `at`."""

    usage: list[FairShareUsage] = []
    at: Time


class QueueStatus(Open):
    """Conditions (Active, Overcommitted) and fair-share usage."""

    conditions: list[Condition] = []
    fair_share: FairShareStatus | None = None


class Queue(Strict):
    """A queue; cluster-scoped."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["Queue"] = "Queue"
    metadata: ObjectMeta
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


# ---- Flavor


class TopologyLevel(Strict):
    """One level: its name, and the node label that tells the domain."""

    name: Name
    node_label: Annotated[str, Field(min_length=1, max_length=317)]


class FlavorSpec(Strict):
    """Which nodes are of this kind, what pods on them tolerate, how they are wired (widest level first)."""

    node_labels: dict[str, str] = {}
    tolerations: Tolerations = []
    topology: list[TopologyLevel] = []

    @model_validator(mode="after")
    def _levels_once(self) -> FlavorSpec:
        for what, names in (
            ("name", [level.name for level in self.topology]),
            ("nodeLabel", [level.node_label for level in self.topology]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"topology: the {what} {twice[0]!r} is used twice; give every level its own")
        return self


class FlavorStatus(Open):
    """Conditions (a node that matches two flavors belongs to neither)."""

    conditions: list[Condition] = []


class Flavor(Strict):
    """A kind of node; cluster-scoped."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["Flavor"] = "Flavor"
    metadata: ObjectMeta
    spec: FlavorSpec = FlavorSpec()
    status: FlavorStatus = FlavorStatus()
