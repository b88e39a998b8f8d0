"""Evictions that follow each other take turns among jobs that have about the same work to lose."""

from __future__ import annotations

from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.engine import Engine
from muster.simulate import JobBehavior
from muster.workload.conditions import is_admitted


def test_ten_evictions_in_six_minutes_take_turns() -> None:
    """A team reclaims one of three nodes every 36 seconds, for ten seconds each time."""
    queues = [queue("all", 24), queue("owner", 8, "all"), queue("borrower", 0, "all")]
    cluster, engine = ScenarioCluster(nodes(3), [flavor()], queues), Engine()
    victims = [cluster.submit(job(f"v-{n}", 1, 8, queue="borrower", grace=1), JobBehavior(9000)) for n in range(3)]
    for number in range(10):
        settle(engine, cluster, until=36.0 * (number + 1))
        cluster.submit(job(f"short-{number}", 1, 8, queue="owner"), JobBehavior(10))
    settle(engine, cluster, until=400)
    evicted = [event.job_uid for event in cluster.events if event.reason in ("Reclaimed", "Preempted")]
    assert [set(evicted[first : first + 3]) for first in (0, 3, 6)] == [set(victims)] * 3
    assert len(evicted) == 10


def test_a_job_that_its_own_team_has_evicted_four_times_is_reclaimed_by_another() -> None:
    queues = [queue("all", 8), queue("owner", 8, "all"), queue("borrower", 0, "all")]
    cluster, engine = ScenarioCluster(nodes(1), [flavor()], queues), Engine()
    borrower = cluster.submit(job("borrower", 1, 8, queue="borrower", grace=1), JobBehavior(9000))
    for number in range(5):
        settle(engine, cluster, until=60.0 * (number + 1))
        cluster.submit(job(f"urgent-{number}", 1, 8, queue="borrower", priority=1), JobBehavior(10))
    settle(engine, cluster, until=360)

    def evictions() -> list[str]:
        return [event.reason for event in cluster.events if event.job_uid == borrower and event.preemptor is not None]

    assert evictions() == ["Preempted"] * 4, "the limit holds inside the queue"
    cluster.submit(job("owner", 1, 8, queue="owner"), JobBehavior(10))
    settle(engine, cluster, until=420)
    assert evictions() == ["Preempted"] * 4 + ["Reclaimed"]
    (status,) = [one.status for one in cluster.observe().workloads if one.metadata.uid == borrower]
    assert [one.queue for one in status.evictions] == ["borrower"] * 4 + ["owner"]


def test_a_job_that_its_own_team_has_evicted_four_times_and_moved_is_reclaimed_by_another() -> None:
    queues = [queue("all", 8), queue("owner", 8, "all"), queue("first", 0, "all"), queue("second", 0, "all")]
    cluster, engine = ScenarioCluster(nodes(1), [flavor()], queues), Engine()
    moved = cluster.submit(job("moved", 1, 8, queue="first", grace=1), JobBehavior(9000))
    for number in range(4):
        settle(engine, cluster, until=60.0 * (number + 1))
        cluster.submit(job(f"urgent-{number}", 1, 8, queue="first", priority=1), JobBehavior(10))
    settle(engine, cluster, until=242)
    assert [one.job_queue for one in cluster.job(moved).status.evictions] == ["first"] * 4
    cluster.edit(moved, queue="second")
    settle(engine, cluster, until=300)
    assert is_admitted(cluster.job(moved).status)
    owner = cluster.submit(job("owner", 1, 8, queue="owner"), JobBehavior(1000))
    settle(engine, cluster, until=400)
    assert is_admitted(cluster.job(owner).status)
