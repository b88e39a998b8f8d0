"""Nodes that a job excludes, and nodes that all jobs avoid."""

from __future__ import annotations

import pytest
from tests.lifecycle.cases import BOUNDS, NOW

from muster.api.spec import BlamedNode
from muster.workload.blame import AvoidedNode, add_blamed_nodes, avoided_nodes

TENANTS = {"u1": ("red",), "u2": ("blue",), "u3": ("green",)}


def blames(*nodes: str, at: float = NOW, reason: str = "PodRejected") -> list[BlamedNode]:
    return [BlamedNode(node=node, at=at, until=at + 3600, reason=reason) for node in nodes]


def test_blame_lasts_an_hour_and_keeps_the_ten_newest() -> None:
    blamed: list[BlamedNode] = []
    for number in range(12):
        blamed = add_blamed_nodes(blamed, [f"n{number}"], "StartTimeout", NOW + number, BOUNDS)
    assert [entry.node for entry in blamed] == [f"n{number}" for number in range(2, 12)]
    (newest,) = add_blamed_nodes(blamed, ["x"], "PodRejected", NOW + 4000, BOUNDS)
    assert newest == BlamedNode(node="x", at=NOW + 4000, until=NOW + 7600, reason="PodRejected")


@pytest.mark.parametrize(
    ("apart_s", "avoided"),
    [
        (0, {"n0": AvoidedNode(NOW + 3600, ("u1", "u2"))}),
        (600, {"n0": AvoidedNode(NOW + 3600, ("u1", "u2"))}),
        (601, {}),
    ],
    ids=str,
)
def test_all_jobs_avoid_a_node_after_two_jobs_failed_there_within_ten_minutes(
    apart_s: float, avoided: dict[str, AvoidedNode]
) -> None:
    blamed = {"u1": blames("n0"), "u2": [*blames("n0", at=NOW + apart_s), *blames("n1")]}
    assert avoided_nodes(blamed, TENANTS, {}, NOW, 2) == avoided
    assert avoided_nodes(blamed, TENANTS, {}, NOW + 3601, 2) == {}


def test_what_fails_on_more_than_half_of_the_nodes_is_blamed_on_none_for_all_jobs() -> None:
    blamed = {uid: blames("n0", "n1") for uid in ("u1", "u2")}
    assert set(avoided_nodes(blamed, TENANTS, {}, NOW, 4)) == {"n0", "n1"}
    assert avoided_nodes(blamed, TENANTS, {}, NOW, 3) == {}


def test_a_node_is_no_longer_avoided_once_a_gang_has_started_there() -> None:
    blamed = {"u1": blames("n0"), "u2": blames("n0", at=NOW + 60)}
    assert set(avoided_nodes(blamed, TENANTS, {"n0": NOW - 1, "n1": NOW + 99}, NOW + 99, 2)) == {"n0"}
    assert set(avoided_nodes(blamed, TENANTS, {"n0": NOW + 59}, NOW + 99, 2)) == set(), (
        "one job alone has failed there since"
    )
    assert avoided_nodes(blamed, TENANTS, {"n0": NOW + 61}, NOW + 99, 2) == {}
    assert set(avoided_nodes(blamed | {"u3": blames("n0", at=NOW + 62)}, TENANTS, {"n0": NOW + 59}, NOW + 99, 2)) == {
        "n0"
    }


def test_blames_of_an_earlier_version_count_until_they_end() -> None:
    old = [BlamedNode(node="n0", until=NOW + 3600, reason="PodRejected")]
    assert set(avoided_nodes({"u1": old, "u2": old}, TENANTS, {"n0": NOW + 60}, NOW + 99, 2)) == {"n0"}


@pytest.mark.parametrize(
    ("reason", "counts"),
    [("PodRejected", True), ("PodUnsuitable", False), ("StartTimeout", False), ("RestartElsewhere", False)],
)
def test_a_node_is_avoided_by_all_jobs_only_for_what_its_kubelet_says_that_it_lacks(
    reason: str, *, counts: bool
) -> None:
    """A user chooses the exit codes of a program, and a template whose pods are never ready, or have no sandbox,
    such as with a runtimeClassName whose handler no node has."""
    blamed = {"u1": blames("n0", reason=reason), "u2": blames("n0")}
    assert set(avoided_nodes(blamed, TENANTS, {}, NOW, 2)) == ({"n0"} if counts else set())


def test_jobs_of_one_tenant_alone_have_no_node_avoided_by_all() -> None:
    blamed = {uid: blames("n0", at=NOW + second) for second, uid in enumerate(("u1", "u2", "u3"))}
    same = dict.fromkeys(TENANTS, ("red",))
    assert avoided_nodes(blamed, same, {}, NOW + 9, 2) == {}
    assert avoided_nodes(blamed, same | {"u2": ("blue",)}, {}, NOW + 9, 2) == {
        "n0": AvoidedNode(NOW + 3601, ("u2", "u3"))
    }


def test_jobs_that_share_a_queue_or_a_namespace_are_of_one_tenant() -> None:
    blamed = {uid: blames("n0", at=NOW + second) for second, uid in enumerate(("u1", "u2", "u3"))}
    tenants = {"u1": ("red", "a"), "u2": ("red", "b"), "u3": ("blue", "b")}
    assert avoided_nodes(blamed, tenants, {}, NOW + 9, 2) == {"n0": AvoidedNode(NOW + 3600, ("u1", "u3"))}
    assert avoided_nodes(blamed, tenants | {"u3": ("red", "c")}, {}, NOW + 9, 2) == {}


def test_the_work_for_a_node_grows_with_the_number_of_jobs_that_it_rejected_not_with_that_times_the_tenants() -> None:
    """A broken version of a device plugin rejects pods of all jobs, and this is computed in every cycle."""
    compared = []

    class Name(str):
        __slots__ = ()

        def __ne__(self, other: object) -> bool:
            compared.append(other)
            return str.__ne__(self, other)

        __hash__ = str.__hash__

    for jobs in (200, 400):
        compared.clear()
        blamed = {f"u{number}": blames("n0", at=NOW + number / 1000) for number in range(jobs)}
        tenants = {uid: (Name(f"q{uid}"), Name(f"ns{uid}")) for uid in blamed}
        assert list(avoided_nodes(blamed, tenants, {}, NOW, 2)) == ["n0"]
        assert len(compared) <= 2 * jobs
