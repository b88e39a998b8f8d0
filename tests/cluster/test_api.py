"""The API server itself, with nothing of Muster running: what it fills in, refuses, keeps and shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import ValidationError
from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.clients import CommandFailed
from tests.cluster.controlplane.plane import ControlPlane
from tests.manifests.objects import BAD, GOOD, Bad, Object, flavor, job, queue
from tests.manifests.random_objects import ANY

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.api.validation.edit import check_edit
from muster.api.yaml_input import KINDS, load_objects
from muster.errors import InvalidSpec
from muster_operator.cache.status_patch import status_replacement

ROOT = Path(__file__).resolve().parent.parent.parent
CRDS = ROOT / "helm" / "crds.yaml"
GROUP = "/apis/muster.dev/v1alpha1"
NOW = "2026-11-21T10:00:00Z"


_WRITTEN = re.compile(
    r"<<'?(?P<end>[A-Z]+)'?\n(?P<here>.*?)\n(?P=end)$|^```yaml\n(?P<fenced>.*?)\n```", re.DOTALL | re.MULTILINE
)
DOCUMENTS = [
    path
    for path in sorted(ROOT.glob("examples/*/*.yaml"))
    if "apiVersion: muster.dev" in path.read_text() and path.name != "wrong.yaml"  # it shows how it is refused
]


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this file's own: no operator answers here. The CRDs come as without Helm."""
    with ControlPlane.start(tmp_path_factory.mktemp("api"), scheduler=False, kwok=False) as plane:
        plane.kubectl("apply", "-f", str(CRDS))
        plane.wait_until_served(CRDS)
        for name in ("muster-example", "muster-shared"):  # of the examples
            plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        yield plane


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    return control_plane


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Api:
    return plane.api


def place(item: Object, **query: str) -> str:
    """Where an object is created."""
    plural = f"{item['kind'].lower()}s"
    inside = f"/namespaces/{item['metadata']['namespace']}" if item["kind"] == "TrainingJob" else ""
    ask = "&".join(f"{key}={value}" for key, value in query.items())
    return f"{GROUP}{inside}/{plural}" + (f"?{ask}" if ask else "")


def try_to_create(api: Api, item: Object) -> Object:
    """Create nothing, but return the result (dry run); unknown fields are refused, as kubectl requests it."""
    return api.create(place(item, dryRun="All", fieldValidation="Strict"), item)


def test_plain_kubectl_installs_and_updates_the_crds(plane: ControlPlane) -> None:
    again = plane.kubectl("apply", "-f", str(CRDS))
    assert again.splitlines() == [
        f"customresourcedefinition.apiextensions.k8s.io/{name}.muster.dev unchanged"
        for name in ("trainingjobs", "queues", "flavors", "tracecaptures", "workloads")
    ]


@pytest.mark.parametrize("item", GOOD, ids=str)
def test_valid_objects_are_accepted(api: Api, item: Object) -> None:
    try_to_create(api, item)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_invalid_objects_are_refused_with_the_field_and_what_is_valid(api: Api, bad: Bad) -> None:
    with pytest.raises(Refused) as caught:
        try_to_create(api, bad.item)
    assert caught.value.code in (400, 422)
    assert bad.field in str(caught.value)
    assert bad.server in str(caught.value)


def test_a_queue_that_is_its_own_parent_is_refused(api: Api) -> None:
    with pytest.raises(Refused, match=r"spec.parent: Invalid value.*must not be the queue itself"):
        try_to_create(api, queue("q", parent="q"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_documents_of_the_examples_are_accepted(plane: ControlPlane, path: Path) -> None:
    assert load_objects(path.read_text())
    plane.kubectl("create", "--dry-run=server", "-f", str(path))


def pasted() -> Iterator[tuple[str, str]]:
    """(page, YAML) of every object that a page shows to be pasted."""
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/*/README.md"))):
        for found in _WRITTEN.finditer(page.read_text()):
            text = found["here"] or found["fenced"]
            if "apiVersion: muster.dev" in text:
                yield str(page.relative_to(ROOT)), text


@pytest.mark.parametrize(("page", "text"), list(pasted()))
def test_documents_of_the_docs_are_accepted(plane: ControlPlane, page: str, text: str) -> None:
    assert load_objects(text, page)
    plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=text)


@given(item=ANY)
@settings(max_examples=400)
def test_pydantic_and_the_api_server_refuse_the_same(api: Api, item: Object) -> None:
    try:
        KINDS[item["kind"]].model_validate(item, strict=True)
        ours = None
    except ValidationError as error:
        ours = str(error)
    try:
        try_to_create(api, item)
        theirs = None
    except Refused as refused:
        theirs = str(refused)
    assert (ours is None) == (theirs is None), f"{json.dumps(item)}\n{ours}\n{theirs}"


def test_defaults_are_those_of_the_specs(api: Api) -> None:
    smallest = job(roles=[{"name": "trainer", "template": {"spec": {"containers": [{"image": "x"}]}}}])
    made = try_to_create(api, smallest)["spec"]
    assert made == {
        "queue": "default",
        "priority": 0,
        "startTimeoutSeconds": 600,
        "suspend": False,
        "cancel": False,
        "cancelIfUnsatisfiable": False,
        "failurePolicy": {
            "maxRestarts": 3,
            "rules": [{"action": "FailJob", "onExitCodes": [2, 78, 126, 127], "onPodConditions": []}],
        },
        "roles": [
            {
                "name": "trainer",
                "replicas": 1,
                "essential": True,
                "template": {
                    "spec": {
                        "containers": [{"name": "main", "image": "x"}],
                        "restartPolicy": "Never",
                        "terminationGracePeriodSeconds": 30,
                    }
                },
            }
        ],
    }
    assert (
        KINDS["TrainingJob"].model_validate(smallest).spec
        == KINDS["TrainingJob"].model_validate(smallest | {"spec": made}).spec
    )
    assert try_to_create(api, {**queue(), "spec": {}})["spec"] == {"weight": 1, "halfLifeSeconds": 604800}


def test_unknown_fields_of_a_pod_template_are_kept(api: Api) -> None:
    pod: Object = {
        "containers": [{"name": "main", "image": "x", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        "securityContext": {"runAsNonRoot": True},
        "volumes": [{"name": "data", "csi": {"driver": "x", "volumeAttributes": {"a": "b"}}}],
    }
    made = try_to_create(api, job(role={"template": {"metadata": {"labels": {"a": "b"}, "x": [1]}, "spec": pod}}))
    template = made["spec"]["roles"][0]["template"]
    assert template["metadata"] == {"labels": {"a": "b"}, "x": [1]}
    assert {key: template["spec"][key] for key in pod} == pod


@pytest.fixture
def admitted(api: Api, namespace: str) -> str:
    """The path of a job that is admitted, as a status says."""
    return standing(api, namespace, "Admitted")


def standing(api: Api, namespace: str, condition: str) -> str:
    item = job(role={"replicas": 4, "minReplicas": 2}, flavors=["h200"])
    item["metadata"]["namespace"] = namespace
    api.create(place(item), item)
    path = f"{place(item)}/j"
    set_condition(api, path, condition, "True")
    return path


def set_condition(api: Api, path: str, condition: str, status: str) -> None:
    written = {"type": condition, "status": status, "reason": "Written", "lastTransitionTime": NOW}
    api.patch(f"{path}/status", {"status": {"conditions": [written]}})


def role(**fields: Any) -> Object:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    return {"roles": [{"name": "trainer", "replicas": 4, "minReplicas": 2, "template": template, **fields}]}


def edited(item: Object, change: Object) -> tuple[TrainingJob, TrainingJob]:
    """The job as it is and as it would be, for Muster's own judgement of an edit."""
    spec = {name: value for name, value in (item["spec"] | change).items() if value is not None}
    return TrainingJob.model_validate(item), TrainingJob.model_validate(item | {"spec": spec})


FROZEN = [
    ("spec.queue", {"queue": "other"}),
    ("spec.flavors", {"flavors": ["a100"]}),
    ("spec.flavors", {"flavors": None}),
    ("spec.topology", {"topology": {"required": "rack"}}),
    ("spec.roles", role(name="other")),
    ("spec.roles", role(essential=True, flavors=["a100"])),
    ("spec.roles", role(topology={"preferred": "rack"})),
    ("spec.roles", role(template={"spec": {"containers": [{"name": "main", "image": "y"}]}})),
    ("spec.roles", role(template={"spec": {"containers": [{"name": "main", "image": "x"}], "hostNetwork": True}})),
    ("spec.roles", {"roles": [*role()["roles"], *role(name="other")["roles"]]}),
]


@pytest.mark.parametrize(("field", "change"), FROZEN, ids=str)
def test_an_admitted_job_keeps_its_queue_flavors_topology_and_roles(
    api: Api, admitted: str, field: str, change: Object
) -> None:
    refused = rf"{field}:? .*cannot be changed while .* is admitted; suspend it first"
    with pytest.raises(Refused, match=refused):
        api.patch(admitted, {"spec": change})
    with pytest.raises(InvalidSpec, match=refused):
        check_edit(*edited(api.get(admitted), change))
    set_condition(api, admitted, "Admitted", "False")
    api.patch(admitted, {"spec": change})


def test_a_job_keeps_its_queue_until_the_pods_that_are_charged_to_it_have_ended(api: Api, namespace: str) -> None:
    stopping, change = standing(api, namespace, "Terminating"), {"queue": "other"}
    with pytest.raises(Refused, match=r"spec.queue .*wait until its pods have ended"):
        api.patch(stopping, {"spec": change})
    with pytest.raises(InvalidSpec, match=r"spec.queue: .*before the pods of job 'j' have ended"):
        check_edit(*edited(api.get(stopping), change))
    other = {"flavors": ["a100"]}
    check_edit(*edited(api.get(stopping), other))
    api.patch(stopping, {"spec": other})
    set_condition(api, stopping, "Terminating", "False")
    check_edit(*edited(api.get(stopping), change))
    api.patch(stopping, {"spec": change})


def test_an_update_with_a_status_is_subject_to_the_same_rules(api: Api, admitted: str) -> None:
    """Rules about edits do not look at the spec where the phase changes: no one write can change both."""
    api.patch(f"{admitted}/status", {"status": {"phase": "Admitted"}})
    both = {"spec": {"queue": "other"}, "status": {"phase": "Running"}}
    with pytest.raises(Refused, match=r"spec.queue .*suspend it first"):
        api.patch(admitted, both)
    api.patch(f"{admitted}/status", both)
    stored = api.get(admitted)
    assert (stored["spec"]["queue"], stored["status"]["phase"]) == ("default", "Running")
    with pytest.raises(Refused, match=r"spec.roles .*suspend it first"):
        api.patch(admitted, {"spec": role(name="other"), "status": {"phase": "Failed"}})


@pytest.mark.parametrize(
    "change",
    [
        role(replicas=8),
        role(minReplicas=None),
        role(minReplicas=4),
        {"suspend": True},
        {"priority": 5},
        {"cancel": True},
    ],
    ids=str,
)
def test_an_admitted_job_can_be_scaled_suspended_reordered_and_cancelled(
    api: Api, admitted: str, change: Object
) -> None:
    check_edit(*edited(api.get(admitted), change))
    api.patch(admitted, {"spec": change})


@pytest.mark.parametrize("end", ["Complete", "Failed", "Cancelled"])
def test_a_finished_job_is_immutable(api: Api, namespace: str, end: str) -> None:
    finished = standing(api, namespace, end)
    with pytest.raises(Refused, match=r"spec: .*only spec.ttlSecondsAfterFinished can be changed"):
        api.patch(finished, {"spec": {"suspend": True}})
    api.patch(finished, {"metadata": {"labels": {"a": "b"}}})


@pytest.mark.parametrize("end", ["Complete", "Failed", "Cancelled"])
def test_the_ttl_of_a_finished_job_can_be_set_changed_and_removed(api: Api, namespace: str, end: str) -> None:
    finished = standing(api, namespace, end)
    for ttl in (3600, 60, None):
        check_edit(*edited(api.get(finished), {"ttlSecondsAfterFinished": ttl}))
        assert (
            api.patch(finished, {"spec": {"ttlSecondsAfterFinished": ttl}})["spec"].get("ttlSecondsAfterFinished")
            == ttl
        )
    with pytest.raises(Refused, match=r"spec: .*after the job has finished"):
        api.patch(finished, {"spec": {"ttlSecondsAfterFinished": 5, "priority": 7}})


def test_a_role_without_replicas_is_refused_with_one_error(api: Api) -> None:
    pod = {"containers": [{"name": "main", "resources": {"requests": {"cpu": 1}}}]}
    with pytest.raises(Refused) as refused:
        try_to_create(api, job(role={"replicas": 0, "template": {"spec": pod}}))
    assert "division" not in str(refused.value)


def test_a_cancelled_job_stays_cancelled(api: Api, admitted: str) -> None:
    api.patch(admitted, {"spec": {"cancel": True}})
    with pytest.raises(Refused, match=r"spec.cancel: .*must not be changed from true to false"):
        api.patch(admitted, {"spec": {"cancel": False}})


def test_the_status_is_a_subresource(api: Api, admitted: str) -> None:
    before = api.get(admitted)
    api.patch(admitted, {"status": {"phase": "Succeeded"}})
    api.patch(f"{admitted}/status", {"spec": {"suspend": True}, "status": {"attempt": 3}})
    after = api.get(admitted)
    assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], before["metadata"]["generation"])
    assert after["status"] == before["status"] | {"attempt": 3}


def test_the_operators_replacement_of_a_status_changes_nothing_else_and_needs_uid_and_version(
    plane: ControlPlane, api: Api, namespace: str
) -> None:
    manifest = json.dumps(job() | {"metadata": {"name": "j", "namespace": namespace, "labels": {"team": "blue"}}})
    plane.kubectl("apply", "--server-side", "--field-manager=alice", "-f", "-", stdin=manifest)
    path = f"{GROUP}/namespaces/{namespace}/trainingjobs/j"

    def replace(seen: Object, status: TrainingJobStatus) -> Object:
        metadata = TrainingJob.model_validate(seen).metadata
        return api.request("PUT", f"{path}/status", status_replacement(metadata, status))

    first = api.get(path)
    replace(first, TrainingJobStatus(phase="Admitted", attempt=1, reason="Admitted", queue_position=2))
    second = api.get(path)
    replace(second, TrainingJobStatus(phase="Running", attempt=1))
    third = api.get(path)
    assert third["status"] == {"phase": "Running", "attempt": 1}
    assert third["spec"] == first["spec"]
    unchanged = ("uid", "generation", "labels", "creationTimestamp")
    assert [third["metadata"][name] for name in unchanged] == [first["metadata"][name] for name in unchanged]
    assert third["metadata"]["managedFields"][0] == first["metadata"]["managedFields"][0], "what alice applied"
    for stale in ({"resourceVersion": second["metadata"]["resourceVersion"]}, {"uid": "of-one-before"}):
        with pytest.raises(Refused) as refused:
            replace(third | {"metadata": third["metadata"] | stale}, TrainingJobStatus(phase="Pending"))
        assert refused.value.code == 409
    api.delete(path)
    with pytest.raises(Refused) as refused:
        replace(third, TrainingJobStatus(phase="Pending"))
    assert refused.value.code == 404


def test_kubectl_scale_writes_the_size_of_the_one_elastic_role(plane: ControlPlane, api: Api, admitted: str) -> None:
    namespace = api.get(admitted)["metadata"]["namespace"]

    def scale(number: int, name: str = "j") -> None:
        plane.kubectl("-n", namespace, "scale", f"tj/{name}", f"--replicas={number}")

    scale(3)
    assert (api.get(admitted)["spec"]["elasticReplicas"], api.get(admitted)["spec"]["roles"][0]["replicas"]) == (3, 4)
    api.patch(f"{admitted}/status", {"status": {"elasticReplicas": 2, "selector": "muster.dev/job=j"}})
    seen = api.get(f"{admitted}/scale")
    assert (seen["spec"]["replicas"], seen["status"]) == (3, {"replicas": 2, "selector": "muster.dev/job=j"})
    for number in (0, 1, 5):
        with pytest.raises(CommandFailed, match="elasticReplicas"):
            scale(number)
    rigid = job("rigid")
    rigid["metadata"]["namespace"] = namespace
    api.create(place(rigid), rigid)
    with pytest.raises(CommandFailed, match="exactly one elastic role"):
        scale(2, "rigid")
    assert api.get(admitted)["spec"]["elasticReplicas"] == 3


def test_an_invalid_status_is_refused(api: Api, admitted: str) -> None:
    with pytest.raises(Refused, match=r'status.phase: Unsupported value: "Lost"'):
        api.patch(f"{admitted}/status", {"status": {"phase": "Lost"}})


def test_roles_are_merged_by_name(plane: ControlPlane, namespace: str) -> None:
    def apply(manager: str, *roles: Object) -> list[Object]:
        item = job(roles=list(roles))
        item["metadata"]["namespace"] = namespace
        flags = ("apply", "--server-side", f"--field-manager={manager}", "-o", "json", "-f", "-")
        made: list[Object] = json.loads(plane.kubectl(*flags, stdin=json.dumps(item)))["spec"]["roles"]
        return made

    (trainer,) = role()["roles"]
    apply("one", trainer)
    made = apply("two", {**trainer, "name": "reader"})
    assert [entry["name"] for entry in made] == ["trainer", "reader"]


def test_kubectl_get_shows_state_queue_pods_position_reason_and_age(plane: ControlPlane, namespace: str) -> None:
    api = plane.api
    item = job(queue="research")
    item["metadata"]["namespace"] = namespace
    api.create(place(item), item)
    written = {"phase": "Running", "reason": "Starting", "podsReady": 3, "podsWanted": 4, "queuePosition": 2}
    api.patch(f"{place(item)}/j/status", {"status": written})
    header, line = plane.kubectl("get", "tj", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "PHASE", "QUEUE", "READY", "PODS", "POSITION", "REASON", "AGE"]
    assert line.split()[:-1] == ["j", "Running", "research", "3", "4", "2", "Starting"]
    assert "trainingjob.muster.dev/j" in plane.kubectl("get", "all", "-n", namespace)


def test_kubectl_get_shows_queues_and_flavors(plane: ControlPlane) -> None:
    api = plane.api
    items = [queue("shown", parent="company", weight=2), flavor("shown", topology=[{"name": "rack", "nodeLabel": "r"}])]
    for item in items:
        api.create(place(item), item)
    try:
        active = {"type": "Active", "status": "False", "reason": "ParentNotFound", "lastTransitionTime": NOW}
        amounts = {"flavor": "shown", "used": {"nvidia.com/gpu": "8"}}
        usage = {"pendingJobs": 3, "admittedJobs": 4, "flavors": [amounts], "at": NOW}
        usage |= {"used": "h100: 8 nvidia.com/gpu; l4: 2 cpu", "guaranteed": "h100: 16 nvidia.com/gpu"}
        api.patch(f"{GROUP}/queues/shown/status", {"status": {"conditions": [active], "usage": usage}})
        header, line = plane.kubectl("get", "mq", "shown").splitlines()
        assert header.split() == [
            "NAME",
            "PARENT",
            "WEIGHT",
            "PENDING",
            "ADMITTED",
            "ACTIVE",
            "OVERCOMMITTED",
            "REASON",
            "AGE",
        ]
        assert line.split()[:-1] == ["shown", "company", "2", "3", "4", "False", "ParentNotFound"]
        wide, line = plane.kubectl("get", "mq", "shown", "-o", "wide").splitlines()
        assert wide.split()[len(header.split()) :] == ["USED", "GUARANTEED", "MESSAGE"]
        assert f"{usage['used']}   {usage['guaranteed']}" in line
        assert "rack" in plane.kubectl("get", "mf", "shown")
        both = plane.kubectl("get", "muster", "-o", "name").split()
        assert {"queue.muster.dev/shown", "flavor.muster.dev/shown"} <= set(both)
    finally:
        for item in items:
            api.delete(f"{place(item)}/shown")


def test_kubectl_explain_describes_a_field(plane: ControlPlane) -> None:
    assert "The queue whose quota the job uses." in plane.kubectl("explain", "trainingjob.spec.queue")
