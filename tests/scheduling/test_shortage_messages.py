"""The exact message of a gang that does not fit: how many of its pods fit, and what the nodes lack for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.scheduling.builders import message_of, wait_of
from tests.scheduling.snapshots import GIB, GPU, gang, gpus, inputs, queue, rack, role, run

from muster.model import Gang, NodeInfo, NodeTaint, Resources, RunningGang, Topology
from muster.scheduling.feasibility import format_amount

QUEUE = [queue("q", guaranteed=1000)]
ONE = rack("r1", 1)
TWO = rack("r1", 2)


def job(pods: int, **amounts: int) -> Gang:
    """A gang `g` whose pods ask for these amounts: cpu in cores, memory in GiB, gpu."""
    units = {"cpu": ("cpu", 1000), "memory": ("memory", GIB), "gpu": (GPU, 1)}
    request = {units[word][0]: amount * units[word][1] for word, amount in amounts.items()}
    roles = [role("trainer", pods, request=Resources.of({"pods": 1, **request}))]
    return gang("g", roles=roles)


def in_one_rack(gang: Gang) -> Gang:
    """The same, all pods in one rack."""
    return replace(gang, topology=Topology("rack"))


def busy(node: str, pods: int = 1, **amounts: int) -> RunningGang:
    """A gang whose pods take this much of one node of 96 cores, 1024 GiB, 8 GPUs and 110 pod slots."""
    return run(replace(job(pods, **amounts), uid=f"on-{node}"), {node: pods})


def message(gang: Gang, *running: RunningGang, nodes: Sequence[NodeInfo] = tuple(TWO)) -> str:
    """The message of `g`. The queue names GPUs only, so requests without GPUs get no quota message."""
    return message_of(inputs(nodes, QUEUE, [gang], running), "g")


def test_unmanaged_pods_on_the_only_node_that_fits_are_reported_instead_of_a_small_cluster() -> None:
    nodes = rack("r1", 1, unmanaged_usage=Resources.of({GPU: 6, "pods": 1}))
    wait = wait_of(inputs(nodes, QUEUE, [job(1, gpu=8)]), "g")
    assert wait.reason == "InsufficientResources"
    assert wait.message == (
        "needs 8 GPUs of h200; no node has 8 GPUs free (at most 2); pods not managed by Muster block it even without"
        " other gangs; queue q has 1000 of 1000 left and may borrow 0"
    )
    wait = wait_of(inputs(nodes, QUEUE, [job(2, gpu=8)]), "g")
    assert wait.reason == "LargerThanCluster"
    assert "an empty cluster fits at most 1 of 2 pods, 8 GPUs" in wait.message


def test_a_gang_blocked_by_unmanaged_pods_has_no_estimate_but_gangs_behind_it_have() -> None:
    nodes = rack("r1", 2, unmanaged_usage=Resources.of({GPU: 4, "pods": 1}))
    running = run(gang("b", size=4, runtime=1000.0), ["r1-0"], since=500.0)
    kept_out, behind = gang("g", queue="q", size=8), gang("h", queue="q", size=4, pods=2, at=1.0)
    snapshot = inputs(nodes, QUEUE, [kept_out, behind], [running])
    assert wait_of(snapshot, "g").estimated_start is None
    assert wait_of(snapshot, "h").estimated_start == running.release_deadline


CORES_TAKEN = (busy("r1-0", cpu=94), busy("r1-1", cpu=90))


def test_a_pod_without_gpus_is_described_in_cores_or_else_in_memory() -> None:
    assert message(job(1, cpu=8), *CORES_TAKEN) == "needs 8 cores of h200; no node has 8 cores free (at most 6)"
    memory_taken = (busy("r1-0", memory=1000), busy("r1-1", memory=1020))
    assert message(job(1, memory=64), *memory_taken) == (
        "needs 64 GiB of memory of h200; no node has 64 GiB of memory free (at most 24)"
    )


def test_of_several_pods_none_or_some_fit() -> None:
    assert message(job(3, cpu=8), *CORES_TAKEN) == (
        "needs 24 cores of h200; capacity for 0 of 3 pods: no node has 8 cores free (at most 6)"
    )
    assert message(job(3, cpu=64), busy("r1-0", cpu=90)) == (
        "needs 192 cores of h200; an empty cluster fits at most 2 of 3 pods, 128 cores"
    )
    assert message(job(2, cpu=64), busy("r1-0", cpu=90)) == (
        "needs 128 cores of h200; capacity for 1 of 2 pods, 64 of 128 cores"
    )


def test_a_pod_that_asks_for_nothing_takes_a_pod_slot() -> None:
    full = (busy("r1-0", 110), busy("r1-1", 109))
    assert message(job(2), *full) == "needs 2 pod slots of h200; capacity for 1 of 2 pods"
    assert message(job(1), *full[:1], nodes=ONE) == "needs 1 pod slot of h200; no node has 1 pod slot free"
    assert message(job(221)) == ("needs 221 pod slots of h200; an empty cluster fits at most 220 of 221 pods")
    racks = ONE + rack("r2", 1)
    assert message(in_one_rack(job(100)), busy("r1-0", 50), busy("r2-0", 40), nodes=racks) == (
        "needs 100 pod slots of h200; capacity for 70 of 100 pods in rack b1/r2, all required in one rack"
    )


def test_the_scarce_resource_is_named_where_it_is_not_the_main_one() -> None:
    assert "capacity for 1 of 2 pods, 1 of 2 GPUs; memory for only 1 of 2 pods" in message(
        job(2, gpu=1, memory=600), busy("r1-0", memory=500)
    )


def test_several_resources_that_no_node_has_are_all_named() -> None:
    assert "no node has 8 GPUs (at most 4) or 90 cores (at most 76) free" in message(
        job(1, gpu=8, cpu=90, memory=1000), busy("r1-0", gpu=4, cpu=20), nodes=ONE
    )
    assert message(job(1, gpu=1, memory=2000)) == ("needs 1 GPU of h200; no node has 2000 GiB of memory (at most 1024)")


def test_nodes_that_are_down_are_counted() -> None:
    down = rack("r2", 2, schedulable=False)
    assert "capacity for 1 of 2 pods, 8 of 16 GPUs; 2 of 3 nodes are down, cordoned or excluded" in message(
        job(2, gpu=8), nodes=ONE + down
    )
    assert "; all 2 nodes are down, cordoned or excluded; " in message(job(1, gpu=8), nodes=down)
    assert "; the only node is down, cordoned or excluded; " in message(job(1, gpu=8), nodes=down[:1])


def test_nodes_that_do_not_accept_the_pods_are_distinguished_from_full_ones() -> None:
    tainted = rack("r1", 2, taints=(NodeTaint("dedicated", "x"),))
    assert message(job(1, gpu=8), nodes=tainted) == (
        "needs 8 GPUs of h200; no node of h200 accepts its pods: check taints, nodeSelector and affinity"
    )
    unlabelled = [replace(node, domains=()) for node in TWO]
    assert message(in_one_rack(job(1, gpu=8)), nodes=unlabelled) == (
        "needs 8 GPUs of h200 in one rack; no available node has the label of topology level rack"
    )


def selecting(**labels: str) -> Gang:
    wanted = job(1, gpu=8)
    selector = {name.replace("_", "/"): value for name, value in labels.items()}
    return replace(wanted, roles=tuple(replace(one, node_selector=tuple(selector.items())) for one in wanted.roles))


def test_a_label_of_a_node_selector_that_no_node_has_is_named_with_the_nearest_one() -> None:
    nodes = [replace(node, labels={"gpu/model": "h200", "zone": f"z{at}"}) for at, node in enumerate(TWO)]
    needs = "needs 8 GPUs of h200; no node of h200 has "
    assert message(selecting(gpu_model="h20"), nodes=nodes) == (
        f"{needs}the label gpu/model=h20 of its nodeSelector; did you mean 'h200'?"
    )
    assert message(selecting(gpu_modl="h200"), nodes=nodes) == (
        f"{needs}the label gpu/modl of its nodeSelector; did you mean 'gpu/model'?"
    )
    assert (
        message(selecting(zone="west"), nodes=nodes)
        == f"{needs}the label zone=west of its nodeSelector; nodes have z0, z1"
    )
    assert message(selecting(xyzzy="1"), nodes=nodes) == f"{needs}the label xyzzy of its nodeSelector"
    other = [replace(nodes[0], labels={"gpu/model": "h100", "zone": "z0"}), nodes[1]]
    assert message(selecting(gpu_model="h200", zone="z0"), nodes=other) == (
        f"{needs}all labels of its nodeSelector: gpu/model=h200, zone=z0"
    )


def test_a_huge_amount_of_memory_is_printed_in_digits() -> None:
    assert message(job(1, gpu=1, memory=10**9)).startswith("needs 1 GPU of h200; no node has 1000000000 GiB of memory")


def test_of_several_roles_the_one_that_does_not_fit_is_named() -> None:
    roles = [role("driver", 1, request=gpus(0, cpu=50)), role("trainer", 2)]
    snapshot = inputs(TWO, QUEUE, [gang("g", roles=roles)], [busy("r1-0", cpu=60), busy("r1-1", cpu=60)])
    assert message_of(snapshot, "g") == (
        "needs 16 GPUs of h200; role driver: no node has 50 cores free (at most 36); "
        "queue q has 1000 of 1000 left and may borrow 0"
    )
    many = gang("g", roles=[role("driver", 5, request=gpus(0, cpu=90)), role("trainer", 2)])
    assert message_of(inputs(TWO, QUEUE, [many]), "g") == (
        "needs 16 GPUs of h200; role driver: an empty cluster fits at most 2 of 5 pods, 180 cores"
    )


def test_roles_that_fit_one_by_one_but_not_together() -> None:
    both = gang("g", roles=[role(name, 2, request=gpus(4, cpu=60)) for name in "ab"])
    assert message_of(inputs(TWO, QUEUE, [both]), "g") == (
        "needs 16 GPUs of h200; an empty cluster fits each role alone, but not all roles together"
    )
    taken = [run(gang("x", pods=2), ["r1-0", "r1-1"])]
    assert "capacity for each role alone, but not for all roles together" in message_of(
        inputs(TWO + rack("r2", 2), QUEUE, [both], taken), "g"
    )


def test_one_is_printed_in_the_singular() -> None:
    assert [format_amount(name, one) for name, one in ((GPU, 1), ("cpu", 1000), ("pods", 1))] == [
        "1 GPU",
        "1 core",
        "1 pod slot",
    ]
    assert [format_amount(name, two) for name, two in (("cpu", 1500), ("pods", 2))] == ["1.5 cores", "2 pod slots"]


def test_of_thousands_of_resources_that_no_node_has_a_few_are_named() -> None:
    """The API server takes a message of 32 KiB at most."""
    many = gang("g", size=1)
    requested = Resources.of({f"example.com/r{number:04}": 1 for number in range(4000)})
    many = replace(many, roles=(replace(many.roles[0], request=requested),))
    message = wait_of(inputs(ONE, QUEUE, [many]), "g").message
    assert message.endswith("or 3992 more resources")
    assert len(message) < 1000
