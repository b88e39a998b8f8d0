"""Native gangs: with --pod-groups kube-scheduler binds all pods of a gang or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane.catalogue import CURRENT, Release
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.installing import CRDS, SYSTEM, install
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import Operator

# Pods of one job that may not share a node: the planner does not know of it, kube-scheduler does.
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"muster.dev/role": "worker"}}}
        ]
    }
}


@pytest.fixture(scope="module", params=["1.36", "newest"])
def pools(request: pytest.FixtureRequest, newest: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A control plane with the gang API, and an operator that uses it with the rights that the chart gives."""
    release = newest if request.param == "newest" else CURRENT
    with gang_pool(tmp_path_factory.mktemp("gangs"), release) as (pool, _):
        yield pool
        pool.tear_down()


@contextmanager
def gang_pool(folder: Path, release: Release) -> Iterator[tuple[Pool, Operator]]:
    with ControlPlane.start(folder / "plane", release=release, gates=release.gang_gates, crds=CRDS) as plane:
        install(plane)
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": "gangs"}})
        operator = Operator(
            account_of_the_chart(plane, folder), folder / "log", "--pod-groups", "--lease-name", "muster-operator"
        )
        pool = Pool(plane, "gangs", lambda: operator)
        pool.set_up(nodes=4, gpus=4)
        try:
            yield pool, operator
            assert operator.stop() == 0, operator.tail()
        finally:
            if operator.running:
                operator.kill()


def account_of_the_chart(plane: ControlPlane, folder: Path) -> Path:
    """A kubeconfig of the chart's service account, with the rights and policies of operator.podGroups."""
    chart = str(Path(__file__).resolve().parents[3] / "helm" / "muster")
    values = ("--set=image.repository=none", "--set=operator.podGroups=true", "--set=crds.enabled=false")
    parts = [f"--show-only=templates/{name}" for name in ("rbac/operator.yaml", "policy/operator.yaml")]
    (folder / "rbac.yaml").write_text(
        plane.helm("template", "muster", chart, "-n", SYSTEM, "--kube-version=1.36", *values, *parts)
    )
    plane.kubectl("apply", "-f", str(folder / "rbac.yaml"))
    token = plane.token_for_service_account(SYSTEM, "muster-operator")
    return plane.kubeconfig("operator", token=token)


def groups(pool: Pool, job: str | None = None) -> dict[str, dict[str, Any]]:
    query = {} if job is None else {"labelSelector": f"muster.dev/job={job}"}
    path = f"/apis/{pool.plane.release.gang_api}/namespaces/{pool.namespace}/podgroups"
    return {one["metadata"]["name"]: one for one in pool.api.items(path, **query)}


def named(pod: dict[str, Any]) -> str:
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName", ""))


def test_a_gang_has_one_group_of_its_size_that_its_pods_name_and_a_single_pod_has_none(pools: Pool) -> None:
    pools.submit("gang", pods=3)
    pools.submit("single", pods=1)
    pools.wait_for_phase("gang", "Running")
    pools.wait_for_phase("single", "Running")
    ((name, group),) = groups(pools, "gang").items()
    assert not groups(pools, "single")
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert [owner["name"] for owner in group["metadata"]["ownerReferences"]] == ["gang"]
    assert {named(pod) for pod in pools.pods("gang")} == {name}
    assert {named(pod) for pod in pools.pods("single")} == {""}
    pools.delete("gang")
    pools.delete("single")


def test_each_attempt_has_its_own_group_and_the_previous_one_is_deleted(pools: Pool) -> None:
    pools.submit("again", pods=2, failurePolicy={"maxRestarts": 3})
    pools.wait_for_phase("again", "Running")
    (first,) = groups(pools, "again")
    pools.annotate("again", 0, exit_code=5)
    pools.wait_for_attempt("again", 1)
    pools.wait("only the new group is left", lambda: len(groups(pools, "again")) == 1 and first not in groups(pools))
    assert {named(pod) for pod in pools.pods("again")} == set(groups(pools, "again"))
    pools.delete("again")


def test_what_only_kube_scheduler_knows_leaves_no_gang_half_bound(pools: Pool) -> None:
    pools.submit("apart", pods=2, pod={"affinity": APART})

    def refused() -> bool:
        conditions = [one for pod in pools.pods("apart") for one in pod["status"].get("conditions", [])]
        return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions)

    pools.wait("kube-scheduler has looked at the whole gang", refused)
    assert len({pod["spec"]["affinity"]["nodeAffinity"].__repr__() for pod in pools.pods("apart")}) == 1  # one node
    assert pools.nodes_of("apart") == ["", ""]
    pools.delete("apart")
    pools.wait("groups and pods went with their jobs", lambda: not groups(pools) and not pools.pods())


def test_a_leader_that_runs_through_an_upgrade_uses_what_is_served_then(newest: Release, tmp_path: Path) -> None:
    with gang_pool(tmp_path, CURRENT) as (pool, operator):
        pool.submit("before", pods=2, failurePolicy={"maxRestarts": 3})
        pool.wait_for_phase("before", "Running")
        (group,) = groups(pool, "before")
        # docs/operations/operator.md: Kubernetes 1.37 cannot read a PodGroup of v1alpha2, and its scheduler stops.
        pool.plane.kubectl("delete", "podgroup", group, "-n", pool.namespace, "--wait=false")
        without = '{"metadata": {"finalizers": null}}'
        pool.plane.kubectl("patch", "podgroup", group, "-n", pool.namespace, "--type=merge", "-p", without)

        pool.plane.change_release(newest, newest.gang_gates)
        assert pool.api.get("/version")["minor"] == "37"
        pool.submit("after", pods=2)
        pool.wait_for_phase("after", "Running")
        assert {named(pod) for pod in pool.pods("after")} == set(groups(pool, "after"))
        pool.annotate("before", 0, exit_code=5)
        pool.wait_for_attempt("before", 1)
        assert {named(pod) for pod in pool.pods("before")} <= set(groups(pool))

        pool.plane.change_release(newest)  # serves no PodGroups
        pool.submit("without", pods=2)
        pool.wait_for_phase("without", "Running")
        assert {named(pod) for pod in pool.pods("without")} == {""}
        pool.wait_for_event("without", "PodGroupNotServed")
        assert operator.metric("muster_gangs_without_pod_group_total") == 1
        assert "PodRejected" not in {*pool.events("after"), *pool.events("before"), *pool.events("without")}
        pool.tear_down()
