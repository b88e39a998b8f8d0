"""The writes of one phase may be carried out in any order, several at a time, and each be refused on its own."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.checked_cluster import Killed, Watched, cluster_of, workloads
from tests.engine.faults import FAULTS, KILLS, Arrivals, Fault, check_end, may_fail, schedule_faults
from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api.spec import TERMINAL_PHASES
from muster.cluster import CreatePod, DeletePod, ObjectWrites, RemoveJob, WritePhase, WriteStatus
from muster.engine import Engine, run_cycle
from muster.errors import Conflict
from muster.simulate import JobBehavior


def carry_out(cluster: ScenarioCluster, phases: Sequence[WritePhase], random: Random) -> set[str]:
    """As an asynchronous cluster does it; whose writes did not all happen."""
    undone: set[str] = set()
    for number, phase in enumerate(phases):
        tracks = [(part.job_uid, shuffled(part, random)) for part in phase]
        while tracks:
            uid, track = random.choice(tracks)
            try:
                cluster.apply([track.pop(0)])
            except Conflict:
                undone.add(uid)
                track.clear()
            tracks = [pair for pair in tracks if pair[1]]
        if undone:
            return undone | {part.job_uid for later in phases[number + 1 :] for part in later}
    return undone


def shuffled(part: ObjectWrites, random: Random) -> list:  # type: ignore[type-arg]
    """The status first, a removal last, the rest in any order."""
    first = [write for write in part.writes if isinstance(write, WriteStatus)]
    last = [write for write in part.writes if isinstance(write, RemoveJob)]
    rest = [write for write in part.writes if not isinstance(write, WriteStatus | RemoveJob)]
    return [*first, *random.sample(rest, len(rest)), *last]


def run(cluster: Watched, kills: list[int], random: Random) -> None:
    """Until everything has ended; users and other clients change about every tenth job just before it is written. What
    may be written afterwards is, half of the time, and else stays for a later round.
    """
    engine, left = Engine(), dict[str, ObjectWrites]()
    cluster.writes_left = kills.pop(0) if kills else None
    wake_at: float | None = 0.0
    for _ in range(5000):
        ended = all(cluster.job(uid).status.phase in TERMINAL_PHASES for uid in cluster.job_uids())
        times = [at for at in (cluster.next_event_time(), wake_at) if at is not None]
        if not times or (ended and cluster.next_event_time() is None):
            assert ended, [(uid, cluster.job(uid).status) for uid in cluster.job_uids()]
            return
        cluster.advance(max(cluster.now, min(times)))
        cycle = engine.reconcile(cluster.observe())
        for uid in cluster.job_uids():
            if random.random() < 0.1:
                cluster.edit(uid, priority=random.choice([0, 5, 9]))
        try:
            undone = carry_out(cluster, cycle.phases, random)
            for part in (part for phase in cycle.phases for part in phase):
                left.pop(part.job_uid, None)
            left |= {part.job_uid: part for part in cycle.deferred}
            now = [uid for uid in left if random.random() < 0.5]
            undone |= carry_out(cluster, [tuple(left.pop(uid) for uid in now)], random)
        except Killed:
            engine, wake_at = Engine(), cluster.now
            left.clear()
            cluster.writes_left = kills.pop(0) if kills else None
            continue
        engine.recheck(undone)
        wake_at = cluster.now if undone or left else cycle.wake_at
    raise AssertionError("never ends")


@given(workloads(), KILLS, FAULTS, st.integers(0, 9999))
def test_in_any_order_within_phases_with_any_status_refused_everything_ends_and_nothing_runs_twice(
    arrivals: Arrivals, kills: list[int], faults: list[Fault], seed: int
) -> None:
    cluster = cluster_of(arrivals)
    schedule_faults(cluster, faults)
    run(cluster, list(kills), Random(seed))
    check_end(cluster, [wanted.metadata.name for _, wanted, _ in arrivals], may_fail(arrivals))


def test_that_a_gang_runs_is_written_afterwards_and_anything_else_about_it_at_once() -> None:
    cluster = ScenarioCluster(nodes(1), [flavor()], [queue()])
    engine = Engine()
    uid = cluster.submit(job("a", 1), JobBehavior(100, start_delay_s=3))
    settle(engine, cluster, until=2)
    cluster.advance(3)
    running = engine.reconcile(cluster.observe())
    assert running.phases == ()
    assert [part.job_uid for part in running.deferred] == [uid]
    cluster.edit(uid, cancel=True)
    cancelled = engine.reconcile(cluster.observe())
    assert cancelled.deferred == ()
    assert [part.job_uid for phase in cancelled.phases for part in phase] == [uid]


def test_why_a_gang_waits_is_written_afterwards_and_that_it_is_admitted_at_once() -> None:
    cluster = ScenarioCluster(nodes(1), [flavor()], [queue()])
    engine = Engine()
    first, second = (cluster.submit(job(name, 1), JobBehavior(100)) for name in ("a", "b"))
    cycle = engine.reconcile(cluster.observe())
    assert [part.job_uid for phase in cycle.phases for part in phase if part.job_uid] == [first]
    assert [part.job_uid for part in cycle.deferred] == [second]


def preemption() -> tuple[ScenarioCluster, Engine, list[str], str]:
    """Two gangs run and a third one waits, which has a higher priority and needs the capacity of both."""
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    lows = [cluster.submit(job(name, 1), JobBehavior(1000, stop_s=5)) for name in ("low1", "low2")]
    settle(engine, cluster, until=100)
    return cluster, engine, lows, cluster.submit(job("high", priority=5), JobBehavior(10))


def test_nomination_victims_and_the_end_of_their_pods_are_three_phases() -> None:
    cluster, engine, lows, high = preemption()
    cycle = engine.reconcile(cluster.observe())
    phases = [[(part.job_uid, type(part.writes[0])) for part in phase] for phase in cycle.phases]
    assert phases[0] == [(high, WriteStatus)]
    assert sorted(phases[1]) == [(low, WriteStatus) for low in lows]
    assert sorted(uid for uid, _ in phases[2]) == lows
    stops = [write for part in cycle.phases[2] for write in part.writes if isinstance(write, DeletePod)]
    assert len(stops) == 2
    assert [write for phase in cycle.phases for part in phase for write in part.writes] == list(cycle.writes)


def test_no_victim_is_evicted_for_a_nomination_whose_write_was_refused() -> None:
    cluster, engine, lows, high = preemption()
    cycle = engine.reconcile(cluster.observe())
    cluster.edit(high, priority=6)
    undone = carry_out(cluster, cycle.phases, Random(1))
    assert undone == {high, *lows, ""}  # "": statuses of queues
    assert all(cluster.job(low).status.eviction is None for low in lows)


def test_a_refused_eviction_keeps_the_pods_of_all_victims_until_it_is_written() -> None:
    cluster, engine, lows, high = preemption()
    cycle = engine.reconcile(cluster.observe())
    cluster.edit(lows[0], priority=1)
    engine.recheck(carry_out(cluster, cycle.phases, Random(1)))
    assert cluster.job(lows[1]).status.eviction is not None
    assert not any(pod.deleting for low in lows for pod in cluster.pods(low))
    settle(engine, cluster, until=106)
    assert cluster.job(high).status.phase == "Running"


def test_one_refused_admission_does_not_void_another() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    first, second = (cluster.submit(job(name, 1), JobBehavior(10)) for name in ("a", "b"))
    cycle = engine.reconcile(cluster.observe())
    cluster.edit(first, priority=3)
    undone = carry_out(cluster, cycle.phases, Random(1))
    assert first in undone
    assert (len(cluster.pods(first)), len(cluster.pods(second))) == (0, 1)
    engine.recheck(undone)
    again = engine.reconcile(cluster.observe())
    assert [write.job_uid for write in again.writes if isinstance(write, CreatePod)] == [first]


def test_no_gang_is_admitted_to_capacity_whose_release_was_refused() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    first = cluster.submit(job("a"), JobBehavior(10))
    second = cluster.submit(job("b"), JobBehavior(10))
    settle(engine, cluster, until=5)
    cluster.advance(10)
    cycle = engine.reconcile(cluster.observe())
    cluster.edit(first, priority=3)
    engine.recheck(carry_out(cluster, cycle.phases, Random(1)))
    assert (cluster.job(first).status.phase, cluster.pods(second)) == ("Running", ())
    settle(engine, cluster, until=11)
    assert cluster.job(first).status.phase == "Succeeded"
    assert len(cluster.pods(second)) == 2


def test_the_holder_starts_only_after_the_return_of_those_who_left_is_written() -> None:
    cluster, engine, lows, high = preemption()
    settle(engine, cluster, until=104)
    cluster.advance(105)
    cycle = engine.reconcile(cluster.observe())
    phases = {part.job_uid: number for number, phase in enumerate(cycle.phases) for part in phase}
    assert any(isinstance(write, CreatePod) and write.job_uid == high for write in cycle.writes)
    assert max(phases[low] for low in lows) < phases[high]


def test_a_gang_whose_capacity_goes_to_another_starts_elsewhere_one_cycle_later() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    ending = cluster.submit(job("ending", 1, priority=5), JobBehavior(105))
    low = cluster.submit(job("low", 1), JobBehavior(1000, stop_s=5))
    settle(engine, cluster, until=100)
    high = cluster.submit(job("high", 1, priority=9), JobBehavior(10))
    settle(engine, cluster, until=104)
    cluster.advance(105)  # the one has ended, the other has stopped: both nodes are free
    cycles = []
    for _ in range(2):
        cycles.append(run_cycle(cluster, engine))
    created = [[write.job_uid for write in cycle.writes if isinstance(write, CreatePod)] for cycle in cycles]
    assert cluster.job(ending).status.phase == "Succeeded"
    assert created == [[high], [low]]
    phases = {part.job_uid: number for number, phase in enumerate(cycles[0].phases) for part in phase}
    assert phases[low] < phases[high]
