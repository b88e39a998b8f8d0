"""Rendering of the chart."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from tests.helm.conftest import CHART, ROOT, Render, Run
from tools.version import version

from muster.api.pod_security import NO_VIOLATIONS, pod_security_violations
from muster.api.spec import Flavor, Queue
from muster.kinds.suspended.kinds_file import read_kinds
from muster.visibility.requests import RESOURCES
from muster_operator.metrics import OperatorMetrics
from muster_operator.settings import parse_flags

Object = dict[str, Any]


def one(items: list[Object], kind: str) -> Object:
    (found,) = (item for item in items if item["kind"] == kind)
    return found


def kinds(items: list[Object]) -> set[str]:
    return {item["kind"] for item in items}


def operator(items: list[Object]) -> Object:
    (container,) = one(items, "Deployment")["spec"]["template"]["spec"]["containers"]
    found: Object = container
    return found


@pytest.mark.smoke
def test_the_chart_passes_helms_own_lint(helm: Run) -> None:
    done = helm("lint", "--strict")
    assert done.returncode == 0, done.stdout
    assert "0 chart(s) failed" in done.stdout


def test_every_value_has_a_schema_and_every_schema_a_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def named(part: Object, path: str = "") -> set[str]:
        if "$ref" in part:
            part = schema["definitions"][part["$ref"].rpartition("/")[2]]
        inner = part.get("properties", {})
        return {place for name, item in inner.items() for place in {f"{path}{name}", *named(item, f"{path}{name}.")}}

    def written(part: Any, path: str = "") -> set[str]:
        if not isinstance(part, dict):
            return set()
        return {place for name, item in part.items() for place in {f"{path}{name}", *written(item, f"{path}{name}.")}}

    free = (
        "admissionPolicy.namespaceSelector.",
        "operator.resources.",
        "operator.affinity.",
        "collector.resources.",
        "dashboard.resources.",
    )  # Kubernetes' own
    named_ones = {name for name in named(schema) if not name.startswith(free)}
    assert {name for name in written(values) if not name.startswith(free)} == named_ones - {"global"}


def test_the_operator_runs_with_the_restricted_settings(render: Render) -> None:
    pod = one(render(), "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {"hostNetwork", "hostPID", "hostIPC"} & pod.keys() == set()
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp"]


def test_user_namespaces_are_an_option_of_all_pods_of_the_chart(render: Render) -> None:
    def of(*values: str) -> list[object]:
        items = render("dashboard.enabled=true", *values)
        pods = [item["spec"]["template"]["spec"] for item in items if item["kind"] == "Deployment"]
        return [pod.get("hostUsers") for pod in pods]

    assert of() == [None, None]
    assert of("operator.hostUsers=false") == [False, False]


def test_pods_of_the_chart_pass_the_restricted_pod_security_standard(render: Render) -> None:
    items = render("dashboard.enabled=true", "collector.image.repository=registry.example.com/trainer")
    templates = [item["spec"]["template"] for item in items if item["kind"] == "Deployment"]
    assert [pod_security_violations(template) for template in templates] == [NO_VIOLATIONS] * 2


def test_the_pod_security_of_the_installation_is_a_flag(render: Render) -> None:
    assert parse_flags(operator(render())["args"]).pod_security == "privileged"
    assert parse_flags(operator(render("podSecurity=restricted"))["args"]).pod_security == "restricted"


def test_two_replicas_are_spread_and_one_may_be_drained(render: Render) -> None:
    items = render()
    deployment = one(items, "Deployment")["spec"]
    selector = deployment["selector"]["matchLabels"]
    pod = deployment["template"]
    assert deployment["replicas"] == 2
    assert selector.items() <= pod["metadata"]["labels"].items()
    (apart,) = pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["labelSelector"]["matchLabels"] == selector
    budget = one(items, "PodDisruptionBudget")["spec"]
    assert (budget["minAvailable"], budget["selector"]["matchLabels"]) == (1, selector)
    assert "PodDisruptionBudget" not in kinds(render("replicas=1"))


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("operator.lease.durationSeconds=30", "operator.lease.renewDeadlineSeconds=20"),
        ("operator.extraArgs={--no-lease}", "replicas=1"),
        ("collector.image.repository=x", "collector.resources=null"),
        ("collector.image.repository=x", "collector.store.url=s3://x/y", "collector.store.secretName=null"),
    ],
    ids=str,
)
def test_the_operator_parses_the_flags_of_the_chart(render: Render, values: tuple[str, ...]) -> None:
    container = operator(render(*values))
    assert container["command"] == ["python", "-m", "muster_operator"]
    settings = parse_flags(container["args"])
    assert (settings.namespace, settings.lease_name) == ("muster-system", "m-muster-operator")
    assert settings.priority_class == one(render(*values), "PriorityClass")["metadata"]["name"]


def test_probes_and_services_use_the_operators_port(render: Render) -> None:
    items = render()
    container = operator(items)
    (port,) = container["ports"]
    assert parse_flags(container["args"]).addresses.public == f"0.0.0.0:{port['containerPort']}"
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["path"] for probe in probes.values()} == {"/healthz", "/readyz"}
    (service,) = one(items, "Service")["spec"]["ports"]
    (allowed,) = one(items, "NetworkPolicy")["spec"]["ingress"]
    targets = {service["targetPort"], *(probe["port"] for probe in probes.values()), allowed["ports"][0]["port"]}
    assert targets == {port["name"]}


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ((), f"registry.example.com/operator:{version()}"),
        (("image.tag=v2",), "registry.example.com/operator:v2"),
        ((f"image.digest=sha256:{'a' * 64}", "image.tag=v2"), f"registry.example.com/operator@sha256:{'a' * 64}"),
    ],
)
def test_an_image_has_a_tag_or_a_digest(render: Render, values: tuple[str, ...], image: str) -> None:
    assert operator(render(*values))["image"] == image


def test_crds_are_part_of_the_chart_kept_on_uninstall_and_equal_the_plain_file(render: Render) -> None:
    plain = {item["metadata"]["name"]: item for item in yaml.safe_load_all((ROOT / "helm/crds.yaml").read_text())}
    found = [item for item in render() if item["kind"] == "CustomResourceDefinition"]
    assert {item["metadata"]["name"]: item["spec"] for item in found} == {
        name: item["spec"] for name, item in plain.items()
    }
    assert {item["metadata"]["annotations"]["helm.sh/resource-policy"] for item in found} == {"keep"}
    assert "CustomResourceDefinition" not in kinds(render("crds.enabled=false"))


def test_default_queue_and_flavor_are_valid_and_kept_on_uninstall(render: Render) -> None:
    items = render()
    for model in (Queue, Flavor):
        item = one(items, model.__name__)
        assert item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        model.model_validate({key: item[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "x"}})
    assert kinds(render("queues=null", "flavors=null")) & {"Queue", "Flavor"} == set()


def test_queues_are_hooks_only_until_the_api_server_has_their_crd(render: Render) -> None:
    first = one(render(), "Queue")["metadata"]["annotations"]
    later = one(render(extra=("--api-versions=muster.dev/v1alpha1",)), "Queue")["metadata"]["annotations"]
    assert first["helm.sh/hook"] == "post-install,post-upgrade"
    assert first["meta.helm.sh/release-name"] == "m"
    assert "helm.sh/hook" not in later


def test_the_priority_class_of_jobs_never_preempts(render: Render) -> None:
    priority = one(render(), "PriorityClass")
    assert (priority["preemptionPolicy"], priority["globalDefault"]) == ("Never", False)


def test_no_user_role_may_write_a_status(render: Render) -> None:
    roles = [item for item in render() if item["kind"] == "ClusterRole" and "operator" not in item["metadata"]["name"]]
    assert len(roles) == 4
    resources = {name for role in roles for rule in role["rules"] for name in rule["resources"]}
    assert resources == {"trainingjobs", "trainingjobs/scale", "tracecaptures", "workloads", "queues", "flavors"}
    writers = [rule for role in roles for rule in role["rules"] if "create" in rule["verbs"]]
    assert not any("workloads" in rule["resources"] for rule in writers), "a Workload is a status"


COLLECTOR = "collector.image.repository=registry.example.com/trainer"


def rules(items: list[Object], kind: str) -> list[Object]:
    return [rule for item in items if item["kind"] == kind for rule in item["rules"]]


def test_no_role_has_a_wildcard_and_without_collectors_none_may_use_secrets_of_other_namespaces(render: Render) -> None:
    items = render()
    for rule in [*rules(items, "Role"), *rules(items, "ClusterRole")]:
        assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
    assert "secrets" not in {name for rule in rules(items, "ClusterRole") for name in rule["resources"]}


def test_with_collectors_the_operator_creates_secrets_and_reads_one_of_its_own(render: Render) -> None:
    items = render(COLLECTOR)
    (everywhere,) = (rule for rule in rules(items, "ClusterRole") if "secrets" in rule["resources"])
    assert everywhere["verbs"] == ["create"]
    assert [rule for rule in rules(items, "Role") if "secrets" in rule["resources"]] == [
        rule for rule in rules(render(), "Role") if "secrets" in rule["resources"]
    ], "its key signs pods too"
    at_home, _ = (rule for rule in rules(items, "Role") if "secrets" in rule["resources"])
    assert at_home["verbs"] == ["get"]
    lease = parse_flags(operator(items)["args"]).lease_name
    assert at_home["resourceNames"] == [f"{lease}-collector-key"]


def test_the_operator_parses_the_collector_flags_of_the_chart(render: Render) -> None:
    assert parse_flags(operator(render())["args"]).collectors.config.image == ""
    assert parse_flags(operator(render(COLLECTOR))["args"]).collectors.config.all_jobs  # by default
    for value in ("true", "false"):
        args = operator(render(COLLECTOR, f"collector.allJobs={value}"))["args"]
        assert parse_flags(args).collectors.config.all_jobs is (value == "true")
    store = ("collector.store.url=s3://traces/muster", "collector.store.secretName=traces")
    settings = parse_flags(operator(render(COLLECTOR, "collector.heartbeatIntervalSeconds=7", *store))["args"])
    choices = settings.collectors.config
    assert (choices.image, choices.pull_policy) == (f"registry.example.com/trainer:{version()}", "IfNotPresent")
    assert (choices.store, choices.store_secret) == ("s3://traces/muster", "traces")
    assert choices.resources["requests"] == choices.resources["limits"] == {"cpu": "250m", "memory": "256Mi"}
    assert (settings.collectors.heartbeat_interval_s, settings.progress_interval_s) == (7.0, 60.0)


def test_monitoring_is_optional_and_uses_existing_metrics(render: Render) -> None:
    assert kinds(render()) & {"ServiceMonitor", "PrometheusRule"} == set()
    items = render("serviceMonitor.enabled=true", "prometheusRule.enabled=true", "prometheusRule.labels.team=ml")
    selector = one(items, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert selector.items() <= one(items, "Service")["metadata"]["labels"].items()
    rule = one(items, "PrometheusRule")
    assert rule["metadata"]["labels"]["team"] == "ml"
    (group,) = rule["spec"]["groups"]
    used = {name for alert in group["rules"] for name in re.findall(r"muster_\w+", alert["expr"])}
    source = (ROOT / "operators" / "muster_operator" / "metrics.py").read_text()
    known = set(re.findall(r'"(muster_\w+)"', source))
    assert {re.sub(r"_bucket$", "", name) for name in used} <= known
    queue_alert = group["rules"][-1]["annotations"]
    assert "{{ $labels.queue }}" in queue_alert["summary"]


def test_alerts_watch_metrics_of_the_operator_among_them_avoided_nodes_and_refused_statuses(render: Render) -> None:
    (group,) = one(render("prometheusRule.enabled=true"), "PrometheusRule")["spec"]["groups"]
    watched = {alert["alert"]: set(re.findall(r"muster_\w+", alert["expr"])) for alert in group["rules"]}
    assert watched["MusterNodesAvoided"] == {"muster_avoided_nodes"}
    assert watched["MusterStatusRefused"] == {"muster_refused_statuses"}
    exported = re.findall(r"^# HELP (\w+)", OperatorMetrics().exposition().decode(), re.MULTILINE)
    for names in watched.values():
        assert names
        assert {name.removesuffix("_bucket") for name in names} <= set(exported)


def test_every_alert_has_a_runbook_section_and_links_to_it_if_set(render: Render) -> None:
    def alerts(*values: str) -> dict[str, Object]:
        (group,) = one(render("prometheusRule.enabled=true", *values), "PrometheusRule")["spec"]["groups"]
        return {alert["alert"]: alert["annotations"] for alert in group["rules"]}

    runbook = (ROOT / "docs" / "operations" / "runbook.md").read_text()
    sections = re.findall(r"^### (Muster\w+)$", runbook, re.MULTILINE)
    assert sections == list(alerts())
    assert all("runbook_url" not in annotations for annotations in alerts().values())
    linked = alerts("prometheusRule.runbookUrl=https://wiki.example.com/runbook")
    assert {name: annotations["runbook_url"] for name, annotations in linked.items()} == {
        name: f"https://wiki.example.com/runbook#{name.lower()}" for name in sections
    }


def test_pod_groups_add_their_flag_and_rule_only_if_enabled(render: Render) -> None:
    def of(*values: str) -> tuple[bool, list[Object]]:
        items = render(*values)
        (container,) = one(items, "Deployment")["spec"]["template"]["spec"]["containers"]
        return "--pod-groups" in container["args"], [
            rule for rule in rules(items, "ClusterRole") if "podgroups" in rule["resources"]
        ]

    assert of() == (False, [])
    wanted = {"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": ["create", "delete"]}
    assert of("operator.podGroups=true") == (True, [wanted])


def test_the_security_page_lists_every_rule_of_the_operator(render: Render) -> None:
    """Each rule of the chart with all options enabled is a row of the table: group, resources, verbs."""
    options = ("operator.podGroups=true", "collector.image.repository=registry.example.com/trainer")
    items = render(*options, "visibility.enabled=true")
    given = [
        rule
        for kind in ("ClusterRole", "Role")
        for item in items
        if item["kind"] == kind and item["metadata"]["name"].startswith("m-muster-operator")
        for rule in item["rules"]
    ]
    page = (ROOT / "docs" / "operations" / "security.md").read_text()
    rows = {line.split("|")[1].strip() for line in page.splitlines() if re.match(r"\| `[^`]+`: ", line)}
    assert rows == {f"`{', '.join(rule['resources'])}`: {', '.join(rule['verbs'])}" for rule in given}


PARTS = ["objects", "pods", "services", "secrets", "deletions", "queues", "own"]


def policies(items: list[Object]) -> list[Object]:
    return [item for item in items if item["kind"] == "ValidatingAdmissionPolicy"]


def test_the_admission_policies_are_on_where_they_are_served_and_one_value_turns_them_off(
    render: Render, helm: Run
) -> None:
    served = ("--kube-version=1.30.0",)
    names = [f"m-muster-operator-{part}" for part in PARTS]
    items = render(extra=served)
    assert [item["metadata"]["name"] for item in policies(items)] == names
    bindings = [item for item in items if item["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert [item["spec"] for item in bindings] == [
        {"policyName": name, "validationActions": ["Deny"]} for name in names
    ]
    assert not policies(render())
    assert not policies(render("admissionPolicy.enabled=false", extra=served))


def test_an_admission_policy_is_about_the_operators_account_alone(render: Render) -> None:
    items = render("serviceAccount.name=mine", extra=("--kube-version=1.36.0",))
    user = 'request.userInfo.username == "system:serviceaccount:muster-system:mine"'
    conditions = [item["spec"]["matchConditions"] for item in policies(items)]
    assert [condition["expression"] for (condition,) in conditions] == [user] * len(PARTS)
    assert {item["spec"]["failurePolicy"] for item in policies(items)} == {"Fail"}


def test_the_policy_of_the_user_label_is_off_by_default_and_needs_kubernetes_1_30(render: Render, helm: Run) -> None:
    done = helm("template", "--set=image.repository=x", "--set=admissionPolicy.userLabel=true")
    assert done.returncode != 0
    assert "admissionPolicy.userLabel: needs Kubernetes 1.30 or later; got v1.29.0" in done.stderr
    items = render("admissionPolicy.userLabel=true", extra=("--kube-version=1.30.0",))
    names = [item["metadata"]["name"] for item in policies(items)]
    assert names == [*(f"m-muster-operator-{part}" for part in PARTS), "m-muster-operator-users"]


def test_the_record_of_usage_adds_its_flag_and_rule_unless_it_is_off(render: Render) -> None:
    def of(*values: str) -> tuple[str, int]:
        items = render(*values)
        (container,) = one(items, "Deployment")["spec"]["template"]["spec"]["containers"]
        (flag,) = [argument for argument in container["args"] if argument.startswith("--usage-retention-days=")]
        return flag, sum("configmaps" in rule["resources"] for rule in rules(items, "Role"))

    assert of() == ("--usage-retention-days=400", 1)
    assert of("usage.retentionDays=0") == ("--usage-retention-days=0", 0)


def test_egress_of_the_operator_can_be_restricted_with_extra_rules(render: Render) -> None:
    assert one(render(), "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]
    policy = one(render("networkPolicy.egress.enabled=true"), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [port["port"] for port in policy["egress"][0]["ports"]] == [443, 6443]
    assert "NetworkPolicy" not in kinds(render("networkPolicy.enabled=false"))
    nodes = {"to": [{"ipBlock": {"cidr": "10.0.0.0/16"}}], "ports": [{"port": 19000, "endPort": 19999}]}
    extra = (f"--set-json=networkPolicy.egress.extra={json.dumps([nodes])}",)
    wider = one(render("networkPolicy.egress.enabled=true", extra=extra), "NetworkPolicy")["spec"]
    assert wider["egress"] == [*policy["egress"], nodes]


def values_of_the_quick_start() -> str:
    page = (ROOT / "docs" / "start" / "quick-start-gpu.md").read_text()
    (values,) = [block for block in page.split("```\n") if block.startswith("image: ")]
    return values


@pytest.mark.parametrize(
    "values",
    [(ROOT / "examples" / "05-helm-values" / "values.yaml").read_text(), values_of_the_quick_start()],
    ids=["example", "quick-start"],
)
def test_values_of_the_docs_render(helm: Run, tmp_path: Path, values: str) -> None:
    (tmp_path / "values.yaml").write_text(values)
    done = helm("template", f"--values={tmp_path / 'values.yaml'}")
    assert done.returncode == 0, done.stderr
    models: dict[str, type[Queue | Flavor]] = {"Queue": Queue, "Flavor": Flavor}
    for item in yaml.safe_load_all(done.stdout):
        if item and item["kind"] in models:
            models[item["kind"]].model_validate({"metadata": {"name": "x"}, "spec": item["spec"]})


def test_the_read_api_is_off_by_default_and_one_value_turns_it_on(render: Render) -> None:
    before, items = render(), render("visibility.enabled=true")
    assert {item["kind"] for item in items} - kinds(before) == {"APIService", "RoleBinding", "Secret"} - kinds(before)
    settings = parse_flags(operator(items)["args"])
    ports = {port["name"]: port["containerPort"] for port in operator(items)["ports"]}
    assert settings.visibility.address == f"0.0.0.0:{ports['visibility']}"
    assert parse_flags(operator(before)["args"]).visibility.address == ""
    (mounted,) = (one for one in operator(items)["volumeMounts"] if one["name"] == "visibility")
    assert str(settings.visibility.tls_folder) == mounted["mountPath"]
    service, secret, registered = one(items, "Service"), one(items, "Secret"), one(items, "APIService")["spec"]
    assert registered["service"] == {"name": service["metadata"]["name"], "namespace": "muster-system", "port": 443}
    assert {port["port"]: port["targetPort"] for port in service["spec"]["ports"]}[443] == "visibility"
    assert registered["caBundle"] == secret["data"]["ca.crt"]
    (granted,) = (rule for rule in one_named(items, "m-muster-visibility")["rules"])
    assert (granted["apiGroups"], granted["verbs"]) == (["visibility.muster.dev"], ["get", "list"])
    assert set(granted["resources"]) == set(RESOURCES)


def one_named(items: list[Object], name: str) -> Object:
    (found,) = (item for item in items if item["metadata"]["name"] == name and item["kind"] == "ClusterRole")
    return found


def test_a_certificate_of_ones_own_replaces_that_of_the_chart(render: Render, helm: Run) -> None:
    own = ("visibility.enabled=true", "visibility.tls.secretName=mine")
    items = render(*own, "visibility.tls.caBundle=Q0E=")
    assert "Secret" not in kinds(items)
    assert one(items, "APIService")["spec"]["caBundle"] == "Q0E="
    volumes = one(items, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert [volume["secret"]["secretName"] for volume in volumes if "secret" in volume] == ["mine"]
    refused = helm("template", *(f"--set={value}" for value in ("image.repository=x", *own)))
    assert "visibility.tls.caBundle: must be the CA" in refused.stderr
    annotated = render(*own, r"visibility.annotations.cert-manager\.io/inject-ca-from=muster-system/mine")
    assert "caBundle" not in one(annotated, "APIService")["spec"]


def test_the_certificate_of_the_chart_is_for_the_name_that_the_api_server_verifies(render: Render) -> None:
    data = one(render("visibility.enabled=true"), "Secret")["data"]
    authority, served = (x509.load_pem_x509_certificate(b64decode(data[name])) for name in ("ca.crt", "tls.crt"))
    served.verify_directly_issued_by(authority)
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["m-muster-operator.muster-system.svc"]


def test_kinds_that_queue_give_the_operator_its_flag_its_rights_and_limits_to_them(render: Render) -> None:
    row = "queuedKinds[1].group=x.io,queuedKinds[1].version=v1,queuedKinds[1].plural=runs,queuedKinds[1].kind=Run"
    items = render(f"queuedKinds[0]=Job,{row}", extra=("--kube-version=1.36.3",))
    flags = one(items, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    (kinds,) = (flag.partition("=")[2] for flag in flags if flag.startswith("--queued-kinds="))
    assert [row.kind for row in read_kinds(kinds)] == ["Job", "Run"]
    assert "--trust-pods" in flags, "users cannot make up pods of an admission"
    unchecked = render("queuedKinds[0]=Job,admissionPolicy.enabled=false", extra=("--kube-version=1.36.3",))
    assert "--trust-pods" not in one(unchecked, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    granted = {
        (name, verb) for rule in rules(items, "ClusterRole") for name in rule["resources"] for verb in rule["verbs"]
    }
    assert {("jobs", "patch"), ("runs", "patch"), ("pods", "patch"), ("workloads", "create")} <= granted
    policies = {item["metadata"]["name"] for item in items if item["kind"] == "ValidatingAdmissionPolicy"}
    without = {
        item["metadata"]["name"]
        for item in render(extra=("--kube-version=1.36.3",))
        if item["kind"] == "ValidatingAdmissionPolicy"
    }
    assert policies - without == {f"m-muster-operator-{part}" for part in ("queued", "held", "gate", "attempt")}
    assert one(items, "MutatingAdmissionPolicy")["metadata"]["name"] == "m-muster-operator-hold"
