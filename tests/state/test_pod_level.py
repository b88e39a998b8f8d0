"""What a pod asks for whose requests are those of the pod as a whole, held to Kubernetes' own rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from muster.api.spec import PodSpec, RoleSpec
from muster.api.spec.pods import pod_request
from muster.model import Resources

Amounts = dict[str, int]
POD_LEVEL = ("cpu", "memory", "hugepages-2Mi")


def request_of(containers: list[Any], **fields: Any) -> Resources:
    return pod_request(PodSpec.model_validate({"containers": containers, **fields}))


def asks(**requests: str) -> Any:
    return {"resources": {"requests": requests}}


def test_requests_of_the_pod_stand_for_those_of_its_containers() -> None:
    wanted = request_of([asks(cpu="1", memory="1Gi"), {}], resources={"requests": {"cpu": "64"}})
    assert wanted == Resources.of({"cpu": 64_000, "memory": 2**30, "pods": 1})


def test_requests_of_the_pod_cover_its_init_containers_and_sidecars_and_overhead_comes_on_top() -> None:
    inits = [{**asks(cpu="2"), "restartPolicy": "Always"}, asks(cpu="8")]
    whole = {"requests": {"cpu": "16"}}
    assert request_of([asks(cpu="1")], initContainers=inits, overhead={"cpu": "1"}).get("cpu") == 11_000
    wanted = request_of([asks(cpu="1")], initContainers=inits, resources=whole, overhead={"cpu": "1"})
    assert wanted.get("cpu") == 17_000


def test_a_limit_of_the_pod_is_its_request_only_where_nothing_requests_that_resource() -> None:
    limits = {"limits": {"cpu": "64"}}
    assert request_of([{}], resources=limits).get("cpu") == 64_000
    assert request_of([asks(cpu="1")], resources=limits).get("cpu") == 1_000
    assert request_of([{}], resources={**limits, "requests": {"cpu": "2"}}).get("cpu") == 2_000


def test_huge_pages_that_limit_the_pod_are_requested_whatever_its_containers_request() -> None:
    one = {"resources": {"limits": {"hugepages-2Mi": "2Mi"}}}
    assert request_of([one], resources={"limits": {"hugepages-2Mi": "8Mi"}}).get("hugepages-2Mi") == 2**23


def test_a_pod_that_requests_less_than_its_containers_counts_as_they_do() -> None:
    assert request_of([asks(cpu="8")], resources={"requests": {"cpu": "1"}}).get("cpu") == 8_000


REQUESTS = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 9), max_size=3)
AMOUNTS = st.dictionaries(st.sampled_from([*POD_LEVEL, "nvidia.com/gpu"]), st.integers(0, 9), max_size=3)
RESOURCES = st.fixed_dictionaries({}, optional={"requests": REQUESTS, "limits": AMOUNTS})  # huge pages: both the same
CONTAINERS = st.lists(st.fixed_dictionaries({"resources": RESOURCES}), min_size=1, max_size=2)
INITS = st.lists(
    st.fixed_dictionaries({"resources": RESOURCES}, optional={"restartPolicy": st.just("Always")}), max_size=3
)
WHOLE = st.dictionaries(st.sampled_from(POD_LEVEL), st.integers(0, 60), max_size=3)


@given(CONTAINERS, INITS, st.fixed_dictionaries({}, optional={"requests": WHOLE, "limits": WHOLE}), AMOUNTS)
def test_every_pod_that_the_api_server_takes_counts_as_it_counts_there(
    containers: list[Any], inits: list[Any], whole: Any, overhead: Amounts
) -> None:
    pod = {"containers": containers, "initContainers": inits, "resources": whole, "overhead": overhead}
    requests, of_containers = defaulted(pod)
    assume(all(requests[name] >= amount for name, amount in of_containers.items() if name in requests))
    counted = pod_request(PodSpec.model_validate(pod))
    expected = {**of_containers, **requests}
    for name, amount in overhead.items():
        expected[name] = expected.get(name, 0) + amount
    scaled = {name: amount * (1000 if name == "cpu" else 1) for name, amount in expected.items()}
    assert counted == Resources.of({**scaled, "pods": 1})


# ---- Kubernetes' rules, line by line: defaults.go of k8s.io/kubernetes, helpers.go of k8s.io/component-helpers, 1.36


def defaulted(pod: Any) -> tuple[Amounts, Amounts]:
    """The requests of the pod as the API server completes it (SetDefaults_Pod), and its containers' together."""
    for container in (*pod["containers"], *pod["initContainers"]):
        resources = container["resources"]
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    requests = dict(pod["resources"].get("requests", {}))
    limits = dict(pod["resources"].get("limits", {}))
    if requests or limits:  # defaultHugePagePodLimits
        for name, amount in aggregate(pod, "limits").items():
            if name.startswith("hugepages-") and name not in requests:
                limits.setdefault(name, amount)
    of_containers = aggregate(pod, "requests")
    if limits:  # defaultPodRequests
        for name, amount in of_containers.items():
            if name in ("cpu", "memory"):
                requests.setdefault(name, amount)
        for name, amount in limits.items():
            requests.setdefault(name, amount)
    return requests, of_containers


def aggregate(pod: Any, kind: str) -> Amounts:
    """AggregateContainerRequests, and AggregateContainerLimits."""
    total: Amounts = {}
    first: Amounts = {}
    restartable: Amounts = {}
    for container in pod["containers"]:
        add(total, container["resources"].get(kind, {}))
    for container in pod["initContainers"]:
        of_one = dict(container["resources"].get(kind, {}))
        if container.get("restartPolicy") == "Always":
            add(total, of_one)
            add(restartable, of_one)
            of_one = restartable
        else:
            add(of_one, restartable)
        for name, amount in of_one.items():
            first[name] = max(first.get(name, amount), amount)
    for name, amount in first.items():
        total[name] = max(total.get(name, amount), amount)
    return total


def add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def test_replicas_whose_pods_as_a_whole_ask_for_more_than_anything_can_have_are_refused() -> None:
    resources = {"requests": {"memory": str(2**61)}}
    role = {"name": "r", "template": {"spec": {"containers": [{"name": "main"}], "resources": resources}}}
    assert RoleSpec.model_validate({**role, "replicas": 2}).replicas == 2
    with pytest.raises(ValueError, match=r"must be less than 2\^62"):
        RoleSpec.model_validate({**role, "replicas": 3})
