"""What queues: a gang of pods, whatever API object it comes from.

The planner's snapshot reads a `Workload` and nothing else of a job. `trainingjob` adapts TrainingJobs; another kind
needs an adapter of its own, and no change of the snapshot or the planner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from muster.api.spec import BlamedNode
from muster.cluster import PodView
from muster.model import Gang, Nomination, Placement, Role

__all__ = ["Admission", "Workload"]


@dataclass(frozen=True, slots=True)
class Admission:
    """What an admitted workload has, and how its admission may end. Times are Unix seconds.

    `placement` is where it takes capacity: without pods that have ended. `pods_ended`: there are such pods. `attempt`:
    pods of other attempts are terminating. `preemptor`: uid of the workload that it is evicted or
    shrunk for. `retained_placement`: what it keeps nominated, until `retained_until`, after it was evicted.
    """

    placement: Placement
    attempt: int
    pods_ended: bool = False
    evicting: bool = False
    checkpoint_at: float | None = None
    resized_at: float | None = None
    preemptor: str | None = None
    retained_placement: Placement = ()
    retained_until: float | None = None


class Workload(Protocol):
    """A gang of pods that queues for capacity. Adapters read the API object only when they are asked."""

    @property
    def uid(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def priority_class(self) -> str | None:
        """The name of its PriorityClass; None if it has a priority of its own."""
        ...

    @property
    def roles_key(self) -> object:
        """What `roles` depends on: workloads with the same object have equal roles."""
        ...

    @property
    def wants_capacity(self) -> bool:
        """False once it is suspended, cancelled, deleted or finished, or about to be."""
        ...

    @property
    def admitted_at(self) -> float | None: ...

    @property
    def started_at(self) -> float | None: ...

    @property
    def stopping_since(self) -> float | None:
        """When its pods last began to stop, as far as its status tells."""
        ...

    @property
    def requeue_after(self) -> float | None:
        """It waits at least until then."""
        ...

    @property
    def blamed_nodes(self) -> Sequence[BlamedNode]:
        """Nodes it excludes, each until when."""
        ...

    def roles(self) -> tuple[Role, ...]:
        """Its pod sets, each with the request of one pod and its least and largest size."""
        ...

    def priority(self, priority_classes: Mapping[str, int]) -> int | None:
        """The effective priority: its own, or the value of its PriorityClass. None: the class does not exist."""
        ...

    def gang(self, now: float, priority_classes: Mapping[str, int], roles: tuple[Role, ...]) -> Gang:
        """It as the planner sees it; `roles` is the result of `roles()`."""
        ...

    def admission(self, now: float, pods: Sequence[PodView]) -> Admission | None:
        """What it, with these pods, has while it is admitted; None before, and once it is finished or deleted."""
        ...

    def nomination(self, now: float, gang: Gang) -> Nomination | None:
        """The capacity nominated for it, unless that has expired."""
        ...
