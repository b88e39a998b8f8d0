"""The engine's input: everything that a cluster observes at one time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from muster.api import spec
from muster.cluster import (
    NO_DECODE_ERRORS,
    DecodeErrors,
    Heartbeat,
    NodeView,
    OrphanedPod,
    PodView,
    RefusedStatus,
    Write,
)
from muster.workload.protocol import Workload


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The engine's input. Objects that did not change since the last observation keep their identity."""

    now: float
    nodes: tuple[NodeView, ...]
    flavors: tuple[spec.Flavor, ...]
    queues: tuple[spec.Queue, ...]
    workloads: tuple[Workload, ...]
    pods: Mapping[str, tuple[PodView, ...]]  # by job uid; every pod of a workload, deleting ones too
    orphans: tuple[OrphanedPod, ...] = ()
    heartbeats: Mapping[str, Heartbeat] = field(default_factory=dict)  # by job uid
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # labels by name
    priority_classes: Mapping[str, int] = field(default_factory=dict)  # values by name
    pod_rejections: Mapping[str, str] = field(default_factory=dict)  # why a job's pods would be refused, by job uid
    decode_errors: DecodeErrors = field(default_factory=lambda: NO_DECODE_ERRORS)
    recorded_usage: Mapping[str, int] = field(default_factory=dict)  # ended usage segments in the record, by job uid
    paused: frozenset[str] = frozenset()  # uids of jobs that are not written now; their capacity stays charged
    refused: tuple[RefusedStatus, ...] = ()  # changes that are not decided now
    device_classes: Mapping[str, str] = field(default_factory=dict)  # by extended resource that a DeviceClass provides


class Cluster(Protocol):
    """What the engine observes and writes to."""

    def observe(self) -> ObservedState:
        """The state now, including all acknowledged writes of this cluster."""
        ...

    def apply(self, writes: Sequence[Write]) -> None:
        """Apply the writes in order. Raises `muster.errors.Conflict` when a guarded write is refused: the rest is
        not applied and the engine observes again. Raises `muster.errors.ClusterError` if it cannot be reached."""
        ...
