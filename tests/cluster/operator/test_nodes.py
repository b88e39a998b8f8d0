"""Nodes that are created, deleted, fail, are cordoned or tainted, and unmanaged pods on them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cluster.controlplane.api import Refused
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.operator.pools import Pool


def unmanaged(pool: Pool, name: str, node: str, gpus: int, **does: Any) -> dict[str, Any]:
    """An unmanaged pod, bound as a DaemonSet's or another scheduler's would be."""
    annotations = {f"kwok.muster.dev/{key.replace('_', '-')}": str(value) for key, value in does.items()}
    container = {"name": "c", "image": "none", "resources": {"limits": {GPU: str(gpus)}}}
    spec = {"nodeName": node, "containers": [container], "restartPolicy": "Never"}
    meta = {"name": name, "annotations": annotations}
    return pool.api.create(f"/api/v1/namespaces/{pool.namespace}/pods", {"metadata": meta, "spec": spec})


@pytest.mark.smoke
def test_a_deleted_node_gives_the_gang_a_new_attempt_elsewhere(pool: Pool) -> None:
    pool.set_up(nodes=3, gpus=4)
    pool.submit("gang", pods=8, queue="red")
    pool.wait_for_phase("gang", "Running")
    (spare,) = {pool.node(index) for index in range(3)} - set(pool.nodes_of("gang"))
    lost, kept = sorted(set(pool.nodes_of("gang")))
    pool.plane.delete_nodes(lost)
    pool.wait_for_attempt("gang", 1)
    assert set(pool.nodes_of("gang")) == {kept, spare}
    assert pool.status("gang")["nodeLosses"] == 1
    assert pool.status("gang").get("restarts", 0) == 0


def test_pods_on_an_unreachable_node_count_as_lost_after_a_while(pool: Pool) -> None:
    pool.set_up(nodes=3, gpus=4)
    pool.submit("gang", pods=8)
    pool.wait_for_phase("gang", "Running")
    lost = pool.nodes_of("gang")[0]
    pool.plane.stop_kubelet(lost)
    pool.plane.set_ready(lost, "Unknown", datetime.now(UTC) - timedelta(seconds=301))
    pool.wait_for_attempt("gang", 1)
    assert lost not in pool.nodes_of("gang")


def test_a_cordoned_node_gets_no_new_pods_and_keeps_its_pods(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.plane.kubectl("cordon", pool.node(0))
    pool.submit("here", pods=4)
    pool.wait_for_phase("here", "Running")
    assert set(pool.nodes_of("here")) == {pool.node(1)}
    pool.plane.kubectl("cordon", pool.node(1))
    pool.submit("later", pods=4)
    pool.wait_for_reason("later", "InsufficientResources")
    assert pool.phase("here") == "Running"
    pool.plane.kubectl("uncordon", pool.node(0))
    pool.wait_for_phase("later", "Running")


def test_a_tainted_node_gets_only_pods_that_tolerate_it(pool: Pool) -> None:
    taint = {"key": "special", "value": "yes", "effect": "NoSchedule"}
    pool.set_up(nodes=1, gpus=4, taints=(taint,))
    pool.submit("plain", pods=1)
    assert pool.wait_for_reason("plain", "LargerThanCluster")
    pool.submit("tolerant", pods=1, pod={"tolerations": [{"key": "special", "operator": "Exists"}]})
    pool.wait_for_phase("tolerant", "Running")


def test_a_node_whose_taint_a_pod_tolerates_for_a_while_gets_none_of_its_pods(pool: Pool) -> None:
    """It would be evicted there in the end."""
    pool.set_up(nodes=2, gpus=4)
    taint = {"key": "example.com/upkeep", "effect": "NoExecute"}
    pool.api.patch(f"/api/v1/nodes/{pool.node(0)}", {"spec": {"taints": [taint]}})
    brief = {"key": "example.com/upkeep", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    for name in ("one", "two", "three", "four"):
        pool.submit(name, pods=1, pod={"tolerations": [brief]}, does={"run_seconds": 3, "exit_code": 0})
    for name in ("one", "two", "three", "four"):
        pool.wait(f"{name} ends", lambda name=name: pool.phase(name) in ("Succeeded", "Failed"))  # type: ignore[misc]
        assert pool.phase(name) == "Succeeded"
        assert pool.status(name).get("nodeLosses", 0) == 0
    assert pool.nodes_of("one") == [pool.node(1)]


def test_a_gang_that_a_taint_evicts_does_not_return_to_the_node(pool: Pool) -> None:
    pool.set_up(nodes=3, gpus=4)
    brief = {"key": "example.com/upkeep", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    pool.submit("gang", pods=8, pod={"tolerations": [brief]})
    pool.wait_for_phase("gang", "Running")
    tainted, kept = sorted(set(pool.nodes_of("gang")))
    taint = {"key": "example.com/upkeep", "effect": "NoExecute"}
    pool.api.patch(f"/api/v1/nodes/{tainted}", {"spec": {"taints": [taint]}})
    pool.wait_for_attempt("gang", 1)
    (spare,) = {pool.node(index) for index in range(3)} - {tainted, kept}
    assert set(pool.nodes_of("gang")) == {kept, spare}
    assert pool.status("gang")["nodeLosses"] == 1


def test_a_node_that_is_not_ready_gets_no_pods(pool: Pool) -> None:
    pool.set_up(nodes=1, gpus=4)
    pool.plane.set_ready(pool.node(0), "False")
    pool.submit("patient", pods=4)
    pool.wait_for_reason("patient", "InsufficientResources")
    pool.plane.set_ready(pool.node(0), "True")
    pool.wait_for_phase("patient", "Running")


def test_a_new_node_lets_a_waiting_gang_start(pool: Pool) -> None:
    pool.set_up(nodes=1, gpus=4)
    pool.set_quota("all", 100)
    pool.submit("patient", pods=8)
    pool.wait_for_reason("patient", "LargerThanCluster")
    pool.add_nodes(1)
    pool.wait_for_phase("patient", "Running")


def test_unmanaged_pods_use_capacity_until_they_end(pool: Pool) -> None:
    pool.set_up(nodes=1, gpus=4)
    unmanaged(pool, "squatter", pool.node(0), 2)
    unmanaged(pool, "done", pool.node(0), 2, run_seconds=0.1, exit_code=0)
    pool.wait("one of them has ended", lambda: phases(pool)["done"] == "Succeeded")
    pool.submit("small", pods=2)
    pool.wait_for_phase("small", "Running")
    pool.delete("small")
    pool.wait("its pods are gone", lambda: not pool.pods("small"))
    pool.submit("whole", pods=4)
    pool.wait_for_reason("whole", "InsufficientResources", "pods not managed by Muster")
    pool.api.delete(f"/api/v1/namespaces/{pool.namespace}/pods/squatter", gracePeriodSeconds=0)
    pool.wait_for_phase("whole", "Running")


def test_of_two_pods_that_need_the_same_capacity_only_one_is_bound(pool: Pool) -> None:
    """An unmanaged pod uses the capacity between admission and binding: the gang does not stay partially bound."""
    pool.set_up(nodes=2, gpus=4)
    pool.submit(
        "gang",
        pods=8,
        failurePolicy={"maxRestarts": 0},
        pod={"schedulingGates": [{"name": "example.com/later"}]},
    )
    pool.wait("its pods are there", lambda: len(pool.pods("gang")) == 8)
    unmanaged(pool, "squatter", pool.node(0), 4)
    pool.wait("it is there", lambda: phases(pool)["squatter"] == "Running")
    open_gates(pool)

    def no_gpu_is_used_twice() -> None:
        used: dict[str, int] = {}
        for pod in pool.pods():
            node = pod["spec"].get("nodeName")
            if node and pod["status"]["phase"] in ("Pending", "Running"):
                gpus = pod["spec"]["containers"][0]["resources"]["limits"][GPU]
                used[node] = used.get(node, 0) + int(gpus)
        assert all(amount <= 4 for amount in used.values()), used

    def waits_whole() -> bool:
        no_gpu_is_used_twice()
        return not pool.pods("gang") and bool(pool.waits_for("gang"))

    pool.wait("it waits, whole, long before its start timeout", waits_whole)
    pool.api.delete(f"/api/v1/namespaces/{pool.namespace}/pods/squatter", gracePeriodSeconds=0)
    pool.wait("it runs", lambda: runs_without_gates(pool, "gang"))


def test_an_unbound_gang_moves_from_a_tainted_node_long_before_its_start_timeout(
    pool: Pool,
) -> None:
    pool.set_up(nodes=3, gpus=4)
    pool.submit("gang", pods=8, pod={"schedulingGates": [{"name": "example.com/later"}]})
    pool.wait("its pods are there", lambda: len(pool.pods("gang")) == 8)
    (share,) = pool.status("gang")["placement"]
    tainted = share["nodes"][1]["node"]
    taint = {"key": "example.com/upkeep", "effect": "NoSchedule"}
    pool.api.patch(f"/api/v1/nodes/{tainted}", {"spec": {"taints": [taint]}})
    pool.wait_for_event("gang", "PlacementInvalidated")
    pool.wait("it runs elsewhere", lambda: runs_without_gates(pool, "gang"))
    assert tainted not in pool.nodes_of("gang")
    assert pool.status("gang").get("startRetries", 0) == 0


def open_gates(pool: Pool) -> None:
    """Let kube-scheduler bind the pods that are there."""
    for pod in pool.pods():
        if pod["spec"].get("schedulingGates"):
            path = f"/api/v1/namespaces/{pool.namespace}/pods/{pod['metadata']['name']}"
            try:
                pool.api.patch(path, {"spec": {"schedulingGates": []}})
            except Refused as refused:  # it has just gone
                if refused.code != 404:
                    raise


def runs_without_gates(pool: Pool, name: str) -> bool:
    open_gates(pool)
    return pool.phase(name) == "Running"


def phases(pool: Pool) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in pool.pods()}
