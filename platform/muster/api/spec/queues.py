"""Queue: quota and the place in the tree of queues. Flavor: a kind of node and its topology."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from muster.api.pod_security import PodSecurityLevel
from muster.api.quantity import parse_quantity
from muster.api.spec.fields import (
    MAX_SECONDS,
    Condition,
    InvalidField,
    LabelKey,
    Labels,
    LabelSelector,
    ListMapKey,
    Name,
    ObjectMeta,
    ObjectName,
    Quantities,
    Seconds,
    StatusModel,
    StrictModel,
    Time,
    raise_invalid_fields,
)
from muster.api.spec.pods import Tolerations


class FlavorQuota(StrictModel):
    """Quota of one flavor; see docs/concepts/scheduling.md."""

    flavor: ObjectName
    """Name of the flavor. Unique in a queue."""
    guaranteed: Quantities = {}
    """The queue's own quota, by resource. Must be at most `limit`. Default: none; in a queue without a parent: its
    limit, if set."""
    limit: Quantities = {}
    """The maximum usage of the queue, by resource, including borrowed quota. Default: unlimited."""
    lend: Quantities = {}
    """The part of its own quota that other queues may borrow while it is unused, by resource. Default: all."""

    @model_validator(mode="after")
    def _guaranteed_within_limit(self) -> FlavorQuota:
        raise_invalid_fields(
            InvalidField(
                f"guaranteed: {name} must be at most its limit ({self.limit[name]}); got {value}",
                value,
            )
            for name, value in self.guaranteed.items()
            if name in self.limit and parse_quantity(self.limit[name], name) < parse_quantity(value, name)
        )
        return self


DEFAULT_MAX_GRACE_PERIOD_S = 600.0
"""`maxGracePeriodSeconds` of a root that sets none, and of jobs whose queue does not exist."""


class QueueSpec(StrictModel):
    """The desired state of a queue."""

    parent: ObjectName | None = None
    """Name of the parent queue. Default: none (a root). Roots never borrow from each other."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Fair-share weight among siblings that need more than their guarantee."""
    max_priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Maximum priority of the jobs in the queue and in queues below it; jobs with a higher one are not admitted.
    Default: unlimited."""
    half_life_seconds: Seconds = 7 * 24 * 3600
    """Half-life in seconds of past usage in fair share. Only the value of the root is used."""
    borrowing_reservation_delay_seconds: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = None
    """For jobs that have to borrow: seconds after which the reservation of the first of them also binds jobs within
    their guarantee, for as long, and again in every second such time; for as long after its start it is not reclaimed.
    0: never. Default: that of the parent; 21600 (6
    hours) in a root."""
    namespace_selector: LabelSelector | None = None
    """Selects the namespaces whose jobs may use the queue. {} selects all. Default: that of the parent; a root without
    one selects no namespace."""
    max_grace_period_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """Most seconds between SIGTERM and SIGKILL for pods of jobs in the queue: pods with a longer
    `terminationGracePeriodSeconds` are stopped with this grace period, so that a guarantee does not wait longer for
    them. Default: that of the parent; 600 for a root."""
    min_runtime_seconds: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = None
    """Seconds after its admission for which a job of the queue is neither preempted nor reclaimed, nor shrunk for
    another. A guarantee of another queue may have to wait as long. Default: that of the parent; 0 in a root."""
    pod_security: PodSecurityLevel | None = None
    """The Pod Security Standard that pod templates of the queue's jobs must meet: privileged (all do), baseline or
    restricted. Other jobs are not admitted (PodRejected). Default: that of the parent; in a root that of the
    installation. Not checked on one host, where there are no containers."""
    resources: Annotated[list[FlavorQuota], Field(max_length=64), ListMapKey("flavor", "join the two entries")] = []
    """Quota by flavor. A flavor that no queue on the path to the root names cannot be used."""


FLAVOR_REASONS = ("NoResources", "FlavorNotFound")
"""Reasons of queues that are active, and have no flavor or name one that does not exist."""


class FairShareUsage(StatusModel):
    """Decayed resource-seconds of one resource of one flavor."""

    flavor: str
    """Name of the flavor."""
    resource: str
    """Name of the resource."""
    resource_seconds: float
    """Decayed usage in units of the resource times seconds; cpu in millicores."""


class FairShareStatus(StatusModel):
    """Decayed past usage at the time `at`."""

    usage: list[FairShareUsage] = []
    """Decayed usage by flavor and resource."""
    at: Time
    """Time of the computation."""


class QueueFlavorUsage(StatusModel):
    """Charged usage of one flavor, by resource."""

    flavor: str
    """Name of the flavor."""
    used: dict[str, str] = {}
    """Charged usage of the queue and all queues below it."""
    borrowed: dict[str, str] = {}
    """The part of the usage above the guarantee."""
    guaranteed: dict[str, str] = {}
    """What the queue is guaranteed, and at least what the queues below it are."""


class QueueUsageStatus(StatusModel):
    """Jobs and charged usage of the queue and all queues below it, updated at most every 30 s."""

    pending_jobs: int
    """Number of pending jobs."""
    admitted_jobs: int
    """Number of admitted jobs."""
    flavors: list[QueueFlavorUsage] = []
    """Usage by flavor."""
    used: str = ""
    """Charged usage of all flavors as text, for `kubectl get queues.muster.dev -o wide`."""
    guaranteed: str = ""
    """Guarantees of all flavors as text."""
    at: Time
    """Time at which it was computed. It has not changed since, except in the last 30 s."""


class QueueStatus(StatusModel):
    """Conditions (Active, Overcommitted), usage, and fair-share usage."""

    conditions: Annotated[list[Condition], Field(max_length=32), ListMapKey("type", "write each condition once")] = []
    """Active: False in a cycle, with a missing parent, or if the spec cannot be decoded; the queue then admits nothing.
    Overcommitted: the children's guarantees exceed the queue's, or its own exceed all nodes."""
    usage: QueueUsageStatus | None = None
    """Jobs and charged usage."""
    fair_share: FairShareStatus | None = None
    """Past usage, which determines the order among siblings."""


class Queue(StrictModel):
    """Queue is a node of the tree of queues, with quota by flavor. Jobs are submitted to queues without children."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["Queue"] = "Queue"
    metadata: ObjectMeta
    spec: QueueSpec = QueueSpec()
    """The desired state."""
    status: QueueStatus = QueueStatus()
    """The observed state."""


class TopologyLevel(StrictModel):
    """A level of the topology of a flavor."""

    name: Name
    """Name of the level, e.g. rack. Unique in a flavor."""
    node_label: LabelKey
    """Key of the node label whose value identifies the domain at this level. Unique in a flavor."""


class FlavorSpec(StrictModel):
    """The desired state of a flavor."""

    node_labels: Labels = {}
    """Nodes with all these labels belong to the flavor. Default: all nodes."""
    tolerations: Tolerations = []
    """Tolerations that are added to every pod placed on these nodes."""
    topology: Annotated[list[TopologyLevel], Field(max_length=16), ListMapKey("name", "give every level its own")] = []
    """Topology levels, widest first."""

    @model_validator(mode="after")
    def _labels_once(self) -> FlavorSpec:
        labels = [level.node_label for level in self.topology]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"topology: the nodeLabel of each level must be unique; got {twice[0]!r} more than once")
        return self


class FlavorStatus(StatusModel):
    """The observed state of a flavor."""

    conditions: Annotated[list[Condition], Field(max_length=32), ListMapKey("type", "write each condition once")] = []
    """Overlapping: True if some nodes match this flavor and another one; they are used for neither. Valid: False if
    the operator cannot decode the flavor; no job is then placed on it."""


class Flavor(StrictModel):
    """Flavor is a kind of node: the labels that select its nodes, and their topology."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["Flavor"] = "Flavor"
    metadata: ObjectMeta
    spec: FlavorSpec = FlavorSpec()
    """The desired state."""
    status: FlavorStatus = FlavorStatus()
    """The observed state."""
