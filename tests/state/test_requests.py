from __future__ import annotations

from typing import Any

import pytest

from muster.api.spec import PodSpec
from muster.api.spec.pods import pod_request
from muster.model import MatchExpression, NodeToleration, Resources
from muster.workload.requests import node_affinity, tolerations


def container(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, **fields: Any) -> Any:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}, **fields}


def request_of(**fields: Any) -> Resources:
    return pod_request(PodSpec.model_validate(fields))


def test_containers_add_up_and_a_pod_takes_one_slot() -> None:
    both = [container({"cpu": "500m", "memory": "1Gi"}), container({"cpu": "2"})]
    assert request_of(containers=both) == Resources.of({"cpu": 2500, "memory": 2**30, "pods": 1})


def test_a_limit_without_a_request_is_the_request() -> None:
    one = container({"cpu": "1"}, {"cpu": "4", "nvidia.com/gpu": "8"})
    assert request_of(containers=[one]) == Resources.of({"cpu": 1000, "nvidia.com/gpu": 8, "pods": 1})


def test_init_containers_run_one_after_the_other_so_only_the_largest_counts() -> None:
    inits = [container({"cpu": "3"}), container({"cpu": "1", "memory": "4Gi"})]
    wanted = request_of(containers=[container({"cpu": "2", "memory": "1Gi"})], initContainers=inits)
    assert wanted == Resources.of({"cpu": 3000, "memory": 2**32, "pods": 1})


def test_a_native_sidecar_counts_beside_the_containers_and_beside_every_init_container_after_it() -> None:
    sidecar = container({"cpu": "1"}, restartPolicy="Always")
    main = [container({"cpu": "2"})]
    assert request_of(containers=main, initContainers=[sidecar]).get("cpu") == 3000
    after = [sidecar, container({"cpu": "5"})]
    assert request_of(containers=main, initContainers=after).get("cpu") == 6000
    before = [container({"cpu": "5"}), sidecar]
    assert request_of(containers=main, initContainers=before).get("cpu") == 5000


def test_overhead_is_added_at_the_end() -> None:
    inits = [container({"cpu": "3"})]
    wanted = request_of(containers=[container({"cpu": "1"})], initContainers=inits, overhead={"cpu": "250m"})
    assert wanted.get("cpu") == 3250


def test_a_toleration_that_ends_tolerates_nothing() -> None:
    raw = {"key": "upkeep", "operator": "Exists", "effect": "NoExecute"}
    assert tolerations([{**raw, "tolerationSeconds": 300}, {**raw, "tolerationSeconds": 0}]) == ()
    assert tolerations([raw]) == (NodeToleration("upkeep", "Exists", "", "NoExecute"),)


def test_tolerations_keep_what_placing_needs() -> None:
    raw: list[dict[str, Any]] = [
        {"key": "gpu", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5},
        {"key": "a", "value": "b"},
    ]
    assert tolerations(raw) == (
        NodeToleration("gpu", "Exists", "", "NoSchedule"),
        NodeToleration("a", "Equal", "b", ""),
    )


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([], ((MatchExpression("kubernetes.io/hostname", "In", ()),),)),  # no node has a name of none
        ([{}], ((MatchExpression("kubernetes.io/hostname", "In", ()),),)),
        (
            [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}]}, {"matchExpressions": []}],
            ((MatchExpression("a", "In", ("x", "y")),),),
        ),
        (
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}],
              "matchExpressions": [{"key": "b", "operator": "Exists"}]}],
            ((MatchExpression("b", "Exists"), MatchExpression("metadata.name", "In", ("n0",))),),
        ),
    ],
    ids=["none", "an empty term", "an expression", "a field"],
)  # fmt: skip
def test_required_node_affinity_is_an_or_of_ands(terms: Any, expected: Any) -> None:
    required = {"nodeSelectorTerms": terms}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert node_affinity(affinity) == expected


def test_an_init_container_counts_beside_the_sidecars_before_it_whatever_resources_they_have() -> None:
    sidecar = container({"cpu": "1", "memory": "4"}, restartPolicy="Always")
    later = container({"cpu": "1"}, restartPolicy="Always")
    init, main = container({"cpu": "5", "nvidia.com/gpu": "2"}), container({"cpu": "2", "memory": "1"})
    expected = {"cpu": 6000, "memory": 5, "nvidia.com/gpu": 2, "pods": 1}
    assert request_of(initContainers=[sidecar, init, later], containers=[main]) == Resources.of(expected)
