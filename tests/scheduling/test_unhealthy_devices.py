"""A node has fewer devices than it should: jobs wait for it to be repaired, and their message names it."""

from __future__ import annotations

from dataclasses import replace

from tests.scheduling.builders import in_order, wait_of
from tests.scheduling.snapshots import GPU, gang, inputs, queue, rack

from muster.model import NodeInfo, Resources
from muster.scheduling import plan


def lacking(node: NodeInfo, missing: int = 1) -> NodeInfo:
    """With so many of its 8 GPUs not allocatable."""
    left = Resources.of({name: amount - missing * (name == GPU) for name, amount in node.allocatable})
    return replace(node, allocatable=left, unhealthy_devices=Resources.of({GPU: missing}))


QUEUES = [queue("q", guaranteed=64)]


def test_a_gang_that_fits_only_with_all_devices_waits_for_resources_and_the_node_is_named() -> None:
    wait = wait_of(inputs([lacking(rack("n", 1)[0])], QUEUES, [gang("g")]), "g")
    assert (wait.reason, wait.message) == (
        "InsufficientResources",
        "needs 8 GPUs of h200; n-0 has 7 of its 8 GPUs",
    )


def test_in_a_required_domain_topology_is_the_reason() -> None:
    nodes = [lacking(node) for node in rack("n", 5)]
    wait = wait_of(inputs(nodes, QUEUES, [gang("g", pods=5, required="rack")]), "g")
    assert wait.reason == "TopologyUnsatisfiable"
    assert wait.message.endswith(
        "n-0 has 7 of its 8 GPUs, n-1 has 7 of its 8 GPUs, n-2 has 7 of its 8 GPUs and 2 more nodes lack devices"
    )


def test_a_node_without_any_healthy_device_is_named_too() -> None:
    wait = wait_of(inputs([lacking(rack("n", 1)[0], 8)], QUEUES, [gang("g")]), "g")
    assert (wait.reason, wait.message) == (
        "InsufficientResources",
        "needs 8 GPUs of h200; n-0 has 0 of its 8 GPUs",
    )


def test_a_gang_larger_than_all_devices_is_larger_than_the_cluster() -> None:
    wait = wait_of(inputs([lacking(rack("n", 1)[0])], QUEUES, [gang("g", pods=2)]), "g")
    assert wait.reason == "LargerThanCluster"


def test_no_gang_is_placed_on_devices_that_are_not_healthy() -> None:
    nodes = [lacking(rack("n", 1)[0]), *rack("m", 1)]
    assert in_order(plan(inputs(nodes, QUEUES, [gang("g"), gang("h", at=1)]))) == ["g"]
