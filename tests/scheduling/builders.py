"""More builders for the planner: shares used, trees of two teams, and a cluster over many plans."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tests.scheduling.snapshots import GPU, HOUR, carried_out, queue, waits_by_uid

from muster.model import Admit, DecayedUsage, Evict, Gang, QueueInfo, Resize, RunningGang, Snapshot, Wait
from muster.scheduling import MUSTER, PlannerCache, PlanResult, Policy, plan


def gpu_hours(used: Mapping[str, float], flavor: str = "h200") -> tuple[DecayedUsage, ...]:
    """Decayed GPU hours that leaf queues have used."""
    return tuple(DecayedUsage(name, flavor, GPU, hours * HOUR) for name, hours in used.items())


def two_teams(first: int = 8, second: int = 8) -> list[QueueInfo]:
    """A root with nothing of its own, and below it `a` and `b` with so many GPUs guaranteed."""
    return [queue("co"), queue("a", "co", first), queue("b", "co", second)]


def message_of(snapshot: Snapshot, uid: str) -> str:
    """The message of a waiting gang."""
    return wait_of(snapshot, uid).message


def wait_of(snapshot: Snapshot, uid: str) -> Wait:
    """Why a gang waits."""
    return waits_by_uid(plan(snapshot))[uid]


def in_order(result: PlanResult) -> list[str]:
    """Uids of admitted gangs, in the order of the decisions."""
    return [d.gang_uid for d in result.decisions if isinstance(d, Admit)]


@dataclass(slots=True)
class PlanningLoop:
    """A cluster over many plans, as the engine makes them: pure, with its own clock.

    A gang runs for `runtime[uid]` seconds once it is admitted, from the start again after an eviction; an evicted one
    is gone `stop_s` later. `arrivals` are gangs that come at their `submitted_at`.
    """

    snapshot: Snapshot
    runtime: Mapping[str, float]
    arrivals: list[Gang] = field(default_factory=list)
    stop_s: float = 10.0
    policy: Policy = MUSTER
    started: dict[str, float] = field(default_factory=dict)  # first start, by uid
    ended: dict[str, float] = field(default_factory=dict)
    evictions: list[tuple[float, str]] = field(default_factory=list)
    plans: list[tuple[float, PlanResult]] = field(default_factory=list)
    _stops: dict[str, float] = field(default_factory=dict)
    _cache: PlannerCache | None = None

    def live(self, most_plans: int = 400, *, stop_when: Collection[str] | None = None) -> None:
        """Go on until nothing is left to happen, or these gangs have started. Raises AssertionError when that takes
        more plans than that."""
        self._expect(self.snapshot.running)
        while True:
            self._plan()
            assert len(self.plans) < most_plans, "the plans never settle"
            events = [at for at in self._stops.values() if at > self.snapshot.now]
            events += [max(at, self.snapshot.now + 1) for at in self._ends()]  # one may be over when it comes back
            events += [gang.submitted_at for gang in self.arrivals]
            changes_at = self.plans[-1][1].changes_at
            events += [] if changes_at is None or not self.snapshot.pending else [changes_at]
            events += [
                nomination.expires_at
                for nomination in self.snapshot.nominations
                if nomination.expires_at > self.snapshot.now
            ]
            if stop_when is not None and self.started.keys() >= set(stop_when):
                return
            if not events or not (self.snapshot.pending or self.snapshot.running or self.arrivals):
                return
            self._advance(min(events))

    def _ends(self) -> Iterable[float]:
        return (r.admitted_at + self.runtime[r.gang.uid] for r in self.snapshot.running if r.state == "admitted")

    def _expect(self, running: Iterable[RunningGang]) -> None:
        for r in running:
            self.started.setdefault(r.gang.uid, r.admitted_at)

    def _plan(self) -> None:
        result = plan(self.snapshot, self._cache, self.policy)
        self._cache, now = result.cache, self.snapshot.now
        self.plans.append((now, result))
        for decision in result.decisions:
            match decision:
                case Admit(uid):
                    self.started.setdefault(uid, now)
                case Evict(uid) if any(r.gang.uid == uid for r in self.snapshot.running):
                    self.evictions.append((now, uid))
                    self._stops[uid] = now + self.stop_s
                case Resize(uid):
                    self._stops[uid] = now + self.stop_s
                case _:
                    pass
        self.snapshot = carried_out(self.snapshot, result.decisions)

    def _advance(self, now: float) -> None:
        """What has happened by then: gangs end, have left, go on at another size, arrive; nominations expire."""
        running, waiting = [], list(self.snapshot.pending)
        for r in self.snapshot.running:
            uid = r.gang.uid
            if r.state == "admitted" and r.admitted_at + self.runtime[uid] <= now:
                self.ended[uid] = now
            elif r.state == "evicting" and self._stops[uid] <= now:
                del self._stops[uid]
                if r.retained_placement:
                    running.append(
                        replace(
                            r, placement=r.retained_placement, retained_placement=(), state="admitted", preemptor=None
                        )
                    )
                else:
                    waiting.append(replace(r.gang, borrowing_head_since=None))
            else:
                running.append(r)
        waiting += [gang for gang in self.arrivals if gang.submitted_at <= now]
        self.arrivals = [gang for gang in self.arrivals if gang.submitted_at > now]
        nominations = tuple(
            nomination
            for nomination in self.snapshot.nominations
            if nomination.expires_at > now and nomination.gang_uid not in self.ended
        )
        self.snapshot = replace(
            self.snapshot, now=now, running=tuple(running), pending=tuple(waiting), nominations=nominations
        )
