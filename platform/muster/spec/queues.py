"""Queue: a node of the quota tree."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from muster.quantity import parse_quantity
from muster.spec.fields import InvalidField, ListMapKey, ObjectName, Quantities, Seconds, Time, raise_invalid_fields
from muster.spec.meta import Condition, LabelSelector, ObjectMeta, StatusModel, StrictModel


class FlavorQuota(StrictModel):
    """Quota of one flavor; see docs/scheduling.md."""

    flavor: ObjectName
    """The flavor."""
    guaranteed: Quantities = {}
    """The queue's own quota, by resource. Default: none; in a queue without a parent: its limit, if set."""
    limit: Quantities = {}
    """The most that the queue may use, including borrowed quota. Default: unlimited."""
    lend: Quantities = {}
    """How much of its own quota other queues may borrow while it is idle. Default: all."""

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
    """A node of the queue tree."""

    parent: ObjectName | None = None
    """The parent queue. Default: none (a root). Roots never borrow from each other."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Fair-share weight among siblings that need more than their guarantee."""
    max_priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Jobs of a higher priority are not admitted. Default: unlimited."""
    half_life_seconds: Seconds = 7 * 24 * 3600
    """Half-life of past usage in fair share. Used of the root only."""
    namespace_selector: LabelSelector | None = None
    """Namespaces whose jobs may use the queue. Default: that of the parent; without any: no namespace. {} selects
    all."""
    resources: Annotated[list[FlavorQuota], Field(max_length=64), ListMapKey("flavor", "join the two entries")] = []
    """Quota by flavor. A flavor that no queue on the path to the root names cannot be used."""


class FairShareUsage(StatusModel):
    """Decayed resource-seconds of one resource of one flavor."""

    flavor: str
    """The flavor."""
    resource: str
    """The resource."""
    resource_seconds: float
    """The decayed integral; cpu in millicores."""


class FairShareStatus(StatusModel):
    """Decayed usage as of `at`."""

    usage: list[FairShareUsage] = []
    """By flavor and resource."""
    at: Time
    """The time of the computation."""


class QueueStatus(StatusModel):
    """Conditions (Active, Overcommitted) and fair-share usage."""

    conditions: Annotated[list[Condition], Field(max_length=32), ListMapKey("type", "write each condition once")] = []
    """Active: False in a cycle, with a missing parent, or if the spec cannot be decoded; the queue then admits nothing.
    Overcommitted: the children's guarantees exceed the queue's, or its own exceed all nodes."""
    fair_share: FairShareStatus | None = None
    """Past usage, for the order among siblings."""


class Queue(StrictModel):
    """A node of the queue tree; jobs are submitted to leaf queues."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["Queue"] = "Queue"
    metadata: ObjectMeta
    spec: QueueSpec = QueueSpec()
    """The quota of the queue."""
    status: QueueStatus = QueueStatus()
    """The observed state."""
