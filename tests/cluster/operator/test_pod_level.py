"""Resources of a whole pod count as those of its containers do, and devices that no queue charges are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.cluster.controlplane.api import Refused
from tests.cluster.operator.pools import Json, Pool

CORES = {"requests": {"cpu": "64", "memory": "512Gi"}}
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
POLICIES = "/apis/admissionregistration.k8s.io/v1"
MARK = "example.com/changed"


@pytest.fixture
def cores(pool: Pool) -> Pool:
    """One node of 128 cores, and a queue that may use none of them."""
    pool.set_up(nodes=1, gpus=0, cpu="128", memory="2Ti")
    pool.edit_queue("all", resources=[{"flavor": pool.namespace, "guaranteed": {"cpu": "0", "memory": "4Ti"}}])
    pool.edit_queue("red", resources=[{"flavor": pool.namespace, "guaranteed": {"cpu": "0", "memory": "4Ti"}}])
    return pool


def submit(pool: Pool, name: str, **resources: Any) -> None:
    pool.submit(name, pods=1, gpus=0, pod={"resources": resources} if resources else {})


def test_a_queue_without_cores_admits_no_job_with_pod_level_requests_for_cores(cores: Pool) -> None:
    submit(cores, "without")
    cores.wait_for_phase("without", "Running")
    for name in ("a", "b", "c"):
        submit(cores, name, **CORES)
    for name in ("a", "b", "c"):
        cores.wait(f"{name} waits", lambda name=name: cores.waits_for(name) == "LargerThanQuota")  # type: ignore[misc]
        assert cores.pods(name) == []


def test_pods_with_pod_level_requests_are_not_placed_on_full_nodes(cores: Pool) -> None:
    for queue in ("all", "red"):
        cores.edit_queue(queue, resources=[{"flavor": cores.namespace, "guaranteed": {"cpu": "512", "memory": "4Ti"}}])
    for name in ("a", "b"):
        submit(cores, name, **CORES)
        cores.wait_for_phase(name, "Running")
    submit(cores, "c", limits={"cpu": "1"})
    cores.wait("no core is left", lambda: cores.waits_for("c") == "InsufficientResources")
    cores.delete("a")
    cores.wait_for_phase("c", "Running")
    half = {"requests": {"cpu": "32"}}  # of the 63 that are left
    bare = {"metadata": {"name": "bare"}, "spec": {"containers": [{"name": "c", "image": "none"}], "resources": half}}
    pods = f"/api/v1/namespaces/{cores.namespace}/pods"
    cores.api.create(pods, bare)
    cores.wait("the unmanaged pod runs", lambda: cores.api.get(f"{pods}/bare")["status"]["phase"] == "Running")
    submit(cores, "d", **half)
    cores.wait("none again", lambda: cores.waits_for("d") == "InsufficientResources")


def test_a_claim_of_a_device_is_refused_at_once(pool: Pool) -> None:
    pool.set_up(nodes=1)
    with pytest.raises(Refused) as caught:
        pool.submit("claims", pods=1, pod={"resourceClaims": [CLAIM]})
    assert caught.value.code == 422
    assert "spec.roles[0].template.spec.resourceClaims" in str(caught.value)
    assert "not charged" in str(caught.value)


def test_a_claim_that_a_policy_adds_keeps_the_job_waiting(pool: Pool) -> None:
    pool.set_up(nodes=1)
    claim = '{name: "gpu", resourceClaimTemplateName: "gpu"}'
    with changed(pool, f"resourceClaims: [Object.spec.resourceClaims{claim}]"):
        pool.submit("claims", pods=1)
        assert "resourceClaims" in pool.wait_for_reason("claims", "PodRejected")
        assert pool.pods("claims") == []


def test_what_a_policy_adds_to_a_whole_pod_counts(cores: Pool) -> None:
    quantity = '{"cpu": "64"}'
    with changed(cores, f"resources: Object.spec.resources{{requests: {quantity}}}"):
        submit(cores, "a")
        cores.wait("it waits", lambda: cores.waits_for("a") == "LargerThanQuota")
        assert cores.pods("a") == []


@contextmanager
def changed(pool: Pool, fields: str) -> Iterator[None]:
    """A policy that lays these fields over the spec of every pod of the test's namespace."""
    selector = {"matchLabels": {"kubernetes.io/metadata.name": pool.namespace}}
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    mark = f'metadata: Object.metadata{{annotations: {{"{MARK}": "yes"}}}}'
    expression = f"Object{{{mark}, spec: Object.spec{{{fields}}}}}"
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"namespaceSelector": selector, "resourceRules": [rule]},
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
    }
    meta = {"name": pool.namespace}
    pool.api.create(f"{POLICIES}/mutatingadmissionpolicies", {"metadata": meta, "spec": policy})
    bound = {"metadata": meta, "spec": {"policyName": pool.namespace}}
    pool.api.create(f"{POLICIES}/mutatingadmissionpolicybindings", bound)
    try:
        pool.wait("the API server goes by it", lambda: MARK in _tried(pool)["metadata"].get("annotations", {}))
        yield
    finally:
        for plural in ("mutatingadmissionpolicybindings", "mutatingadmissionpolicies"):
            pool.api.delete(f"{POLICIES}/{plural}/{pool.namespace}")


def _tried(pool: Pool) -> Json:
    """A pod as the API server would create it."""
    path = f"/api/v1/namespaces/{pool.namespace}/pods?dryRun=All"
    container = {"name": "c", "image": "none"}
    return pool.api.create(path, {"metadata": {"generateName": "try-"}, "spec": {"containers": [container]}})


@pytest.mark.parametrize(
    ("odd", "field"),
    [
        ({"resorces": {}}, "resorces: unknown field of Container; did you mean 'resources'?"),
        ({"env": [{"name": "A", "valu": "1"}]}, "env[0].valu: unknown field of EnvVar; did you mean 'value'?"),
    ],
    ids=["of a container", "of a variable"],
)
def test_a_field_that_the_api_server_does_not_know_is_refused_by_name(pool: Pool, odd: Json, field: str) -> None:
    pool.set_up(nodes=1)
    pool.submit("misspelt", pods=1, pod={"containers": [{"name": "main", "image": "none", **odd}]})
    assert f"spec.containers[0].{field}" in pool.wait_for_reason("misspelt", "PodRejected")
    assert pool.pods("misspelt") == []
