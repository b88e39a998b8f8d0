"""Queue: quota, and its place in the tree of queues."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from muster.quantity import parse_quantity
from muster.spec.fields import InvalidField, ListMapKey, ObjectName, Quantities, Seconds, Time, raise_invalid_fields
from muster.spec.meta import Condition, LabelSelector, ObjectMeta, StatusModel, StrictModel


class FlavorQuota(StrictModel):
    """Quota of one flavor; see docs/scheduling.md."""

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
    namespace_selector: LabelSelector | None = None
    """Selects the namespaces whose jobs may use the queue. {} selects all. Default: that of the parent; a root without
    one selects no namespace."""
    resources: Annotated[list[FlavorQuota], Field(max_length=64), ListMapKey("flavor", "join the two entries")] = []
    """Quota by flavor. A flavor that no queue on the path to the root names cannot be used."""


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


class QueueStatus(StatusModel):
    """Conditions (Active, Overcommitted) and fair-share usage."""

    conditions: Annotated[list[Condition], Field(max_length=32), ListMapKey("type", "write each condition once")] = []
    """Active: False in a cycle, with a missing parent, or if the spec cannot be decoded; the queue then admits nothing.
    Overcommitted: the children's guarantees exceed the queue's, or its own exceed all nodes."""
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
