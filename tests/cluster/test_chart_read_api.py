"""The chart with the read API: rights of the operator's account, what is registered, and a certificate that is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.chart import CHART, OPERATOR, SYSTEM, install, start
from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.plane import ControlPlane

CONFIG = "/api/v1/namespaces/kube-system/configmaps"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/{OPERATOR}-visibility"
REGISTERED = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.visibility.muster.dev"
ENABLED = "--set=visibility.enabled=true"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane with the chart, which has no operator that answers."""
    with start(tmp_path_factory.mktemp("chart")) as plane:
        install(plane, CHART, ENABLED)
        yield plane


def test_the_operators_account_reads_one_config_map_and_reviews_rights(plane: ControlPlane) -> None:
    api = Api(plane.server, plane.authority, plane.token_for_service_account(SYSTEM, OPERATOR))
    data = api.get(f"{CONFIG}/extension-apiserver-authentication")["data"]
    assert data["requestheader-client-ca-file"] == plane.proxy_authority.file.read_text()
    with pytest.raises(Refused, match="forbidden"):
        api.get(f"{CONFIG}/kube-root-ca.crt")
    attributes = {"verb": "list", "group": "muster.dev", "resource": "queues"}
    requested: dict[str, Any] = {"user": "carol", "groups": ["system:authenticated"], "resourceAttributes": attributes}
    assert api.create(REVIEWS, {"spec": requested})["status"]["allowed"]
    with pytest.raises(Refused, match="forbidden"):
        api.get(SECRET)


def test_an_upgrade_keeps_the_certificate_until_it_is_due(plane: ControlPlane) -> None:
    before = plane.api.get(SECRET)
    assert plane.api.get(REGISTERED)["spec"]["caBundle"] == before["data"]["ca.crt"]
    install(plane, CHART, ENABLED, "--set=operator.logLevel=debug")
    assert plane.api.get(SECRET)["data"] == before["data"]
    due = {"metadata": {"annotations": {"muster.dev/renew-after": "2020-01-01"}}}
    plane.api.patch(SECRET, due)
    install(plane, CHART, ENABLED)
    after = plane.api.get(SECRET)
    assert after["data"]["tls.crt"] != before["data"]["tls.crt"]
    assert plane.api.get(REGISTERED)["spec"]["caBundle"] == after["data"]["ca.crt"]
    assert after["metadata"]["annotations"]["muster.dev/renew-after"] > "2026"


def test_the_dashboard_runs_with_an_account_that_may_read_nothing_and_finds_the_clusters_ca(
    plane: ControlPlane,
) -> None:
    values = "ingress.host=muster.example.com,dashboard.ingress.className=nginx"
    install(plane, CHART, f"--set=visibility.enabled=false,dashboard.enabled=true,dashboard.{values}")
    assert not plane.api.gone(REGISTERED)
    namespace = f"namespaces/{SYSTEM}"
    deployment = plane.api.get(f"/apis/apps/v1/{namespace}/deployments/muster-dashboard")
    assert deployment["status"]["readyReplicas"] == 1
    (cluster,) = (one for one in deployment["spec"]["template"]["spec"]["volumes"] if one["name"] == "cluster")
    authority = plane.api.get(f"/api/v1/{namespace}/configmaps/{cluster['configMap']['name']}")
    assert authority["data"]["ca.crt"] == plane.authority.read_text()
    assert not plane.api.gone(f"/apis/networking.k8s.io/v1/{namespace}/ingresses/muster-dashboard")
    account = Api(plane.server, plane.authority, plane.token_for_service_account(SYSTEM, "muster-dashboard"))
    jobs = "/apis/muster.dev/v1alpha1/trainingjobs"
    for path in (jobs, f"/api/v1/{namespace}/pods", f"/api/v1/{namespace}/secrets", "/api/v1/nodes"):
        with pytest.raises(Refused, match="forbidden"):
            account.get(path)
    secret = f"/api/v1/{namespace}/secrets/muster-dashboard"
    before = plane.api.get(secret)["data"]
    install(plane, CHART, "--set=dashboard.enabled=true,operator.logLevel=info")
    assert plane.api.get(secret)["data"] == before


def test_without_the_value_nothing_is_registered(plane: ControlPlane) -> None:
    install(plane, CHART, "--set=visibility.enabled=false,dashboard.enabled=false")
    assert plane.api.gone(REGISTERED)
    assert plane.api.gone(SECRET)
