"""The clock of a job that is larger than its queue's guarantee is in its status: a restart does not begin it anew, and
neither submitting it early nor suspending it advances it."""

from __future__ import annotations

from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
from muster.engine import Engine
from muster.simulate import JobBehavior
from muster.workload.conditions import is_admitted

DELAY, RUN = 3600, 600.0
TREE = [queue("co", 16, borrowingReservationDelaySeconds=DELAY), queue("a", 8, "co"), queue("b", 8, "co")]


def contended() -> ScenarioCluster:
    """Team a has jobs of one node without end, each of ten minutes; team b a job of two nodes."""
    cluster = ScenarioCluster(nodes(2), [flavor()], TREE)
    for number in range(60):
        cluster.submit(job(f"small-{number:02}", 1, queue="a"), JobBehavior(RUN))
    cluster.submit(job("large", 2, queue="b"), JobBehavior(RUN))
    return cluster


def large(cluster: ScenarioCluster) -> spec.TrainingJobStatus:
    return cluster.job("uid-default-large").status


def test_the_job_starts_one_run_time_after_its_delay() -> None:
    cluster = contended()
    settle(Engine(), cluster, until=3 * DELAY)
    admitted = [
        event for event in cluster.events if event.job_uid == "uid-default-large" and event.reason == "Admitted"
    ]
    assert len(admitted) == 1
    waited_s = int(admitted[0].message.split("after ")[1].split()[0])
    assert DELAY <= waited_s <= DELAY + RUN + 1


def test_the_clock_is_written_at_once_and_survives_restarts_of_the_engine() -> None:
    cluster = contended()
    settle(Engine(), cluster, until=1.0)
    assert large(cluster).borrowing_head_since == 0.0
    for until in (DELAY / 2, DELAY, DELAY + RUN / 2):
        settle(Engine(), cluster, until=until)
    assert is_admitted(large(cluster))
    assert large(cluster).borrowing_head_since == 0.0


def test_after_its_start_it_is_reclaimed_only_after_the_delay_even_by_a_new_engine() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], TREE)
    cluster.submit(job("small-0", 1, queue="a"), JobBehavior(1e6))
    cluster.submit(job("small-1", 1, queue="a"), JobBehavior(DELAY + RUN))
    cluster.submit(job("other", 1, queue="b"), JobBehavior(1e6))
    cluster.submit(job("large", 2, queue="b"), JobBehavior(1e6))
    cluster.delete("uid-default-small-0")
    cluster.delete("uid-default-other")
    settle(Engine(), cluster, until=DELAY + RUN + 60)
    started_at = large(cluster).admitted_at
    assert started_at is not None
    assert started_at >= DELAY
    cluster.submit(job("small-2", 1, queue="a"), JobBehavior(RUN))
    settle(Engine(), cluster, until=started_at + DELAY - 1)
    assert is_admitted(large(cluster))
    settle(Engine(), cluster, until=started_at + DELAY + 60)
    assert not is_admitted(large(cluster))
    assert (large(cluster).borrowing_head_since or cluster.now) > started_at  # it waits anew


def test_suspending_the_job_ends_its_clock() -> None:
    cluster = contended()
    engine = Engine()
    settle(engine, cluster, until=DELAY / 2)
    cluster.edit("uid-default-large", suspend=True)
    settle(engine, cluster, until=DELAY / 2 + 1)
    assert large(cluster).borrowing_head_since is None
    cluster.edit("uid-default-large", suspend=False)
    settle(engine, cluster, until=DELAY)
    assert large(cluster).borrowing_head_since == DELAY / 2 + 1


def test_the_clock_of_a_job_that_another_of_its_queue_precedes_ends_at_once() -> None:
    cluster = contended()
    engine = Engine()
    settle(engine, cluster, until=DELAY / 2)
    urgent = cluster.submit(job("urgent", 2, queue="b", priority=1), JobBehavior(RUN))
    settle(engine, cluster, until=DELAY / 2 + 5)
    assert large(cluster).borrowing_head_since is None
    assert cluster.job(urgent).status.borrowing_head_since == DELAY / 2
