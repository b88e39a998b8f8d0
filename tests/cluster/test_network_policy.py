"""The policy of a namespace of jobs, as the API server stores it. Its rules are evaluated here, since only a network
plugin enforces them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.controlplane.plane import ControlPlane
from tests.helm.conftest import CHART

from muster.api.spec import JOB_LABEL
from muster_operator.pod_builder.collector import COLLECTOR_PORT

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "muster-system"
EVERY_PORT = range(1, 65_536)

Object = dict[str, Any]
Labels = dict[str, str]


def rendered(plane: ControlPlane, *settings: str) -> list[Object]:
    flags = [
        "--namespace",
        SYSTEM,
        "--kube-version=1.29.0",
        *(f"--set={value}" for value in ("image.repository=x", *settings)),
    ]
    return [item for item in yaml.safe_load_all(plane.helm("template", "muster", str(CHART), *flags)) if item]


def of_jobs(items: list[Object]) -> list[Object]:
    policies = [item for item in items if item["kind"] == "NetworkPolicy"]
    return [item for item in policies if item["metadata"]["namespace"] != SYSTEM]


@pytest.fixture
def policy(control_plane: ControlPlane, namespace: str) -> Iterator[Object]:
    (item,) = of_jobs(rendered(control_plane, f"networkPolicy.jobs.namespaces={{{namespace}}}"))
    assert item["metadata"]["namespace"] == namespace
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    control_plane.api.create(path, item)
    yield control_plane.api.get(f"{path}/{item['metadata']['name']}")
    control_plane.api.delete(f"{path}/{item['metadata']['name']}")


@pytest.fixture
def operator(control_plane: ControlPlane) -> Labels:
    (deployment,) = (item for item in rendered(control_plane) if item["kind"] == "Deployment")
    found: Labels = deployment["spec"]["template"]["metadata"]["labels"]
    return found


def matches(selector: Object | None, labels: Labels) -> bool:
    if selector is None:
        return True
    expressions = selector.get("matchExpressions", ())
    assert {expression["operator"] for expression in expressions} <= {"Exists"}
    wanted: Labels = selector.get("matchLabels", {})
    return wanted.items() <= labels.items() and all(expression["key"] in labels for expression in expressions)


def ports(policy: Object, protocol: str, namespace: str, pod: Labels) -> set[int]:
    """The ports that a pod of a namespace reaches, by the rules of NetworkPolicy: each rule adds what it allows."""
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    here: Labels = {"kubernetes.io/metadata.name": namespace}
    open_ports: set[int] = set()
    for rule in policy["spec"]["ingress"]:
        peers = rule.get("from")
        if peers and not any(
            matches(peer.get("namespaceSelector"), here) and matches(peer.get("podSelector"), pod) for peer in peers
        ):
            continue
        for port in rule["ports"]:
            if port.get("protocol", "TCP") == protocol:
                open_ports |= set(range(port["port"], port.get("endPort", port["port"]) + 1))
    return open_ports


def test_every_port_of_a_jobs_pod_but_the_collectors_stays_open(policy: Object, namespace: str) -> None:
    peer = {JOB_LABEL: "j"}
    assert set(EVERY_PORT) - ports(policy, "TCP", namespace, peer) == {COLLECTOR_PORT}
    for protocol in ("UDP", "SCTP"):
        assert ports(policy, protocol, "elsewhere", {}) == set(EVERY_PORT)


def test_the_collectors_port_is_open_only_to_the_operators_pods(
    policy: Object, namespace: str, operator: Labels
) -> None:
    assert COLLECTOR_PORT in ports(policy, "TCP", SYSTEM, operator)
    assert COLLECTOR_PORT not in ports(policy, "TCP", namespace, operator)  # labels that any user can write
    assert COLLECTOR_PORT not in ports(policy, "TCP", SYSTEM, {"app": "other"})


def test_only_pods_of_jobs_are_selected(policy: Object) -> None:
    assert matches(policy["spec"]["podSelector"], {JOB_LABEL: "j"})
    assert not matches(policy["spec"]["podSelector"], {"app": "other"})


def test_each_namespace_that_the_values_name_gets_one_and_no_other(control_plane: ControlPlane) -> None:
    assert of_jobs(rendered(control_plane)) == []
    two = of_jobs(rendered(control_plane, "networkPolicy.jobs.namespaces={team-a,team-b}"))
    assert [item["metadata"]["namespace"] for item in two] == ["team-a", "team-b"]
    alone = of_jobs(rendered(control_plane, "networkPolicy.enabled=false", "networkPolicy.jobs.namespaces={team-a}"))
    assert [item["metadata"]["namespace"] for item in alone] == ["team-a"]


def test_the_docs_show_the_same_policy_for_other_namespaces(control_plane: ControlPlane) -> None:
    (item,) = of_jobs(rendered(control_plane, "networkPolicy.jobs.namespaces={team-a}"))
    page = (ROOT / "docs" / "operations" / "operator.md").read_text()
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (same,) = (one for one in shown if one.get("metadata", {}).get("name") == item["metadata"]["name"])
    del item["metadata"]["labels"]
    del item["metadata"]["namespace"]
    own = item["spec"]["ingress"][-1]["from"][0]["podSelector"]["matchLabels"]
    assert own.pop("app.kubernetes.io/instance") == "muster"
    assert same == item
