"""The chart's ValidatingAdmissionPolicies, evaluated by the API server: what the operator's account may do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from tests.cluster.controlplane.access import ADMIN
from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.binaries import Unavailable
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.policy_objects import (
    GROUP,
    GROUPS,
    KINDS,
    OWN_KEY,
    OWN_SECRETS,
    OWNER,
    POD,
    PRIVILEGES,
    SECOND,
    SECRET,
    SECRETS,
    SERVICES,
    STRANGERS,
    TWICE_OWNED,
    Object,
    capable,
    changed,
    host,
)
from tests.helm.conftest import CHART
from tests.manifests.objects import job

SYSTEM = "muster-system"
OPERATOR = "muster-operator"
PARTS = (
    "objects",
    "pods",
    "services",
    "secrets",
    "deletions",
    "queues",
    "own",
    "queued",
    "held",
    "gate",
    "attempt",
    "users",
)
CPUS = {"requests": {"cpu": "1"}}
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def install(plane: ControlPlane, *settings: str, flags: tuple[str, ...] = ()) -> None:
    images = ("image.repository=registry.example.com/operator", "collector.image.repository=registry.example.com/t")
    values = (*images, "admissionPolicy.userLabel=true", "operator.podGroups=true", "queuedKinds[0]=Job", *settings)
    set_values = [f"--set={value}" for value in values]
    plane.helm(
        "upgrade", "--install", "muster", str(CHART), "--namespace", SYSTEM, "--create-namespace", *set_values, *flags
    )


def allow(*names: str) -> tuple[str, ...]:
    return tuple(f"admissionPolicy.allow.{name}=true" for name in names)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this file's own, since a policy holds for all of it. The API server acts by a policy soon
    after it was written: it does when it refuses what the last rule of each refuses."""
    try:
        gates = ("GenericWorkload", "GangScheduling")
        folder = tmp_path_factory.mktemp("policy")
        started = ControlPlane.start(folder, scheduler=False, kwok=False, gates=gates)
    except Unavailable as error:
        pytest.fail(str(error), pytrace=False)
    with started as plane:
        install(plane)
        plane.wait_for("the policies act", lambda: all(refuses(plane, *bad) for bad in LAST_RULES))
        yield plane


def as_operator(plane: ControlPlane) -> Api:
    return Api(plane.server, plane.authority, plane.token_for_service_account(SYSTEM, OPERATOR))


def refuses(plane: ControlPlane, kind: str, item: Object, namespace: str = "default", api: Api | None = None) -> str:
    """What a policy says when the operator creates this; "" where the API server takes it."""
    api_group = GROUPS if kind == "podgroups" else "/api/v1"
    path = f"{api_group}/namespaces/{namespace}/{kind}?dryRun=All"
    return refusal(lambda: (api or as_operator(plane)).create(path, item))


def refusal(request: Callable[[], Any]) -> str:
    """What a policy says of a request; "" where the API server takes it."""
    try:
        request()
    except Refused as error:
        if "ValidatingAdmissionPolicy 'muster-operator-" not in str(error):
            raise
        return str(error)
    return ""


@pytest.mark.parametrize(("pod", "field"), PRIVILEGES.values(), ids=PRIVILEGES)
def test_a_pod_with_a_privilege_of_its_node_is_refused_by_field_and_value(
    plane: ControlPlane, pod: Object, field: str
) -> None:
    why = refuses(plane, "pods", pod)
    assert field in why
    assert f"admissionPolicy.allow.{field}" in why


PLACES = ("kube-system", "kube-public", SYSTEM)


@pytest.mark.parametrize("pod", STRANGERS.values(), ids=STRANGERS)
def test_a_pod_that_has_another_owner_than_a_training_job_is_refused(plane: ControlPlane, pod: Object) -> None:
    assert "exactly one owner, the TrainingJob" in refuses(plane, "pods", pod)


@pytest.mark.parametrize("kind", ["secrets", "services", "podgroups"])
def test_what_else_has_another_owner_than_a_training_job_is_refused(plane: ControlPlane, kind: str) -> None:
    for owners in (TWICE_OWNED, {"ownerReferences": [SECOND]}, {}):
        item = {**KINDS[kind], "metadata": {"name": KINDS[kind]["metadata"]["name"], **owners}}
        assert refuses(plane, kind, item)


@pytest.mark.parametrize("namespace", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_created_in_namespaces_of_kubernetes_or_of_the_operator(
    plane: ControlPlane, kind: str, namespace: str
) -> None:
    assert "namespace" in refuses(plane, kind, KINDS[kind], namespace)


def test_what_the_operator_writes_for_a_job_is_created(plane: ControlPlane) -> None:
    for kind, item in KINDS.items():
        assert not refuses(plane, kind, item), kind
    limits = {"privileged": False, "runAsNonRoot": True}
    careful = changed(lambda pod: pod["spec"]["containers"][0].update(securityContext=limits))
    assert not refuses(plane, "pods", careful)
    assert not refuses(plane, "pods", capable("containers", "SYS_PTRACE"))
    of_digit = {"name": "j1-12345-collector", "ownerReferences": [{**OWNER, "name": "1"}]}
    assert not refuses(plane, "secrets", {**SECRET, "metadata": of_digit})
    assert not refuses(plane, "secrets", OWN_KEY, SYSTEM)


def test_a_pod_is_not_bound_by_the_operator(plane: ControlPlane) -> None:
    assert "nodeName" in refuses(plane, "pods", changed(lambda pod: pod["spec"].update(nodeName="n")))


def test_other_accounts_than_the_operator_are_not_restricted(plane: ControlPlane) -> None:
    assert not refuses(plane, "pods", STRANGERS["without an owner"], "default", plane.api)
    for pod, _ in PRIVILEGES.values():
        assert not refuses(plane, "pods", pod, "default", plane.api)
    plane.api.create("/api/v1/namespaces/kube-system/services?dryRun=All", {"metadata": {"name": "s"}, "spec": {
        "type": "ExternalName", "externalName": "example.com"}})  # fmt: skip


@pytest.mark.parametrize("item", SERVICES.values(), ids=SERVICES)
def test_a_service_that_is_more_than_names_of_pods_of_its_job_is_refused(plane: ControlPlane, item: Object) -> None:
    assert refuses(plane, "services", item)


@pytest.mark.parametrize("item", SECRETS.values(), ids=SECRETS)
def test_a_secret_that_is_not_the_token_of_a_jobs_collectors_is_refused(plane: ControlPlane, item: Object) -> None:
    assert refuses(plane, "secrets", item)


@pytest.mark.parametrize("item", OWN_SECRETS.values(), ids=OWN_SECRETS)
def test_a_secret_in_the_operators_namespace_that_is_not_its_key_is_refused(plane: ControlPlane, item: Object) -> None:
    assert refuses(plane, "secrets", item, SYSTEM)


def test_only_pods_with_the_label_of_a_job_are_deleted(plane: ControlPlane) -> None:
    api, operator = plane.api, as_operator(plane)

    def deletes(namespace: str, labels: dict[str, str]) -> str:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        name = api.create(pods, {**POD, "metadata": {"generateName": "p-", "labels": labels}})["metadata"]["name"]
        why = refusal(lambda: operator.delete(f"{pods}/{name}", gracePeriodSeconds=0))
        if why:
            api.delete(f"{pods}/{name}", gracePeriodSeconds=0)
        return why

    assert not deletes("default", {"muster.dev/job": "j"})  # also where it has lost its owner
    assert "label muster.dev/job" in deletes("default", {"app": "theirs"})
    assert "kube-*" in deletes("kube-system", {"muster.dev/job": "j"})
    assert "its own namespace" in deletes(SYSTEM, {"muster.dev/job": "j"})


def test_only_pod_groups_of_jobs_are_deleted(plane: ControlPlane) -> None:
    operator, groups = as_operator(plane), f"{GROUPS}/namespaces/default/podgroups"
    for name, labels in (("ours", {"muster.dev/job": "j"}), ("theirs", {"app": "theirs"})):
        plane.api.create(groups, {**GROUP, "metadata": {"name": name, "labels": labels}})
    assert not refusal(lambda: operator.delete(f"{groups}/ours"))
    assert "label muster.dev/job" in refusal(lambda: operator.delete(f"{groups}/theirs"))


def test_of_a_queue_the_operator_writes_the_finalizer_and_not_the_spec(plane: ControlPlane) -> None:
    operator, path = as_operator(plane), "/apis/muster.dev/v1alpha1/queues/default"
    assert not refusal(lambda: operator.patch(path, {"metadata": {"finalizers": ["muster.dev/in-use"]}}))
    why = refusal(lambda: operator.patch(path, {"spec": {"maxPriority": 9}}))
    assert "does not change the spec of a queue" in why
    why = refusal(lambda: operator.patch(path, {"metadata": {"ownerReferences": [SECOND]}}))
    assert "does not change the owners of a queue" in why, "the garbage collector deletes what has an absent owner"
    operator.patch(path, {"metadata": {"finalizers": None}})


def test_of_pods_and_jobs_the_operator_changes_where_and_when_they_run_only(plane: ControlPlane) -> None:
    operator, jobs = as_operator(plane), "/apis/batch/v1/namespaces/default/jobs"
    pods = "/api/v1/namespaces/default/pods"
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "theirs"}]}
    strategic = "application/strategic-merge-patch+json"

    def change_image(name: str) -> None:
        image = {"spec": {"containers": [{"name": "c", "image": "other"}]}}
        operator.request("PATCH", f"{pods}/{name}", image, strategic)

    for name, labels in (("queued", {"muster.dev/queue": "q"}), ("other", {})):
        meta = {"name": name, "labels": labels}
        plane.api.create(jobs, {"metadata": meta, "spec": {"suspend": True, "template": {"spec": pod}}})
    for name, gate in (("gated", "muster.dev/admission"), ("theirs", "example.com/gate")):
        plane.api.create(pods, {"metadata": {"name": name}, "spec": {**pod, "schedulingGates": [{"name": gate}]}})
    assert not refusal(lambda: operator.patch(f"{jobs}/queued", {"spec": {"suspend": False}}))
    assert "with the label muster.dev/queue" in refusal(
        lambda: operator.patch(f"{jobs}/other", {"spec": {"suspend": False}})
    )
    assert "does not change containers" in refusal(lambda: change_image("gated"))
    assert "with the scheduling gate" in refusal(lambda: change_image("theirs"))
    assert not refusal(lambda: operator.patch(f"{pods}/gated", {"spec": {"schedulingGates": None}}))
    assert "with the scheduling gate" in refusal(
        lambda: operator.patch(f"{pods}/gated", {"metadata": {"labels": {"a": "b"}}})
    )
    for path in (f"{jobs}/queued", f"{jobs}/other", f"{pods}/gated", f"{pods}/theirs"):
        plane.api.delete(path, gracePeriodSeconds=0)


def test_labelled_jobs_are_held_and_only_the_operator_resumes_them(plane: ControlPlane) -> None:
    """In a namespace that has opted in; a user may edit Jobs there in any way."""
    operator, space = as_operator(plane), "held"
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": space, "labels": {"muster.dev/queueing": "enabled"}}})
    jobs = f"/apis/batch/v1/namespaces/{space}/jobs"
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    label = "muster.dev/queue"

    def create(name: str, path: str = jobs, queue: str | None = "q") -> Any:
        meta = {"name": name, "labels": {} if queue is None else {label: queue}}
        return plane.api.create(path, {"metadata": meta, "spec": {"parallelism": 2, "template": {"spec": pod}}})

    def is_held() -> bool:
        try:
            return create("try", f"{jobs}?dryRun=All")["spec"].get("suspend") is True
        except Refused:
            return False  # only one of the policies acts yet: a policy acts soon after it was written

    def edit(**fields: Any) -> str:
        return refusal(lambda: plane.api.patch(f"{jobs}/held", fields))

    plane.wait_for("the policies act", is_held)
    assert create("held")["spec"]["suspend"] is True
    assert not create("free", queue=None)["spec"].get("suspend")
    assert not create("elsewhere", "/apis/batch/v1/namespaces/default/jobs")["spec"].get("suspend")
    assert "Muster resumes it" in edit(spec={"suspend": False})
    assert "Muster resumes it" in edit(spec={"suspend": None})
    assert not edit(spec={"parallelism": 3})
    assert not edit(metadata={"labels": {label: "other"}})
    gate = {"schedulingGates": [{"name": "muster.dev/admission"}]}
    operator.patch(f"{jobs}/held", {"spec": {"suspend": False, "template": {"spec": gate}}})
    for value in (None, "q"):
        assert "must not be changed while" in edit(metadata={"labels": {label: value}})
    assert "must not be increased" in edit(spec={"parallelism": 4})
    assert not edit(spec={"parallelism": 1})
    assert not edit(metadata={"annotations": {"muster.dev/suspend": "true"}})
    assert not edit(spec={"suspend": True})
    for path in (f"{jobs}/held", f"{jobs}/free", "/apis/batch/v1/namespaces/default/jobs/elsewhere"):
        plane.api.delete(path, propagationPolicy="Background")


def test_only_the_operator_removes_the_gate_and_changes_what_names_the_object_of_a_pod(plane: ControlPlane) -> None:
    operator, pods = as_operator(plane), "/api/v1/namespaces/default/pods"
    gate = {"schedulingGates": [{"name": "muster.dev/admission"}]}
    spec = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}], **gate}
    attempt, owner = {"labels": {"muster.dev/attempt": "0"}}, {"annotations": {"muster.dev/object": "u/pods/o"}}
    plane.api.create(pods, {"metadata": {"name": "waits", **attempt, **owner}, "spec": spec})
    for change in ({"labels": None}, {"labels": {"muster.dev/attempt": "1"}}, {"annotations": None}):
        why = refusal(partial(plane.api.patch, f"{pods}/waits", {"metadata": change}))
        assert "only Muster changes the label" in why
    assert not refusal(lambda: plane.api.patch(f"{pods}/waits", {"metadata": {"labels": {"other": "x"}}}))
    why = refusal(lambda: plane.api.patch(f"{pods}/waits", {"spec": {"schedulingGates": None}}))
    assert "only Muster removes" in why
    assert not refusal(lambda: operator.patch(f"{pods}/waits", {"spec": {"schedulingGates": None}}))
    plane.api.delete(f"{pods}/waits", gracePeriodSeconds=0)


def test_users_make_up_no_pods_of_an_admission_and_take_no_gate_out_of_a_template(plane: ControlPlane) -> None:
    """A user with the role `edit`; the Job controller and who may admit may do both."""
    space = "tenants"
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": space, "labels": {"muster.dev/queueing": "enabled"}}})
    plane.kubectl("create", "rolebinding", "alice", "--clusterrole=edit", "--user=alice", f"--namespace={space}")
    alice, operator = plane.api_as("alice"), as_operator(plane)
    pods, jobs = f"/api/v1/namespaces/{space}/pods", f"/apis/batch/v1/namespaces/{space}/jobs"
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    made_up = {"metadata": {"name": "p", "labels": {"muster.dev/attempt": "0"}}, "spec": pod}
    plane.wait_for("alice has her role", lambda: can_create(alice, pods, {**made_up, "metadata": {"name": "p"}}))
    assert "create pods with the label muster.dev/attempt" in refusal(lambda: alice.create(pods, made_up))
    admitted = {**made_up, "spec": {**pod, "containers": [{"name": "c", "image": "i", "resources": CPUS}]}}
    plane.api.create(pods, admitted)
    smaller = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1m"}}}]}}
    kind = "application/strategic-merge-patch+json"
    why = refusal(lambda: plane.api.request("PATCH", f"{pods}/p/resize", smaller, kind))
    assert "are not resized" in why, "what it requests would be believed of the next ones"
    plane.api.delete(f"{pods}/p", gracePeriodSeconds=0)
    gated = {**pod, "schedulingGates": [{"name": "muster.dev/admission"}]}
    meta = {"name": "job", "labels": {"muster.dev/queue": "q"}}
    template = {"metadata": {"labels": {"muster.dev/attempt": "0"}}, "spec": gated}
    alice.create(jobs, {"metadata": meta, "spec": {"suspend": True, "template": template}})
    ungate = {"spec": {"template": {"spec": {"schedulingGates": None}}}}
    assert "out of a pod template" in refusal(lambda: alice.patch(f"{jobs}/job", ungate))
    path = f"{jobs}/job?dryRun=All"
    assert not refusal(lambda: plane.api.patch(path, ungate)), "as muster release does"
    resumed = {"spec": {"suspend": False, **ungate["spec"]}}
    assert "is resumed with the scheduling gate" in refusal(lambda: operator.patch(path, resumed))
    operator.patch(f"{jobs}/job", {"spec": {"suspend": False}})
    plane.wait_for("the Job controller creates its pod", lambda: plane.api.items(pods) != [])
    plane.api.delete(f"{jobs}/job", propagationPolicy="Background")


def can_create(api: Api, path: str, item: Object) -> bool:
    """Whether the API server takes it."""
    try:
        api.create(f"{path}?dryRun=All", item)
    except Refused:
        return False
    return True


def test_of_its_own_namespace_the_operator_writes_its_lease_and_its_record_of_usage(plane: ControlPlane) -> None:
    operator, maps = as_operator(plane), f"/api/v1/namespaces/{SYSTEM}/configmaps"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
    authority = f"{maps}/kube-root-ca.crt"
    plane.wait_for("the CA is there", lambda: not plane.api.gone(authority))
    for request in (
        lambda: operator.create(maps, {"metadata": {"name": "other"}}),
        lambda: operator.create(maps, {"metadata": {"generateName": "other-"}}),
        lambda: operator.patch(authority, {"data": {"ca.crt": "forged"}}),
        lambda: operator.delete(authority),
        lambda: operator.create(leases, {"metadata": {"name": "other"}}),
    ):
        assert "only its Lease and its record of usage" in refusal(request)
    name = f"{OPERATOR}-usage-2026-11-21-0"
    operator.create(maps, {"metadata": {"name": name}})
    operator.patch(f"{maps}/{name}", {"data": {"a": "b"}})
    operator.delete(f"{maps}/{name}")
    operator.create(leases, {"metadata": {"name": OPERATOR}})
    plane.api.delete(f"{leases}/{OPERATOR}")


LAST_RULES: tuple[tuple[str, Object, str], ...] = (
    ("pods", STRANGERS["of a Job"], "default"),
    ("pods", host("hostIPC"), "default"),
    ("services", SERVICES["that selects nothing"], "default"),
    ("secrets", {**SECRET, "type": "example.com/strange"}, "default"),
)


def there(plane: ControlPlane, path: str) -> bool:
    return not plane.api.gone(path)


SELECTS = {
    "matchLabels": {"jobs": "yes"},
    "matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["a", "b"]},
        {"key": "zone", "operator": "NotIn", "values": ["x", "y"]},
        {"key": "team", "operator": "Exists"},
        {"key": "private", "operator": "DoesNotExist"},
    ],
}
SELECTED: dict[str, str | None] = {"jobs": "yes", "tier": "b", "team": ""}
NOT_SELECTED: list[dict[str, str | None]] = [
    {"jobs": "no"},
    {"tier": "c"},
    {"tier": None},
    {"zone": "y"},
    {"team": None},
    {"private": ""},
]


def test_objects_of_jobs_are_created_only_in_namespaces_that_the_value_selects(plane: ControlPlane) -> None:
    labels: list[dict[str, str | None]] = [SELECTED, {**SELECTED, "zone": "z"}]
    labels += [{**SELECTED, **change} for change in NOT_SELECTED]
    for number, one in enumerate(labels):
        kept = {key: value for key, value in one.items() if value is not None}
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": f"labelled-{number}", "labels": kept}})
        account = f"/api/v1/namespaces/labelled-{number}/serviceaccounts/default"
        plane.wait_for("the namespace has its account", partial(there, plane, account))
    sentence = "only in namespaces that admissionPolicy.namespaceSelector"
    install(plane, flags=(f"--set-json=admissionPolicy.namespaceSelector={json.dumps(SELECTS)}",))
    try:
        plane.wait_for("the value acts", lambda: sentence in refuses(plane, "pods", POD))
        for kind, item in KINDS.items():
            refused = [sentence in refuses(plane, kind, item, f"labelled-{number}") for number in range(len(labels))]
            assert refused == [False, False, *(True for _ in NOT_SELECTED)], kind
        assert not refuses(plane, "secrets", OWN_KEY, SYSTEM)
    finally:
        install(plane)
        plane.wait_for("all are selected", lambda: not refuses(plane, "pods", POD))


def test_the_api_server_reports_no_error_in_the_expressions(plane: ControlPlane) -> None:
    base = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def status(name: str) -> Object:
        found: Object = plane.api.get(f"{base}/{name}").get("status", {})
        return found

    names = [f"muster-operator-{part}" for part in PARTS]
    plane.wait_for("the expressions were checked", lambda: all("typeChecking" in status(name) for name in names))
    assert {name: status(name)["typeChecking"] for name in names} == {name: {} for name in names}


def test_only_pods_that_the_values_allow_are_created(plane: ControlPlane) -> None:
    def refused(pod: Object) -> bool:
        return bool(refuses(plane, "pods", pod))

    def taken(field: str) -> bool:
        return not any(refused(pod) for pod, other in PRIVILEGES.values() if other == field)

    try:
        for field in ("privileged", "hostPath", "hostNetwork", "hostPID", "hostIPC"):
            install(plane, *allow(field))
            # The rules change together: when what is allowed now is taken, the others are those of these values.
            plane.wait_for("the values act", partial(taken, field))
            assert {other for pod, other in PRIVILEGES.values() if not refused(pod)} == {field}
    finally:
        install(plane)
        plane.wait_for("all is refused again", lambda: all(refused(pod) for pod, _ in PRIVILEGES.values()))


def test_the_user_label_of_a_job_names_who_creates_it_and_is_not_changed(plane: ControlPlane) -> None:
    jobs = "/apis/muster.dev/v1alpha1/namespaces/default/trainingjobs"
    admin = str(plane.api.create(REVIEWS, {"kind": "SelfSubjectReview"})["status"]["userInfo"]["username"])

    def create(name: str, label: str | None) -> None:
        item = job()
        item["metadata"] = {"name": name, "labels": {} if label is None else {"muster.dev/user": label}}
        plane.api.create(jobs, item)

    def act() -> bool:
        with suppress(Refused):
            create("early", "another")
            plane.api.delete(f"{jobs}/early")
            return False
        return True

    plane.wait_for("the policy acts", act)
    with pytest.raises(Refused, match=f"must be absent or {admin}, the user who creates the job; got another"):
        create("a", "another")
    create("a", admin)
    create("b", None)
    for name in "ab":
        with pytest.raises(Refused, match="cannot be changed"):
            plane.api.patch(f"{jobs}/{name}", {"metadata": {"labels": {"muster.dev/user": "another"}}})
        plane.api.patch(f"{jobs}/{name}", {"metadata": {"labels": {"other": "x"}}})
        plane.api.delete(f"{jobs}/{name}")


def test_the_user_label_of_a_queued_kind_names_who_creates_it_too(plane: ControlPlane) -> None:
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}

    def create(label: str) -> str:
        meta = {"name": "of-user", "labels": {"muster.dev/user": label}}
        item = {"metadata": meta, "spec": {"suspend": True, "template": {"spec": pod}}}
        return refusal(lambda: plane.api.create(f"{jobs}?dryRun=All", item))

    admin = str(plane.api.create(REVIEWS, {"kind": "SelfSubjectReview"})["status"]["userInfo"]["username"])
    plane.wait_for("the policy acts", lambda: "the user who creates the job; got another" in create("another"))
    assert not create(admin)


def test_users_whose_names_differ_in_an_at_sign_have_different_labels(plane: ControlPlane) -> None:
    jobs = "/apis/muster.dev/v1alpha1/namespaces/default/trainingjobs"
    labels = {"ann@x.com": "ann_at_x.com", "ann.x.com": "ann.x.com", "a:b/c": "a__b_._c"}
    for user in labels:
        api = Api(plane.server, plane.authority, plane.token_for(ADMIN), user)
        for owner, label in labels.items():
            item = {**job(), "metadata": {"name": "of-user", "labels": {"muster.dev/user": label}}}
            if owner != user:
                with pytest.raises(Refused, match=f"must be absent or {re.escape(labels[user])}, the user"):
                    api.create(jobs, item)
                continue
            api.create(jobs, item)
            api.delete(f"{jobs}/of-user")
