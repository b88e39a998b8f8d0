"""A job is deleted, and another gets its name: who follows, changes or deletes the first does not affect the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.objects import job as a_job
from tests.cli.objects import placement, status
from tests.cluster_client.server import JOBS, Fault, Handler, Server, answered, chunks, forbidden

from muster.api.spec import TrainingJob
from muster.client import LogOptions
from muster.cluster_client import jobs, logs
from muster.cluster_client.client import KubernetesClusterClient
from muster.errors import Conflict, MusterError, NotFound
from muster.kinds.trainingjob.pods import pod_name

LLAMA = f"{JOBS}/llama"
PODS = "/api/v1/namespaces/default/pods"
IN_USE = "muster.dev/in-use"
Write = Callable[[KubernetesClusterClient], Any]


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_POLL_S", 0.01)
    monkeypatch.setattr(jobs, "_PAUSE_S", 0.01)


def kept(server: Server, uid: str, phase: str = "Running", **meta: Any) -> dict[str, Any]:
    """A job of the name, in the place of the one that had it."""
    document = a_job(status=status(phase, placement=placement("n1", "n2"))).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    document["metadata"] |= {"namespace": "default", "uid": uid, **meta}
    server.objects.pop(LLAMA, None)
    return server.put(LLAMA, document)


def another(server: Server, then: Fault, phase: str = "Running") -> Fault:
    """By the time of this request the job is another."""

    def fault(handler: Handler) -> None:
        kept(server, "another", phase)
        then(handler)

    return fault


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_watch_ends_with_the_error_that_the_job_was_deleted(server: Server, phase: str) -> None:
    kept(server, "first")
    server.fail("GET", JOBS, another(server, Handler.hang_up, phase))
    seen = server.client().watch("llama")
    assert next(seen).metadata.uid == "first"
    with pytest.raises(NotFound, match="job default/llama was deleted"):
        next(seen)


def test_a_followed_log_ends(server: Server) -> None:
    kept(server, "first")
    pod = f"{PODS}/{pod_name('llama', 'first', 'trainer', 0, 0)}"
    server.put(pod, {"metadata": {"name": pod.rsplit("/", 1)[1]}, "status": {"phase": "Running"}})

    def deleted(handler: Handler) -> None:
        chunks("2026-01-01T00:00:00Z first\n", whole=False)(handler)
        del server.objects[pod]

    server.fail("GET", f"{pod}/log", another(server, deleted))
    follow = LogOptions(follow=True, until=time.time() + 60.0)  # or it would wait for the end of the other job
    assert list(server.client().log_lines("llama", "default", "trainer", 0, follow)) == ["first"]
    assert server.requested.count(("GET", LLAMA)) == 3


@pytest.mark.parametrize(
    ("method", "write"),
    [
        ("PATCH", lambda client: client.cancel("llama")),
        ("PATCH", lambda client: client.suspend("llama")),
        ("PATCH", lambda client: client.scale("llama", "default", {"trainer": 1})),
        ("DELETE", lambda client: client.delete_all([("TrainingJob", "llama", "default")])[0]),
    ],
    ids=["cancel", "suspend", "scale", "delete"],
)
def test_what_is_meant_for_a_job_does_not_reach_the_other(cluster: Server, method: str, write: Write) -> None:
    kept(cluster, "first")
    cluster.fail(method, LLAMA, another(cluster, answered))
    with pytest.raises(Conflict, match="job default/llama was deleted and recreated concurrently"):
        write(cluster.client())
    there = cluster.objects[LLAMA]
    assert (there["metadata"]["uid"], there["spec"]) == ("another", kept(cluster, "third")["spec"])


@pytest.mark.parametrize("meta", [{}, {"finalizers": [IN_USE]}], ids=["at-once", "with-finalizers"])
def test_a_job_that_is_the_same_still_is_changed_and_deleted(cluster: Server, meta: dict[str, Any]) -> None:
    kept(cluster, "first", **meta)
    client = cluster.client()
    assert client.scale("llama", "default", {"trainer": 1}).spec.roles[0].replicas == 1
    suspended, cancelled = client.suspend("llama"), client.cancel("llama")
    assert isinstance(suspended, TrainingJob)
    assert isinstance(cancelled, TrainingJob)
    assert (suspended.spec.suspend, cancelled.spec.cancel) == (True, True)
    assert client.delete_all([("TrainingJob", "llama", "default")])[0]["result"] == ("deleting" if meta else "deleted")


def test_a_role_that_changed_places_is_not_taken_for_another_job(cluster: Server) -> None:
    kept(cluster, "first")

    def edited(handler: Handler) -> None:
        cluster.objects[LLAMA]["spec"]["roles"][0]["name"] = "reviewer"
        answered(handler)

    cluster.fail("PATCH", LLAMA, edited)
    with pytest.raises(Conflict, match="the roles of job 'llama' were changed concurrently"):
        cluster.client().scale("llama", "default", {"trainer": 1})


def test_a_job_that_is_taken_back_and_is_anothers_by_then_is_not_named_for_deletion(cluster: Server) -> None:
    cluster.fail("POST", JOBS, answered)
    cluster.fail("POST", JOBS, forbidden)
    cluster.fail("DELETE", LLAMA, another(cluster, answered))
    with pytest.raises(MusterError) as error:
        cluster.client().submit_all([a_job("llama"), a_job("second")])
    assert str(error.value) == "alice may not"
    assert cluster.objects[LLAMA]["metadata"]["uid"] == "another"


@pytest.mark.parametrize(
    ("write", "advised"),
    [
        (lambda client: client.cancel("llama"), False),
        (lambda client: client.suspend("llama"), False),
        (lambda client: client.resume("llama"), True),
    ],
    ids=["cancel", "suspend", "resume"],
)
def test_a_job_that_has_ended_is_said_to_have_and_only_who_resumes_is_advised_to_submit(
    cluster: Server, write: Write, advised: bool
) -> None:
    kept(cluster, "first")
    complete = {
        "type": "Complete",
        "status": "True",
        "reason": "Completed",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    cluster.objects[LLAMA]["status"] = {"phase": "Succeeded", "conditions": [complete]}
    with pytest.raises(Conflict, match="has already ended in phase Succeeded") as error:
        write(cluster.client())
    assert ("submit it again" in str(error.value), error.value.reason) == (advised, "JobFinished")
