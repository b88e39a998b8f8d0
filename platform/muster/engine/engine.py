"""One round: observe, let every job live, plan, write.

`decide` turns a world into writes and touches nothing but what it remembers to be quick; `step` reads the world from a
cluster and carries the writes out. An engine can be killed between any two writes: a new one reaches the same end from
what it sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from muster.changes import Alarms, Changes
from muster.cluster import Cluster, NodeView, ObjectWrites, Phase, World, Write
from muster.engine.desk import Desk
from muster.engine.drafts import Rank, in_phases
from muster.engine.news import News
from muster.engine.refit import misfits
from muster.engine.reports import beyond_nodes, flavor_writes, queue_writes
from muster.errors import Conflict
from muster.fairshare import TICK_S, FairShare
from muster.lifecycle import Bounds, from_status, is_admitted
from muster.model import Decision, Snapshot, Wait
from muster.scheduling import MUSTER, Policy, plan
from muster.snapshot import Cache, build
from muster.snapshot.jobs import priority_of
from muster.spec import QueueSpec, TrainingJob, TrainingJobStatus

NEWS_S = 60.0  # positions, estimates and usage are written at most this often


@dataclass(frozen=True, slots=True)
class Round:
    """What one round decided. `waits` is by job uid. `wake_at`: when to decide again though nothing changed.

    `muster.cluster` says how to carry out `phases` several writes at a time, and when to write what is `afterwards`.
    """

    phases: tuple[Phase, ...]
    afterwards: Phase  # why gangs wait, and that they run
    decisions: tuple[Decision, ...]
    waits: Mapping[str, Wait]
    wake_at: float | None

    @property
    def writes(self) -> tuple[Write, ...]:
        """All writes in one order that is always right."""
        return tuple(write for phase in (*self.phases, self.afterwards) for part in phase for write in part.writes)


@dataclass(slots=True)
class _Memory:
    """What lets a round look only at what changed. Losing it costs time, nothing else."""

    blank: bool = True  # nothing was looked at yet
    changes: Changes = field(default_factory=Changes)
    alarms: Alarms = field(default_factory=Alarms)
    jobs: dict[str, TrainingJob] = field(default_factory=dict)  # as last observed
    promises: set[str] = field(default_factory=set)  # who holds room, or leaves or shrinks for somebody
    again: set[str] = field(default_factory=set)  # whose writes did not all happen
    node_views: tuple[NodeView, ...] | None = None
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    queues: tuple[tuple[QueueSpec, str, str], ...] | None = None  # with names and uids


class Engine:
    """Decides for one cluster; without one it only ever decides (`decide`), and others observe and write.

    `news_s` bounds how often positions and usage are written (infinite: only once).
    """

    def __init__(
        self,
        cluster: Cluster | None,
        policy: Policy = MUSTER,
        *,
        bounds: Bounds | None = None,
        news_s: float = NEWS_S,
    ) -> None:
        self.snapshot: Snapshot | None = None  # the newest one
        self._cluster = cluster
        self._policy = policy
        self._bounds = bounds or Bounds()
        self._news = News(news_s)
        self._memory = _Memory()
        self._cache = Cache()
        self._plan_memo: Any = None
        self._shares = FairShare()

    def step(self) -> Round:
        """Observe, decide, apply. Raises ClusterError when the cluster cannot be reached.

        When a write is refused because something changed meanwhile, the round ends there and wants another one now.
        """
        assert self._cluster is not None, "an engine without a cluster cannot take a step by itself"
        world = self._cluster.observe()
        round_ = self.decide(world)
        try:
            self._cluster.apply(round_.writes)
        except Conflict:
            self.recheck()
            return replace(round_, wake_at=world.now)
        except Exception:
            self.recheck()
            raise
        return round_

    def recheck(self, uids: Iterable[str] | None = None) -> None:
        """Look at these jobs (None: at every job) again in the next round: some writes of the last one may not have
        happened. Whoever cannot tell which says None; it costs time, nothing else."""
        if uids is None:
            self._memory = _Memory()
            self._news.doubt()
            return
        for uid in uids:
            self._memory.again.add(uid)
            self._news.forget(uid)

    def decide(self, world: World) -> Round:
        """What to write now, in order. When it fails, the next round looks at everything."""
        try:
            return self._decide(world)
        except BaseException:
            self._cache, self._plan_memo = Cache(), None
            self.recheck()
            raise

    def _decide(self, world: World) -> Round:
        now, memory = world.now, self._memory
        changed = self._look(world)
        desk = Desk(world, memory.jobs, memory.nodes, self._bounds)
        for uid in changed:
            desk.live(uid)
        desk.settle_holds(memory.promises | {uid for uid in changed if _promises(desk.status(uid))})
        built = build(world, self._cache, self._shares.usage(now), desk.newest())
        planned = plan(built.snapshot, self._plan_memo, self._policy)
        self.snapshot, self._plan_memo = built.snapshot, planned.memo
        desk.carry_out(planned.decisions)
        for uid, why in misfits(built.snapshot, desk.unbound()).items():
            desk.take_back(uid, why)
        waits = {wait.gang: wait for wait in built.refused}
        waits.update((wait.gang, wait) for wait in planned.decisions if isinstance(wait, Wait))
        desk.give_back(waits.values())
        news_at = self._tell(desk, waits, now)
        self._charge(desk, changed, now)
        _note_priorities(desk, world.priority_classes)
        phases, afterwards = in_phases(desk.drafts.values())
        reports: list[Write] = []
        beyond = beyond_nodes(planned.memo)
        reports += queue_writes(world.queues, built.verdicts, beyond, self._shares, now, self._news.every_s)
        reports += flavor_writes(world.flavors, built.overlaps, now)
        if reports:
            phases.append(tuple(ObjectWrites("", (write,)) for write in reports))
        for uid, wake_at in desk.wakes.items():
            memory.alarms.set(uid, wake_at)
        tick_at = (now // TICK_S + 1) * TICK_S if self._shares.busy and self._news.every_s <= NEWS_S else None
        times = (at for at in (memory.alarms.next(), built.wake_at, news_at, tick_at) if at is not None)
        wake_at = now if desk.unsettled else min(times, default=None)
        return Round(tuple(phases), afterwards, tuple(planned.decisions), waits, wake_at)

    def _look(self, world: World) -> list[str]:
        """Jobs to look at: what changed about them, or their time has come."""
        memory = self._memory
        everyone = self._look_at_nodes(world)
        self._look_at_queues(world)
        difference = memory.changes.since_last(world.jobs, world.pods, world.beats)
        gone = difference.gone
        if memory.blank:  # whoever went meanwhile is in no difference
            gone = (self._shares.charged() | self._news.known()) - {job.metadata.uid for job in world.jobs}
            memory.blank = False
        self._forget(gone, world.now)
        for job in difference.jobs:
            memory.jobs[job.metadata.uid] = job
            (memory.promises.add if _promises(job.status) else memory.promises.discard)(job.metadata.uid)
        again = {memory.again.pop() for _ in range(len(memory.again))}  # another thread may add to it just now
        due = {*memory.alarms.due(world.now), *again} & memory.jobs.keys()
        if everyone:
            return [job.metadata.uid for job in world.jobs]
        fresh = [job.metadata.uid for job in difference.jobs]
        return [*fresh, *sorted({*difference.beside, *due} - set(fresh))]

    def _look_at_nodes(self, world: World) -> bool:
        """Whether some node came, went or changed its health, so that every job has to be looked at."""
        memory = self._memory
        if memory.node_views is world.nodes:
            return False
        before, memory.nodes = memory.nodes, {view.name: view for view in world.nodes}
        memory.node_views = world.nodes
        if before.keys() != memory.nodes.keys():
            return True
        return any(
            view is not before[name] and _health(view) != _health(before[name]) for name, view in memory.nodes.items()
        )

    def _look_at_queues(self, world: World) -> None:
        queues = tuple((queue.spec, queue.metadata.name, queue.metadata.uid) for queue in world.queues)
        known = self._memory.queues
        if known is not None and len(queues) == len(known) and all(map(_same_queue, queues, known)):
            return
        self._memory.queues = queues
        self._shares.look_at_queues(world.queues, world.now)

    def _forget(self, gone: Iterable[str], now: float) -> None:
        for uid in gone:
            self._memory.alarms.set(uid, None)
            self._memory.jobs.pop(uid, None)
            self._memory.promises.discard(uid)
            self._news.forget(uid)
            self._shares.end(uid, now)

    def _tell(self, desk: Desk, waits: Mapping[str, Wait], now: float) -> float | None:
        """Write down why jobs wait, as often as is allowed; when to do so again."""
        again: float | None = None
        jobs, drafts, tell = self._memory.jobs, desk.drafts, self._news.tell
        self._news.begin(waits.values())
        for uid, wait in waits.items():
            draft = drafts.get(uid)
            status = jobs[uid].status if draft is None else draft.status
            told, due = tell(wait, status, now, anyway=draft is not None and draft.changed)
            if told is not status:
                desk.put_news(uid, told)
            if due is not None and (again is None or due < again):
                again = due
        for uid in drafts.keys() - waits.keys():
            self._news.forget(uid)
        return again

    def _charge(self, desk: Desk, changed: list[str], now: float) -> None:
        """Fair-share usage counts from now on what the jobs of this round take up."""
        for uid in {*changed, *desk.drafts}:
            status, gang = desk.status(uid), self._cache.jobs[uid].gang
            if status is None:
                continue
            placement = from_status(status.placement) if is_admitted(status) else ()
            since = now if status.admitted_at is None else status.admitted_at
            self._shares.charge(uid, gang.queue, placement, gang.roles, since, now)


def _note_priorities(desk: Desk, classes: Mapping[str, int]) -> None:
    """With whatever is written of a job goes the priority that counts; not with an admission, which a pod may carry
    (docs/decisions/0108)."""
    for draft in desk.drafts.values():
        priority = priority_of(draft.job.spec, classes)
        if priority not in (None, draft.status.priority) and draft.rank is not Rank.ADMIT and draft.changed:
            draft.status = draft.status.model_copy(update={"priority": priority})


def _promises(status: TrainingJobStatus | None) -> bool:
    return status is not None and (status.hold is not None or status.eviction is not None)


def _same_queue(a: tuple[QueueSpec, str, str], b: tuple[QueueSpec, str, str]) -> bool:
    return a[0] is b[0] and a[1:] == b[1:]


def _health(view: NodeView) -> tuple[object, ...]:
    return view.ready, view.not_ready_since, view.taints
