from __future__ import annotations

import itertools
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.cluster import WriteQueueStatus
from muster.engine import Engine, run_cycle
from muster.model import Resources, Role, RolePlacement
from muster.simulate import JobBehavior
from muster.state.fair_share import FairShare, charge_of, decay

GPU = "nvidia.com/gpu"
ROLE = Role("trainer", 2, 2, Resources.of({GPU: 8}))
PLACED = (RolePlacement("trainer", "any", (("n0", 2),)),)
DAY = 86_400.0


def shares(half_life_s: int = 3600) -> FairShare:
    one = FairShare()
    one.update_queues([queue(halfLifeSeconds=half_life_s)], 0.0)
    return one


def gpu_seconds(one: FairShare, now: float) -> float:
    status = one.status("default", now)
    return 0.0 if status is None else {u.resource: u.resource_seconds for u in status.usage}.get(GPU, 0.0)


def test_usage_grows_by_what_is_taken_and_halves_every_half_life() -> None:
    one = shares()
    charge = charge_of("default", PLACED, [ROLE])
    one.charge("u", {}, charge, 0.0, 0.0)
    assert gpu_seconds(one, 10) == pytest.approx(160, rel=2e-3)
    one.charge("u", charge, {}, 0.0, 10.0)
    at_end = gpu_seconds(one, 10)
    assert gpu_seconds(one, 10 + 3600) == pytest.approx(at_end / 2, rel=1e-6)


@given(st.floats(0, 1e6), st.floats(0, 1e3), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(60, 1e7))
def test_usage_does_not_depend_on_how_often_it_is_updated(
    value: float, rate: float, first_s: float, second_s: float, half_life_s: float
) -> None:
    at_once = decay(value, rate, first_s + second_s, half_life_s)
    in_steps = decay(decay(value, rate, first_s, half_life_s), rate, second_s, half_life_s)
    assert in_steps == pytest.approx(at_once, rel=1e-6, abs=1e-6)


def test_the_planner_sees_the_same_usage_until_the_next_tick() -> None:
    one = shares()
    one.charge("u", {}, charge_of("default", PLACED, [ROLE]), 100.0, 100.0)
    first = one.published_usage(119)
    assert one.published_usage(119.9) is first
    later = one.published_usage(121)
    assert [usage.resource_seconds for usage in later] == pytest.approx([320], rel=1e-2), "as of the tick at 120"


def test_only_resources_that_some_queue_limits_are_counted() -> None:
    one = shares()
    role = Role("trainer", 2, 2, Resources.of({GPU: 8, "cpu": 1000, "pods": 1}))
    one.charge("u", {}, charge_of("default", PLACED, [role]), 0.0, 0.0)
    assert {usage.resource for usage in one.published_usage(60)} == {GPU}


def test_a_restarted_engine_goes_on_from_what_was_written_and_counts_the_time_between() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    cluster.submit(job("a"), JobBehavior(DAY))
    settle(engine, cluster, until=600)
    written = cluster.observe().queues[0].status.fair_share
    assert written is not None
    assert written.at == 600
    cluster.advance(1800)
    settle(Engine(), cluster, until=3600)
    uninterrupted = ScenarioCluster(nodes(2), [flavor()], [queue()])
    uninterrupted.submit(job("a"), JobBehavior(DAY))
    settle(Engine(), uninterrupted, until=3600)
    one, other = (c.observe().queues[0].status.fair_share for c in (cluster, uninterrupted))
    assert one is not None
    assert other is not None
    assert one.usage[0].resource_seconds == pytest.approx(other.usage[0].resource_seconds, rel=1e-6)


def submit(cluster: ScenarioCluster, name: str) -> None:
    cluster.submit(job(name, 1, 1), JobBehavior(50))


def test_usage_is_written_at_most_once_a_minute() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    for number in range(40):
        cluster.schedule(float(7 * number), partial(submit, cluster, f"j{number}"))
    times = []
    while (at := cluster.next_event_time()) is not None and at < 280:
        cluster.advance(at)
        cycle = run_cycle(cluster, engine)
        times += [
            write.status.fair_share.at
            for write in cycle.writes
            if isinstance(write, WriteQueueStatus) and write.status.fair_share
        ]
    fresh = sorted(set(times))
    assert len(fresh) >= 4
    assert min(later - earlier for earlier, later in itertools.pairwise(fresh)) >= 60


def test_the_queue_with_less_recent_usage_goes_first() -> None:
    tree = [queue("all", 16), queue("red", 0, "all"), queue("blue", 0, "all")]
    cluster = ScenarioCluster(nodes(2), [flavor()], tree)
    engine = Engine()
    cluster.submit(job("a", queue="red"), JobBehavior(500))
    settle(engine, cluster, until=100)
    red = cluster.submit(job("b", queue="red"), JobBehavior(10))
    settle(engine, cluster, until=200)
    blue = cluster.submit(job("c", queue="blue"), JobBehavior(10))
    settle(engine, cluster, until=505)
    assert cluster.job(blue).status.phase == "Running"
    assert cluster.job(red).status.phase == "Pending"
