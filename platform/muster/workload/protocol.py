"""What a kind of object provides in order to queue: what it asks for, and how it starts, runs and stops.

The engine, the state and the planner's input read a `Workload` and nothing else of an object, as Kueue reads a
`GenericJob`. `muster.kinds` has the kinds. A workload is immutable: a new version of its object is a new workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from muster.api.spec import ObjectMeta, QueueingStatus, RolePlacementStatus
from muster.cluster import PodView, Write
from muster.model import GangKey, Role, Topology
from muster.workload.observation import Observation
from muster.workload.start_conditions import StartConditions
from muster.workload.timeouts import Timeouts

TransitionEvent: TypeAlias = tuple[Literal["Normal", "Warning"], str, str]
"""Type, reason and message."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The new status, an event, and when to look again if nothing changes."""

    status: QueueingStatus
    event: TransitionEvent | None = None
    wake_times: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RunState:
    """What the pods of an admitted workload show. `finished`: it has ended by itself, which counts before any request
    of its user. `next`: what follows otherwise: it is ready, restarts, is requeued, fails, or nothing."""

    finished: Transition | None
    next: Transition


@dataclass(frozen=True, slots=True)
class RunWrites:
    """What starts or stops a workload, and when to look again."""

    writes: tuple[Write, ...] = ()
    wake_times: tuple[float, ...] = ()


class Workload(Protocol):
    """An object that queues for capacity. Adapters read the object only when they are asked."""

    # ---- the object

    @property
    def kind(self) -> str: ...

    @property
    def metadata(self) -> ObjectMeta: ...

    @property
    def key(self) -> GangKey:
        """Which gang of the object it is: an object with several gangs is a Workload for each, with a status of its
        own. Writes, pods and heartbeats name it by this key."""
        ...

    @property
    def status(self) -> QueueingStatus:
        """The status that queueing keeps of it, as observed or about to be written."""
        ...

    def with_status(self, status: QueueingStatus) -> Workload:
        """It with another status; the same object for its own."""
        ...

    # ---- what it asks for

    @property
    def queue(self) -> str: ...

    @property
    def own_priority(self) -> int:
        """Its priority, unless it names a PriorityClass."""
        ...

    @property
    def priority_class(self) -> str | None:
        """The name of its PriorityClass."""
        ...

    @property
    def roles_key(self) -> object:
        """What `roles` depends on: workloads with the same object have equal roles."""
        ...

    def roles(self) -> tuple[Role, ...]:
        """Its pod sets, each with the request of one pod and its least and largest size."""
        ...

    @property
    def flavors(self) -> Sequence[str]:
        """The flavors that it may use; empty: every one."""
        ...

    @property
    def topology(self) -> Topology | None: ...

    @property
    def start_conditions(self) -> StartConditions:
        """What has to hold before it may start."""
        ...

    @property
    def max_runtime_s(self) -> float | None:
        """The longest time that an admission may last, if it is declared."""
        ...

    @property
    def start_timeout_s(self) -> float: ...

    @property
    def grace_s(self) -> float:
        """The longest grace period of its pods; their queue may allow less."""
        ...

    @property
    def ttl_after_finished_s(self) -> float | None:
        """Seconds from its end to its removal; None: it is kept."""
        ...

    @property
    def replaces_pods(self) -> bool:
        """Whether a controller of its own replaces a pod that is deleted while that one still terminates: all its pods
        that run are charged."""
        ...

    @property
    def is_suspended(self) -> bool:
        """Whether its user wants it to give everything back, and to wait."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """Whether its user wants it to end."""
        ...

    @property
    def is_group(self) -> bool:
        """Whether its gangs are workloads of their own, as those of an array are. It is never placed itself."""
        ...

    def gang(self, index: int) -> Workload | None:
        """The gang of this index of a group, whether it is queued, runs or has ended; None if there is none."""
        ...

    @property
    def active_gangs(self) -> int:
        """The number of these gangs that may still have pods."""
        ...

    def allows(self, placement: Sequence[RolePlacementStatus]) -> bool:
        """Whether its pod sets still allow this placement."""
        ...

    # ---- how it runs

    @property
    def creates_pods(self) -> bool:
        """Whether a controller of its kind may create pods of it now, such as while it is not suspended."""
        ...

    @property
    def checkpoint_at(self) -> float | None:
        """The time of its newest durable checkpoint."""
        ...

    def observe(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunState:
        """What its pods show while it is admitted."""
        ...

    def start(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunWrites:
        """What is missing of its pods at the placement of the status. Called again until nothing is missing."""
        ...

    def stop(self, pods: Sequence[PodView], observation: Observation, timeouts: Timeouts) -> RunWrites:
        """What stops these pods. Called until none of them is observed."""
        ...

    def record(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> Transition:
        """The status with what its kind records beside queueing, once everything else is decided."""
        ...
