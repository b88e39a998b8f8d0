"""Queue: a node of the tree that shares the nodes among groups."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from muster.quantity import parse_quantity
from muster.spec.fields import InvalidField, ListMapKey, ObjectName, Quantities, Seconds, Time, raise_invalid_fields
from muster.spec.meta import Condition, LabelSelector, ObjectMeta, StatusModel, StrictModel


class FlavorQuota(StrictModel):
    """Quota of one flavor; see docs/scheduling.md."""

    flavor: ObjectName
    """The kind of node."""
    guaranteed: Quantities = {}
    """The queue's own, by resource. Left out: none; in a queue without a parent: its limit, if there is one."""
    limit: Quantities = {}
    """The most it may use, borrowed included. Left out: no limit."""
    lend: Quantities = {}
    """How much of its own others may borrow while it is idle. Left out: all."""

    @model_validator(mode="after")
    def _guaranteed_within_limit(self) -> FlavorQuota:
        raise_invalid_fields(
            InvalidField(
                f"guaranteed: {name} {value} is above limit {self.limit[name]}; raise the limit or lower the guarantee",
                value,
            )
            for name, value in self.guaranteed.items()
            if name in self.limit and parse_quantity(self.limit[name], name) < parse_quantity(value, name)
        )
        return self


class QueueSpec(StrictModel):
    """A node of the queue tree."""

    parent: ObjectName | None = None
    """The queue above; left out: a root. Roots never borrow from each other."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Share among siblings that both want more."""
    max_priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Jobs of a higher priority are not admitted; left out: no bound."""
    half_life_seconds: Seconds = 7 * 24 * 3600
    """After so long, past usage counts half. Read on the root."""
    namespace_selector: LabelSelector | None = None
    """Namespaces whose jobs may use the queue; left out: the parent's, and without any: none. {} selects all."""
    resources: Annotated[list[FlavorQuota], Field(max_length=64), ListMapKey("flavor", "join the two entries")] = []
    """Quota, flavor by flavor. A flavor that no queue on the path names cannot be used."""


class FairShareUsage(StatusModel):
    """Decayed resource-seconds of one resource of one flavor."""

    flavor: str
    """The kind of node."""
    resource: str
    """The resource."""
    resource_seconds: float
    """The decayed integral; cpu in milli-cores."""


class FairShareStatus(StatusModel):
    """Decayed usage as of `at`."""

    usage: list[FairShareUsage] = []
    """By flavor and resource."""
    at: Time
    """As of when."""


class QueueStatus(StatusModel):
    """Conditions (Active, Overcommitted) and fair-share usage."""

    conditions: Annotated[list[Condition], Field(max_length=32), ListMapKey("type", "write each condition once")] = []
    """Active: False in a cycle, under a missing parent or where it cannot be read, and admits nothing. Overcommitted:
    the children's guarantees are more than the queue's, or its own are more than all nodes have."""
    fair_share: FairShareStatus | None = None
    """What the queue has used, for the order among siblings."""


class Queue(StrictModel):
    """A queue, part of a tree; jobs are submitted to its leaves."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["Queue"] = "Queue"
    metadata: ObjectMeta
    spec: QueueSpec = QueueSpec()
    """What the queue may use."""
    status: QueueStatus = QueueStatus()
    """How it stands."""
