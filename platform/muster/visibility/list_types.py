"""The lists of the read API: a page of items, and which process answered."""

from __future__ import annotations

from typing import Literal, TypeAlias

from muster.api.spec.fields import StatusModel, Time
from muster.usage.report import UsageStep
from muster.visibility.types import (
    API_VERSION,
    ApiVersion,
    DataSource,
    JobSummary,
    NodeSummary,
    PageMeta,
    PendingJob,
    Preemption,
    QueueSummary,
    UsageSummary,
)


class ListResponse(StatusModel):
    """What all lists have."""

    api_version: ApiVersion = API_VERSION
    """Group and version."""
    metadata: PageMeta
    """Page of the list."""
    source: DataSource
    """Which process answered."""


class QueueSummaryList(ListResponse):
    """Queues with their usage, parents before children."""

    kind: Literal["QueueSummaryList"] = "QueueSummaryList"
    """The kind."""
    items: list[QueueSummary]
    """The queues."""


class PendingJobList(ListResponse):
    """Pending jobs by namespace and name."""

    kind: Literal["PendingJobList"] = "PendingJobList"
    """The kind."""
    items: list[PendingJob]
    """The jobs."""


class JobSummaryList(ListResponse):
    """Jobs by namespace and name."""

    kind: Literal["JobSummaryList"] = "JobSummaryList"
    """The kind."""
    items: list[JobSummary]
    """The jobs."""


class NodeSummaryList(ListResponse):
    """Nodes by name."""

    kind: Literal["NodeSummaryList"] = "NodeSummaryList"
    """The kind."""
    items: list[NodeSummary]
    """The nodes."""


class PreemptionList(ListResponse):
    """Recent preemptions, the newest first."""

    kind: Literal["PreemptionList"] = "PreemptionList"
    """The kind."""
    items: list[Preemption]
    """The preemptions."""


class UsageSummaryList(ListResponse):
    """Usage over time by name, flavor and resource."""

    kind: Literal["UsageSummaryList"] = "UsageSummaryList"
    """The kind."""
    since: Time
    """Start of the period."""
    until: Time
    """End of the period, or a later end of its last step."""
    step: UsageStep
    """Length of the steps."""
    items: list[UsageSummary]
    """The usage."""


ItemList: TypeAlias = (
    QueueSummaryList | PendingJobList | JobSummaryList | NodeSummaryList | PreemptionList | UsageSummaryList
)
