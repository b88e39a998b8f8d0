"""One scheduling cycle: observe, reconcile every changed job, plan, write.

`Engine.reconcile` turns an observed state into writes and changes only the engine's caches. `run_cycle` observes a
cluster, reconciles and applies the writes; the operator does the same asynchronously. An engine can be killed between
any two writes: a new one reaches the same end from what it observes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from muster.api.spec import QueueingStatus, QueueUsageStatus
from muster.cluster import ObjectWrites, Write, WritePhase
from muster.engine.invalid_placements import invalid_placements
from muster.engine.queue_usage import QueueUsageThrottle
from muster.engine.status_updater import StatusUpdater
from muster.engine.status_writes import (
    WaitStatusThrottle,
    flavor_status_writes,
    guarantees_exceeding_nodes,
    queue_status_writes,
    write_phases,
)
from muster.errors import Conflict
from muster.model import Decision, Gang, Placement, Snapshot, Wait
from muster.scheduling import MUSTER, PlannerCache, Policy, plan
from muster.state import BuildResult, ClusterState, build_snapshot
from muster.state.cluster_state import has_nomination_or_eviction
from muster.state.fair_share import TICK_S, Charge, charge_of
from muster.state.jobs import NEVER
from muster.usage.segments import next_usage
from muster.usage.time_spent import next_time_spent
from muster.workload.blame import AvoidedNode
from muster.workload.conditions import is_admitted
from muster.workload.observed import Cluster, ObservedState
from muster.workload.placement import charged_placement
from muster.workload.planning import effective_priority
from muster.workload.timeouts import Timeouts

STATUS_REFRESH_S = 60.0  # positions, estimates and usage are written at most this often


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one cycle decided, on `snapshot`. `waits` is by job uid; `wake_at`: when to run again although nothing
    changed; `avoided_nodes`: nodes that are excluded for all gangs, by name.

    `muster.cluster` has the rules for applying `phases` concurrently, and for `deferred`.
    """

    phases: tuple[WritePhase, ...]
    deferred: WritePhase  # why gangs wait, and that they run
    decisions: tuple[Decision, ...]
    waits: Mapping[str, Wait]
    wake_at: float | None
    snapshot: Snapshot = field(compare=False)
    avoided_nodes: Mapping[str, AvoidedNode] = field(default_factory=dict)
    plan_s: float = field(default=0.0, compare=False)  # duration of the planning step

    @property
    def writes(self) -> tuple[Write, ...]:
        return tuple(write for phase in (*self.phases, self.deferred) for part in phase for write in part.writes)


class Engine:
    """Decides for one cluster: from the observed state to writes.

    `status_refresh_s`: seconds between writes of positions and usage (infinite: only once). `clock`: measures the
    planning step, in seconds.
    """

    def __init__(
        self,
        policy: Policy = MUSTER,
        *,
        timeouts: Timeouts | None = None,
        status_refresh_s: float = STATUS_REFRESH_S,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._timeouts = timeouts or Timeouts()
        self._wait_throttle = WaitStatusThrottle(status_refresh_s)
        self._usage_throttle = QueueUsageThrottle()
        self._state = ClusterState()
        self._planner_cache: PlannerCache | None = None

    def recheck(self, uids: Iterable[str] | None = None) -> None:
        """Process these jobs (None: every job) again in the next cycle, since some writes of the last one may not have
        succeeded. If the jobs are unknown pass None; it costs time, nothing else. Any thread may call it."""
        self._state.recheck(uids)

    def reconcile(self, observed: ObservedState) -> CycleResult:
        """What to write now, in order. If it fails, the next cycle processes everything."""
        try:
            return self._reconcile(observed)
        except BaseException:
            self._state, self._planner_cache = self._state.rebuilt(), None
            raise

    def _reconcile(self, observed: ObservedState) -> CycleResult:
        state, now = self._state, observed.now
        # 1. Continue the lifecycle of every job that changed or whose timer is due.
        changes = state.update(observed)
        updater = StatusUpdater(observed, state.jobs, state.nodes, self._timeouts, state.max_grace_s, state.related)
        for uid in changes.reconcile:
            if uid not in observed.paused:
                updater.reconcile_job(uid)
        updater.sync_nominations(
            (
                state.nominated_or_evicting
                | {uid for uid in changes.reconcile if has_nomination_or_eviction(updater.latest_status(uid))}
            )
            - observed.paused
        )
        # 2. Plan on the result.
        usage = state.fair_share.published_usage(now)
        built = build_snapshot(state, observed, changes, usage, updater.updated_jobs())
        plan_started = self._clock()
        planned = plan(built.snapshot, self._planner_cache, self._policy)
        plan_s = self._clock() - plan_started
        self._planner_cache = planned.cache
        # 3. Convert the decisions into statuses.
        updater.apply_decisions(planned.decisions)
        for uid, why in invalid_placements(planned.cache, self._unbound_placements(updater, observed, built)).items():
            updater.evict_invalid(uid, why)
        waits = {wait.gang_uid: wait for wait in built.rejected}
        waits.update((wait.gang_uid, wait) for wait in planned.decisions if isinstance(wait, Wait))
        updater.with_refused_evictions(waits)
        updater.revoke_nominations(waits.values())
        refresh_at = self._update_wait_statuses(updater, waits, now)
        self._update_usage(updater, changes.reconcile, now)
        _record_priorities(updater, observed.priority_classes)
        self._record_usage(updater, observed)
        # 4. Order the writes.
        phases, deferred = write_phases(updater.updates.values())
        queue_usage, usage_due = self._queue_usage(observed, built.snapshot)
        object_writes = self._object_writes(observed, built, planned.cache, queue_usage)
        if object_writes:
            phases.append(tuple(ObjectWrites("", (write,)) for write in object_writes))
        for uid, wake_at in updater.wake_times.items():
            state.jobs[uid].reconcile_at = NEVER if wake_at is None else wake_at
            state.schedule(uid)
        times = (
            state.timers.next_time(),
            built.wake_at,
            refresh_at,
            usage_due,
            self._next_tick(now),
            planned.changes_at,
        )
        wake_at = now if updater.needs_another_cycle else min((at for at in times if at is not None), default=None)
        return CycleResult(
            tuple(phases),
            deferred,
            tuple(planned.decisions),
            waits,
            wake_at,
            built.snapshot,
            built.avoided_nodes,
            plan_s,
        )

    def _unbound_placements(
        self, updater: StatusUpdater, observed: ObservedState, built: BuildResult
    ) -> dict[str, Placement]:
        """Placements to check: of jobs processed in this cycle, and of all with unbound pods once a node changed. Those
        of paused jobs are checked once they are processed again."""
        state, processed = self._state, updater.wake_times.keys()
        others = state.unbound - observed.paused if built.nodes_changed else set[str]()
        found = updater.unbound_placements(processed | others)
        state.unbound = (state.unbound - processed) | found.keys()
        return found

    def _update_wait_statuses(self, updater: StatusUpdater, waits: Mapping[str, Wait], now: float) -> float | None:
        """Write why jobs wait, as often as allowed; return when to do so again."""
        again: float | None = None
        jobs, updates, throttle = self._state.jobs, updater.updates, self._wait_throttle.update
        self._wait_throttle.begin_cycle(waits.values())
        for uid, wait in waits.items():
            entry, update = jobs[uid], updates.get(uid)
            status = entry.workload.status if update is None else update.status
            written, due = throttle(entry, wait, status, now, force=update is not None and update.changed)
            if written is not status:
                updater.set_wait_status(uid, written)
            if due is not None and (again is None or due < again):
                again = due
        for uid in updates.keys() - waits.keys():
            jobs[uid].clear_wait()
        return again

    def _update_usage(self, updater: StatusUpdater, reconciled: Iterable[str], now: float) -> None:
        """Fair-share usage counts from now on what the jobs of this cycle take."""
        for uid in {*reconciled, *updater.updates}:
            entry, status = self._state.jobs[uid], updater.latest_status(uid)
            if status is None or entry.gang is None:
                continue
            placement = charged_placement(status) if is_admitted(status) else ()
            charge = charge_of(entry.gang.queue, placement, entry.gang.roles)
            since = now if status.admitted_at is None else status.admitted_at
            self._state.fair_share.charge(uid, entry.charge, charge, since, now)
            entry.charge = charge

    def _record_usage(self, updater: StatusUpdater, observed: ObservedState) -> None:
        """Every status that is written gets the usage segments, and the cause of time, that begin or end with it."""
        for uid, update in updater.updates.items():
            if not update.changed or update.workload.is_group:
                continue
            charge = partial(_charge_under, self._state.jobs[uid].gang)
            recorded = observed.recorded_usage.get(uid, 0)
            usage = next_usage(update.workload, update.status, charge, recorded, observed.now)
            spent = next_time_spent(update.workload, update.status, observed.now)
            if usage is not update.workload.status.usage or spent is not update.status.time_spent:
                update.status = update.status.model_copy(update={"usage": usage, "time_spent": spent})

    def _queue_usage(
        self, observed: ObservedState, snapshot: Snapshot
    ) -> tuple[dict[str, QueueUsageStatus], float | None]:
        """Usage to write into queues, and when to do so again; none where statuses are not refreshed."""
        if self._wait_throttle.refresh_s > STATUS_REFRESH_S:
            return {}, None
        return self._usage_throttle.update(observed.queues, observed.workloads, snapshot)

    def _object_writes(
        self,
        observed: ObservedState,
        built: BuildResult,
        cache: PlannerCache,
        usage: Mapping[str, QueueUsageStatus],
    ) -> list[Write]:
        """Statuses of queues and flavors."""
        queues = queue_status_writes(
            observed.queues,
            built.queue_readiness,
            guarantees_exceeding_nodes(cache),
            self._state.fair_share,
            observed.now,
            self._wait_throttle.refresh_s,
            usage,
        )
        return [*queues, *flavor_status_writes(observed.flavors, built.overlaps, observed.now)]

    def _next_tick(self, now: float) -> float | None:
        """When published usage changes by time alone; None if no job is charged."""
        if self._wait_throttle.refresh_s > STATUS_REFRESH_S or not self._state.fair_share.has_charges:
            return None
        return (now // TICK_S + 1) * TICK_S


def run_cycle(cluster: Cluster, engine: Engine) -> CycleResult:
    """Observe, reconcile, apply.

    Raises ClusterError if the cluster cannot be reached. When a write is refused because an object changed meanwhile,
    the cycle ends there and another one is due at once.
    """
    observed = cluster.observe()
    result = engine.reconcile(observed)
    try:
        cluster.apply(result.writes)
    except Conflict:
        engine.recheck()
        return replace(result, wake_at=observed.now)
    except Exception:
        engine.recheck()
        raise
    return result


def _charge_under(gang: Gang | None, status: QueueingStatus) -> Charge | None:
    """What an admitted job with this status takes; None if its gang is unknown."""
    return None if gang is None else charge_of(gang.queue, charged_placement(status), gang.roles)


def _record_priorities(updater: StatusUpdater, classes: Mapping[str, int]) -> None:
    """Every status that is written gets the effective priority."""
    for update in updater.updates.values():
        priority = effective_priority(update.workload, classes)
        if priority not in (None, update.status.priority) and update.changed:
            update.status = update.status.model_copy(update={"priority": priority})
