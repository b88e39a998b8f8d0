"""Kubelets that reject pods, such as for devices that are not healthy."""

from __future__ import annotations

from tests.cluster.controlplane.nodes import KUBELET
from tests.cluster.controlplane.rejecting import MESSAGE, REASON, RejectingKubelets
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import Operator

LEFT_ALONE = {KUBELET: "stopped"}  # by KWOK


def test_a_node_that_rejects_pods_fails_no_job(pool: Pool, operator: Operator) -> None:
    """It is empty, so that every job would be placed there."""
    pool.set_up(nodes=1, gpus=8, labels=LEFT_ALONE)
    pool.add_nodes(7, gpus=8)
    pool.set_quota("all", 64)
    bad, names = pool.node(0), [f"one-{index}" for index in range(40)]
    with RejectingKubelets(pool.api, bad) as kubelets:
        for name in names:
            pool.submit(name, pods=1, does={"run_seconds": 1, "exit_code": 0})
        pool.wait("all end", lambda: all(pool.phase(name) in ("Succeeded", "Failed") for name in names))
    statuses = {name: pool.status(name) for name in names}
    assert {name: one["phase"] for name, one in statuses.items()} == dict.fromkeys(names, "Succeeded")
    assert not [name for name, one in statuses.items() if one.get("nodeLosses") or one.get("startRetries")]

    hit = {job for _, job in kubelets.rejected}
    assert len(hit) >= 2
    assert len(kubelets.rejected) == len(hit), "none returns to it"
    for name in hit:
        failure, (blamed,) = statuses[name]["lastFailure"], statuses[name]["blamedNodes"]
        assert (failure["node"], failure["reason"], failure["logTail"]) == (bad, REASON, MESSAGE)
        assert (blamed["node"], blamed["reason"]) == (bad, "PodRejected")
        pool.wait_for_event(name, "PodRejected")
    lines = [one for one in operator.records() if one.get("reason") == "PodRejected" and bad in one.get("why", "")]
    assert {one["job"] for one in lines} == {f"{pool.namespace}/{name}" for name in hit}
    assert all(f"{REASON}: {MESSAGE}" in one["why"] for one in lines)


def test_a_node_that_rejects_pods_of_two_jobs_is_avoided_by_all(pool: Pool, operator: Operator) -> None:
    pool.set_up(nodes=1, gpus=8, labels=LEFT_ALONE)
    pool.add_nodes(1, gpus=8)
    pool.set_quota("all", 16)
    with RejectingKubelets(pool.api, pool.node(0)) as kubelets:
        pool.submit("one", pods=1, gpus=4)
        pool.submit("two", pods=1, gpus=4)
        for name in ("one", "two"):
            pool.wait_for_phase(name, "Running")
            assert pool.nodes_of(name) == [pool.node(1)]
        pool.submit("three", pods=1, gpus=4)
        assert "down, cordoned or excluded" in pool.wait_for_reason("three", "InsufficientResources")
    assert {job for _, job in kubelets.rejected} == {"one", "two"}
    assert operator.metric("muster_avoided_nodes") >= 1
    pool.wait("kubectl shows the Event", lambda: "NodeAvoided" in pool.plane.kubectl("describe", "node", pool.node(0)))
    described = pool.plane.kubectl("describe", "node", pool.node(0))
    assert f"{pool.namespace}/one ({REASON}: {MESSAGE})" in described


def test_a_pod_that_three_nodes_reject_fails_its_job_with_the_kubelets_message(pool: Pool) -> None:
    pool.set_up(nodes=3, gpus=4, labels=LEFT_ALONE)
    names = [pool.node(index) for index in range(3)]
    reason, message = "OutOfnvidia.com/gpu", "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu"
    with RejectingKubelets(pool.api, *names, reason=reason, message=message) as kubelets:
        pool.submit("faulty", pods=1)
        pool.wait_for_phase("faulty", "Failed")
    failed = pool.condition("faulty", "Failed")
    assert failed["reason"] == "PodRejected"
    assert f"{reason}: {message}; 3 nodes have rejected its pods: {', '.join(names)}" in failed["message"]
    assert sorted(node for node, _ in kubelets.rejected) == names
