"""The size of a job against quota and cluster."""

from __future__ import annotations

import dataclasses

import pytest
from tests.api.objects import COMPANY, gang, gpus, queue, refused

from muster import model
from muster.api.validation import (
    check_size,
)


def node(name: str, *domains: str, gpu: int = 8) -> model.NodeInfo:
    return model.NodeInfo(
        name, model.Resources.of({"nvidia.com/gpu": gpu, "pods": 110}), flavor="h200", domains=domains
    )


NODES = [node("n1", "r1"), node("n2", "r1"), node("n3", "r2"), node("n4", "r2", gpu=4)]


def test_a_job_larger_than_the_cluster_is_refused_with_the_largest_that_fits() -> None:
    check_size(gang(3), COMPANY, (), NODES)
    message = refused("LargerThanCluster", check_size, gang(4), COMPANY, (), NODES)
    assert message == (
        "role trainer needs 4 pods of 8 nvidia.com/gpu each on h200; "
        "in the empty cluster the largest that fits is 3 pods"
    )
    message = refused("LargerThanCluster", check_size, gang(1, 16), COMPANY, (), NODES)
    assert message.endswith("not even one pod fits; the largest node, n1, has 8 nvidia.com/gpu")
    mixed = [node("n5"), model.NodeInfo("n6", model.Resources.of({"cpu": 4000, "pods": 110}), flavor="h200")]
    requested = model.Resources.of({"cpu": 9000, "nvidia.com/gpu": 16, "pods": 1})
    both = dataclasses.replace(gang(1), roles=(model.Role("trainer", 1, 1, requested),))
    message = refused("LargerThanCluster", check_size, both, COMPANY, (), mixed)
    assert message.endswith("the largest node, n6, has 4 cpu; the largest node, n5, has 8 nvidia.com/gpu")


def test_memory_of_the_largest_node_is_named_in_mib() -> None:
    host = model.NodeInfo("n1", model.Resources.of({"memory": 24684084 << 10, "pods": 110}), flavor="h200")
    requested = model.Resources.of({"memory": 999_999 << 20, "pods": 1})
    large = dataclasses.replace(gang(1), roles=(model.Role("trainer", 1, 1, requested),))
    message = refused("LargerThanCluster", check_size, large, COMPANY, (), [host])
    assert message.endswith("the largest node, n1, has 24105Mi memory")


def test_a_job_that_exceeds_quota_and_cluster_gets_one_refusal_with_both() -> None:
    few = [node("n1"), node("n2")]
    message = refused("LargerThanQuota", check_size, gang(5), COMPANY, (), few)
    assert "the largest that fits is 4 pods" in message
    assert message.endswith("in the empty cluster the largest that fits is 2 pods")
    plenty = [node(f"n{number}") for number in range(4)]
    assert "empty cluster" not in refused("LargerThanQuota", check_size, gang(5), COMPANY, (), plenty)


def test_all_roles_that_are_too_large_are_in_one_refusal() -> None:
    requested = model.Resources.of({"nvidia.com/gpu": 16, "pods": 1})
    both = tuple(model.Role(name, 1, 1, requested) for name in ("actor", "learner"))
    message = refused("LargerThanCluster", check_size, dataclasses.replace(gang(1), roles=both), COMPANY, (), NODES)
    assert "role actor" in message
    assert "role learner" in message


def test_a_queue_that_names_no_flavor_has_no_node_for_a_job() -> None:
    message = refused("FlavorNotAllowed", check_size, gang(1), [queue("research", namespaceSelector={})], (), NODES)
    assert message.startswith("queue research and those above it name no flavor")


def test_a_job_larger_than_every_required_domain_is_refused() -> None:
    levels = [model.FlavorInfo("h200", ("rack",))]
    check_size(gang(2, required="rack"), COMPANY, levels, NODES)
    message = refused("LargerThanCluster", check_size, gang(3, required="rack"), COMPANY, levels, NODES)
    assert message.endswith("in one rack of the empty cluster the largest that fits is 2 pods")


def test_a_job_larger_than_all_that_its_queue_can_get_is_refused() -> None:
    check_size(gang(4), COMPANY)
    message = refused("LargerThanQuota", check_size, gang(5), COMPANY)
    assert message == (
        "role trainer needs 40 nvidia.com/gpu of h200 (5 pods); "
        "queue research can never have more than 32: the largest that fits is 4 pods"
    )


@pytest.mark.parametrize(
    ("a", "b", "most"),
    [
        ({"guaranteed": 8}, {"guaranteed": 24}, 32),  # all of b's can be borrowed
        ({"guaranteed": 8, "limit": 16}, {"guaranteed": 24}, 16),
        ({"guaranteed": 8}, {"guaranteed": 24, "lend": 8}, 16),  # b keeps 16
        ({"guaranteed": 8, "lend": 0}, {"guaranteed": 16, "lend": 0}, 16),  # 8 of its own, 8 that lie in the parent
    ],
)
def test_the_most_a_queue_can_get_follows_limit_lend_and_keep(a: dict[str, int], b: dict[str, int], most: int) -> None:
    top = queue("top", resources=gpus(guaranteed=32))
    queues = [top, queue("a", "top", resources=gpus("h200", **a)), queue("b", "top", resources=gpus("h200", **b))]
    check_size(gang(most, 1, "a"), queues)
    assert f"more than {most}:" in refused("LargerThanQuota", check_size, gang(most + 1, 1, "a"), queues)


def test_the_limit_of_a_queue_above_binds_even_where_the_queue_keeps_a_guarantee_for_itself() -> None:
    kept = queue("a", "team", resources=gpus(guaranteed=10, lend=0))
    queues = [
        queue("top", resources=gpus(guaranteed=100)),
        queue("team", "top", resources=gpus(guaranteed=10, limit=10)),
        kept,
    ]
    check_size(gang(10, 1, "a"), queues)
    assert "more than 10:" in refused("LargerThanQuota", check_size, gang(11, 1, "a"), queues)


def test_a_resource_that_no_queue_on_the_path_names_is_not_limited() -> None:
    check_size(gang(10**6), [queue("research", resources=[{"flavor": "h200", "guaranteed": {"cpu": 1}}])])


def test_a_resource_without_guarantee_is_refused_with_that_reason() -> None:
    queues = [queue("top"), queue("a", "top", resources=gpus(limit=8))]
    assert refused("LargerThanQuota", check_size, gang(1, 1, "a"), queues) == (
        "role trainer needs 1 nvidia.com/gpu of h200 (1 pod); queue a can never have more than 0, since neither it nor"
        " a queue above it guarantees any: not even one pod fits"
    )
