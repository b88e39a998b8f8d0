"""Applying a queue that another client writes at that time: the operator its status, a person its spec or its end."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.objects import job as a_job
from tests.cluster_client.server import JOBS, QUEUES, Fault, Handler, Server, answered

from muster.api.spec import Queue
from muster.cluster_client.apply import _MAX_ATTEMPTS
from muster.errors import Conflict

RESEARCH = f"{QUEUES}/research"
HEAVIER = Queue.model_validate({"metadata": {"name": "research", "labels": {"by": "me"}}, "spec": {"weight": 2}})
LEAVING: dict[str, Any] = {"deletionTimestamp": "2026-11-21T10:00:00Z", "finalizers": ["muster.dev/in-use"]}


def research(weight: int = 1, **meta: Any) -> dict[str, Any]:
    named = {"name": "research", **meta}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "Queue", "metadata": named, "spec": {"weight": weight}}


def meanwhile(server: Server, queue: dict[str, Any]) -> Fault:
    """Another client writes the queue between the read and the write."""

    def fault(handler: Handler) -> None:
        server.put(RESEARCH, queue)
        answered(handler)

    return fault


@pytest.mark.parametrize("weight", [1, 2], ids=["as-it-is", "changed"])
def test_a_queue_that_is_being_deleted_is_refused(server: Server, weight: int) -> None:
    server.put(RESEARCH, research(weight, **LEAVING))
    with pytest.raises(Conflict) as error:
        server.client().apply([HEAVIER])
    assert str(error.value) == (
        "queue 'research' is being deleted and waits for its unfinished jobs; apply it again once they have ended"
    )
    assert error.value.reason == "Deleting"
    assert server.objects[RESEARCH]["spec"] == {"weight": weight}


def test_a_job_that_is_being_deleted_is_refused(cluster: Server) -> None:
    document = a_job().model_dump(mode="json", by_alias=True, exclude_none=True)
    document["metadata"] |= {"namespace": "default", **LEAVING}
    cluster.put(f"{JOBS}/llama", document)
    with pytest.raises(Conflict, match="job 'llama' is being deleted; apply it again in a moment") as error:
        cluster.client().apply([a_job(priority=5)])
    assert error.value.reason == "Deleting"


def test_a_status_that_is_written_meanwhile_is_no_reason_to_refuse(server: Server) -> None:
    server.put(RESEARCH, research())
    written = {**research(labels={"its": "own"}), "status": {"conditions": []}}
    server.fail("PUT", RESEARCH, meanwhile(server, written), times=_MAX_ATTEMPTS - 1)
    assert [row["result"] for row in server.client().apply([HEAVIER])] == ["configured"]
    there = server.objects[RESEARCH]
    assert (there["spec"]["weight"], there["metadata"]["labels"]) == (2, {"its": "own", "by": "me"})


def test_a_status_that_is_written_all_the_time_ends_in_a_refusal(server: Server) -> None:
    server.put(RESEARCH, research())
    server.fail("PUT", RESEARCH, meanwhile(server, research()), times=_MAX_ATTEMPTS)
    with pytest.raises(Conflict, match="has been modified"):
        server.client().apply([HEAVIER])


@pytest.mark.parametrize(
    ("queue", "message"),
    [(research(3), "the object has been modified"), (research(**LEAVING), "queue 'research' is being deleted and")],
    ids=["edited", "deleted"],
)
def test_what_another_client_did_meanwhile_stands(server: Server, queue: dict[str, Any], message: str) -> None:
    server.put(RESEARCH, research())
    server.fail("PUT", RESEARCH, meanwhile(server, queue))
    with pytest.raises(Conflict, match=message):
        server.client().apply([HEAVIER])
    assert server.objects[RESEARCH]["spec"] == queue["spec"]
