"""Workload: the queueing status of an object of another kind, such as a batch/v1 Job."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from muster.api.spec.fields import ObjectMeta, StatusModel, StrictModel
from muster.api.spec.queueing import QueueingStatus


class WorkloadReference(StatusModel):
    """The object that queues, in the same namespace."""

    api_version: str
    """Its group and version."""
    kind: str
    """Its kind."""
    name: str
    """Its name."""
    uid: str
    """Its uid."""


class WorkloadSpec(StatusModel):
    """Which object it is about."""

    object_ref: WorkloadReference = Field(alias="objectRef")
    """The object that queues."""
    queue: str = ""
    """The queue in which it is admitted, or waits."""


class WorkloadRecord(StrictModel):
    """The queueing status of an object of another kind. The operator writes it, and deletes it once the object and its
    last pod are gone."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["Workload"] = "Workload"
    metadata: ObjectMeta
    spec: WorkloadSpec
    """Which object it is about."""
    status: QueueingStatus = QueueingStatus()
    """The observed state."""
