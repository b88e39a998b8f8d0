"""An object of one of these kinds as a `Workload`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from muster.api.quantity import format_quantity
from muster.api.spec import ObjectMeta, QueueingStatus, RolePlacementStatus
from muster.cluster import DeletePod, PatchObject, PodView, UngatePod, Write
from muster.kinds.suspended.checks import (
    check_promised_runtime,
    check_rejected,
    rejection_message,
    runtime_ends_at,
)
from muster.kinds.suspended.patches import Patch, start_patch, stop_patch
from muster.kinds.suspended.read import ObjectState, value_at
from muster.kinds.suspended.table import KindRow
from muster.model import GangKey, Role, Topology
from muster.workload import transitions
from muster.workload.conditions import (
    COMPLETE,
    FAILED,
    PODS_READY,
    is_admitted,
    is_condition_true,
    is_evicting,
    set_condition,
    with_status_fields,
)
from muster.workload.node_loss import is_node_lost
from muster.workload.observation import Observation
from muster.workload.placement import from_status, pod_count, pod_slots
from muster.workload.protocol import RunState, RunWrites, Transition
from muster.workload.requests import max_amount_per_pod
from muster.workload.run_checks import check_drained, check_ready
from muster.workload.start_conditions import UNCONDITIONAL, StartConditions
from muster.workload.timeouts import Timeouts

_CONTROLLER_DELETES_WITHIN_S = 30.0
PODS_GATED = "PodsGated"
"""Condition: pods of it stay gated, since they are more than were admitted. Absent if there never were any."""


@dataclass(frozen=True, slots=True)
class SuspendedWorkload:
    """See `Workload`. `metadata.resource_version` is that of the object together with that of its status;
    `object_version` that of the object alone."""

    row: KindRow
    metadata: ObjectMeta
    object_version: str
    state: ObjectState
    status: QueueingStatus

    def with_status(self, status: QueueingStatus) -> SuspendedWorkload:
        return self if status is self.status else replace(self, status=status)

    @property
    def kind(self) -> str:
        """That of the object."""
        return self.row.kind

    # ---- what it asks for

    @property
    def key(self) -> GangKey:
        return self.metadata.uid

    @property
    def start_conditions(self) -> StartConditions:
        """None: there is no field for them."""
        return UNCONDITIONAL

    @property
    def queue(self) -> str:
        return self.state.queue

    @property
    def own_priority(self) -> int:
        return self.state.priority

    @property
    def priority_class(self) -> str | None:
        """None: the priority of its pods decides which pods kube-scheduler preempts, not the order in a queue."""
        return None

    @property
    def roles_key(self) -> object:
        """The pod sets; of an admitted object that needs other numbers by now, its placement."""
        return self.status.placement if self._counts_by_placement() else self.state.pod_sets

    def roles(self) -> tuple[Role, ...]:
        """See `Workload`. An admitted object has the size that it was admitted with."""
        counts = self.needed()
        if self._counts_by_placement():
            counts |= {part.role: part.replicas for part in from_status(self.status.placement)}
        counts = {one.name: counts.get(one.name, one.count) for one in self.state.pod_sets}
        most = max_amount_per_pod((counts[one.name], one.request) for one in self.state.pod_sets)
        return tuple(
            one.shape.role(one.name, counts[one.name], one.request.capped(most)) for one in self.state.pod_sets
        )

    def needed(self) -> dict[str, int]:
        """How many pods of each role the object needs now."""
        return {one.name: one.count for one in self.state.pod_sets}

    def _counts_by_placement(self) -> bool:
        if not is_admitted(self.status):
            return False
        return self.needed() != {part.role: part.replicas for part in from_status(self.status.placement)}

    @property
    def flavors(self) -> Sequence[str]:
        return ()

    @property
    def topology(self) -> Topology | None:
        return None

    @property
    def max_runtime_s(self) -> float | None:
        """See `Workload`. Of an admitted object at most what it was admitted with: others were planned by it."""
        admitted_s = self.status.max_runtime_seconds if is_admitted(self.status) else None
        found = [one for one in (self.state.max_runtime_s, admitted_s) if one is not None]
        return min(found, default=None)

    @property
    def start_timeout_s(self) -> float:
        return self.state.start_timeout_s

    @property
    def grace_s(self) -> float:
        return max((one.shape.grace_s for one in self.state.pod_sets), default=0.0)

    @property
    def ttl_after_finished_s(self) -> float | None:
        """None: its controller removes it."""
        return None

    @property
    def replaces_pods(self) -> bool:
        return True

    @property
    def is_suspended(self) -> bool:
        """Its annotation: `suspend` itself only holds it."""
        return self.state.user_suspends

    @property
    def is_cancelled(self) -> bool:
        return self.state.user_cancels

    @property
    def is_group(self) -> bool:
        return False

    def gang(self, index: int) -> SuspendedWorkload | None:
        return None

    @property
    def active_gangs(self) -> int:
        return 0

    def allows(self, placement: Sequence[RolePlacementStatus]) -> bool:
        needed = self.needed()
        return all(part.replicas <= needed.get(part.role, 0) for part in from_status(placement))

    # ---- how it runs

    @property
    def creates_pods(self) -> bool:
        """Whether it is neither suspended nor has ended."""
        return not self.state.suspend and not self.state.outcome

    @property
    def checkpoint_at(self) -> float | None:
        return None

    def observe(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunState:
        """See `Workload`: its controller says how it ends, and restarts its pods."""
        now, finished = observation.now, None
        if self.state.outcome:
            kind = COMPLETE if self.state.outcome == "Complete" else FAILED
            reason, message = self.state.outcome_reason, self.state.outcome_message
            if kind == FAILED and (why := rejection_message(status, observation.pods)):
                message = f"{message}; {why}" if message else why
            event = ("Normal" if kind == COMPLETE else "Warning", "Completed" if kind == COMPLETE else kind, message)
            finished = Transition(transitions.finish(status, kind, reason, message, now), event)  # type: ignore[arg-type]
        created_later = {one.name for one in self.state.pod_sets if one.later}
        pods = _current(status, observation.pods)
        first = tuple(pod for pod in pods if pod.role not in created_later)
        ready = check_ready(status, first, self._not_awaited(first, created_later), now)
        following = self._check_spec(status, now) or self._check_size(status, now)
        following = following or self._check_requests(status, pods, now)
        following = following or self._check_surplus(status, observation)
        following = following or check_rejected(status, observation, timeouts) or check_drained(status, observation)
        ends_at = runtime_ends_at(status, self.state.max_runtime_s, self.grace_s)
        following = following or check_promised_runtime(status, ends_at, now)
        if following is None and ready is None:
            following = self._check_start(status, now)
        following = following or Transition(status if ready is None else ready)
        if ends_at is not None:
            following = replace(following, wake_times=(*following.wake_times, ends_at))
        return RunState(finished, following)

    def start(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunWrites:
        """See `Workload`: resume the object, then give each gated pod its node."""
        if self.state.suspend and self.state.has_started:
            return RunWrites((self._patch(value_at(self.row.start_time, None), "status"),))
        if self.state.suspend:
            identity = f"{self.metadata.uid}/{self.metadata.name}"
            patch = start_patch(self.row, self.state, status, observation.flavors, identity)
            return RunWrites((self._patch(patch),))
        slots = {(slot.role, slot.index): slot for slot in pod_slots(status.placement)}
        gated = (pod for pod in _current(status, observation.pods) if pod.gated)
        found = ((pod, slots.get((pod.role, pod.index))) for pod in gated)
        uid = self.metadata.uid
        return RunWrites(
            tuple(UngatePod(uid, pod.name, slot.node, slot.flavor) for pod, slot in found if slot is not None)
        )

    def stop(self, pods: Sequence[PodView], observation: Observation, timeouts: Timeouts) -> RunWrites:
        """See `Workload`: suspend the object, whose controller deletes its pods, with their own grace period: where the
        queue allows less, they are deleted with that. Pods that it does not delete, such as those that a user has made
        up, would keep the capacity of an evicted object, and a waiting one from its start: they are deleted after a
        while. No kubelet ends those on a lost node."""
        writes: list[Write] = []
        if self.creates_pods:
            writes.append(self._patch(stop_patch(self.row)))
        wake_times = []
        for pod in pods:
            node = observation.nodes.get(pod.node)
            if not pod.holds_capacity:
                continue
            if pod.node and is_node_lost(node, observation.now, timeouts):
                writes.append(DeletePod(self.metadata.uid, pod.name, 0.0, force=True))
                continue
            grace_s, wake_at = self._deletion(pod, observation)
            if grace_s is not None:
                writes.append(DeletePod(self.metadata.uid, pod.name, grace_s))
            wake_times += [] if wake_at is None else [wake_at]
            if node is not None and node.not_ready_since is not None:
                wake_times.append(node.not_ready_since + timeouts.force_delete_after_s)
        return RunWrites(tuple(writes), tuple(wake_times))

    def _deletion(self, pod: PodView, observation: Observation) -> tuple[float | None, float | None]:
        """With which grace period a pod is to be deleted, None if it is not; and when to look again."""
        if pod.deleting:
            too_slow = pod.grace_s is not None and pod.grace_s > max(1.0, observation.max_grace_s)
            return (observation.max_grace_s if too_slow else None), None
        if self.creates_pods:
            return None, None
        transitions_at = (condition.last_transition_time for condition in self.status.conditions)
        due = max(transitions_at, default=0.0) + _CONTROLLER_DELETES_WITHIN_S
        return (None, due) if observation.now < due else (min(self.grace_s, observation.max_grace_s), None)

    def record(self, status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> Transition:
        """See `Workload`: how many pods its controller has created beyond what was admitted, which stay gated."""
        placed = {(slot.role, slot.index) for slot in pod_slots(status.placement)}
        more = 0
        if is_admitted(status) and not is_evicting(status):
            gated = (pod for pod in _current(status, observation.pods) if pod.gated)
            more = sum((pod.role, pod.index) not in placed for pod in gated)
            ending = (pod for pod in observation.pods if pod.deleting and pod.holds_capacity)
            more = max(0, more - sum(pod.attempt == status.attempt for pod in ending))  # which they replace
        if not more and not is_condition_true(status, PODS_GATED):
            return Transition(status)
        reason, message = "AsAdmitted", ""
        if more:
            verb = "stays" if more == 1 else "stay"
            reason, message = "MoreThanAdmitted", f"{more} more than the {len(placed)} pods admitted {verb} gated"
        changed = set_condition(status, PODS_GATED, bool(more), reason, message, observation.now)
        return Transition(changed, ("Warning", reason, message) if more and changed is not status else None)

    def _patch(self, patch: Patch, subresource: str = "") -> PatchObject:
        """Guarded by the version of the object."""
        guarded: Patch
        if isinstance(patch, dict):
            guarded = {**patch, "metadata": {"resourceVersion": self.object_version}}
        else:
            guarded = [{"op": "replace", "path": "/metadata/resourceVersion", "value": self.object_version}, *patch]
        return PatchObject(self.metadata.uid, guarded, subresource)

    def _not_awaited(self, pods: Sequence[PodView], created_later: Collection[str]) -> int:
        """How many pods of its placement have completed and were deleted, are not needed any more, or are created after
        others were ready."""
        needed, found = self.needed(), 0
        for part in from_status(self.status.placement):
            ended = sum(pod.role == part.role and pod.phase == "Succeeded" for pod in pods)
            gone = max(0, part.replicas - needed.get(part.role, 0) - ended)
            found += part.replicas if part.role in created_later else gone
        return found

    def _check_spec(self, status: QueueingStatus, now: float) -> Transition | None:
        """Requeue an object that was edited after its admission and before it was resumed: it may ask for more than it
        was admitted with."""
        if not self.state.suspend or self.status.observed_generation == self.metadata.generation:
            return None
        message = "it was edited after its admission, before it was resumed"
        return Transition(transitions.evict(status, "Edited", message, now), ("Normal", "Edited", message))

    def _check_requests(self, status: QueueingStatus, pods: Sequence[PodView], now: float) -> Transition | None:
        """Requeue an object whose gated pods request more than it was admitted with: none of them is released."""
        charged = {one.name: one.request for one in self.state.pod_sets}
        for pod in pods:
            admitted = charged.get(pod.role)
            if not pod.gated or admitted is None:
                continue
            beyond = ((name, amount - admitted.get(name)) for name, amount in pod.request)
            more = [f"{name} {format_quantity(amount, name)}" for name, amount in beyond if amount > 0]
            if more:
                message = f"each of its pods requests {' and '.join(more)} more than it was admitted with"
                return Transition(
                    transitions.evict(status, "PodsLarger", message, now), ("Normal", "PodsLarger", message)
                )
        return None

    def _check_surplus(self, status: QueueingStatus, observation: Observation) -> Transition | None:
        """Requeue an object of which more than twice as many pods run as it was admitted with. Its controller replaces
        each pod that is deleted, at once, while that one may take its whole grace period to end: a user who deletes
        them again and again would have any number."""
        admitted = pod_count(status.placement)
        own = (pod for pod in observation.pods if pod.attempt == status.attempt and pod.holds_capacity)
        running = sum(not pod.gated and pod.pending_reason != "Unschedulable" for pod in own)
        if running <= 2 * admitted:
            return None
        message = f"{running} of its pods run or terminate, and it was admitted with {admitted}"
        evicted = transitions.evict(status, "MorePods", message, observation.now)
        return Transition(evicted, ("Warning", "MorePods", message))

    def _check_size(self, status: QueueingStatus, now: float) -> Transition | None:
        """Requeue an object that was made larger while it is admitted: it waits for capacity for all its pods."""
        placed = {part.role: part.replicas for part in from_status(status.placement)}
        grown = sorted(name for name, count in self.needed().items() if count > placed.get(name, 0))
        if not grown:
            return None
        message = f"it needs {self.needed()[grown[0]]} pods, and was admitted with {placed.get(grown[0], 0)}"
        return Transition(transitions.evict(status, "Resized", message, now), ("Normal", "Resized", message))

    def _check_start(self, status: QueueingStatus, now: float) -> Transition | None:
        """Requeue an object whose pods are not ready in time, with a pause that grows."""
        if is_condition_true(status, PODS_READY) or status.admitted_at is None:
            return None
        due = status.admitted_at + self.start_timeout_s
        if now < due:
            return Transition(status, wake_times=(due,))
        message = f"not all of its {pod_count(status.placement)} pods were ready within {self.start_timeout_s:.0f} s"
        retried = with_status_fields(status, {"start_retries": status.start_retries + 1})
        evicted = transitions.evict(retried, transitions.START_TIMEOUT, message, now)
        return Transition(evicted, ("Warning", transitions.START_TIMEOUT, message))


def _current(status: QueueingStatus, pods: Sequence[PodView]) -> tuple[PodView, ...]:
    """The pods of its admission that are not being deleted."""
    return tuple(pod for pod in pods if pod.attempt == status.attempt and not pod.deleting)
