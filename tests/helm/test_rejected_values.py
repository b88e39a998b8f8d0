"""Values that the chart rejects before anything is changed, and the messages."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml
from tests.helm.conftest import CHART, Render, Run
from tools.version import version

from muster_operator.settings import parse_flags

SCHEMA = "values don't meet the specifications of the schema"
COLLECTOR = "collector.image.repository=registry.example.com/trainer"


def template(helm: Run, *values: str) -> subprocess.CompletedProcess[str]:
    return helm("template", "--set=image.repository=x", *(f"--set={value}" for value in values))


def rejected(helm: Run, *values: str) -> str:
    """Standard error of Helm, which has to fail."""
    done = template(helm, *values)
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_without_an_image_the_message_names_the_value(helm: Run) -> None:
    done = helm("template")
    assert done.returncode != 0
    assert "image.repository must be set to your image of the operator" in done.stderr


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("replicas=0", "replicas"),
        ("replicas=two", "replicas"),
        ("replica=3", "replica"),
        ("operator.logLevel=loud", "logLevel"),
        ("operator.qps=0", "qps"),
        ("operator.lease.durationSeconds=-1", "durationSeconds"),
        ("image.repository=example.com/x:1.0", "repository"),
        ("image.digest=abc", "digest"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("queues[0].nam=x", "queues"),
        ("flavors[0].name=A b", "name"),
        ("networkPolicy.egress.apiServerPorts={}", "apiServerPorts"),
        ("jobPods.priorityClass.value=2000000000", "value"),
        ("serviceMonitor.interval=often", "interval"),
        ("rbac.aggregate=maybe", "aggregate"),
        ("collector.image.repository=example.com/x:1.0", "repository"),
        ("collector.heartbeatIntervalSeconds=0", "heartbeatIntervalSeconds"),
        ("collector.store.url=bucket", "url"),
        ("collector.store.url=https://me:word@example.com/x", "url"),
        ("collector.store.secretName=A b", "secretName"),
        ("operator.extraArgs={no-lease}", "extraArgs"),
        ("admissionPolicy.enabled=maybe", "enabled"),
        ("admissionPolicy.allow.hostPaths=true", "hostPaths"),
        ("podSecurity=strict", "podSecurity"),
        ("admissionPolicy.namespaceSelector.labels.a=b", "labels"),
        ("admissionPolicy.namespaceSelector.matchLabels.a=b c", "a"),
        ("admissionPolicy.namespaceSelector.matchExpressions[0].key=a", "operator"),
        ("operator.resources.limits.cpu=much", "cpu"),
        ("operator.resources.limits.gpu=1", "gpu"),
        ("operator.tolerations[0].taint=x", "taint"),
        ("operator.affinity.node.x=y", "node"),
        ("operator.resources.limit.cpu=1", "limit"),
        ("operator.priorityClassName=High Prio", "priorityClassName"),
        ("operator.podLabels.team=a b", "team"),
        ("operator.podLabels.a b=team", "a b"),
        ("operator.podAnnotations.a b=team", "a b"),
        ("operator.nodeSelector.pool=a/b", "pool"),
        ("image.tag=-1.0", "tag"),
        ("image.repository=Example", "repository"),
        ("imagePullSecrets={A_b}", "imagePullSecrets"),
        ("collector.resources.requests.cpu=-1", "cpu"),
        ("collector.store.url=s3://bucket/$(HOME)", "url"),
        ("serviceAccount.name=A_b", "name"),
        ("serviceAccount.name=a..b", "name"),
        ("serviceMonitor.interval=0s", "interval"),
        ("networkPolicy.from[0].pods=x", "from"),
        ("networkPolicy.egress.extra[0].from=x", "extra"),
        ("networkPolicy.jobs.namespaces={Team A}", "namespaces"),
        ("networkPolicy.jobs.namespaces={a,a}", "namespaces"),
        ("prometheusRule.runbookUrl=wiki", "runbookUrl"),
    ],
)
def test_an_invalid_value_is_rejected_by_name(helm: Run, value: str, field: str) -> None:
    output = rejected(helm, value)
    assert SCHEMA in output
    assert field in output


def required(part: Any, path: str = "") -> set[str]:
    """Paths of the fields that the schema requires: "operator.lease.durationSeconds"."""
    if "$ref" in part:
        part = json.loads((CHART / "values.schema.json").read_text())["definitions"][part["$ref"].rpartition("/")[2]]
    inner = part.get("properties", {}).items()
    found = {f"{path}{name}" for name in part.get("required", ())}
    return found.union(*(required(item, f"{path}{name}.") for name, item in inner))


def leaves(part: Any, path: str = "") -> set[str]:
    if not isinstance(part, dict) or not part:
        return {path.rstrip(".")}
    return {place for name, item in part.items() for place in leaves(item, f"{path}{name}.")}


SCHEMA_FILE = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_null_for_a_required_value_is_rejected_by_name(helm: Run, depth: int) -> None:
    taken = {place for place in required(SCHEMA_FILE) if place.count(".") == depth}
    assert len(taken) > 4
    output = rejected(helm, *(f"{place}=null" for place in taken)).splitlines()
    for above, _, name in (place.rpartition(".") for place in taken):
        where = f"at '/{above.replace('.', '/')}': missing propert" if above else "at '': missing propert"
        assert any(where in line and f"'{name}'" in line for line in output), (above, name, output)


def test_null_anywhere_else_leaves_an_operator_that_starts(render: Render) -> None:
    kept = required(SCHEMA_FILE) | {"image.repository", "collector.image.repository", "collector.store.url"}
    taken = leaves(yaml.safe_load((CHART / "values.yaml").read_text())) - kept
    assert {"operator.podLabels", "collector.resources.requests.cpu", "queues"} <= taken
    values = (COLLECTOR, "collector.store.url=s3://traces/muster", "networkPolicy.egress.enabled=true")
    items = render(*values, "serviceMonitor.enabled=true", "prometheusRule.enabled=true", *(f"{p}=null" for p in taken))
    (deployment,) = (item for item in items if item["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert parse_flags(container["args"]).collectors.config.image == f"registry.example.com/trainer:{version()}"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            "operator.lease.durationSeconds=5",
            (
                "operator.lease: durationSeconds (5) must be above renewDeadlineSeconds (10), and that above "
                "retryPeriodSeconds (2)"
            ),
        ),
        (
            "operator.lease.retryPeriodSeconds=10",
            "must be above renewDeadlineSeconds (10), and that above retryPeriodSeconds (10)",
        ),
        (
            "jobPods.priorityClass.name=system-jobs",
            'jobPods.priorityClass.name must not start with system-, which is reserved for Kubernetes; got "system-',
        ),
        (
            r"operator.podLabels.app\.kubernetes\.io/instance=x",
            "operator.podLabels: label app.kubernetes.io/instance is set by the chart; use another key",
        ),
        (
            r"prometheusRule.labels.helm\.sh/chart=x",
            "prometheusRule.labels: label helm.sh/chart is set by the chart; use another key",
        ),
        (
            r"operator.podAnnotations.kubectl\.kubernetes\.io/default-container=x",
            "operator.podAnnotations: annotation kubectl.kubernetes.io/default-container is set by the chart",
        ),
        (
            "operator.extraArgs={--lease-duration-seconds=5}",
            "operator.extraArgs: --lease-duration-seconds is set by the chart; use operator.lease.durationSeconds",
        ),
        (
            "operator.extraArgs={--no-lease}",
            "operator.extraArgs: --no-lease needs replicas: 1, because every replica would lead; got 2",
        ),
    ],
)
def test_values_beyond_the_schema_are_rejected_with_a_message(helm: Run, value: str, sentence: str) -> None:
    assert sentence in rejected(helm, value)


def test_values_of_a_selector_are_required_by_its_operator(helm: Run) -> None:
    for line in ({"key": "a", "operator": "In"}, {"key": "a", "operator": "Exists", "values": ["b"]}):
        selector = json.dumps({"matchExpressions": [line]})
        done = helm("template", "--set=image.repository=x", f"--set-json=admissionPolicy.namespaceSelector={selector}")
        assert (
            'admissionPolicy.namespaceSelector: values of "a" must be set for In and NotIn, and absent' in done.stderr
        )


def test_two_queues_of_one_name_are_rejected(helm: Run) -> None:
    twice = json.dumps([{"name": "a", "spec": {}}, {"name": "a", "spec": {}}])
    done = helm("template", "--set=image.repository=x", f"--set-json=queues={twice}")
    assert 'queues: names must be unique; got "a" twice' in done.stderr


@pytest.mark.parametrize("release", ["muster.v1", "9muster"])
def test_a_release_name_invalid_for_services_is_rejected(helm: Run, release: str) -> None:
    done = helm("template", "--set=image.repository=x", release=release)
    assert done.returncode != 0
    assert "the release name must start with a letter" in done.stderr


def test_flags_set_by_the_chart_cannot_be_extra_args(helm: Run, render: Render) -> None:
    store = ("collector.store.url=s3://traces/muster", "operator.podGroups=true")
    (deployment,) = (item for item in render(COLLECTOR, *store) if item["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert len(container["args"]) > 15
    for flag in (argument.partition("=")[0] for argument in container["args"]):
        assert f"operator.extraArgs: {flag} is set by the chart" in rejected(helm, f"operator.extraArgs={{{flag}=x}}")


def test_numeric_names_stay_strings(helm: Run) -> None:
    queue = json.dumps([{"name": "12", "spec": {}}])
    values = ("serviceAccount.name=1e3", "operator.priorityClassName=0x1", "jobPods.priorityClass.name=99")
    done = helm(
        "template",
        "--namespace=123",
        f"--set-json=queues={queue}",
        *(f"--set-string={value}" for value in ("image.repository=x", "imagePullSecrets={0}", *values)),
        release="null",
    )
    assert done.returncode == 0, done.stderr
    items = [item for item in yaml.safe_load_all(done.stdout) if item]
    (pod,) = (item["spec"]["template"]["spec"] for item in items if item["kind"] == "Deployment")
    assert (pod["serviceAccountName"], pod["priorityClassName"]) == ("1e3", "0x1")
    assert pod["imagePullSecrets"] == [{"name": "0"}]
    assert {item["metadata"]["namespace"] for item in items if "namespace" in item["metadata"]} == {"123"}
    named = {item["kind"]: item["metadata"]["name"] for item in items}
    assert (named["ServiceAccount"], named["PriorityClass"], named["Queue"]) == ("1e3", "99", "12")
    labels = [item["metadata"]["labels"] for item in items if item["kind"] == "Queue"]
    assert [label["app.kubernetes.io/instance"] for label in labels] == ["null"]
