"""Nodes whose kubelets reject pods, in the simulation."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
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


def of(name: str, namespace: str, queue_name: str, gpus: int = 2, pods: int = 1) -> spec.TrainingJob:
    one = job(name, pods, gpus, queue=queue_name)
    return one.model_copy(update={"metadata": one.metadata.model_copy(update={"namespace": namespace})})


@pytest.mark.parametrize(
    ("namespaces", "queue_names"),
    [(("a", "a"), ("red", "red")), (("a", "b"), ("red", "red")), (("a", "a"), ("red", "blue"))],
)
def test_jobs_of_one_queue_or_namespace_have_no_node_avoided_where_others_have_jobs(
    namespaces: tuple[str, str], queue_names: tuple[str, str]
) -> None:
    """A tenant may have several namespaces, or a queue beside the one that is open for all."""
    queues = [queue(name, gpus=16) for name in ("red", "blue", "green")]
    cluster, engine = ScenarioCluster(nodes(4), [flavor()], queues), Engine()
    cluster.set_rejecting("n0", True)
    cluster.submit(of("waits", "b", "blue", gpus=99), JobBehavior(9000))
    for name, namespace, queue_name in zip(("one", "two"), namespaces, queue_names, strict=True):
        cluster.submit(of(name, namespace, queue_name), JobBehavior(9000))
    (*_, last) = settle(engine, cluster, until=20)
    assert len(rejections(cluster)) == 2
    assert avoided(last) == set()
    cluster.submit(of("three", "c", "green", 8), JobBehavior(9000))
    (*_, last) = settle(engine, cluster, until=60)
    assert avoided(last) == {"n0"}, "it has rejected a pod of another tenant too"


def test_jobs_whose_pods_do_not_start_have_no_node_avoided_by_others() -> None:
    """Their template may be the reason, such as a runtimeClassName whose handler one node lacks."""
    cluster, engine = (
        ScenarioCluster(nodes(2), [flavor()], [queue(name, gpus=16) for name in ("red", "blue")]),
        Engine(),
    )
    for name in ("red", "blue"):
        cluster.submit(of(name, name, name, 8, pods=2), JobBehavior(9000, stuck_attempts=frozenset(range(9))))
    (*_, last) = settle(engine, cluster, until=1300)
    (blamed, also_blamed) = (cluster.job(uid).status.blamed_nodes for uid in cluster.job_uids())
    assert [(one.node, one.reason) for one in blamed] == [("n1", "StartTimeout")]
    assert [(one.node, one.reason) for one in also_blamed] == [("n1", "StartTimeout")]
    assert avoided(last) == set()


def test_pods_that_each_node_rejects_leave_no_node_avoided() -> None:
    """They are at fault themselves, which shows once three nodes have rejected them."""
    queues = [queue(name, gpus=16) for name in ("red", "blue")]
    cluster, engine = ScenarioCluster(nodes(8), [flavor()], queues), Engine()
    for node in cluster.observe().nodes:
        cluster.set_rejecting(node.name, True)
    for name in ("red", "blue"):
        cluster.submit(of(name, name, name), JobBehavior(9000))
    cycles = settle(engine, cluster, until=300)
    assert any(avoided(one) for one in cycles), "until that is known"
    assert [cluster.job(uid).status.phase for uid in cluster.job_uids()] == ["Failed"] * 2
    assert avoided(cycles[-1]) == set()


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
