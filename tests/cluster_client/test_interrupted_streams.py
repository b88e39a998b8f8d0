"""Streams that break off: what was cut is read again, and nothing is lost or returned twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.objects import job as a_job
from tests.cli.objects import placement, status
from tests.cluster_client.server import JOBS, Fault, Handler, Server, chunks

from muster.api.spec import TrainingJobStatus
from muster.client import DEFAULT_LOG_OPTIONS, LogOptions
from muster.cluster_client import jobs, logs
from muster.errors import ClusterError
from muster.kinds.trainingjob.pods import pod_name

PODS = "/api/v1/namespaces/default/pods"
LINES = [f"2026-01-01T00:00:0{second}Z {text}\n" for second, text in enumerate(["first", "the second line", "third"])]
FOLLOW = LogOptions(follow=True)


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_POLL_S", 0.01)
    monkeypatch.setattr(jobs, "_PAUSE_S", 0.01)


def kept(server: Server, present: TrainingJobStatus) -> dict[str, Any]:
    """A job on a server, as the server tells it."""
    document = a_job(status=present).model_dump(mode="json", by_alias=True, exclude_none=True)
    document["metadata"] |= {"namespace": "default", "uid": "u"}
    return server.put(f"{JOBS}/llama", document)


@pytest.fixture
def log(server: Server) -> str:
    """The path of the log of a pod that runs."""
    kept(server, status("Running", placement=placement("n1", "n2")))
    pod = f"{PODS}/{pod_name('llama', 'u', 'trainer', 0, 0)}"
    server.put(pod, {"metadata": {"name": pod.rsplit("/", 1)[1]}, "status": {"phase": "Running"}})
    return f"{pod}/log"


def and_ends(server: Server, log: str, stream: Fault) -> Fault:
    """A stream whose pod has ended by then."""

    def answer(handler: Handler) -> None:
        server.objects[log.removesuffix("/log")]["status"]["phase"] = "Succeeded"
        stream(handler)

    return answer


@pytest.mark.parametrize("cut", [0, 1, 12, 20, 21, 30, len(LINES[1]) - 1])
def test_a_followed_log_that_is_cut_anywhere_goes_on_without_a_gap(server: Server, log: str, cut: int) -> None:
    server.fail("GET", log, chunks(LINES[0], LINES[1][:cut], whole=False) if cut else chunks(LINES[0], whole=False))
    server.fail("GET", log, and_ends(server, log, chunks(*LINES)), times=2)
    lines = list(server.client().log_lines("llama", "default", "trainer", 0, FOLLOW))
    assert lines == ["first", "the second line", "third"]


def test_a_last_line_without_a_line_end_is_returned_where_the_log_ends_there(server: Server, log: str) -> None:
    server.fail("GET", log, chunks(*LINES[:2], LINES[2][:-1]))
    assert list(server.client().log_lines("llama", "default", "trainer", 0, DEFAULT_LOG_OPTIONS))[-1] == "third"


def test_a_log_that_is_cut_while_it_is_read_once_is_no_whole_log(server: Server, log: str) -> None:
    server.fail("GET", log, chunks(LINES[0], LINES[1][:9], whole=False))
    with pytest.raises(ClusterError) as error:
        list(server.client().log_lines("llama", "default", "trainer", 0, DEFAULT_LOG_OPTIONS))
    assert error.value.reason == "Unreachable"


def test_a_watch_goes_on_while_processes_of_a_cancelled_job_still_end(server: Server) -> None:
    kept(server, status("Terminating"))

    def ended(handler: Handler) -> None:
        event = {"type": "MODIFIED", "object": kept(server, status("Cancelled"))}
        chunks(json.dumps(event) + "\n")(handler)

    server.fail("GET", JOBS, ended)
    assert [job.status.phase for job in server.client().watch("llama")] == ["Terminating", "Cancelled"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_watch_that_is_cut_in_mid_line_is_begun_again(server: Server, whole: bool) -> None:
    kept(server, status("Running"))

    def cut(handler: Handler) -> None:
        kept(server, status("Succeeded"))
        chunks('{"type": "MODIFIED", "obj', whole=whole)(handler)

    server.fail("GET", JOBS, cut)
    assert [job.status.phase for job in server.client().watch("llama")] == ["Running", "Succeeded"]


@pytest.mark.parametrize(
    "event", ["[]", "5", "null", "{}", '{"type": "ADDED"}', '{"type": "ADDED", "object": null}', '{"object": {}}']
)
def test_a_watch_continues_after_an_event_that_is_not_one(server: Server, event: str) -> None:
    kept(server, status("Running"))

    def answer(handler: Handler) -> None:
        kept(server, status("Succeeded"))
        chunks(event + "\n")(handler)

    server.fail("GET", JOBS, answer)
    assert [job.status.phase for job in server.client().watch("llama")] == ["Running", "Succeeded"]


@pytest.mark.parametrize("answer", ["{}", '{"metadata": null}', '{"metadata": [1]}'])
def test_an_answer_without_metadata_is_an_error_of_the_cluster(server: Server, answer: str) -> None:
    server.fail("GET", f"{JOBS}/llama", chunks(answer))
    with pytest.raises(ClusterError, match="not a Kubernetes object"):
        server.client().job("llama")
