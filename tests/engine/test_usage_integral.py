"""Usage by the count is the integral of what ran, fading all the while, whatever happens in any order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.objects import flavor, job, nodes, queue
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
from muster.cluster import Write
from muster.engine import Engine, run_cycle
from muster.errors import ClusterError, Conflict
from muster.model import Resources, Role, RolePlacement
from muster.simulate import JobBehavior
from muster.state.fair_share import Charge, FairShare, charge_of
from muster.workload.conditions import is_admitted
from muster.workload.placement import from_status

GPU = "nvidia.com/gpu"
ROLE = Role("trainer", 1, 9, Resources.of({GPU: 8}))
QUEUES = ("red", "blue")


@dataclass
class Integral:
    """What was taken of one queue, stretch by stretch: how long, how much, the half-life then."""

    stretches: list[tuple[float, int, float]] = field(default_factory=list)

    def value(self) -> float:
        total, halvings = 0.0, 0.0  # since the stretch
        for length_s, taken, half_life_s in reversed(self.stretches):
            full = taken * half_life_s / math.log(2)
            total += full * (1 - 2 ** (-length_s / half_life_s)) * 2**-halvings
            halvings += length_s / half_life_s
        return total


def published(status: spec.FairShareStatus | None) -> float:
    return 0.0 if status is None else {one.resource: one.resource_seconds for one in status.usage}.get(GPU, 0.0)


class UsageScenario:
    """Jobs of two queues, the count, and the integral beside it. `admitted` has queue, nodes and since when."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.queues = {name: queue(name, halfLifeSeconds=3600) for name in QUEUES}
        self.made = 0
        for name in QUEUES:
            self.renew(name)
        self.admitted: dict[str, tuple[str, int, float]] = {}
        self.ran = {name: Integral() for name in QUEUES}
        self.shares = FairShare()
        self.charges: dict[str, Charge] = {}
        self.update_shares()

    def update_shares(self) -> None:
        self.shares.update_queues(self.queues.values(), self.now)

    def charge(self, uid: str) -> None:
        name, count, since = self.admitted[uid]
        placed = (RolePlacement("trainer", "any", (("n0", count),)),) if count else ()
        self.set_charge(uid, charge_of(name, placed, [ROLE]), since)

    def set_charge(self, uid: str, charge: Charge, since: float) -> None:
        self.shares.charge(uid, self.charges.get(uid, {}), charge, since, self.now)
        self.charges[uid] = charge

    def put(self, name: str, **changes: object) -> None:
        self.queues[name] = self.queues[name].model_copy(update=changes)

    def renew(self, name: str) -> None:
        self.made += 1
        metadata = self.queues[name].metadata.model_copy(update={"uid": f"made-{self.made}"})
        self.put(name, metadata=metadata, status=spec.QueueStatus())

    def write(self) -> None:
        for name in QUEUES:
            written = self.shares.status(name, self.now)
            if written is not None:
                self.put(name, status=spec.QueueStatus(fair_share=written))

    def wait(self, elapsed_s: float) -> None:
        for name, ran in self.ran.items():
            taken = sum(8 * count for other, count, _ in self.admitted.values() if other == name)
            ran.stretches.append((elapsed_s, taken, float(self.queues[name].spec.half_life_seconds)))
        self.now += elapsed_s

    def play(self, what: str, number: int) -> None:
        name, uid = QUEUES[number % 2], f"u{number % 5}"
        runs = uid in self.admitted
        if what == "start" and not runs:
            self.admitted[uid] = (name, 1 + number % 3, self.now)
            self.charge(uid)
        elif what == "resize" and runs:
            self.admitted[uid] = (self.admitted[uid][0], 1 + number % 4, self.admitted[uid][2])
            self.charge(uid)
        elif what == "end" and runs:
            self.admitted[uid] = (self.admitted[uid][0], 0, self.now)
            self.charge(uid)
            del self.admitted[uid]
        elif what == "go":
            self.admitted.pop(uid, None)
            self.set_charge(uid, {}, self.now)
        elif what == "hide":  # or its end was decided and could not be written
            self.set_charge(uid, {}, self.now)
            self.wait(7.0)
            if runs:
                self.charge(uid)
        elif what == "edit":
            self.put(name, spec=self.queues[name].spec.model_copy(update={"weight": 1.0 + number}))
            self.update_shares()
        elif what == "fade":
            half_life_s = (60, 3600, 86_400)[number % 3]
            self.put(name, spec=self.queues[name].spec.model_copy(update={"half_life_seconds": half_life_s}))
            self.update_shares()
        elif what == "another":
            self.made += 1
            self.queues[f"other-{self.made}"] = queue(f"other-{self.made}")
            self.update_shares()
        elif what == "anew":
            self.renew(name)
            self.ran[name].stretches.clear()
            self.update_shares()
        elif what == "write":
            self.write()
        elif what == "lead":  # another operator takes over after a while
            self.write()
            self.wait(11.0)
            self.shares = FairShare()
            self.charges.clear()
            self.update_shares()
            for uid in self.admitted:
                self.charge(uid)

    def check(self) -> None:
        for name in QUEUES:
            counted = published(self.shares.status(name, self.now))
            assert counted == pytest.approx(self.ran[name].value(), rel=1e-6, abs=0.1), name
        assert all(one.resource_seconds >= 0 for one in self.shares.published_usage(self.now))


ACTS = ("start", "start", "resize", "end", "go", "hide", "edit", "fade", "another", "anew", "write", "lead")
STEPS = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 29), st.floats(1.0, 5000.0)), min_size=12, max_size=40)


@given(STEPS)
def test_usage_is_the_integral_of_what_ran_whatever_happens_to_queues_and_jobs(
    steps: list[tuple[str, int, float]],
) -> None:
    scenario = UsageScenario()
    for what, number, elapsed_s in steps:
        scenario.play(what, number)
        scenario.check()
        scenario.wait(elapsed_s)
        scenario.check()
    for number in range(5):
        scenario.play("go", number)
    scenario.wait(10_000.0)
    scenario.check()


class Contended(ScenarioCluster):
    """Of some cycles not all writes happen, or it is unknown which: a user was quicker, or no answer came."""

    writes_left: int | None = None
    conflict = True

    def apply(self, writes: Sequence[Write]) -> None:
        left = self.writes_left if writes else None
        super().apply(writes if left is None else writes[:left])
        if left is not None:
            self.writes_left = None
            raise Conflict("it changed meanwhile") if self.conflict else ClusterError("it cannot be reached")


def run_cycles(engine: Engine, cluster: Contended) -> None:
    """Until nothing is left to write just now."""
    for _ in range(100):
        try:
            cycle = run_cycle(cluster, engine)
        except ClusterError:
            continue
        if not cycle.writes and (cycle.wake_at is None or cycle.wake_at > cluster.now):
            return
    raise AssertionError("never settles")


def taken(cluster: ScenarioCluster, name: str) -> int:
    """GPUs of the jobs of a queue that are admitted."""
    jobs = (one for one in cluster.observe().workloads if one.queue == name and is_admitted(one.status))
    return sum(8 * part.replicas for one in jobs for part in from_status(one.status.placement))


HAPPENS = ("submit", "submit", "urgent", "delete", "cancel", "edit", "another", "conflict", "unreachable", "recheck")
EVENTS = st.lists(st.tuples(st.sampled_from(HAPPENS), st.integers(0, 11), st.integers(1, 90)), min_size=8, max_size=24)


@given(EVENTS)
def test_an_engine_counts_what_is_admitted_whatever_is_edited_deleted_or_refused(
    steps: list[tuple[str, int, int]],
) -> None:
    cluster = Contended(nodes(3), [flavor()], [queue(name, 12, halfLifeSeconds=3600) for name in QUEUES])
    engine, ran = Engine(), {name: Integral() for name in QUEUES}

    def wait(until: float) -> None:
        while cluster.now < until:
            run_cycles(engine, cluster)
            at = min(until, max(cluster.now + 1e-3, cluster.next_event_time() or until))
            for name in QUEUES:
                ran[name].stretches.append((at - cluster.now, taken(cluster, name), 3600.0))
            cluster.advance(at)
        run_cycles(engine, cluster)
        for name in QUEUES:
            counted = published(engine._state.fair_share.status(name, cluster.now))
            assert counted == pytest.approx(ran[name].value(), rel=1e-6, abs=0.1)

    for index, (what, number, elapsed_s) in enumerate(steps):
        name, uids = QUEUES[number % 2], cluster.job_uids()
        if what in ("submit", "urgent"):
            wanted = job(f"j{index}", 1 + number % 3, queue=name, priority=9 if what == "urgent" else 0, least=1)
            cluster.submit(wanted, JobBehavior(20.0 + 30 * number, stop_s=5.0))
        elif what in ("delete", "cancel") and uids:
            uid = uids[number % len(uids)]
            cluster.delete(uid) if what == "delete" else cluster.edit(uid, cancel=True)
        elif what == "edit":
            old = next(one for one in cluster.observe().queues if one.metadata.name == name)
            weight = old.spec.weight + 1.0
            cluster.put_queue(old.model_copy(update={"spec": old.spec.model_copy(update={"weight": weight})}))
        elif what == "another":
            cluster.put_queue(queue(f"other-{index}"))
        elif what in ("conflict", "unreachable"):
            cluster.writes_left, cluster.conflict = number, what == "conflict"
        elif what == "recheck":
            engine.recheck()
        wait(cluster.now + elapsed_s)
