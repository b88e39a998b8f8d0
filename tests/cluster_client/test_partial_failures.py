"""What fails midway: nothing remains that is not reported, and what cannot be undone is named."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.conftest import Muster
from tests.cli.objects import job, placement, status
from tests.cluster_client.server import (
    ALL_JOBS,
    JOBS,
    NODES,
    QUEUES,
    Handler,
    Server,
    answered,
    forbidden,
    lost,
    unanswered,
)

from muster.api.spec import Flavor, Queue
from muster.cluster import DRAIN_TAINT
from muster.cluster_client import submit
from muster.errors import ClusterError, MusterError

NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "_PAUSE_S", 0.01)


def kept(server: Server, collection: str) -> list[str]:
    return [item["metadata"]["name"] for item in server.of_collection(collection)]


# ---- apply


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (forbidden, "alice may not; written before that: flavor b300, queue one"),
        (
            lost,
            "; it is unknown whether queue two was written: apply it again",
        ),
    ],
)
def test_what_was_applied_before_something_fails_is_named(cluster: Server, fault: Any, message: str) -> None:
    def fails(handler: Handler) -> None:
        if handler.body["metadata"]["name"] != "two":
            answered(handler)
        else:
            fault(handler)

    cluster.fail("POST", QUEUES, fails, times=2)
    documents: list[Queue | Flavor] = [
        Flavor.model_validate({"metadata": {"name": "h200"}}),  # as it is already
        Flavor.model_validate({"metadata": {"name": "b300"}}),
        Queue.model_validate({"metadata": {"name": "one"}}),
        Queue.model_validate({"metadata": {"name": "two"}}),
    ]
    with pytest.raises(MusterError) as error:
        cluster.client().apply(documents)
    assert str(error.value).endswith(message)


# ---- submit


@pytest.mark.parametrize("which", NAMES)
def test_a_job_whose_creation_was_not_confirmed_is_looked_for(cluster: Server, which: str) -> None:
    def fails(handler: Handler) -> None:
        if handler.body["metadata"]["name"] == which:
            unanswered(handler)
        else:
            answered(handler)

    cluster.fail("POST", JOBS, fails, times=3)
    submitted = cluster.client().submit_all([job(name) for name in NAMES])
    assert [one.metadata.name for one in submitted] == kept(cluster, JOBS) == list(NAMES)
    assert all(one.metadata.uid for one in submitted)


@pytest.mark.parametrize("fault", [forbidden, lost])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_no_job_is_left_where_one_is_not_created(cluster: Server, before: int, fault: Any) -> None:
    cluster.fail("POST", JOBS, answered, times=before)
    cluster.fail("POST", JOBS, fault)
    with pytest.raises(MusterError) as error:
        cluster.client().submit_all([job(name) for name in NAMES])
    assert error.value.job == f"default/{NAMES[before]}"
    assert "not taken back" not in str(error.value)
    assert kept(cluster, JOBS) == []


def test_jobs_that_cannot_be_taken_back_are_named(cluster: Server) -> None:
    cluster.fail("POST", JOBS, answered, times=2)
    cluster.fail("POST", JOBS, forbidden)
    cluster.fail("DELETE", f"{JOBS}/b", forbidden)
    with pytest.raises(MusterError) as error:
        cluster.client().submit_all([job(name) for name in NAMES])
    assert str(error.value) == (
        "alice may not; created before that and not rolled back; run: muster delete job default/b"
    )
    assert kept(cluster, JOBS) == ["b"]


def test_a_job_that_may_have_been_created_is_named(cluster: Server) -> None:
    cluster.fail("POST", JOBS, unanswered)
    cluster.fail("GET", f"{JOBS}/a", lost, times=10**9)
    with pytest.raises(ClusterError) as error:
        cluster.client().submit_all([job("a")])
    assert str(error.value).endswith("; it is unknown whether job default/a was created: muster describe default/a")


def test_a_job_of_another_user_that_has_the_name_meanwhile_is_not_taken_for_the_own(cluster: Server) -> None:
    def anothers(handler: Handler) -> None:
        handler.body["spec"]["priority"] = 7
        unanswered(handler)

    cluster.fail("POST", JOBS, anothers)
    with pytest.raises(ClusterError, match="job default/a now exists with a different spec"):
        cluster.client().submit_all([job("a")])
    assert kept(cluster, JOBS) == ["a"]


# ---- drain


def taints(server: Server) -> list[str]:
    return [taint["key"] for taint in server.objects[f"{NODES}/n1"].get("spec", {}).get("taints", [])]


def test_a_node_is_not_drained_by_a_user_who_may_not_list_its_jobs(cluster: Server, muster: Muster) -> None:
    cluster.fail("GET", ALL_JOBS, forbidden)
    assert muster("drain", "n1").code == 3
    assert taints(cluster) == []


def test_a_drain_is_reported_even_if_the_jobs_of_the_node_cannot_be_listed(cluster: Server, muster: Muster) -> None:
    cluster.fail("GET", ALL_JOBS, answered)
    cluster.fail("GET", ALL_JOBS, lost, times=2)
    ended = muster("drain", "n1")
    assert ended.code == 4
    assert "error: node n1 is being drained, but its jobs cannot be listed" in ended.err
    assert "to undo the drain: muster undrain n1" in ended.err
    assert taints(cluster) == [DRAIN_TAINT]


def test_a_node_with_a_job_that_cannot_be_read_is_not_reported_as_empty(cluster: Server, muster: Muster) -> None:
    document = job(status=status("Running", placement=placement("n1"))).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    document["metadata"]["namespace"] = "default"
    document["spec"]["fieldOfTomorrow"] = 1
    cluster.put(f"{JOBS}/llama", document)
    ended = muster("drain", "n1", "--wait")
    assert ended.code == 4
    assert "job default/llama on node n1 cannot be read by this version of Muster" in ended.err
