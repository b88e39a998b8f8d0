"""`muster dashboard` on a real control plane: over the aggregated API, with the login of a kubeconfig."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from tests.cluster.controlplane.clients import CommandFailed
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.aggregation import Served, serving
from tests.cluster.operator.installing import CRDS
from tests.cluster.operator.sidecars import COLLECTORS, any_address, collecting, heartbeat
from tests.manifests.objects import job
from tests.tracing.browser import PROGRAM, Browser, Tab, chromium

from muster.cluster_client.client import KubeContext, KubernetesClusterClient
from muster.visibility.types import BASE_PATH

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")]

JOBS = "/apis/muster.dev/v1alpha1/namespaces/{}/trainingjobs"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Jobs in two namespaces. alice may list those of team-a, and queues; carol nothing."""
    with ControlPlane.start(tmp_path_factory.mktemp("plane"), crds=CRDS) as plane:
        plane.add_nodes(2)
        for name in ("team-a", "team-b"):
            plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        plane.kubectl("create", "clusterrole", "jobs", "--verb=get,list", "--resource=trainingjobs.muster.dev")
        plane.kubectl("create", "clusterrole", "queues", "--verb=get,list", "--resource=queues.muster.dev")
        plane.kubectl("create", "rolebinding", "alice", "--clusterrole=jobs", "--user=alice", "-n", "team-a")
        plane.kubectl("create", "clusterrolebinding", "alice", "--clusterrole=queues", "--user=alice")
        plane.api.create("/apis/muster.dev/v1alpha1/flavors", _named("Flavor", "any", {}))
        quota = [{"flavor": "any", "guaranteed": {"nvidia.com/gpu": "8"}, "limit": {"nvidia.com/gpu": "8"}}]
        queue = _named("Queue", "research", {"namespaceSelector": {}, "resources": quota})
        plane.api.create("/apis/muster.dev/v1alpha1/queues", queue)
        plane.api.create("/apis/muster.dev/v1alpha1/queues", {**queue, "metadata": {"name": "other"}})
        with serving(plane, tmp_path_factory.mktemp("operators"), *COLLECTORS) as served:
            submit(plane, "team-a", "runs")
            plane.wait_for("it runs", lambda: phase(plane, "team-a", "runs") in ("Admitted", "Running"))
            submit(plane, "team-a", "waits")
            submit(plane, "team-b", "hidden")
            waiting = (("team-a", "waits"), ("team-b", "hidden"))
            plane.wait_for(
                "positions are written", lambda: all("queuePosition" in status(plane, *job) for job in waiting)
            )
            yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def _named(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def submit(plane: ControlPlane, namespace: str, name: str, queue: str = "research", **fields: Any) -> None:
    item = job(queue=queue, **fields)
    container = item["spec"]["roles"][0]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    plane.api.create(JOBS.format(namespace), {**item, "metadata": {"name": name}})


def status(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.api.get(f"{JOBS.format(namespace)}/{name}").get("status", {})
    return found


def phase(plane: ControlPlane, namespace: str, name: str) -> str:
    return str(status(plane, namespace, name).get("phase", "Pending"))


@contextmanager
def dashboard_of(plane: ControlPlane, user: str, browser: Browser) -> Iterator[Tab]:
    """The first page that a user sees, of `muster dashboard --kubeconfig`."""
    program = str(Path(sys.executable).with_name("muster"))
    command = [program, "dashboard", "--no-browser", "--kubeconfig", str(plane.kubeconfig(user))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert process.stdout is not None
    try:
        tab = browser.open(next(line.strip() for line in process.stdout if line.startswith("http://")))
        tab.wait_for("location.search === '' && document.getElementById('live') !== null")
        yield tab
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def show(tab: Tab, path: str) -> str:
    """The words of another page."""
    url = urlsplit(tab.value("location.href"))
    tab.call("Page.navigate", url=f"{url.scheme}://{url.netloc}{path}")
    tab.wait_for(f"location.pathname === {path!r} && document.getElementById('live') !== null")
    return " ".join(str(tab.value("document.body.innerText")).split())


def test_a_user_sees_the_jobs_of_one_namespace_the_usage_of_queues_and_each_change(
    served: Served, browser: Browser
) -> None:
    plane = served.plane
    alice = KubernetesClusterClient.connect(KubeContext(str(plane.kubeconfig("alice"))))
    with dashboard_of(plane, "alice", browser) as tab:
        (row,) = (queue for queue in alice.queues() if queue["name"] == "research")
        assert (row["waiting"], row["admitted"]) == (2, 1)
        assert "research 1 2 gpu 8 8 8" in " ".join(tab.value("document.body.innerText").split())
        assert "cannot list nodes" in show(tab, "/nodes")
        words = show(tab, "/jobs")
        assert ("team-a/runs" in words, "team-a/waits" in words, "hidden" in words) == (True, True, False)
        waits = alice.live_job("waits", "team-a").status
        assert f"#{waits.queue_position}" in words
        submit(plane, "team-b", "hidden-too")
        submit(plane, "team-a", "later")
        tab.wait_for("document.body.innerText.includes('team-a/later')")
        assert "hidden" not in tab.value("document.body.innerText")
        assert "hidden" not in show(tab, "/pending")


def test_the_loss_of_a_running_job_comes_from_its_collector(served: Served, browser: Browser, tmp_path: Path) -> None:
    plane, address = served.plane, any_address()
    template = job()["spec"]["roles"][0]["template"]
    template["metadata"] = {"annotations": {"kwok.muster.dev/ip": address}}
    role = {"name": "trainer", "template": template}
    submit(plane, "team-a", "learns", queue="other", stallTimeoutSeconds=3600, roles=[role])
    plane.wait_for("it runs", lambda: phase(plane, "team-a", "learns") == "Running")
    pods = plane.api.get("/api/v1/namespaces/team-a/pods")["items"]
    (pod,) = (one for one in pods if one["status"].get("podIP") == address)
    (tmp_path / "metrics").mkdir()
    steps = [json.dumps({"step": n, "loss": 5 - n / 100, "step_time_s": 0.5}) for n in range(1, 201)]
    (tmp_path / "metrics" / "rank-0.jsonl").write_text("\n".join([*steps, ""]))
    heartbeat(tmp_path, 200, loss=3.0)
    with (
        collecting(cast(Any, SimpleNamespace(api=plane.api, namespace="team-a")), pod, tmp_path),
        dashboard_of(plane, "alice", browser) as tab,
    ):
        plane.wait_for("its step is known", lambda: "progress" in status(plane, "team-a", "learns"))
        for operator in (served.leader, 1 - served.leader):
            served.ask(operator)
            show(tab, "/jobs/team-a/learns")
            tab.wait_for(r"/Step\s+200/.test(document.body.innerText)")  # this operator may not have seen it yet
            tab.wait_for("document.querySelectorAll('#curves svg').length === 2")
        found = json.loads(plane.kubectl("get", "--raw", f"{BASE_PATH}/namespaces/team-a/curves/learns", user="alice"))
        assert [found["points"][i]["loss"] for i in (0, -1)] == [4.99, 3.0]
        with pytest.raises(CommandFailed, match="does not exist"):
            plane.kubectl("get", "--raw", f"{BASE_PATH}/namespaces/team-a/curves/learns", user="carol")


def test_a_user_without_rights_sees_no_job_and_no_queue(served: Served, browser: Browser) -> None:
    with dashboard_of(served.plane, "carol", browser) as tab:
        assert "cannot list queues" in tab.value("document.body.innerText")
        for path in ("/", "/jobs", "/pending"):
            assert "team-" not in show(tab, path)


def test_the_page_of_a_standby_says_that_it_is_one(served: Served, browser: Browser) -> None:
    with dashboard_of(served.plane, "alice", browser) as tab:
        served.ask(served.leader)
        tab.wait_for("!document.body.innerText.includes('A standby answered')")
        served.ask(1 - served.leader)
        tab.wait_for("document.body.innerText.includes('A standby answered')")
        served.ask(served.leader)
        tab.wait_for("!document.body.innerText.includes('A standby answered')")
