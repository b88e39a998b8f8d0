"""Nodes whose kubelets reject pods, in the simulation."""

from __future__ import annotations

from collections import Counter

from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.engine import CycleResult, Engine
from muster.simulate import JobBehavior
from muster.workload.placement import nodes_of


def rejections(cluster: ScenarioCluster) -> Counter[str]:
    return Counter(event.job_uid for event in cluster.events if event.reason == "PodRejected")


def avoided(cycle: CycleResult) -> set[str]:
    assert cycle.snapshot.excluded_nodes == set(cycle.avoided_nodes)
    return set(cycle.avoided_nodes)


def test_a_node_that_rejects_pods_costs_two_jobs_some_seconds_and_fails_none() -> None:
    """The node is empty, so that every job would be placed there."""
    cluster, engine = ScenarioCluster(nodes(8), [flavor()], [queue(gpus=64)]), Engine()
    cluster.set_rejecting("n0", True)
    uids = [cluster.submit(job(f"one-{index}", 1, 8), JobBehavior(30)) for index in range(2)]
    (*_, last) = settle(engine, cluster, until=20)
    assert rejections(cluster)[uids[0]] == 1
    for index in range(2, 40):
        uids.append(cluster.submit(job(f"one-{index}", 1, 8), JobBehavior(30)))
        (*_, last) = settle(engine, cluster, until=cluster.now + 10)
    settle(engine, cluster, until=cluster.now + 300)
    statuses = [cluster.job(uid).status for uid in uids]
    assert {status.phase for status in statuses} == {"Succeeded"}
    assert {status.node_losses + status.restarts + status.start_retries for status in statuses} == {0}
    assert sorted(rejections(cluster).values()) == [1, 1]
    assert avoided(last) == {"n0"}
    assert last.avoided_nodes["n0"].job_uids == tuple(sorted(rejections(cluster), key=uids.index))


def test_an_avoided_node_is_used_again_after_an_hour() -> None:
    cluster, engine = ScenarioCluster(nodes(2), [flavor()], [queue()]), Engine()
    cluster.set_rejecting("n0", True)
    for index in range(2):
        cluster.submit(job(f"one-{index}", 1, 4), JobBehavior(9000))
    (*_, last) = settle(engine, cluster, until=60)
    assert avoided(last) == {"n0"}
    uid = cluster.submit(job("waits", 1, 4), JobBehavior(9000))
    cluster.set_rejecting("n0", False)
    settle(engine, cluster, until=3500)
    assert "down, cordoned or excluded" in cluster.job(uid).status.conditions[0].message
    settle(engine, cluster, until=4000)
    assert [cluster.job(one).status.phase for one in cluster.job_uids()].count("Running") == 3


def test_a_node_is_used_again_as_soon_as_a_gang_has_started_there() -> None:
    """It was admitted before the node was avoided."""
    cluster, engine = ScenarioCluster(nodes(3), [flavor()], [queue(gpus=24)]), Engine()
    slow = cluster.submit(job("slow", 1, 2), JobBehavior(9000, start_delay_s=30))
    settle(engine, cluster, until=1)
    (node,) = nodes_of(cluster.job(slow).status.placement)
    cluster.set_rejecting(node, True)
    for index in range(2):
        cluster.submit(job(f"one-{index}", 1, 2), JobBehavior(9000))
    (*_, last) = settle(engine, cluster, until=20)
    assert avoided(last) == {node}
    (*_, last) = settle(engine, cluster, until=40)
    assert cluster.job(slow).status.phase == "Running"
    assert avoided(last) == set()


def test_a_gang_that_ran_there_to_its_end_still_shows_that_the_node_has_recovered() -> None:
    cluster, engine = ScenarioCluster(nodes(3), [flavor()], [queue(gpus=24)]), Engine()
    short = cluster.submit(job("short", 1, 2), JobBehavior(5, start_delay_s=30))
    settle(engine, cluster, until=1)
    (node,) = nodes_of(cluster.job(short).status.placement)
    cluster.set_rejecting(node, True)
    for index in range(2):
        cluster.submit(job(f"one-{index}", 1, 2), JobBehavior(9000))
    (*_, last) = settle(engine, cluster, until=20)
    assert avoided(last) == {node}
    (*_, last) = settle(engine, cluster, until=60)
    assert cluster.job(short).status.phase == "Succeeded"
    assert avoided(last) == set()


def test_jobs_of_one_namespace_have_no_node_avoided_once_another_has_jobs() -> None:
    cluster, engine = ScenarioCluster(nodes(4), [flavor()], [queue(gpus=32)]), Engine()
    cluster.set_rejecting("n0", True)
    for index in range(2):
        cluster.submit(job(f"one-{index}", 1, 2), JobBehavior(9000))
    (*_, last) = settle(engine, cluster, until=20)
    assert avoided(last) == {"n0"}
    other = job("other", 1, 8)
    metadata = other.metadata.model_copy(update={"namespace": "other"})
    cluster.submit(other.model_copy(update={"metadata": metadata}), JobBehavior(9000))
    (first, *_, last) = settle(engine, cluster, until=60)
    assert avoided(first) == set()
    assert avoided(last) == {"n0"}, "it has rejected a pod of the other namespace too"


def test_a_suspended_job_forgets_which_nodes_rejected_its_pods() -> None:
    """Otherwise its pods could be rejected by ten nodes, and never by three in a row."""
    cluster, engine = ScenarioCluster(nodes(2), [flavor()], [queue()]), Engine()
    cluster.set_rejecting("n0", True)
    uids = [cluster.submit(job(f"one-{index}", 1, 2), JobBehavior(9000)) for index in range(2)]
    (*_, last) = settle(engine, cluster, until=20)
    assert avoided(last) == {"n0"}
    cluster.edit(uids[0], suspend=True)
    (*_, last) = settle(engine, cluster, until=100)
    assert cluster.job(uids[0]).status.blamed_nodes == []
    assert avoided(last) == set()


def test_never_more_than_half_of_the_nodes_are_avoided() -> None:
    cluster, engine = ScenarioCluster(nodes(3), [flavor()], [queue(gpus=24)]), Engine()
    for name in ("n0", "n1"):
        cluster.set_rejecting(name, True)
    for index in range(4):
        cluster.submit(job(f"one-{index}", 1, 2), JobBehavior(9000))
    (*_, last) = settle(engine, cluster, until=120)
    assert avoided(last) == set()
    assert {cluster.job(uid).status.phase for uid in cluster.job_uids()} == {"Running"}, "each excludes them itself"
