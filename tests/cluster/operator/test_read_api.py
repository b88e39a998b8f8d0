"""The read API behind a real API server: users, kubectl, a standby, forged headers, no operator, many jobs."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.cluster.controlplane.api import Refused
from tests.cluster.controlplane.clients import CommandFailed
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.aggregation import Served, serving
from tests.cluster.operator.installing import CRDS
from tests.manifests.objects import job

from muster.client import NodeJobs
from muster.cluster_client.client import KubeContext, KubernetesClusterClient
from muster.errors import Refused as MusterRefused
from muster.usage.segments import USER_LABEL
from muster.visibility.types import BASE_PATH, GROUP

JOBS = "/apis/muster.dev/v1alpha1/namespaces/{}/trainingjobs"
QUEUES = "/apis/muster.dev/v1alpha1/queues"
MANY = 1_200  # three pages of 500


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A control plane of these tests' own, with jobs in two namespaces. alice reads those of team-a, and queues; bob
    only those of team-a; dana changes nodes."""
    with ControlPlane.start(tmp_path_factory.mktemp("plane"), crds=CRDS) as plane:
        folder = tmp_path_factory.mktemp("operators")
        plane.add_nodes(2)
        for name in ("team-a", "team-b"):
            plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        plane.kubectl("create", "clusterrole", "jobs", "--verb=get,list", "--resource=trainingjobs.muster.dev,events")
        plane.kubectl("create", "clusterrole", "queues", "--verb=get,list", "--resource=queues.muster.dev")
        plane.kubectl("create", "rolebinding", "alice", "--clusterrole=jobs", "--user=alice", "-n", "team-a")
        plane.kubectl("create", "rolebinding", "bob", "--clusterrole=jobs", "--user=bob", "-n", "team-a")
        plane.kubectl("create", "clusterrole", "nodes", "--verb=get,list,patch", "--resource=nodes")
        plane.kubectl("create", "clusterrolebinding", "dana", "--clusterrole=nodes", "--user=dana")
        plane.kubectl("create", "clusterrolebinding", "alice", "--clusterrole=queues", "--user=alice")
        plane.api.create("/apis/muster.dev/v1alpha1/flavors", _named("Flavor", "any", {}))
        quota = [{"flavor": "any", "guaranteed": {"nvidia.com/gpu": "8"}, "limit": {"nvidia.com/gpu": "8"}}]
        plane.api.create(QUEUES, _named("Queue", "research", {"namespaceSelector": {}, "resources": quota}))
        with serving(plane, folder) as served:
            _run_and_delete(plane, "team-b", "past")
            for namespace, name, gpus in (("team-a", "runs", 8), ("team-a", "waits", 8), ("team-b", "hidden", 8)):
                plane.api.create(JOBS.format(namespace), _job(name, gpus))
                created = int(time.time())
                plane.wait_for("it is decided", lambda n=name: n in _names(plane, "jobs") and _decided(plane, n))  # type: ignore[misc]
                # Jobs created in the same second have no order, since creationTimestamp has whole seconds.
                plane.wait_for("the next second", lambda c=created: time.time() >= c + 1)  # type: ignore[misc]
            yield served


def _named(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _job(name: str, gpus: int, **fields: Any) -> dict[str, Any]:
    item = job(queue="research", **fields)
    container = item["spec"]["roles"][0]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {**item, "metadata": {"name": name, "labels": {USER_LABEL: f"user-of-{name}"}}}


def _run_and_delete(plane: ControlPlane, namespace: str, name: str) -> None:
    """A job that was charged for, which only the record of usage knows afterwards."""
    path = f"{JOBS.format(namespace)}/{name}"
    plane.api.create(JOBS.format(namespace), _job(name, 8))
    pods = f"/api/v1/namespaces/{namespace}/pods"
    plane.wait_for("it is admitted and has a pod", lambda: bool(plane.api.get(pods)["items"]))
    plane.api.patch(path, {"spec": {"cancel": True}})  # the operator deletes its pod, and KWOK stops and removes it
    plane.wait_for("its pods are gone", lambda: not plane.api.get(pods)["items"])
    plane.api.delete(path)


def _usage(plane: ControlPlane, user: str, by: str, route: str = "usage") -> dict[str, float]:
    """GPU-hours by name."""
    items = plane.api_as(user).get(f"{BASE_PATH}/{route}", by=by, step="hour")["items"]
    return {item["metadata"]["name"]: item["hours"] for item in items if item["resource"] == "nvidia.com/gpu"}


def _names(plane: ControlPlane, route: str, user: str = "admin") -> list[str]:
    return [item["metadata"]["name"] for item in plane.api_as(user).get(f"{BASE_PATH}/{route}")["items"]]


def _decided(plane: ControlPlane, name: str) -> bool:
    (found,) = (item for item in plane.api.get(f"{BASE_PATH}/jobs")["items"] if item["metadata"]["name"] == name)
    return bool(found["phase"] == "Running" or found.get("position"))


def client(plane: ControlPlane, user: str) -> KubernetesClusterClient:
    return KubernetesClusterClient.connect(KubeContext(str(plane.kubeconfig(user))))


def test_a_user_sees_the_jobs_of_one_namespace_and_the_usage_of_queues(served: Served) -> None:
    plane = served.plane
    assert _names(plane, "jobs") == ["runs", "waits", "hidden"]
    assert _names(plane, "jobs", "alice") == ["runs", "waits"]
    assert _names(plane, "pendingjobs", "alice") == ["waits"]
    assert _names(plane, "namespaces/team-b/jobs", "alice") == []
    with pytest.raises(Refused, match="does not exist"):
        plane.api_as("alice").get(f"{BASE_PATH}/namespaces/team-b/jobs/hidden")
    (queue,) = plane.api_as("alice").get(f"{BASE_PATH}/queues")["items"]
    assert (queue["pending"], queue["admitted"]) == (2, 1)
    assert queue["resources"][0]["used"]["nvidia.com/gpu"] == "8"
    assert _names(plane, "jobs", "carol") == []
    for plural in ("queues", "nodes"):
        with pytest.raises(Refused, match=f"'carol' cannot list {plural}"):
            plane.api_as("carol").get(f"{BASE_PATH}/{plural}")


def test_muster_shows_queues_and_all_jobs_that_a_user_may_read(served: Served) -> None:
    alice = client(served.plane, "alice")
    (row,) = alice.queues()
    assert (row["name"], row["waiting"], row["admitted"]) == ("research", 2, 1)
    found = {one.metadata.name: one for one in alice.job_list(None).jobs}
    assert set(found) == {"runs", "waits"}
    assert found["waits"].status.queue_position is not None
    assert alice.live_job("waits", "team-a").status.reason == "QuotaExceeded"
    assert alice.notices() == []


def test_usage_over_time_is_that_of_the_namespaces_that_a_user_may_read(served: Served) -> None:
    plane = served.plane
    everything = _usage(plane, "admin", "namespace")
    assert set(everything) == {"team-a", "team-b"}
    assert min(everything.values()) > 0
    assert set(_usage(plane, "bob", "namespace")) == {"team-a"}
    assert set(_usage(plane, "bob", "user")) == {"user-of-runs"}
    assert set(_usage(plane, "admin", "user")) == {"user-of-runs", "user-of-past"}
    assert _usage(plane, "bob", "namespace", "namespaces/team-b/usage") == {}
    assert set(_usage(plane, "admin", "namespace", "namespaces/team-b/usage")) == {"team-b"}
    assert _usage(plane, "carol", "namespace") == {}
    past = everything["team-b"]  # its job is deleted: this number does not grow any more

    def is_the_sum() -> bool:
        own = _usage(plane, "bob", "queue")["research"]
        whole = _usage(plane, "alice", "queue")["research"]
        later = _usage(plane, "bob", "queue")["research"]
        rounding = 1e-9  # the three may be of the same moment
        return own + past - rounding <= whole <= later + past + rounding

    # Two operators answer in turn, each with a state of its own age, so that not every try is in order.
    plane.wait_for("who may list queues sees the sum over all namespaces", is_the_sum)
    assert set(_usage(plane, "alice", "user")) == {"user-of-runs"}
    (item,) = (one for one in client(plane, "bob").usage({"by": "user", "step": "day"}).items if one.resource != "cpu")
    assert (item.metadata.name, item.hours > 0) == ("user-of-runs", True)


def test_kubectl_lists_the_resources_as_tables(served: Served) -> None:
    plane = served.plane
    assert f"pendingjobs.{GROUP}" in plane.kubectl("api-resources", f"--api-group={GROUP}", "-o", "name")
    lines = plane.kubectl("get", f"pendingjobs.{GROUP}", "-n", "team-a", user="alice").splitlines()
    assert re.split(r"\s{2,}", lines[0].strip()) == [
        "NAME", "QUEUE", "POSITION", "ESTIMATED START", "REASON", "MESSAGE",
    ]  # fmt: skip
    assert lines[1].split()[:2] == ["waits", "research"]
    raw = json.loads(plane.kubectl("get", "--raw", f"{BASE_PATH}/queues", user="alice"))
    assert raw["kind"] == "QueueSummaryList"
    item = json.loads(plane.kubectl("get", f"jobs.{GROUP}", "runs", "-n", "team-a", "-o", "json", user="alice"))
    assert (item["kind"], item["queue"]) == ("JobSummary", "research")
    with pytest.raises(CommandFailed, match="does not exist"):
        plane.kubectl("get", f"jobs.{GROUP}", "none", "-n", "team-a", user="alice")


def test_a_user_header_without_the_certificate_of_the_api_server_is_refused(served: Served) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    headers = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}

    def answer(context: ssl.SSLContext) -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", served.ports[0], context=context, timeout=30)
        connection.request("GET", f"{BASE_PATH}/jobs", headers=headers)
        return connection.getresponse().status

    with pytest.raises((OSError, http.client.HTTPException)):
        answer(context)
    other = served.plane.proxy_authority.issue("another-client")
    context.load_cert_chain(other.certificate, other.key)
    assert answer(context) == 401
    # Nor does the API server pass on what a user claims.
    api = http.client.HTTPSConnection(
        served.plane.server.removeprefix("https://"), context=ssl.create_default_context(cafile=served.plane.authority)
    )
    token = served.plane.token_for("carol")
    api.request("GET", f"{BASE_PATH}/jobs", headers={**headers, "Authorization": f"Bearer {token}"})
    assert json.loads(api.getresponse().read())["items"] == []


def test_a_standby_answers_with_what_the_leader_wrote(served: Served) -> None:
    leader = served.leader
    served.ask(leader)
    reported = {route: served.plane.api.get(f"{BASE_PATH}/{route}") for route in ("queues", "jobs", "nodes")}
    assert reported["jobs"]["source"]["leading"]
    served.ask(1 - leader)
    lists = {
        route: [{**item, "share": 0.0} if "share" in item else item for item in before["items"]]
        for route, before in reported.items()
    }
    # Its state may be older by a second than what the leader answered.
    served.plane.wait_for(
        "the standby answers the same",
        lambda: all(served.plane.api.get(f"{BASE_PATH}/{route}")["items"] == items for route, items in lists.items()),
    )
    source = served.source()
    assert not source["leading"]
    assert "cycleAt" not in source
    assert source["cycle"] == served.plane.api.get(f"{JOBS.format('team-b')}/hidden")["status"]["lastCycle"]


def test_a_node_is_drained_by_a_user_who_may_not_list_jobs(served: Served) -> None:
    dana, plane = client(served.plane, "dana"), served.plane
    (busy,) = plane.api.get(f"{BASE_PATH}/namespaces/team-a/jobs/runs")["nodes"]
    (free,) = (name for name in _names(plane, "nodes") if name != busy)
    dana.drain(free)
    plane.wait_for("the operator has seen it", lambda: dana.jobs_on_node(free).draining)
    assert dana.jobs_on_node(free) == NodeJobs([], 0, draining=True)
    assert dana.jobs_on_node(busy) == NodeJobs([], 1, draining=False), "a job that dana may not read"
    assert client(plane, "admin").jobs_on_node(busy).names == ["team-a/runs"]
    dana.undrain(free)
    with pytest.raises(MusterRefused, match="cannot list"):
        client(plane, "alice").drain(free)
    assert dana.notices() == []


def test_a_preemption_is_listed_for_those_who_may_read_the_preempted_job(served: Served) -> None:
    plane, path = served.plane, f"{JOBS.format('team-b')}/urgent"
    plane.api.create(JOBS.format("team-b"), _job("urgent", 8, priority=10))
    for operator in (served.leader, 1 - served.leader):
        served.ask(operator)
        plane.wait_for("the preemption is listed", lambda: _names(plane, "preemptions", "alice") == ["runs"])
        (item,) = plane.api_as("alice").get(f"{BASE_PATH}/namespaces/team-a/preemptions")["items"]
        assert (item["reason"], item["queue"]) == ("Preempted", "research")
        assert "team-b/urgent" in item["message"]
        assert _names(plane, "preemptions", "carol") == []
        assert _names(plane, "namespaces/team-b/preemptions") == []
        evicted = plane.api_as("alice").get(f"{BASE_PATH}/namespaces/team-a/jobs/runs")["eviction"]
        assert (evicted["reason"], evicted["message"]) == (item["reason"], item["message"])
    plane.api.patch(path, {"spec": {"cancel": True}})
    plane.wait_for("it has ended", lambda: plane.api.get(path)["status"].get("finishedAt"))
    plane.api.delete(path)
    plane.wait_for("the other is admitted again", lambda: _names(plane, "pendingjobs", "alice") == ["waits"])


def test_jobs_of_three_pages_come_page_by_page(served: Served) -> None:
    api = served.plane.api
    served.ask(served.leader)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: api.create(JOBS.format("team-a"), _job(f"m{n:04}", 8, suspend=True)), range(MANY)))
    served.plane.wait_for("all are known", lambda: _total(served) == MANY + 3)
    listed = served.plane.kubectl("get", f"jobs.{GROUP}", "-n", "team-a", "-o", "name", user="alice").split()
    assert len(set(listed)) == len(listed) == MANY + 2
    page = served.plane.api_as("alice").get(f"{BASE_PATH}/jobs", limit="100000")
    assert (len(page["items"]), page["metadata"]["remainingItemCount"]) == (500, MANY + 2 - 500)
    (row,) = client(served.plane, "alice").queues()
    assert row["admitted"] == 1


def _total(served: Served) -> int:
    page = served.plane.api.get(f"{BASE_PATH}/jobs", limit="1")
    return 1 + int(page["metadata"]["remainingItemCount"])


def _admitted_as_written(served: Served) -> int:
    """The jobs of the queue that are admitted, as its status says: it is written at most every 30 s."""
    usage = served.plane.api.get(f"{QUEUES}/research").get("status", {}).get("usage") or {}
    return int(usage.get("admittedJobs", 0))


def test_while_no_operator_runs_muster_says_so_and_shows_what_is_written(served: Served) -> None:
    served.plane.wait_for("the usage is written", lambda: _admitted_as_written(served) == 1)
    for operator in served.operators:
        operator.kill()
    served.plane.wait_for("the API is unavailable", lambda: not served.source())
    admin, alice = client(served.plane, "admin"), client(served.plane, "alice")
    (row,) = admin.queues()
    assert row["admitted"] == 1
    assert any("the operator does not answer" in notice for notice in admin.notices())
    (written,) = alice.queues()
    assert (written["admitted"], written["resources"][0]["used"]) == (1, row["resources"][0]["used"])
    assert any("wrote into the queues last" in notice for notice in alice.notices())
    assert alice.live_job("waits", "team-a").status.queue_position is not None
    assert any("that it wrote last" in notice for notice in alice.notices())
