"""Effective requests of pods and when they are determined again; the limit of templates per namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.installing import CRDS, install
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import Operator


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A cluster, and an operator that forgets soon what it has learned, and takes little of each namespace."""
    folder = tmp_path_factory.mktemp("templates")
    with ControlPlane.start(folder / "plane", crds=CRDS) as plane:
        install(plane)
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": "old"}})
        flags = ("--no-lease", "--dry-run-interval-seconds", "0.5", "--namespace-templates-mib", "1")
        operator = Operator(plane.kubeconfig(), folder / "log", *flags)
        try:
            one = Pool(plane, "old", lambda: operator)
            one.set_up(nodes=1, gpus=8, cpu="8")
            yield one
            assert operator.stop() == 0, operator.tail()
        finally:
            if operator.running:
                operator.kill()


def test_a_job_whose_template_exceeds_its_namespaces_limit_waits_until_another_is_deleted(pool: Pool) -> None:
    for name in "abcd":
        pool.submit(name, pods=1, pod=padded(name))
        pool.wait_for_phase(name, "Running")
    pool.submit("e", pods=1, pod=padded("e"))
    message = pool.wait_for_reason("e", "InvalidSpec")
    assert f"namespace {pool.namespace} " in message
    assert "at most 1,048,576" in message
    pool.submit("like-a", pods=1, pod=padded("a"))
    pool.wait_for_phase("like-a", "Running")
    pool.delete("b")
    pool.wait_for_phase("e", "Running")
    for name in ("a", "c", "d", "e", "like-a"):
        assert (pool.get(name) or {})["status"].get("restarts", 0) == 0
        pool.delete(name)
    pool.wait("their pods are gone", lambda: not pool.api.items(f"/api/v1/namespaces/{pool.namespace}/pods"))


def padded(name: str) -> dict[str, Any]:
    """Four fit into 1 MiB, five do not."""
    resources = {"limits": {GPU: "1"}}
    return {"containers": [{"name": "main", "image": "none", "args": [name, "x" * 240 * 1024], "resources": resources}]}


def test_an_edited_limit_range_applies_to_pending_jobs_but_not_to_running_ones(pool: Pool) -> None:
    path = f"/api/v1/namespaces/{pool.namespace}/limitranges"
    pool.api.create(path, {"metadata": {"name": "cores"}, "spec": {"limits": [cores("2")]}})
    pool.wait("the API server goes by it", lambda: asks_for(pool) == "2")
    pool.submit("first", pods=3, pod=LIMITED)  # 6 of 8 cores
    pool.wait_for_phase("first", "Running")
    pool.submit("second", pods=2, pod=LIMITED)
    assert " for only 1 of 2 pods" in pool.wait_for_reason("second", "InsufficientResources")
    pool.api.patch(f"{path}/cores", {"spec": {"limits": [cores("1")]}})
    pool.wait_for_phase("second", "Running")
    requests = [pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod in pool.pods("second")]
    assert requests == ["1", "1"]
    pool.submit("third", pods=1, pod=LIMITED)
    pool.wait("the first still counts as its pods are", lambda: pool.waits_for("third") == "InsufficientResources")
    pool.delete("second")
    pool.wait_for_phase("third", "Running")


LIMITED = {"containers": [{"name": "main", "image": "limited", "resources": {"limits": {GPU: "1"}}}]}


def asks_for(pool: Pool) -> str:
    """The cores that a pod like those of the jobs would ask for, were it created now."""
    path = f"/api/v1/namespaces/{pool.namespace}/pods?dryRun=All"
    pod = pool.api.create(path, {"metadata": {"generateName": "try-"}, "spec": LIMITED})
    return str(pod["spec"]["containers"][0]["resources"].get("requests", {}).get("cpu", ""))


def cores(amount: str) -> dict[str, Any]:
    """What a container without a request asks for."""
    return {"type": "Container", "defaultRequest": {"cpu": amount}, "default": {"cpu": amount}}
