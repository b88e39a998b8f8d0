"""A kind for tests: an object with `suspend` and one pod template, whose controller creates and deletes its pods.

It shows what another kind needs: one class, and nothing in planner, engine and state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from muster.api.spec import ObjectMeta, QueueingStatus, RolePlacementStatus
from muster.cluster import PatchObject, PodView
from muster.model import GangKey, Resources, Role, Topology
from muster.workload import transitions
from muster.workload.conditions import COMPLETE, FAILED
from muster.workload.observation import Observation
from muster.workload.placement import from_status, nodes_of
from muster.workload.planning import gang_key
from muster.workload.protocol import RunState, RunWrites, Transition
from muster.workload.run_checks import check_drained, check_max_runtime, check_ready
from muster.workload.start_conditions import UNCONDITIONAL, StartConditions
from muster.workload.timeouts import Timeouts


@dataclass(frozen=True, slots=True)
class SuspendedObject:
    """See `Workload`. `suspend` and `nodes` are what its pods are created with, `outcome` what its controller says."""

    metadata: ObjectMeta
    status: QueueingStatus = QueueingStatus()
    queue: str = "default"
    pods: int = 2
    request: Resources = Resources.of({"nvidia.com/gpu": 1, "pods": 1})
    suspend: bool = True
    nodes: tuple[str, ...] = ()
    outcome: Literal["", "Complete", "Failed"] = ""
    own_priority: int = 0
    priority_class: str | None = None
    flavors: Sequence[str] = ()
    topology: Topology | None = None
    max_runtime_s: float | None = None
    start_timeout_s: float = 600.0
    grace_s: float = 30.0
    ttl_after_finished_s: float | None = None
    replaces_pods: bool = True
    is_suspended: bool = False
    is_cancelled: bool = False
    checkpoint_at: float | None = None
    is_group: bool = False
    active_gangs: int = 0
    index: int = 0  # of the gang, where one object has several
    kind: str = "Suspended"
    start_conditions: StartConditions = UNCONDITIONAL

    @property
    def key(self) -> GangKey:
        return gang_key(self.metadata.uid, self.index)

    def with_status(self, status: QueueingStatus) -> SuspendedObject:
        return self if status is self.status else replace(self, status=status)

    def gang(self, index: int) -> SuspendedObject | None:
        return None

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
        now, finished = observation.now, None
        if self.outcome:
            kind = COMPLETE if self.outcome == "Complete" else FAILED
            finished = Transition(transitions.finish(status, kind, self.outcome, "as its controller says", now))
        ready = check_ready(status, observation.pods, 0, now)
        following = check_max_runtime(status, self.max_runtime_s, "activeDeadlineSeconds", now)
        following = following or check_drained(status, observation)
        return RunState(finished, following or Transition(status if ready is None else ready))

    def start(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunWrites:
        if not self.suspend:
            return RunWrites()
        patch = {"suspend": False, "nodes": tuple(sorted(nodes_of(status.placement)))}
        return RunWrites((PatchObject(self.key, patch),))

    def stop(self, pods: Sequence[PodView], observation: Observation, timeouts: Timeouts) -> RunWrites:
        if self.suspend:
            return RunWrites()  # its controller deletes them
        return RunWrites((PatchObject(self.key, {"suspend": True}),))

    def record(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> Transition:
        return Transition(status)
