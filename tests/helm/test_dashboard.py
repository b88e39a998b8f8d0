"""The dashboard as a Service, as the chart renders it: off by default, with TLS, and without any rights."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest
from cryptography import x509
from tests.helm.conftest import Render, Run

from muster.dashboard.__main__ import parse_flags

Object = dict[str, Any]
NAME = "m-muster-dashboard"
ENABLED = "dashboard.enabled=true"
IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
INGRESS = ("dashboard.ingress.host=muster.example.com", "dashboard.ingress.className=nginx")


def of(items: list[Object], kind: str) -> Object:
    """The dashboard's object of a kind."""
    (found,) = (item for item in items if item["kind"] == kind and item["metadata"]["name"] == NAME)
    return found


def kinds(items: list[Object]) -> set[str]:
    return {item["kind"] for item in items if item["metadata"]["name"] == NAME}


def pod(items: list[Object]) -> Object:
    found: Object = of(items, "Deployment")["spec"]["template"]["spec"]
    return found


def test_it_is_off_by_default_and_one_value_turns_it_and_the_read_api_on(render: Render) -> None:
    assert kinds(render()) == set()
    items = render(ENABLED)
    assert kinds(items) == {"Deployment", "Service", "ServiceAccount", "Secret", "NetworkPolicy"}
    assert {item["kind"] for item in items} == {item["kind"] for item in render("visibility.enabled=true")}
    (read_api,) = (item for item in items if item["kind"] == "APIService")
    (operator,) = (item for item in items if item["kind"] == "Deployment" and item["metadata"]["name"] != NAME)
    assert read_api["spec"]["service"]["name"] == operator["metadata"]["name"]
    assert "--visibility-listen=0.0.0.0:8443" in operator["spec"]["template"]["spec"]["containers"][0]["args"]


def test_it_parses_the_flags_of_the_chart(render: Render) -> None:
    (container,) = pod(render(ENABLED, *INGRESS, "dashboard.hosts={a.example}", "dashboard.clusterName=prod"))[
        "containers"
    ]
    assert container["command"] == ["python", "-m", "muster.dashboard"]
    settings = parse_flags(container["args"], IN_CLUSTER)
    assert settings.address == ("0.0.0.0", container["ports"][0]["containerPort"])
    service = {NAME, f"{NAME}.muster-system", f"{NAME}.muster-system.svc", f"{NAME}.muster-system.svc.cluster.local"}
    assert settings.hosts == service | {"a.example", "muster.example.com"}
    assert (settings.cluster_name, settings.api_server) == ("prod", "https://10.96.0.1:443")
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(render(ENABLED))["volumes"]}
    assert volumes[mounted[str(settings.tls_folder)]]["secret"]["secretName"] == NAME
    authority = volumes[mounted[str(settings.api_server_ca.parent)]]["configMap"]
    assert (authority["name"], authority["items"][0]["path"]) == ("kube-root-ca.crt", settings.api_server_ca.name)


def test_its_account_has_no_token_and_no_rights(render: Render) -> None:
    items = render(ENABLED, "collector.image.repository=x", "operator.podGroups=true")
    assert pod(items)["serviceAccountName"] == NAME
    assert pod(items)["automountServiceAccountToken"] is False
    assert of(items, "ServiceAccount")["automountServiceAccountToken"] is False
    assert {volume["name"] for volume in pod(items)["volumes"]} == {"tls", "cluster"}
    bound = {subject["name"] for item in items if item["kind"].endswith("RoleBinding") for subject in item["subjects"]}
    assert bound == {"m-muster-operator", "system:authenticated"}


def test_it_runs_with_the_restricted_settings(render: Render) -> None:
    (container,) = pod(render(ENABLED))["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(render(ENABLED))["securityContext"]["runAsNonRoot"] is True
    assert pod(render(ENABLED))["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert set(container["resources"]) == {"requests", "limits"}
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert probes == [{"path": "/healthz", "port": "https", "scheme": "HTTPS"}] * 3


def test_its_service_and_policy_select_its_pods_and_those_of_the_operator_do_not(render: Render) -> None:
    items = render(ENABLED)
    labels = of(items, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert of(items, "Service")["spec"]["selector"].items() <= labels.items()
    assert of(items, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    others = [item for item in items if item["metadata"]["name"] == "m-muster-operator"]
    selectors = [item["spec"]["selector"] for item in others if item["kind"] == "Service"]
    selectors += [item["spec"]["podSelector"]["matchLabels"] for item in others if item["kind"] == "NetworkPolicy"]
    selectors += [item["spec"]["selector"]["matchLabels"] for item in others if "Disruption" in item["kind"]]
    assert len(selectors) == 3
    assert not any(selector.items() <= labels.items() for selector in selectors)
    (port,) = of(items, "Service")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, "https")


def test_its_policy_permits_one_port_and_the_clients_of_the_values(render: Render) -> None:
    assert of(render(ENABLED), "NetworkPolicy")["spec"]["ingress"] == [{"ports": [{"port": "https"}]}]
    proxy = "dashboard.from[0].podSelector.matchLabels.app=oauth2-proxy"
    policy = of(render(ENABLED, proxy, "networkPolicy.egress.enabled=true"), "NetworkPolicy")["spec"]
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"app": "oauth2-proxy"}}}]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == [{"ports": [{"port": 443}, {"port": 6443}]}]
    assert "NetworkPolicy" not in kinds(render(ENABLED, "networkPolicy.enabled=false"))


def test_its_certificate_is_for_the_names_of_its_service_or_from_a_secret_of_ones_own(render: Render) -> None:
    data = of(render(ENABLED), "Secret")["data"]
    authority, served = (x509.load_pem_x509_certificate(b64decode(data[name])) for name in ("ca.crt", "tls.crt"))
    served.verify_directly_issued_by(authority)
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"{NAME}.muster-system.svc" in names.get_values_for_type(x509.DNSName)
    own = render(ENABLED, "dashboard.tls.secretName=mine")
    assert "Secret" not in kinds(own)
    assert pod(own)["volumes"][0]["secret"]["secretName"] == "mine"


def test_there_is_an_ingress_with_tls_only_for_a_host_and_a_class(render: Render, helm: Run) -> None:
    assert "Ingress" not in kinds(render(ENABLED))
    assert "Ingress" not in kinds(render(*INGRESS))
    spec = of(render(ENABLED, *INGRESS, "dashboard.ingress.tlsSecretName=web"), "Ingress")["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert spec["tls"] == [{"hosts": ["muster.example.com"], "secretName": "web"}]
    (rule,) = spec["rules"]
    assert rule["host"] == "muster.example.com"
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": NAME, "port": {"name": "https"}}
    assert of(render(ENABLED, *INGRESS), "Ingress")["spec"]["tls"] == [{"hosts": ["muster.example.com"]}]
    for value in INGRESS:
        refused = helm("template", "--set=image.repository=x", f"--set={value}")
        assert refused.returncode != 0
        assert "dashboard.ingress: host and className must both be set, or none; got" in refused.stderr


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("dashboard.enabled=maybe", "enabled"),
        ("dashboard.clusterName=a/b", "clusterName"),
        ("dashboard.hosts={UPPER}", "hosts"),
        ("dashboard.ingress.host=a b", "host"),
        ("dashboard.ingress.paths=x", "paths"),
        ("dashboard.replicas=2", "replicas"),
        ("dashboard.resources.limits.cpu=much", "cpu"),
    ],
)
def test_invalid_values_are_rejected(helm: Run, value: str, field: str) -> None:
    refused = helm("template", "--set=image.repository=x", f"--set={value}")
    assert refused.returncode != 0
    assert field in refused.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host=a", "--listen=8443"], "--listen must be HOST:PORT, such as 0.0.0.0:8443; got '8443'"),
        (["--host=A"], "--host must be a DNS name in lower case; got 'A'"),
        (["--host=a", "--api-server=http://x"], "--api-server: must be a URL that begins with https://"),
        ([], "the following arguments are required: --host"),
    ],
)
def test_invalid_flags_are_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(flags, IN_CLUSTER)
    assert message in capsys.readouterr().err


def test_outside_of_a_cluster_the_api_server_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--host=a"], {})
    assert "--api-server is required outside of a cluster" in capsys.readouterr().err
