"""Usage and numbers of jobs in the statuses of queues, and how often they are written."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
from muster.api.spec import QueueUsageStatus
from muster.cluster import WriteQueueStatus
from muster.engine import CycleResult, Engine, run_cycle
from muster.engine.queue_usage import USAGE_REFRESH_S, describe_amounts
from muster.simulate import JobBehavior

GPU = "nvidia.com/gpu"


def tree() -> ScenarioCluster:
    return ScenarioCluster(nodes(2), [flavor()], [queue("all", 16), queue("red", 4, "all"), queue("blue", 12, "all")])


def usage(cluster: ScenarioCluster, name: str) -> QueueUsageStatus:
    (found,) = (one.status.usage for one in cluster.observe().queues if one.metadata.name == name)
    assert found is not None
    return found


def submit(cluster: ScenarioCluster, one: spec.TrainingJob, seconds: float) -> None:
    cluster.submit(one, JobBehavior(seconds))


def writes(cycles: list[CycleResult]) -> list[tuple[str, float]]:
    """Queue and time of each usage that was written."""
    return [
        (write.queue, write.status.usage.at)
        for cycle in cycles
        for write in cycle.writes
        if isinstance(write, WriteQueueStatus) and write.status.usage is not None
    ]


def test_a_queue_has_the_usage_and_jobs_of_its_subtree() -> None:
    cluster, engine = tree(), Engine()
    cluster.submit(job("a", 1, queue="red"), JobBehavior(500))
    cluster.submit(job("b", 1, queue="blue"), JobBehavior(500))
    cluster.submit(job("c", 1, queue="blue"), JobBehavior(500))
    settle(engine, cluster, until=2 * USAGE_REFRESH_S)
    red, root = usage(cluster, "red"), usage(cluster, "all")
    assert (red.admitted_jobs, red.pending_jobs) == (1, 0)
    assert (red.flavors[0].used[GPU], red.flavors[0].borrowed[GPU]) == ("8", "4")
    assert (root.admitted_jobs, root.pending_jobs, root.flavors[0].used[GPU]) == (2, 1, "16")


def test_a_queue_has_its_usage_and_guarantee_of_all_flavors_as_text() -> None:
    def row(name: str, used: str, **more: str) -> Any:
        return {"flavor": name, "used": {GPU: used, **more}, "guaranteed": {GPU: used}}

    rows = [row("a100", "0"), row("h200", "12", cpu="500m"), row("v100", "1")]
    assert describe_amounts(rows, "used") == f"h200: 12 {GPU}, 500m cpu; v100: 1 {GPU}"
    assert describe_amounts(rows, "guaranteed") == f"h200: 12 {GPU}; v100: 1 {GPU}"
    cluster = tree()
    cluster.submit(job("a", 1, queue="red"), JobBehavior(500))
    settle(Engine(), cluster, until=2 * USAGE_REFRESH_S)
    root = usage(cluster, "all")
    assert root.used.endswith(f"8 {GPU}")
    assert root.guaranteed.endswith(f"16 {GPU}")


def test_usage_is_written_within_the_interval_after_a_change_and_then_no_more() -> None:
    cluster, engine = tree(), Engine()
    settle(engine, cluster, until=100)
    cluster.schedule(100.0, partial(submit, cluster, job("a", 1, queue="red"), 10_000))
    settle(engine, cluster, until=100 + USAGE_REFRESH_S)
    assert usage(cluster, "red").admitted_jobs == 1
    at = usage(cluster, "red").at
    settle(engine, cluster, until=2000)
    assert (usage(cluster, "red").at, usage(cluster, "blue").at) == (at, 0.0)


def test_many_changes_are_written_once_per_interval_and_queue() -> None:
    cluster, engine = tree(), Engine()
    for number in range(200):
        cluster.schedule(float(number), partial(submit, cluster, job(f"j{number}", 1, 1, queue="red"), 5 + number / 8))
    cycles = settle(engine, cluster, until=210)
    assert len(cycles) > 200
    written = sorted({at for name, at in writes(cycles) if name == "red"})
    assert 4 <= len(written) <= 210 / USAGE_REFRESH_S + 1
    assert min(later - earlier for earlier, later in itertools.pairwise(written)) >= USAGE_REFRESH_S
    assert {at for name, at in writes(cycles) if name == "blue"} == {0.0}


def test_a_new_leader_does_not_write_what_is_written() -> None:
    cluster = tree()
    cluster.submit(job("a", 1, queue="red"), JobBehavior(10_000))
    settle(Engine(), cluster, until=200)
    before = usage(cluster, "red").at
    run_cycle(cluster, Engine())
    assert usage(cluster, "red").at == before


def test_where_statuses_are_not_refreshed_usage_is_not_written() -> None:
    assert writes([run_cycle(tree(), Engine(status_refresh_s=math.inf))]) == []


def test_usage_that_was_not_written_is_written_after_the_interval() -> None:
    cluster, engine = tree(), Engine()
    lost = engine.reconcile(cluster.observe())
    assert writes([lost])
    settle(engine, cluster, until=USAGE_REFRESH_S - 1)
    assert [one.status.usage for one in cluster.observe().queues] == [None] * 3
    settle(engine, cluster, until=USAGE_REFRESH_S)
    assert usage(cluster, "all").at == USAGE_REFRESH_S
