"""The chart's ValidatingAdmissionPolicies, evaluated by the API server: what the operator's account may create."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.binaries import Unavailable
from tests.cluster.controlplane.plane import ControlPlane
from tests.helm.conftest import CHART
from tests.manifests.objects import job

SYSTEM = "muster-system"
OPERATOR = "muster-operator"
POLICIES = ("muster-operator-pods", "muster-operator-secrets", "muster-operator-users")
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
PODS = "/api/v1/namespaces/default/pods"

Object = dict[str, Any]

OWNER = {
    "apiVersion": "muster.dev/v1alpha1",
    "kind": "TrainingJob",
    "name": "j",
    "uid": "6f6f0f0e-0000-4000-8000-000000000000",
    "controller": True,
    "blockOwnerDeletion": True,
}
POD: Object = {
    "metadata": {"generateName": "p-", "ownerReferences": [OWNER]},
    "spec": {"containers": [{"name": "c", "image": "x"}], "initContainers": [{"name": "i", "image": "x"}]},
}
SECRET: Object = {"metadata": {"generateName": "s-", "ownerReferences": [OWNER]}}


def install(plane: ControlPlane, *settings: str) -> None:
    values = ("image.repository=registry.example.com/operator", "collector.image.repository=registry.example.com/t")
    flags = [
        f"--set={value}"
        for value in (*values, "admissionPolicy.enabled=true", "admissionPolicy.userLabel=true", *settings)
    ]
    plane.helm("upgrade", "--install", "muster", str(CHART), "--namespace", SYSTEM, "--create-namespace", *flags)


def allow(*names: str) -> tuple[str, ...]:
    return tuple(f"admissionPolicy.allow.{name}=true" for name in names)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this file's own, since a policy holds for all of it. The API server acts by a policy soon
    after it was written: it does when it refuses what the last rule of each refuses."""
    try:
        started = ControlPlane.start(tmp_path_factory.mktemp("policy"))
    except Unavailable as error:
        pytest.fail(str(error), pytrace=False)
    with started as plane:
        install(plane)
        operator = as_operator(plane)
        strange = copy.deepcopy(SECRET) | {"type": "example.com/strange"}

        def act() -> bool:
            return bool(refuses(operator, host("hostIPC")) and refuses_secret(plane, strange))

        plane.wait_for("the policies act", act)
        yield plane


def as_operator(plane: ControlPlane) -> Api:
    return Api(plane.server, plane.authority, plane.token_for_service_account(SYSTEM, OPERATOR))


def refuses(api: Api, pod: Object) -> str:
    """What the policy says of a pod; "" where the API server takes it."""
    return _refusal(api, PODS, pod, POLICIES[0])


def refuses_secret(plane: ControlPlane, secret: Object, namespace: str = "default") -> str:
    return _refusal(as_operator(plane), f"/api/v1/namespaces/{namespace}/secrets", secret, POLICIES[1])


def _refusal(api: Api, path: str, item: Object, policy: str) -> str:
    try:
        api.create(f"{path}?dryRun=All", item)
    except Refused as error:
        if policy not in str(error):
            raise
        return str(error)
    return ""


def changed(change: Callable[[Object], Any]) -> Object:
    pod = copy.deepcopy(POD)
    change(pod)
    return pod


def host(field: str) -> Object:
    return changed(lambda pod: pod["spec"].update({field: True}))


def owned_by(**fields: Any) -> Object:
    return changed(lambda pod: pod["metadata"].update(ownerReferences=[{**OWNER, **fields}]))


def privileged(kind: str) -> Object:
    return changed(lambda pod: pod["spec"][kind][0].update(securityContext={"privileged": True}))


def host_path(pod: Object) -> None:
    pod["spec"]["volumes"] = [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/etc"}}]


PRIVILEGES = {
    "a privileged container": (privileged("containers"), "privileged"),
    "a privileged init container": (privileged("initContainers"), "privileged"),
    "a hostPath volume": (changed(host_path), "hostPath"),
    "the host's network": (host("hostNetwork"), "hostNetwork"),
    "the host's processes": (host("hostPID"), "hostPID"),
    "the host's IPC": (host("hostIPC"), "hostIPC"),
}


@pytest.mark.parametrize(("pod", "field"), PRIVILEGES.values(), ids=PRIVILEGES)
def test_a_pod_with_a_privilege_of_its_node_is_refused_by_field_and_value(
    plane: ControlPlane, pod: Object, field: str
) -> None:
    refusal = refuses(as_operator(plane), pod)
    assert field in refusal
    assert f"admissionPolicy.allow.{field}" in refusal


STRANGERS = {
    "without an owner": changed(lambda pod: pod["metadata"].pop("ownerReferences")),
    "of a Job": owned_by(apiVersion="batch/v1", kind="Job"),
    "of a kind of that name in another group": owned_by(apiVersion="example.com/v1"),
    "that a job does not control": owned_by(controller=False),
}


@pytest.mark.parametrize("pod", STRANGERS.values(), ids=STRANGERS)
def test_a_pod_that_no_training_job_controls_is_refused(plane: ControlPlane, pod: Object) -> None:
    assert "TrainingJob" in refuses(as_operator(plane), pod)


def test_an_ordinary_pod_of_a_job_is_created(plane: ControlPlane) -> None:
    assert not refuses(as_operator(plane), POD)
    limits = {"privileged": False, "runAsNonRoot": True}
    careful = changed(lambda pod: pod["spec"]["containers"][0].update(securityContext=limits))
    assert not refuses(as_operator(plane), careful)


def test_other_accounts_than_the_operator_are_not_restricted(plane: ControlPlane) -> None:
    assert not refuses(plane.api, STRANGERS["without an owner"])
    for pod, _ in PRIVILEGES.values():
        assert not refuses(plane.api, pod)


def test_a_secret_must_belong_to_a_job_and_must_not_be_a_service_account_token(plane: ControlPlane) -> None:
    assert not refuses_secret(plane, SECRET)
    assert refuses_secret(plane, {"metadata": {"name": "s"}})
    token = {"type": "kubernetes.io/service-account-token"}
    account = {"annotations": {"kubernetes.io/service-account.name": "default"}}
    assert refuses_secret(plane, {**token, "metadata": {**SECRET["metadata"], **account}})
    key = {"metadata": {"name": "muster-operator-collector-key"}}
    assert not refuses_secret(plane, key, SYSTEM)
    assert refuses_secret(plane, {**token, "metadata": {**key["metadata"], **account}}, SYSTEM)


def test_the_api_server_reports_no_error_in_the_expressions(plane: ControlPlane) -> None:
    base = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def status(name: str) -> Object:
        found: Object = plane.api.get(f"{base}/{name}").get("status", {})
        return found

    plane.wait_for("the expressions were checked", lambda: all("typeChecking" in status(name) for name in POLICIES))
    assert {name: status(name)["typeChecking"] for name in POLICIES} == {name: {} for name in POLICIES}


@pytest.mark.parametrize("field", ["privileged", "hostPath", "hostNetwork", "hostPID", "hostIPC"])
def test_only_pods_that_the_values_allow_are_created(plane: ControlPlane, field: str) -> None:
    install(plane, *allow(field))
    operator = as_operator(plane)
    try:
        # The rules change together: when what is allowed now is taken, the others are those of these values.
        plane.wait_for(
            "the values act", lambda: not any(refuses(operator, pod) for pod, f in PRIVILEGES.values() if f == field)
        )
        for pod, other in PRIVILEGES.values():
            assert bool(refuses(operator, pod)) == (other != field)
    finally:
        install(plane)
        plane.wait_for("all is refused again", lambda: all(refuses(operator, pod) for pod, _ in PRIVILEGES.values()))


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
