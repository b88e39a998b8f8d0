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
    assert (ended.code, ended.out) == (0, "trainingjob default/llama: role trainer has 4 replicas\n")
    assert replicas(cluster) == {"trainer": 4}


def test_of_several_roles_each_is_named(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job(roles=TWO_ROLES)
    assert muster("scale", "llama", "trainer=4", "reader=1").code == 0
    assert replicas(cluster) == {"trainer": 4, "reader": 1}
    ended = muster("scale", "llama", "3")
    assert (ended.code, replicas(cluster)) == (2, {"trainer": 4, "reader": 1})
    assert "trainer=3, reader=3" in ended.err


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("4", "4 replicas, and starts with 1 or more"), ("2", "2 replicas, and starts"), ("1", "1 replica\n")],
)
def test_scale_prints_the_minimum_of_an_elastic_role(
    cluster: MemoryClient, muster: Muster, wanted: str, expected: str
) -> None:
    cluster.kept_jobs["llama"] = job(roles=[{**TWO_ROLES[0], "minReplicas": 1}])
    assert f"role trainer has {expected}" in muster("scale", "llama", wanted).out


@pytest.mark.parametrize(("rested", "earliest"), [(True, False), (False, True)])
def test_scale_prints_when_an_elastic_role_can_grow(
    cluster: MemoryClient, muster: Muster, rested: bool, earliest: bool
) -> None:
    admitted = 1.0 if rested else time.time() + 1e6
    running = status("Running", elasticReplicas=1, admittedAt=admitted)
    cluster.kept_jobs["llama"] = job("llama", running, roles=[{**TWO_ROLES[0], "replicas": 1, "minReplicas": 1}])
    out = muster("scale", "llama", "3").out
    assert "1 running now: it grows into free resources" in out
    assert ("at the earliest" in out) is earliest


@pytest.mark.parametrize("text", ["0", "-1", "x", "trainer=", "trainer=1.5", "=", "9" * 5000])
def test_what_is_no_number_of_pods_is_refused(text: str, cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    ended = muster("scale", "llama", "--", text)
    assert (ended.code, replicas(cluster)) == (2, {"trainer": 2})
    assert "must be a positive number of pods such as 4 or trainer=4; got" in ended.err


def test_scale_names_the_roles_that_there_are_and_the_least_that_is_right(
    cluster: MemoryClient, muster: Muster
) -> None:
    elastic = {**TWO_ROLES[0], "minReplicas": 2}
    cluster.kept_jobs["llama"] = job(roles=[elastic])
    unknown = muster("scale", "llama", "worker=4")
    assert unknown.code == 3
    assert "job 'llama' has no role 'worker'; it has trainer" in unknown.err
    small = muster("scale", "llama", "1")
    assert small.code == 2
    assert "must be at least its minReplicas (2); got 1" in small.err


def test_drain_names_the_jobs_and_waits_until_they_have_left(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job(status=status("Running", placement=placement("n0", "n1")))
    cluster.on_nodes = ["llama"]
    ended = muster("drain", "n1", "--wait")
    assert ended.out.splitlines() == [
        "node n1 is being drained; jobs to move: default/llama",
        "no job is left on node n1",
    ]
    assert cluster.asked == [("drain", "n1")]


def test_drain_and_undrain_as_json(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    cluster.on_nodes = ["llama"]
    assert muster("drain", "n1", "--json").rows == [{"node": "n1", "result": "draining", "jobs": ["default/llama"]}]
    assert muster("undrain", "n1", "--json").rows == [{"node": "n1", "result": "undrained", "jobs": []}]
