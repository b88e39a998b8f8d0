"""A kind for tests: an object with `suspend` and one pod template, whose controller creates its pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.api.spec import ObjectMeta, QueueingStatus, RolePlacementStatus
from muster.cluster import PodView
from muster.model import Resources, Role, Topology
from muster.workload.observation import Observation
from muster.workload.placement import from_status
from muster.workload.protocol import RunState, RunWrites, Transition
from muster.workload.timeouts import Timeouts


@dataclass(frozen=True, slots=True)
class SuspendedObject:
    """See `Workload`. `suspend` is that of the object."""

    metadata: ObjectMeta
    status: QueueingStatus = QueueingStatus()
    queue: str = "default"
    pods: int = 2
    request: Resources = Resources.of({"nvidia.com/gpu": 1, "pods": 1})
    suspend: bool = True
    own_priority: int = 0
    priority_class: str | None = None
    flavors: Sequence[str] = ()
    topology: Topology | None = None
    max_runtime_s: float | None = None
    start_timeout_s: float = 600.0
    grace_s: float = 30.0
    ttl_after_finished_s: float | None = None
    is_suspended: bool = False
    is_cancelled: bool = False
    checkpoint_at: float | None = None

    def with_status(self, status: QueueingStatus) -> SuspendedObject:
        return self if status is self.status else replace(self, status=status)

    @property
    def roles_key(self) -> object:
        return self

    def roles(self) -> tuple[Role, ...]:
        return (Role("pods", self.pods, self.pods, self.request),)

    def allows(self, placement: Sequence[RolePlacementStatus]) -> bool:
        return all(part.role == "pods" and part.replicas <= self.pods for part in from_status(placement))

    @property
    def creates_pods(self) -> bool:
        return not self.suspend

    def observe(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunState:
        return RunState(None, Transition(status))

    def start(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunWrites:
        return RunWrites()

    def stop(self, pods: Sequence[PodView], observation: Observation, timeouts: Timeouts) -> RunWrites:
        return RunWrites()

    def record(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> Transition:
        return Transition(status)
