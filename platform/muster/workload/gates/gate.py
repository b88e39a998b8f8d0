"""What a gate reads and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TypeAlias

from muster.api import spec
from muster.cluster import NO_DECODE_ERRORS, DecodeErrors
from muster.errors import Refused
from muster.model import Gang, WaitReason
from muster.workload.protocol import Workload
from muster.workload.related import RelatedWorkloads


@dataclass(frozen=True, slots=True)
class GateState:
    """What gates depend on, the workload aside; it changes rarely, `related` excepted: workloads that a change of
    another one concerns are looked at again."""

    queues: Mapping[str, spec.Queue]
    allowed_namespaces: Mapping[tuple[str, str], bool]  # by (queue, namespace)
    priority_classes: Mapping[str, int]  # values by name
    decode_errors: DecodeErrors = NO_DECODE_ERRORS
    device_classes: Mapping[str, str] = dataclass_field(default_factory=dict)  # by resource that no node lists
    related: RelatedWorkloads = dataclass_field(default_factory=RelatedWorkloads)
    namespaces: Mapping[str, Mapping[str, str]] = dataclass_field(default_factory=dict)  # labels by name


@dataclass(frozen=True, slots=True)
class Closed:
    """Why a gate is closed. `recheck_at`: when it may open although nothing changes; None: once something changes.
    `field`: what of the workload to change. `hint`: what only the one who submits gets beyond that, since it costs
    too much for thousands that wait; `error`: how the submit fails."""

    reason: WaitReason
    message: str
    recheck_at: float | None = None
    field: str = "spec.queue"
    hint: Callable[[], str] | None = None
    error: type[Refused] = Refused

    def refusal(self) -> Refused:
        """The error of a submit."""
        parts = (self.message, "" if self.hint is None else self.hint())
        return self.error(f"{self.field}: {'; '.join(filter(None, parts))}", field=self.field, reason=self.reason)


Gate: TypeAlias = Callable[[Workload, Gang, GateState, float], Closed | None]
"""A pure function of a workload, its gang, the state and the time; None: open."""
