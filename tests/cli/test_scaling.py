"""scale, drain, undrain."""

from __future__ import annotations

import time

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.cli.objects import job, placement, status

TWO_ROLES = [
    {"name": name, "replicas": 2, "template": {"spec": {"containers": [{"command": ["python"]}]}}}
    for name in ("trainer", "reader")
]


def replicas(cluster: MemoryClient, name: str = "llama") -> dict[str, int]:
    return {role.name: role.replicas for role in cluster.kept_jobs[name].spec.roles}


def test_a_number_alone_is_of_the_only_role(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    ended = muster("scale", "llama", "4")
    assert (ended.code, {"default/llama", "trainer", "4"} <= {*ended.words}) == (0, True)
    assert replicas(cluster) == {"trainer": 4}


def test_of_several_roles_each_is_named(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job(roles=TWO_ROLES)
    assert muster("scale", "llama", "trainer=4", "reader=1").code == 0
    assert replicas(cluster) == {"trainer": 4, "reader": 1}
    ended = muster("scale", "llama", "3")
    assert (ended.code, replicas(cluster)) == (2, {"trainer": 4, "reader": 1})
    assert "trainer=3, reader=3" in ended.err


@pytest.mark.parametrize(("wanted", "numbers"), [("4", ["4", "1"]), ("2", ["2", "1"]), ("1", ["1"])])
def test_scale_prints_the_number_of_pods_and_the_minimum_of_an_elastic_role(
    cluster: MemoryClient, muster: Muster, wanted: str, numbers: list[str]
) -> None:
    cluster.kept_jobs["llama"] = job(roles=[{**TWO_ROLES[0], "minReplicas": 1}])
    assert [word for word in muster("scale", "llama", wanted).words if word.isdecimal()] == numbers


@pytest.mark.parametrize(("rested", "earliest"), [(True, False), (False, True)])
def test_scale_prints_when_an_elastic_role_can_grow(
    cluster: MemoryClient, muster: Muster, rested: bool, earliest: bool
) -> None:
    admitted = 1.0 if rested else time.time() + 1e6
    running = status("Running", elasticReplicas=1, admittedAt=admitted)
    cluster.kept_jobs["llama"] = job("llama", running, roles=[{**TWO_ROLES[0], "replicas": 1, "minReplicas": 1}])
    out = muster("scale", "llama", "3").out
    assert "1 running" in out
    assert ("at the earliest" in out) is earliest


@pytest.mark.parametrize("text", ["0", "-1", "x", "trainer=", "trainer=1.5", "=", "9" * 5000])
def test_what_is_no_number_of_pods_is_refused(text: str, cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    ended = muster("scale", "llama", "--json", "--", text)
    assert (ended.code, replicas(cluster)) == (2, {"trainer": 2})
    assert (ended.error["reason"], ended.error["field"]) == ("Usage", "replicas")


def test_scale_names_the_roles_that_there_are_and_the_least_that_is_right(
    cluster: MemoryClient, muster: Muster
) -> None:
    elastic = {**TWO_ROLES[0], "minReplicas": 2}
    cluster.kept_jobs["llama"] = job(roles=[elastic])
    unknown = muster("scale", "llama", "worker=4", "--json")
    assert (unknown.code, unknown.error["reason"]) == (3, "RoleNotFound")
    assert all(role in unknown.error["message"] for role in ("worker", "trainer"))
    small = muster("scale", "llama", "1", "--json")
    assert small.code == 2
    assert "minReplicas (2); got 1" in small.error["message"]


def test_drain_names_the_jobs_and_waits_until_they_have_left(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job(status=status("Running", placement=placement("n0", "n1")))
    cluster.on_nodes = ["llama"]
    ended = muster("drain", "n1", "--wait")
    assert ["default/llama" in line for line in ended.out.splitlines()] == [True, False]
    assert cluster.calls == [("drain", "n1")]


def test_drain_and_undrain_as_json(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    cluster.on_nodes = ["llama"]
    assert muster("drain", "n1", "--json").rows == [
        {"node": "n1", "result": "draining", "jobs": ["default/llama"], "hiddenJobs": 0}
    ]
    assert muster("undrain", "n1", "--json").rows == [
        {"node": "n1", "result": "undrained", "jobs": [], "hiddenJobs": 0}
    ]
