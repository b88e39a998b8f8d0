"""Jobs and queues through the client: from submit to the end, and what is refused."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.local.support import ended, eventually, has, phase_of, processes_of, shell_job

from muster.api import spec
from muster.client import LogOptions
from muster.errors import Conflict, InvalidSpec, NotFound, Refused
from muster.local.client import LocalClient
from muster.local.daemon_client import request


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalClient]:
    """One daemon for all tests of this module."""
    home = tmp_path_factory.mktemp("shared") / "home"
    client = LocalClient.up(home, nodes="4x8", idle_s=60)
    yield client
    client.down(force=True)
    assert processes_of(home) == []


@pytest.fixture
def client(shared: LocalClient) -> Iterator[LocalClient]:
    """The shared daemon; jobs and queues of the test are deleted afterwards."""
    yield shared
    for job in shared.jobs():
        shared.delete_all([("TrainingJob", job.metadata.name, "default")])
    eventually(lambda: not shared.jobs())
    for row in reversed(shared.queues()):  # leaves first
        if row["name"] != "default":
            shared.delete_all([("Queue", row["name"], "default")])


def test_a_job_runs_and_has_a_log_and_events(client: LocalClient) -> None:
    client.submit(shell_job("first", "echo hello; echo from $MUSTER_REPLICA of $MUSTER_REPLICAS", replicas=2))
    job = ended(client, "first")
    assert job.status.phase == "Succeeded"
    assert list(client.log_lines("first", "default", "trainer", 1)) == ["hello", "from 1 of 2"]
    assert [event["reason"] for event in client.events("first")] == ["Admitted", "Completed"]
    assert (client.run_dir("first") / "logs" / "trainer-0.attempt-0.log").exists()


def test_the_pods_of_a_gang_have_the_same_rendezvous_port(client: LocalClient) -> None:
    client.submit(shell_job("meet", "echo $MUSTER_RANK0_HOST:$MUSTER_RANK0_PORT", replicas=3))
    ended(client, "meet")
    addresses = {line for index in range(3) for line in client.log_lines("meet", "default", "trainer", index)}
    assert len(addresses) == 1
    host, _, port = addresses.pop().partition(":")
    assert (host, 1024 < int(port) < 65536) == ("127.0.0.1", True)


def test_replicas_on_one_node_get_different_gpus(client: LocalClient) -> None:
    line = "echo $CUDA_VISIBLE_DEVICES; while [ ! -e go ]; do sleep 0.05; done"
    job = shell_job("gpus", line, replicas=4, gpus=2, topology={"required": "host"})
    job.spec.roles[0].template.spec.containers[0].__dict__["working_dir"] = str(client.status()["home"])
    client.submit(job)
    eventually(lambda: phase_of(client, "gpus") == "Running")
    assert len({pod["node"] for pod in client.pods("gpus")}) == 1
    seen = eventually(
        lambda: (
            [lines for index in range(4) if (lines := list(client.log_lines("gpus", "default", "trainer", index)))]
            if all(list(client.log_lines("gpus", "default", "trainer", index)) for index in range(4))
            else None
        )
    )
    assert sorted(number for (line,) in seen for number in line.split(",")) == list("01234567")
    Path(client.status()["home"], "go").touch()
    assert ended(client, "gpus").status.phase == "Succeeded"


def test_a_job_without_gpus_sees_none(client: LocalClient) -> None:
    client.submit(shell_job("none", 'echo "[${CUDA_VISIBLE_DEVICES-unset}]"'))
    ended(client, "none")
    assert list(client.log_lines("none", "default", "trainer", 0)) == ["[]"]


def test_a_failed_gang_without_restarts_left_fails_with_exit_code_and_log(home: Path) -> None:
    client = LocalClient.up(home, idle_s=60)
    client.submit(shell_job("bad", "echo no luck; exit 9", failurePolicy={"maxRestarts": 0}))
    job = ended(client, "bad")
    assert job.status.phase == "Failed"
    assert job.status.last_failure is not None
    assert (job.status.last_failure.exit_code, job.status.last_failure.log_tail) == (9, "no luck\n")


def test_a_failure_rule_decides_by_the_exit_code(client: LocalClient) -> None:
    rules = [{"onExitCodes": [42], "action": "FailJob"}]
    client.submit(shell_job("ruled", "exit 42", failurePolicy={"maxRestarts": 3, "rules": rules}))
    job = ended(client, "ruled")
    assert (job.status.phase, job.status.restarts) == ("Failed", 0)


def test_suspend_removes_the_pods_and_resume_starts_a_new_attempt(client: LocalClient) -> None:
    client.submit(
        shell_job("nap", "trap 'echo saved; exit 0' TERM; echo $MUSTER_ATTEMPT; while :; do sleep 0.05; done")
    )
    eventually(lambda: list(client.log_lines("nap", "default", "trainer", 0)))  # it has its signal handler
    client.suspend("nap")
    eventually(lambda: phase_of(client, "nap") == "Suspended" and not client.pods("nap"))
    client.resume("nap")
    eventually(lambda: phase_of(client, "nap") == "Running")
    assert client.job("nap").status.attempt > 0
    client.cancel("nap")
    assert ended(client, "nap").status.phase == "Cancelled"
    assert list(client.log_lines("nap", "default", "trainer", 0, LogOptions(attempt=0))) == ["0", "saved"]


def test_a_followed_log_continues_until_the_attempt_has_ended(client: LocalClient) -> None:
    client.submit(shell_job("talk", "for i in 1 2 3 4 5; do echo $i; sleep 0.1; done"))
    assert list(client.log_lines("talk", "default", "trainer", 0, LogOptions(follow=True))) == list("12345")


def test_a_job_that_could_never_start_is_refused_at_submit(client: LocalClient) -> None:
    with pytest.raises(Refused, check=has("reserch does not exist", reason="QueueNotFound", field="spec.queue")):
        client.submit(shell_job("never", "true", queue="reserch"))
    with pytest.raises(Refused, check=has(reason="LargerThanCluster", field="spec.roles")):
        client.submit(shell_job("never", "true", gpus=8, replicas=2, topology={"required": "host"}))
    assert client.jobs() == []


def test_a_name_in_use_is_refused(client: LocalClient) -> None:
    client.submit(shell_job("twice", "true"))
    with pytest.raises(Conflict, check=has(reason="AlreadyExists")):
        client.submit(shell_job("twice", "true"))


def test_a_dry_run_stores_nothing(client: LocalClient) -> None:
    assert client.submit(shell_job("maybe", "true"), dry_run=True).metadata.name == "maybe"
    with pytest.raises(NotFound):
        client.job("maybe")


def test_queues_are_applied_listed_and_removed_after_their_last_job(client: LocalClient) -> None:
    tree = [
        spec.Queue.model_validate(body)
        for body in (
            {"metadata": {"name": "company"}, "spec": {"namespaceSelector": {}}},
            {"metadata": {"name": "research"}, "spec": {"parent": "company", "resources": [
                {"flavor": "local", "guaranteed": {"nvidia.com/gpu": "16"}}]}},
            {"metadata": {"name": "product"}, "spec": {"parent": "company", "resources": [
                {"flavor": "local", "guaranteed": {"nvidia.com/gpu": "16"}, "limit": {"nvidia.com/gpu": "24"}}]}},
        )
    ]  # fmt: skip
    assert [entry["result"] for entry in client.apply(tree)] == ["created"] * 3
    assert [entry["result"] for entry in client.apply(tree)] == ["unchanged"] * 3
    client.submit(
        shell_job("big", "trap 'exit 0' TERM; while :; do sleep 0.05; done", queue="product", gpus=8, replicas=3)
    )
    eventually(lambda: phase_of(client, "big") == "Running")
    rows = {row["name"]: row for row in client.queues()}
    (product,) = rows["product"]["resources"]
    assert (rows["company"]["depth"], rows["product"]["depth"], rows["product"]["admitted"]) == (0, 1, 1)
    gpu = {word: product[word]["nvidia.com/gpu"] for word in ("guaranteed", "limit", "used", "borrowed", "available")}
    assert gpu == {"guaranteed": "16", "limit": "24", "used": "24", "borrowed": "8", "available": "0"}
    assert client.delete_all([("Queue", "product", "default")])[0]["result"] == "deleting"
    assert client.delete_all([("Queue", "product", "default")])[0]["result"] == "deleting"
    with pytest.raises(Refused, check=has(reason="QueueInactive")):
        client.submit(shell_job("late", "true", queue="product"))
    assert phase_of(client, "big") == "Running"
    client.cancel("big")
    eventually(lambda: "product" not in {row["name"] for row in client.queues()})


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        ([{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}], "QueueCycle"),
        ([{"name": "a", "parent": "missing"}], "ParentNotFound"),
        ([{"name": "a", "gpus": 4}, {"name": "b", "parent": "a", "gpus": 8}], "Overcommitted"),
    ],
)  # fmt: skip
def test_an_invalid_queue_tree_is_refused_as_a_whole(
    client: LocalClient, bodies: list[dict[str, object]], reason: str
) -> None:
    def queue(name: str, parent: str | None = None, gpus: int = 0) -> spec.Queue:
        resources = [{"flavor": "local", "guaranteed": {"nvidia.com/gpu": gpus}}] if gpus else []
        body = {"metadata": {"name": name}, "spec": {"parent": parent, "resources": resources}}
        return spec.Queue.model_validate(body)

    with pytest.raises(Refused) as refusal:
        client.apply([queue(**body) for body in bodies])  # type: ignore[arg-type]
    assert refusal.value.reason == reason
    assert [row["name"] for row in client.queues()] == ["default"]


def test_the_queue_of_an_admitted_job_cannot_be_changed_that_of_a_suspended_one_can(client: LocalClient) -> None:
    other = spec.Queue.model_validate({
        "metadata": {"name": "other"},
        "spec": {"namespaceSelector": {}, "resources": [{"flavor": "local", "guaranteed": {"pods": 10}}]},
    })  # fmt: skip
    client.apply([other])
    client.submit(shell_job("fixed", "sleep 600", grace=0))
    eventually(lambda: phase_of(client, "fixed") == "Running")
    with pytest.raises(InvalidSpec, check=has("'fixed'", field="spec.queue")):
        client.apply([shell_job("fixed", "sleep 600", grace=0, queue="other")])
    client.submit(shell_job("idle", "true", suspend=True))
    assert client.apply([shell_job("idle", "true", queue="other", suspend=True)])[0]["result"] == "configured"


def test_deleting_a_job_stops_it_and_keeps_its_run_folder(client: LocalClient) -> None:
    client.submit(shell_job("gone", "trap 'exit 0' TERM; while :; do sleep 0.05; done"))
    eventually(lambda: phase_of(client, "gone") == "Running")
    folder = client.run_dir("gone")
    assert client.delete_all([("TrainingJob", "gone", "default")])[0]["result"] == "deleting"
    eventually(lambda: not client.jobs())
    assert folder.is_dir()
    assert not list(Path(client.status()["home"], "pods").iterdir())


def test_only_suspend_and_cancel_can_be_changed_directly(client: LocalClient) -> None:
    client.submit(shell_job("fixed", "true", suspend=True))
    with pytest.raises(InvalidSpec, check=has(field="queue")):
        request(Path(client.status()["home"]) / "daemon.sock", "POST", "/v3/jobs/default/fixed", {"queue": "bogus"})


@pytest.mark.parametrize(
    ("body", "field"),
    [({"mode": "bogus"}, "mode"), ({"mode": None}, "mode"), ([], ""), ({"force": "yes"}, "force")],
)
def test_an_invalid_stop_request_stops_nothing(client: LocalClient, body: object, field: str) -> None:
    before = client.status()
    with pytest.raises(InvalidSpec) as refusal:
        request(Path(before["home"]) / "daemon.sock", "POST", "/stop", body)
    assert refusal.value.field == field
    assert client.status() == before


@pytest.mark.parametrize(
    ("method", "url", "field"),
    [
        ("GET", "/v3/jobs/default/any?timeout=abc", "timeout"),
        ("GET", "/v3/jobs/default/any?timeout=nan", "timeout"),
        ("GET", "/v3/jobs/default/any?timeout=inf", "timeout"),
        ("GET", "/v3/jobs/default/any?timeout=-1", "timeout"),
        ("GET", "/v3/jobs/default/any?timeout=", "timeout"),
        ("GET", "/v3/jobs/default/any?until=5", "until"),
        ("GET", "/v3/jobs?name=space", "name"),
        ("POST", "/v3/jobs?dryRun=yes", "dryRun"),
        ("POST", "/v3/jobs?dryrun=true", "dryrun"),
        ("POST", "/v3/jobs?dryRun=true&dryRun=false", "dryRun"),
        ("GET", "/v3/jobs/default/any?timeout=abc&timeout=0", "timeout"),
        ("POST", "/v3/apply?dryRun=true", "dryRun"),
        ("GET", "x://[", ""),
    ],
)
def test_a_malformed_query_is_a_bad_request_that_names_the_parameter(
    client: LocalClient, method: str, url: str, field: str
) -> None:
    body = {"objects": [shell_job("refused", "true").model_dump(mode="json", by_alias=True)], "environments": [None]}
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(str(Path(client.status()["home"]) / "daemon.sock"))
        daemon = http.client.HTTPConnection("localhost")
        daemon.sock = connection
        daemon.request(method, url, json.dumps(body) if method == "POST" else None)
        response = daemon.getresponse()
        error = json.loads(response.read())["error"]
    assert (response.status, error["reason"], error["field"]) == (400, "BadRequest", field)
    assert field in error["message"]
    assert client.jobs() == []


@pytest.mark.parametrize(
    ("url", "body", "field"),
    [
        ("/v3/jobs/default/fixed", [{"suspend": True}], ""),
        ("/v3/jobs/default/fixed/replicas", None, ""),
        ("/v3/apply", {"objects": [{"kind": ["Queue"]}], "environments": [None]}, "kind"),
    ],
)
def test_a_body_of_another_form_is_invalid(client: LocalClient, url: str, body: object, field: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        request(Path(client.status()["home"]) / "daemon.sock", "POST", url, body)
    assert refusal.value.field == field


def test_an_invalid_job_is_refused_with_its_field(client: LocalClient) -> None:
    body = json.loads(shell_job("x", "true").model_dump_json(by_alias=True))
    body["spec"]["roles"][0]["replicas"] = -3
    with pytest.raises(InvalidSpec, match="replicas"):
        request(
            Path(client.status()["home"]) / "daemon.sock",
            "POST",
            "/v3/jobs",
            {"objects": [body], "environments": [None]},
        )


def test_suspended_jobs_are_not_counted_as_waiting(client: LocalClient) -> None:
    client.submit(shell_job("asleep", "true", suspend=True))
    eventually(lambda: phase_of(client, "asleep") == "Suspended")
    status = client.status()
    assert (status["running"], status["waiting"], status["suspended"]) == (0, 0, 1)


def test_an_invalid_shape_is_refused_and_the_daemon_keeps_running(client: LocalClient) -> None:
    before = client.status()
    with pytest.raises(InvalidSpec, check=has("'4by8'", field="nodes")):
        LocalClient.up(before["home"], nodes="4by8")
    assert client.status()["pid"] == before["pid"]
