"""The dashboard as a Service on a real control plane: each user sees what RBAC lets the user's own token read."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.controlplane.api import Api
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.aggregation import serving
from tests.cluster.operator.dashboard_service import DashboardProcess, dashboard_process, signed_in
from tests.cluster.operator.installing import CRDS
from tests.manifests.objects import job
from tests.tracing.browser import PROGRAM, chromium

from muster.visibility.types import BASE_PATH

pytestmark = pytest.mark.slow

JOBS = "/apis/muster.dev/v1alpha1/namespaces/{}/trainingjobs"
NAMESPACES = ("team-a", "team-b")
LOG = "a line of the log"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A job runs in each namespace. The account `reader` of a namespace may read jobs, logs and events there."""
    with ControlPlane.start(tmp_path_factory.mktemp("plane"), crds=CRDS) as plane:
        plane.add_nodes(2)
        resources = "trainingjobs.muster.dev,pods,pods/log,events"
        plane.kubectl("create", "clusterrole", "jobs", "--verb=get,list", f"--resource={resources}")
        for name in NAMESPACES:
            plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
            plane.kubectl("create", "serviceaccount", "reader", "-n", name)
            plane.kubectl(
                "create", "rolebinding", "reader", "--clusterrole=jobs", f"--serviceaccount={name}:reader", "-n", name
            )
        plane.api.create("/apis/muster.dev/v1alpha1/flavors", _named("Flavor", "any", {}))
        queue = _named("Queue", "research", {"namespaceSelector": {}, "resources": [{"flavor": "any"}]})
        plane.api.create("/apis/muster.dev/v1alpha1/queues", queue)
        with serving(plane, tmp_path_factory.mktemp("operators")):
            for namespace in NAMESPACES:
                submit(plane, namespace, f"first-{namespace}")
            runs = [f"{JOBS.format(name)}/first-{name}" for name in NAMESPACES]
            plane.wait_for("both run", lambda: all(phase(plane, path) == "Running" for path in runs), 120)
            plane.write_log(LOG)
            yield plane


@pytest.fixture(scope="module")
def dashboard(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    with dashboard_process(plane, tmp_path_factory.mktemp("dashboard")) as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
def tokens(plane: ControlPlane) -> dict[str, str]:
    """By namespace: the token of its reader, by TokenRequest, once the operator that is asked has seen its job."""
    found = {name: plane.token_for_service_account(name, "reader") for name in NAMESPACES}
    for token in found.values():
        api = Api(plane.server, plane.authority, token)
        plane.wait_for("the read API has the job", lambda api=api: bool(api.items(f"{BASE_PATH}/jobs")))  # type: ignore[misc]
    return found


def _named(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def submit(plane: ControlPlane, namespace: str, name: str) -> None:
    plane.api.create(JOBS.format(namespace), {**job(queue="research"), "metadata": {"name": name}})


def phase(plane: ControlPlane, path: str) -> str:
    return str(plane.api.get(path).get("status", {}).get("phase", "Pending"))


@pytest.mark.parametrize(("own", "other"), [NAMESPACES, NAMESPACES[::-1]])
def test_a_user_sees_no_job_and_no_log_of_a_namespace_that_the_user_may_not_read(
    dashboard: DashboardProcess, tokens: dict[str, str], own: str, other: str
) -> None:
    for target in ("/", "/jobs", "/pending", "/preemptions", "/timeline", "/nodes"):
        assert f"first-{other}" not in dashboard.get(target, tokens[own])[1]
    status, page = dashboard.get("/jobs", tokens[own])
    assert (status, f"first-{own}" in page) == (200, True), page
    assert f"prod · system:serviceaccount:{own}:reader" in page
    status, page = dashboard.get(f"/jobs/{own}/first-{own}", tokens[own])
    assert (status, LOG in page) == (200, True)
    status, page = dashboard.get(f"/jobs/{other}/first-{other}", tokens[own])
    assert (status, LOG in page) == (404, False)


def test_without_a_token_or_with_a_forged_one_nothing_is_shown(
    dashboard: DashboardProcess, tokens: dict[str, str]
) -> None:
    head, payload, _ = tokens["team-a"].split(".")
    forged = f"{head}.{payload}.{'A' * 342}"
    for token, why in ((None, "the request has no token"), (forged, "the API server rejected the token")):
        for target in ("/jobs", "/events/jobs", "/static/dashboard.js"):
            status, page = dashboard.get(target, token)
            assert (status, why in page, "first-" in page) == (401, True, False)


def test_it_listens_with_tls_only(dashboard: DashboardProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", dashboard.port, timeout=60)
    connection.request("GET", "/healthz")
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.getresponse()
    connection.close()
    assert dashboard.get("/healthz", None) == (200, "ok\n")


def test_a_new_job_appears_on_the_open_page_of_those_who_may_read_it(
    plane: ControlPlane, dashboard: DashboardProcess, tokens: dict[str, str]
) -> None:
    with (
        dashboard.events("/jobs", tokens["team-a"]) as first,
        dashboard.events("/jobs", tokens["team-b"]) as second,
    ):
        assert "first-team-a" in next(first)
        assert "first-team-b" in next(second)
        submit(plane, "team-a", "later-a")
        assert any("later-a" in content for content in first)
        submit(plane, "team-b", "later-b")
        seen = []
        for content in second:
            seen.append(content)
            if "later-b" in content:
                break
        assert not any("later-a" in content or "first-team-a" in content for content in seen)


def test_live_updates_end_once_the_token_is_not_valid_any_more(
    plane: ControlPlane, dashboard: DashboardProcess
) -> None:
    plane.kubectl("create", "serviceaccount", "leaver", "-n", "team-a")
    plane.kubectl(
        "create", "rolebinding", "leaver", "--clusterrole=jobs", "--serviceaccount=team-a:leaver", "-n", "team-a"
    )
    token = plane.token_for_service_account("team-a", "leaver")
    with dashboard.events("/jobs", token) as contents:
        assert "first-team-a" in next(contents)
        plane.kubectl("delete", "serviceaccount", "leaver", "-n", "team-a")
        list(contents)  # it ends
    assert dashboard.get("/jobs", token)[0] == 401


@pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")
def test_a_browser_behind_an_authenticating_proxy_shows_the_users_jobs_and_each_change(
    plane: ControlPlane, dashboard: DashboardProcess, tokens: dict[str, str]
) -> None:
    with chromium() as browser, signed_in(dashboard, tokens["team-a"]) as url:
        tab = browser.open(f"{url}/jobs")
        tab.wait_for("document.body.innerText.includes('first-team-a')")
        assert "first-team-b" not in tab.value("document.body.innerText")
        tab.wait_for("events !== null && events.readyState === EventSource.OPEN")
        submit(plane, "team-b", "hidden")
        submit(plane, "team-a", "in-browser")
        tab.wait_for("document.body.innerText.includes('in-browser')")
        assert "hidden" not in tab.value("document.body.innerText")
        assert tab.value("document.cookie") == ""
        tab.value("document.querySelector('a[href=\"/jobs/team-a/first-team-a\"]').click()")
        tab.wait_for(f"document.body !== null && document.body.innerText.includes('{LOG}')")
