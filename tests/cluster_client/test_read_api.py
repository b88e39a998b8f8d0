"""Queues, nodes and jobs from the operator's read API, and what is shown while it does not answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.cli.conftest import Muster
from tests.cluster_client.server import (
    ALL_JOBS,
    FLAVORS,
    JOBS,
    QUEUES,
    Handler,
    Server,
    answered,
    forbidden,
    unavailable,
)
from tests.state.observed_states import admitted, named
from tests.visibility.states import in_namespace, leader, read, two_queues

from muster.errors import Refused
from muster.model import Wait
from muster.visibility.types import BASE_PATH, ItemMeta, JobReference, NodeSummary


def serve(server: Server, *routes: str, wait: Wait | None = None) -> None:
    """The read API answers these routes, of an operator that has decided to let `b` wait."""
    jobs = (in_namespace(admitted("a"), "default"), in_namespace(named("b"), "default"))
    state = leader(two_queues(*jobs, in_namespace(named("c"), "other")), {"b": wait} if wait else {})
    for route in routes:
        server.objects[f"{BASE_PATH}/{route}"] = read(state, route)


def put_job(server: Server, name: str, namespace: str = "default", **status: Any) -> None:
    job = named(name).model_dump(mode="json", by_alias=True, exclude_none=True)
    job["metadata"] |= {"namespace": namespace, "uid": name}
    job["status"] |= status
    server.objects[f"{JOBS.replace('default', namespace)}/{name}"] = job


def test_queues_and_nodes_need_no_right_to_list_jobs(cluster: Server) -> None:
    serve(cluster, "queues", "nodes")
    cluster.fail("GET", ALL_JOBS, forbidden, times=9)
    client = cluster.client()
    root, leaf = client.queues()
    assert (root["name"], root["admitted"], root["waiting"], leaf["depth"]) == ("root", 1, 2, 1)
    assert leaf["resources"][0]["used"]["nvidia.com/gpu"] == "16"
    assert [row["name"] for row in client.nodes()] == ["n0", "n1"]
    assert [path for _, path in cluster.requested] == [f"{BASE_PATH}/queues", f"{BASE_PATH}/nodes"]
    assert client.notices() == []


def test_without_the_read_api_usage_is_computed_from_the_jobs(cluster: Server) -> None:
    client = cluster.client()
    assert [row["name"] for row in client.queues()] == ["research"]
    assert client.notices() == []


def test_while_the_operator_is_down_the_command_says_what_is_not_known(cluster: Server, muster: Muster) -> None:
    cluster.fail("GET", f"{BASE_PATH}/.*", unavailable, times=9)
    shown = muster("queues")
    assert (shown.code, "research" in shown.out) == (0, True)
    assert "the operator does not answer" in shown.err
    assert "usage is not that of the last scheduling cycle" in shown.err
    assert len([path for _, path in cluster.requested if path.startswith(BASE_PATH)]) == 1


def test_an_operator_that_refuses_the_api_server_counts_as_one_that_does_not_answer(cluster: Server) -> None:
    def unauthorized(handler: Handler) -> None:
        handler.say(401, {"kind": "Status", "reason": "Unauthorized", "message": "through the API server only"})

    cluster.fail("GET", f"{BASE_PATH}/.*", unauthorized, times=9)
    client = cluster.client()
    assert [row["name"] for row in client.queues()] == ["research"]
    assert len(client.notices()) == 1


def test_without_operator_and_rights_the_error_names_both(cluster: Server) -> None:
    cluster.fail("GET", f"{BASE_PATH}/.*", unavailable, times=9)
    cluster.fail("GET", ALL_JOBS, forbidden, times=9)
    with pytest.raises(Refused, match=r"the operator does not answer, and usage .* kubectl get mq"):
        cluster.client().queues()


def test_without_rights_on_jobs_usage_is_that_of_the_statuses_of_queues(cluster: Server) -> None:
    cluster.fail("GET", f"{BASE_PATH}/.*", unavailable, times=9)
    cluster.fail("GET", ALL_JOBS, forbidden, times=9)
    flavors = [
        {"flavor": "h200", "used": {"cpu": "9"}, "borrowed": {"cpu": "1"}},
        {"flavor": "t4", "used": {"cpu": "1"}},
    ]
    usage = {"pendingJobs": 3, "admittedJobs": 2, "flavors": flavors, "at": "2026-01-01T00:00:00Z"}
    cluster.objects[f"{QUEUES}/research"]["status"] = {"usage": usage}
    client = cluster.client()
    (row,) = client.queues()
    assert (row["waiting"], row["admitted"]) == (3, 2)
    first, second = row["resources"]
    assert (first["used"], first["borrowed"], first["guaranteed"]) == ({"cpu": "9"}, {"cpu": "1"}, {"cpu": "8"})
    assert (second["flavor"], second["used"], second["guaranteed"]) == ("t4", {"cpu": "1"}, {})
    assert "wrote into the queues last" in client.notices()[1]


@pytest.mark.parametrize(("may_list_flavors", "reason"), [(True, "FlavorNotFound"), (False, "Ready")])
def test_without_rights_on_jobs_a_flavor_that_does_not_exist_is_named_if_flavors_may_be_listed(
    cluster: Server, may_list_flavors: bool, reason: str
) -> None:
    cluster.fail("GET", f"{BASE_PATH}/.*", unavailable, times=9)
    cluster.fail("GET", ALL_JOBS, forbidden, times=9)
    if not may_list_flavors:
        cluster.fail("GET", FLAVORS, forbidden, times=9)
    cluster.objects[f"{QUEUES}/research"]["spec"]["resources"][0]["flavor"] = "h20"
    usage = {"pendingJobs": 0, "admittedJobs": 0, "flavors": [], "at": "2026-01-01T00:00:00Z"}
    cluster.objects[f"{QUEUES}/research"]["status"] = {"usage": usage}
    (row,) = cluster.client().queues()
    assert row["reason"] == reason


def test_pending_jobs_have_the_position_of_the_last_cycle(cluster: Server, muster: Muster) -> None:
    put_job(cluster, "b", queuePosition=7)
    serve(cluster, "pendingjobs", wait=Wait("b", "QuotaExceeded", "needs 16, has 8", 3))
    route = "namespaces/default/pendingjobs"
    serve(cluster, route, f"{route}/b", wait=Wait("b", "QuotaExceeded", "needs 16, has 8", 3))
    (job,) = json.loads(muster("jobs", "--json").out)
    assert (job["status"]["queuePosition"], job["status"]["reason"]) == (3, "QuotaExceeded")
    described = muster("describe", "b")
    assert "number 3 in queue default" in described.out
    assert "QuotaExceeded: needs 16, has 8" in described.out


def test_while_the_operator_is_down_the_written_position_is_shown(cluster: Server, muster: Muster) -> None:
    put_job(cluster, "b", queuePosition=7)
    cluster.fail("GET", f"{BASE_PATH}/.*", unavailable, times=9)
    described = muster("describe", "b")
    assert "number 7 in queue default" in described.out
    assert "those that it wrote last" in described.err


def test_all_namespaces_are_those_that_the_user_may_read(cluster: Server) -> None:
    put_job(cluster, "b")
    put_job(cluster, "c", "other")
    put_job(cluster, "d", "hidden")
    serve(cluster, "jobs", "pendingjobs")
    cluster.fail("GET", ALL_JOBS, forbidden, times=9)
    assert [job.metadata.name for job in cluster.client().jobs()] == ["b", "c"]
    del cluster.objects[f"{BASE_PATH}/jobs"]
    with pytest.raises(Refused):
        cluster.client().jobs()


def test_an_answer_of_another_version_counts_as_none(cluster: Server) -> None:
    cluster.objects[f"{BASE_PATH}/queues"] = {"items": [], "metadata": {}}
    client = cluster.client()
    assert [row["name"] for row in client.queues()] == ["research"]
    (notice,) = client.notices()
    assert "not a QueueSummaryList of this version" in notice
    assert f"{QUEUES}/research" in cluster.objects


def serve_node(server: Server, jobs: Sequence[tuple[str, str]] = (), *, draining: bool, hidden: int = 0) -> None:
    placed = [JobReference(namespace=namespace, name=name) for namespace, name in jobs]
    node = NodeSummary(
        metadata=ItemMeta(name="n1"), ready=True, draining=draining, job_count=len(placed) + hidden, jobs=placed
    )
    server.objects[f"{BASE_PATH}/nodes/n1"] = node.model_dump(mode="json", by_alias=True)


def test_a_drain_needs_no_right_to_list_jobs_and_ends_when_the_operator_sees_none_on_the_drained_node(
    cluster: Server, muster: Muster
) -> None:
    cluster.fail("GET", ALL_JOBS, forbidden, times=9)
    serve_node(cluster, [("team", "a")], draining=False, hidden=2)
    steps: list[dict[str, Any]] = [
        {"jobs": [("team", "a")], "draining": True, "hidden": 2},  # before and after the drain
        {"jobs": [], "draining": True, "hidden": 1},
        {"jobs": [], "draining": False},  # an operator that has not seen the taint yet may place a job there
        {"jobs": [], "draining": True},
    ]

    def change(handler: Handler) -> None:
        answered(handler)
        if steps:
            serve_node(cluster, **steps.pop(0))

    cluster.fail("GET", f"{BASE_PATH}/nodes/n1", change, times=5)
    ended = muster("drain", "n1", "--wait")
    assert (ended.code, ended.err, steps) == (0, "", [])
    assert ended.out.splitlines() == [
        "node n1 is being drained; jobs to move: team/a, 2 jobs of namespaces that you may not read",
        "no job is left on node n1",
    ]
    assert not [path for _, path in cluster.requested if path == ALL_JOBS]


def test_a_node_without_jobs_is_not_called_drained_before_the_operator_has_seen_the_drain(
    cluster: Server, muster: Muster
) -> None:
    serve_node(cluster, draining=False)
    (row,) = muster("drain", "n1", "--json").rows
    assert row == {"node": "n1", "result": "draining", "jobs": [], "hiddenJobs": 0}
    serve_node(cluster, draining=True)
    assert muster("drain", "n1", "--json").rows[0]["result"] == "drained"


def test_while_the_operator_is_down_a_drain_reads_all_jobs(cluster: Server, muster: Muster) -> None:
    cluster.fail("GET", f"{BASE_PATH}/.*", unavailable, times=9)
    put_job(
        cluster,
        "b",
        phase="Running",
        placement=[{"role": "trainer", "flavor": "h200", "nodes": [{"node": "n1", "indexes": "0"}]}],
    )
    ended = muster("drain", "n1")
    assert (ended.code, "jobs to move: default/b" in ended.out) == (0, True)
    assert "the operator does not answer" in ended.err
