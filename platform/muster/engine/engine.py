"""One scheduling cycle: observe, reconcile every changed job, plan, write.

`Engine.reconcile` turns an observed state into writes and changes only the engine's caches. `run_cycle` observes a
cluster, reconciles and applies the writes; the operator does the same asynchronously. An engine can be killed between
any two writes: a new one reaches the same end from what it observes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from muster.change_tracker import ChangeTracker, TimerQueue
from muster.cluster import Cluster, NodeView, ObjectWrites, ObservedState, Write, WritePhase
from muster.engine.placement_check import invalid_placements
from muster.engine.queue_status import flavor_status_writes, guarantees_exceeding_nodes, queue_status_writes
from muster.engine.status_update import WritePriority, write_phases
from muster.engine.status_updater import StatusUpdater
from muster.engine.wait_status import WaitStatusThrottle
from muster.errors import Conflict
from muster.fairshare import TICK_S, FairShare
from muster.lifecycle import Timeouts, from_status, is_admitted
from muster.model import Decision, Placement, Snapshot, Wait
from muster.scheduling import MUSTER, Policy, plan
from muster.snapshot import SnapshotCache, build_snapshot
from muster.snapshot.jobs import priority_of
from muster.spec import QueueSpec, TrainingJob, TrainingJobStatus

STATUS_REFRESH_S = 60.0  # positions, estimates and usage are written at most this often


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one cycle decided, on `snapshot`. `waits` is by job uid; `wake_at`: when to run again although nothing
    changed.

    `muster.cluster` has the rules for applying `phases` concurrently, and for `deferred`.
    """

    phases: tuple[WritePhase, ...]
    deferred: WritePhase  # why gangs wait, and that they run
    decisions: tuple[Decision, ...]
    waits: Mapping[str, Wait]
    wake_at: float | None
    snapshot: Snapshot = field(compare=False)
    plan_s: float = field(default=0.0, compare=False)  # duration of the planning step

    @property
    def writes(self) -> tuple[Write, ...]:
        """All writes in one order that is always valid."""
        return tuple(write for phase in (*self.phases, self.deferred) for part in phase for write in part.writes)


@dataclass(slots=True)
class _IncrementalState:
    """What lets a cycle process only what changed. Losing it costs time, nothing else."""

    first_cycle: bool = True  # nothing was observed yet
    changes: ChangeTracker = field(default_factory=ChangeTracker)
    timers: TimerQueue = field(default_factory=TimerQueue)
    jobs: dict[str, TrainingJob] = field(default_factory=dict)  # as last observed
    # jobs that are nominated, or evicted or shrunk for another job
    nominated_or_evicting: set[str] = field(default_factory=set)
    unbound: set[str] = field(default_factory=set)  # admitted jobs with pods that kube-scheduler could not bind
    snapshot: Snapshot | None = None  # on which the placements of unbound jobs were checked last
    recheck: set[str] = field(default_factory=set)  # jobs whose writes did not all succeed
    node_views: tuple[NodeView, ...] | None = None
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    queue_specs: tuple[tuple[QueueSpec, str, str], ...] | None = None  # with names and uids


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
        self._incremental = _IncrementalState()
        self._snapshot_cache = SnapshotCache()
        self._planner_cache: Any = None
        self._fair_share = FairShare()

    def recheck(self, uids: Iterable[str] | None = None) -> None:
        """Process these jobs (None: every job) again in the next cycle, since some writes of the last one may not have
        succeeded. If the jobs are unknown pass None; it costs time, nothing else."""
        if uids is None:
            self._incremental = _IncrementalState()
            self._wait_throttle.invalidate()
            return
        for uid in uids:
            self._incremental.recheck.add(uid)
            self._wait_throttle.forget(uid)

    def reconcile(self, observed: ObservedState) -> CycleResult:
        """What to write now, in order. If it fails, the next cycle processes everything."""
        try:
            return self._reconcile(observed)
        except BaseException:
            self._snapshot_cache, self._planner_cache = SnapshotCache(), None
            self.recheck()
            raise

    def _reconcile(self, observed: ObservedState) -> CycleResult:
        now, memory = observed.now, self._incremental
        changed = self._jobs_to_reconcile(observed)
        desk = StatusUpdater(observed, memory.jobs, memory.nodes, self._timeouts)
        for uid in changed:
            desk.reconcile_job(uid)
        desk.sync_nominations(
            memory.nominated_or_evicting
            | {uid for uid in changed if _has_nomination_or_eviction(desk.latest_status(uid))}
        )
        built = build_snapshot(
            observed, self._snapshot_cache, self._fair_share.published_usage(now), desk.updated_jobs()
        )
        plan_started = self._clock()
        planned = plan(built.snapshot, self._planner_cache, self._policy)
        plan_s = self._clock() - plan_started
        self._planner_cache = planned.cache
        desk.apply_decisions(planned.decisions)
        for uid, why in invalid_placements(built.snapshot, self._unbound_placements(desk, built.snapshot)).items():
            desk.evict_invalid(uid, why)
        waits = {wait.gang_uid: wait for wait in built.rejected}
        waits.update((wait.gang_uid, wait) for wait in planned.decisions if isinstance(wait, Wait))
        desk.revoke_nominations(waits.values())
        news_at = self._update_wait_statuses(desk, waits, now)
        self._update_usage(desk, changed, now)
        _record_priorities(desk, observed.priority_classes)
        phases, afterwards = write_phases(desk.updates.values())
        reports: list[Write] = []
        beyond = guarantees_exceeding_nodes(planned.cache)
        reports += queue_status_writes(
            observed.queues, built.queue_verdicts, beyond, self._fair_share, now, self._wait_throttle.refresh_s
        )
        reports += flavor_status_writes(observed.flavors, built.overlaps, now)
        if reports:
            phases.append(tuple(ObjectWrites("", (write,)) for write in reports))
        for uid, wake_at in desk.wake_times.items():
            memory.timers.schedule(uid, wake_at)
        tick_at = (
            (now // TICK_S + 1) * TICK_S
            if self._fair_share.has_charges and self._wait_throttle.refresh_s <= STATUS_REFRESH_S
            else None
        )
        times = (at for at in (memory.timers.next_time(), built.wake_at, news_at, tick_at) if at is not None)
        wake_at = now if desk.needs_another_cycle else min(times, default=None)
        return CycleResult(tuple(phases), afterwards, tuple(planned.decisions), waits, wake_at, built.snapshot, plan_s)

    def _jobs_to_reconcile(self, observed: ObservedState) -> list[str]:
        """Jobs that changed, or whose timer is due."""
        memory = self._incremental
        everyone = self._nodes_changed(observed)
        self._update_queues(observed)
        difference = memory.changes.diff(observed.jobs, observed.pods, observed.heartbeats)
        gone = difference.removed
        if memory.first_cycle:  # jobs that were removed meanwhile are in no difference
            gone = (self._fair_share.charged_jobs() | self._wait_throttle.known_jobs()) - {
                job.metadata.uid for job in observed.jobs
            }
            memory.first_cycle = False
        self._forget_jobs(gone, observed.now)
        for job in difference.changed:
            memory.jobs[job.metadata.uid] = job
            (
                memory.nominated_or_evicting.add
                if _has_nomination_or_eviction(job.status)
                else memory.nominated_or_evicting.discard
            )(job.metadata.uid)
        again = {memory.recheck.pop() for _ in range(len(memory.recheck))}  # another thread may add to it now
        due = {*memory.timers.pop_due(observed.now), *again} & memory.jobs.keys()
        if everyone:
            return [job.metadata.uid for job in observed.jobs]
        fresh = [job.metadata.uid for job in difference.changed]
        return [*fresh, *sorted({*difference.touched, *due} - set(fresh))]

    def _unbound_placements(self, updater: StatusUpdater, snapshot: Snapshot) -> dict[str, Placement]:
        """Placements to check: of jobs processed in this cycle, and of all with unbound pods once a node changed."""
        state, processed = self._incremental, updater.wake_times.keys()
        found = updater.unbound_placements(
            processed if _same_nodes(state.snapshot, snapshot) else processed | state.unbound
        )
        state.snapshot = snapshot
        state.unbound = (state.unbound - processed) | found.keys()
        return found

    def _nodes_changed(self, observed: ObservedState) -> bool:
        """Whether a node was added, removed or changed its health, so that every job has to be processed."""
        memory = self._incremental
        if memory.node_views is observed.nodes:
            return False
        before, memory.nodes = memory.nodes, {view.name: view for view in observed.nodes}
        memory.node_views = observed.nodes
        if before.keys() != memory.nodes.keys():
            return True
        return any(
            view is not before[name] and _health(view) != _health(before[name]) for name, view in memory.nodes.items()
        )

    def _update_queues(self, observed: ObservedState) -> None:
        queues = tuple((queue.spec, queue.metadata.name, queue.metadata.uid) for queue in observed.queues)
        known = self._incremental.queue_specs
        if known is not None and len(queues) == len(known) and all(map(_same_queue, queues, known)):
            return
        self._incremental.queue_specs = queues
        self._fair_share.update_queues(observed.queues, observed.now)

    def _forget_jobs(self, gone: Iterable[str], now: float) -> None:
        for uid in gone:
            self._incremental.timers.schedule(uid, None)
            self._incremental.jobs.pop(uid, None)
            self._incremental.nominated_or_evicting.discard(uid)
            self._incremental.unbound.discard(uid)
            self._wait_throttle.forget(uid)
            self._fair_share.release(uid, now)

    def _update_wait_statuses(self, updater: StatusUpdater, waits: Mapping[str, Wait], now: float) -> float | None:
        """Write why jobs wait, as often as allowed; return when to do so again."""
        again: float | None = None
        jobs, updates, tell = self._incremental.jobs, updater.updates, self._wait_throttle.update
        self._wait_throttle.begin_cycle(waits.values())
        for uid, wait in waits.items():
            update = updates.get(uid)
            status = jobs[uid].status if update is None else update.status
            written, due = tell(wait, status, now, force=update is not None and update.changed)
            if written is not status:
                updater.set_wait_status(uid, written)
            if due is not None and (again is None or due < again):
                again = due
        for uid in updates.keys() - waits.keys():
            self._wait_throttle.forget(uid)
        return again

    def _update_usage(self, updater: StatusUpdater, changed: list[str], now: float) -> None:
        """Fair-share usage counts from now on what the jobs of this cycle take."""
        for uid in {*changed, *updater.updates}:
            status, gang = updater.latest_status(uid), self._snapshot_cache.jobs[uid].gang
            if status is None:
                continue
            placement = from_status(status.placement) if is_admitted(status) else ()
            since = now if status.admitted_at is None else status.admitted_at
            self._fair_share.charge(uid, gang.queue, placement, gang.roles, since, now)


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


def _record_priorities(updater: StatusUpdater, classes: Mapping[str, int]) -> None:
    """Every status that is written gets the effective priority; except an admission, which may be carried by a pod
    (docs/decisions/0010)."""
    for update in updater.updates.values():
        priority = priority_of(update.job.spec, classes)
        if (
            priority not in (None, update.status.priority)
            and update.priority is not WritePriority.ADMISSION
            and update.changed
        ):
            update.status = update.status.model_copy(update={"priority": priority})


def _has_nomination_or_eviction(status: TrainingJobStatus | None) -> bool:
    return status is not None and (status.nomination is not None or status.eviction is not None)


def _same_queue(a: tuple[QueueSpec, str, str], b: tuple[QueueSpec, str, str]) -> bool:
    return a[0] is b[0] and a[1:] == b[1:]


def _same_nodes(before: Snapshot | None, now: Snapshot) -> bool:
    return (
        before is not None
        and before.nodes is now.nodes
        and before.flavors is now.flavors
        and before.excluded_nodes is now.excluded_nodes
    )


def _health(view: NodeView) -> tuple[object, ...]:
    return view.ready, view.not_ready_since, view.taints
