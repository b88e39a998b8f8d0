"""The chart, installed with Helm: its objects, its roles, and an operator with its account and flags."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cluster.chart import CHART, GROUP, OPERATOR, ROOT, SYSTEM, Object, in_team, install, start
from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.kinds import controllers, team_objects
from tests.cluster.operator.process import free_ports
from tests.manifests.objects import job, queue

KEY = "muster-operator-collector-key"
NOW = "2026-11-21T10:00:00Z"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane with the chart: CRDs of a release cannot be shared with other tests."""
    with start(tmp_path_factory.mktemp("chart")) as plane:
        # Deployments are ready only if the API server lets their pods pass.
        enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM, "labels": enforced}})
        install(plane, CHART)
        for name in ("team-a", "team-b"):
            plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        plane.kubectl("create", "rolebinding", "alice", "--clusterrole=edit", "--user=alice", "--namespace=team-a")
        plane.kubectl("create", "rolebinding", "bob", "--clusterrole=view", "--user=bob", "--namespace=team-a")
        plane.wait_for("roles are aggregated", lambda: may(plane, "bob", "list", "trainingjobs.muster.dev", "team-a"))
        yield plane


def may(plane: ControlPlane, user: str, verb: str, resource: str, namespace: str = "", account: str = "") -> bool:
    """Whether the API server allows a request; `resource` is PLURAL[.GROUP][/SUBRESOURCE]."""
    name, _, sub = resource.partition("/")
    plural, _, group = name.partition(".")
    asks = {"verb": verb, "resource": plural, "group": group, "subresource": sub, "namespace": namespace}
    who: Object = {"user": user, "groups": ["system:authenticated"]}
    if account:
        who = {"user": f"system:serviceaccount:{SYSTEM}:{account}", "groups": ["system:serviceaccounts"]}
    review = {"spec": {"resourceAttributes": asks, **who}}
    made = plane.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    allowed: bool = made["status"]["allowed"]
    return allowed


def test_it_installs_two_operators_a_queue_and_a_flavor(plane: ControlPlane) -> None:
    status = plane.api.get(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{OPERATOR}")["status"]
    assert status["readyReplicas"] == 2
    spec = plane.api.get(f"{GROUP}/queues/default")["spec"]
    assert (spec["namespaceSelector"], spec["resources"]) == ({}, [{"flavor": "default"}])
    assert not plane.api.gone(f"{GROUP}/flavors/default")


def test_the_notes_name_the_queue_and_the_next_commands(plane: ControlPlane) -> None:
    notes = plane.helm("get", "notes", "muster", "--namespace", SYSTEM)
    assert f"kubectl -n {SYSTEM} rollout status deployment/{OPERATOR}" in notes
    assert 'Submit to queue "default"' in notes


DOES = [
    ("list", "trainingjobs.muster.dev"),
    ("watch", "trainingjobs.muster.dev"),
    ("watch", "queues.muster.dev"),
    ("watch", "flavors.muster.dev"),
    ("watch", "tracecaptures.muster.dev"),
    ("delete", "trainingjobs.muster.dev"),
    ("patch", "trainingjobs.muster.dev/status"),
    ("update", "trainingjobs.muster.dev/status"),
    ("patch", "queues.muster.dev"),
    ("patch", "queues.muster.dev/status"),
    ("patch", "flavors.muster.dev/status"),
    ("create", "pods"),
    ("delete", "pods"),
    ("watch", "pods"),
    ("create", "services"),
    ("create", "secrets"),
    ("watch", "nodes"),
    ("watch", "namespaces"),
    ("watch", "priorityclasses.scheduling.k8s.io"),
    ("list", "deviceclasses.resource.k8s.io"),
    ("create", "events.events.k8s.io"),
    ("patch", "tracecaptures.muster.dev/status"),
    ("delete", "tracecaptures.muster.dev"),
    ("update", "trainingjobs.muster.dev/finalizers"),
]
NEVER_DOES = [
    ("create", "trainingjobs.muster.dev"),
    ("update", "trainingjobs.muster.dev"),
    ("patch", "trainingjobs.muster.dev"),
    ("create", "queues.muster.dev"),
    ("delete", "queues.muster.dev"),
    ("patch", "flavors.muster.dev"),
    ("update", "queues.muster.dev/status"),
    ("get", "secrets"),
    ("list", "secrets"),
    ("watch", "secrets"),
    ("update", "secrets"),
    ("patch", "secrets"),
    ("delete", "secrets"),
    ("patch", "pods"),
    ("patch", "jobs.batch"),
    ("patch", "workloads.muster.dev"),
    ("create", "pods/exec"),
    ("create", "pods/binding"),
    ("create", "pods/eviction"),
    ("patch", "pods/status"),
    ("patch", "nodes"),
    ("get", "configmaps"),
    ("watch", "configmaps"),
    ("update", "configmaps"),
    ("create", "serviceaccounts/token"),
    ("create", "deployments.apps"),
    ("create", "podgroups.scheduling.k8s.io"),
    ("update", "leases.coordination.k8s.io"),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
    ("impersonate", "users"),
]


@pytest.mark.parametrize(("verb", "resource"), DOES)
def test_the_operator_may_do_what_it_does(plane: ControlPlane, verb: str, resource: str) -> None:
    assert may(plane, "", verb, resource, "" if resource.startswith("nodes") else "team-a", account=OPERATOR)


@pytest.mark.parametrize(("verb", "resource"), NEVER_DOES)
@pytest.mark.parametrize("namespace", ["", "team-a", SYSTEM])
def test_the_operator_may_do_nothing_else(plane: ControlPlane, verb: str, resource: str, namespace: str) -> None:
    assert not may(plane, "", verb, resource, namespace, account=OPERATOR)


def test_the_operator_renews_one_lease_and_no_other(plane: ControlPlane) -> None:
    api = Api(plane.server, plane.authority, plane.token_for_service_account(SYSTEM, OPERATOR))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
    for creator, name in ((api, OPERATOR), (plane.api, "other")):
        creator.create(leases, {"metadata": {"name": name}, "spec": {"holderIdentity": "me"}})
    lease = api.get(f"{leases}/{OPERATOR}")
    api.request("PUT", f"{leases}/{OPERATOR}", lease)
    with pytest.raises(Refused, match="forbidden"):
        api.get(f"{leases}/other")
    with pytest.raises(Refused, match="forbidden"):
        api.create("/apis/coordination.k8s.io/v1/namespaces/default/leases", {"metadata": {"name": OPERATOR}})
    for name in (OPERATOR, "other"):
        plane.api.delete(f"{leases}/{name}")


def test_of_all_secrets_the_operator_reads_its_key_alone(plane: ControlPlane) -> None:
    api = Api(plane.server, plane.authority, plane.token_for_service_account(SYSTEM, OPERATOR))
    secrets = f"/api/v1/namespaces/{SYSTEM}/secrets"
    for name in (KEY, "other"):
        if plane.api.gone(f"{secrets}/{name}"):
            plane.api.create(secrets, {"metadata": {"name": name}})
    api.get(f"{secrets}/{KEY}")
    with pytest.raises(Refused, match="forbidden"):
        api.get(f"{secrets}/other")
    with pytest.raises(Refused, match="forbidden"):
        api.delete(f"{secrets}/{KEY}")
    for name in (KEY, "other"):
        plane.api.delete(f"{secrets}/{name}")


def test_an_editor_of_a_namespace_may_edit_jobs_only_there_and_never_a_status(plane: ControlPlane) -> None:
    alice = plane.api_as("alice")
    path = in_team(alice)
    try:
        alice.patch(path, {"spec": {"suspend": True}})
        admitted = {"type": "Admitted", "status": "True", "reason": "Mine", "lastTransitionTime": NOW}
        with pytest.raises(Refused, match=r"cannot patch resource .*trainingjobs/status"):
            alice.patch(f"{path}/status", {"status": {"conditions": [admitted]}})
        with pytest.raises(Refused, match="forbidden"):
            alice.create(f"{GROUP}/namespaces/team-b/trainingjobs", job() | {"metadata": {"name": "j"}})
    finally:
        alice.delete(path)


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
def test_no_role_of_the_cluster_reaches_a_status(plane: ControlPlane, role: str) -> None:
    rules = plane.api.get(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}")["rules"]
    ours = [rule for rule in rules if "muster.dev" in rule["apiGroups"]]
    assert ours
    assert {name for rule in ours for name in rule["resources"]} == {
        "trainingjobs", "trainingjobs/scale", "tracecaptures", "workloads",
    }  # fmt: skip


def test_a_viewer_of_a_namespace_may_only_read_jobs(plane: ControlPlane) -> None:
    bob = plane.api_as("bob")
    assert bob.items(f"{GROUP}/namespaces/team-a/trainingjobs") == []
    with pytest.raises(Refused, match="forbidden"):
        in_team(bob)


def test_everyone_may_view_queues_and_only_users_with_a_role_may_edit_them(plane: ControlPlane) -> None:
    carol = plane.api_as("carol")
    assert [item["metadata"]["name"] for item in carol.items(f"{GROUP}/queues")] == ["default"]
    with pytest.raises(Refused, match="forbidden"):
        carol.create(f"{GROUP}/queues", queue())
    plane.kubectl("create", "clusterrolebinding", "carol", "--clusterrole=muster-queues-edit", "--user=carol")
    plane.wait_for("carol may", lambda: may(plane, "carol", "create", "queues.muster.dev"))
    carol.create(f"{GROUP}/queues", queue())
    carol.delete(f"{GROUP}/queues/q")


@dataclass(frozen=True, slots=True)
class Running:
    """An operator outside the cluster, with the account and the flags of the one inside."""

    port: int
    log: Path

    def calls(self) -> dict[tuple[str, str], set[str]]:
        """Codes of the API server's answers by verb and resource."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found: dict[tuple[str, str], set[str]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "muster_api_calls_total":
                    labels = sample.labels
                    found.setdefault((labels["verb"], labels["resource"]), set()).add(labels["code"])
        return found


@pytest.fixture
def running(plane: ControlPlane, tmp_path: Path) -> Iterator[Running]:
    deployment = plane.api.get(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{OPERATOR}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    token = plane.token_for_service_account(SYSTEM, OPERATOR)
    public, private = free_ports(2)
    flags = [
        f"--kubeconfig={plane.kubeconfig('operator', token=token)}",
        f"--listen=127.0.0.1:{public}",
        f"--listen-local=127.0.0.1:{private}",
    ]
    log = tmp_path / "operator.log"
    with log.open("w") as errors:
        command = [sys.executable, *container["command"][1:], *container["args"], *flags]
        process = subprocess.Popen(command, stderr=errors)
    try:
        yield Running(public, log)
    finally:
        process.terminate()
        process.wait(300)
        plane.api.delete(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{OPERATOR}")


def test_with_the_account_and_the_flags_of_the_chart_a_job_lives_its_whole_life(
    plane: ControlPlane, running: Running
) -> None:
    api = plane.api
    path = in_team(api, role={"replicas": 2}, ttlSecondsAfterFinished=0, stallTimeoutSeconds=600)
    pods, secrets = "/api/v1/namespaces/team-a/pods", "/api/v1/namespaces/team-a/secrets"

    def phase() -> str:
        return str(api.get(path).get("status", {}).get("phase"))

    plane.wait_for("the job runs", lambda: phase() == "Running")
    assert {pod["spec"]["priorityClassName"] for pod in api.items(pods)} == {"muster-job"}
    assert [len(pod["spec"].get("initContainers", ())) for pod in in_order(api.items(pods))] == [1, 1]
    assert len(api.items(secrets)) == 1
    captures = "/apis/muster.dev/v1alpha1/namespaces/team-a/tracecaptures"
    capture = {"job": "absent", "ttlSecondsAfterFinished": 1}
    api.create(captures, {"apiVersion": "muster.dev/v1alpha1", "kind": "TraceCapture",
                          "metadata": {"name": "brief", "namespace": "team-a"}, "spec": capture})  # fmt: skip
    plane.wait_for("the capture fails, and is deleted", lambda: api.gone(f"{captures}/brief"))
    api.patch(path, {"spec": {"suspend": True}})
    plane.wait_for("the job is suspended", lambda: phase() == "Suspended" and not api.items(pods))
    api.patch(path, {"spec": {"suspend": False}})
    plane.wait_for("the job runs again", lambda: phase() == "Running")
    api.patch(path, {"spec": {"cancel": True}})
    plane.wait_for("the job is removed when its time is over", lambda: api.gone(path))
    plane.wait_for("its Secret is gone with it", lambda: not api.items(secrets))
    plane.wait_for("the operator has received the answer", lambda: ("DELETE", "trainingjobs") in running.calls())
    calls = running.calls()
    assert ("PATCH", "queues") in calls
    assert {call: codes for call, codes in calls.items() if codes & {"401", "403"}} == {}, running.log.read_text()


def test_a_job_that_needs_a_privilege_of_its_node_waits_with_the_value_of_the_chart(
    plane: ControlPlane, running: Running
) -> None:
    path = in_team(plane.api, pod={"hostNetwork": True})

    def message() -> str:
        conditions = plane.api.get(path).get("status", {}).get("conditions", ())
        return next((str(one["message"]) for one in conditions if one["reason"] == "PodRejected"), "")

    plane.wait_for("its pods are rejected", lambda: bool(message()))
    assert "hostNetwork must be false (chart value admissionPolicy.allow.hostNetwork)" in message()
    plane.api.delete(path)
    plane.wait_for("it is gone", lambda: plane.api.gone(path))


def test_the_runbooks_command_starts_an_operator_outside_with_the_flags_of_the_one_inside(
    plane: ControlPlane, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "operations" / "runbook.md").read_text()
    (block,) = re.findall(r"^```\n(mapfile [^`]*^python -m muster_operator [^`]*)```$", page, re.MULTILINE)
    shown = block.replace("python -m muster_operator", "printf '%s\\n'")
    kubectl = plane.binaries["kubectl"].path
    path = f"{kubectl.parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "KUBECONFIG": str(plane.kubeconfig()), "HOME": str(tmp_path)}  # for kubectl's cache
    done = subprocess.run(["bash", "-c", shown], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    deployment = plane.api.get(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{OPERATOR}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert done.stdout.splitlines() == [*container["args"], "--kubeconfig", "FILE", "--listen", "127.0.0.1:8080"]
    missing = subprocess.run(
        ["bash", "-c", shown.replace("deployment muster-operator", "deployment other")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert missing.returncode != 0
    assert "there is no Deployment" in missing.stderr


def in_order(pods: list[Object]) -> list[Object]:
    return sorted(pods, key=lambda pod: int(pod["metadata"]["labels"]["muster.dev/index"]))


def test_with_the_value_for_jobs_a_plain_job_is_held_admitted_and_started_within_the_policies(
    plane: ControlPlane, request: pytest.FixtureRequest
) -> None:
    """The last but one test of this file, since it gives the operator more rights: once with node affinity in the
    template, once with gated pods."""
    install(plane, CHART, "--set=queuedKinds={Job,JobSet,TrainJob}")
    api, jobs = plane.api, "/apis/batch/v1/namespaces/team-a/jobs"
    api.patch("/api/v1/namespaces/team-a", {"metadata": {"labels": {"muster.dev/queueing": "enabled"}}})
    running: Running = request.getfixturevalue("running")
    linux = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
    terms = {"nodeSelectorTerms": [linux]}
    gated = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    labels = {"muster.dev/queue": "default"}

    def create(name: str, pod: Object, sub: str = "") -> Object:
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}], **pod}}
        meta = {"name": name, "labels": labels}
        return api.create(jobs + sub, {"metadata": meta, "spec": {"parallelism": 2, "template": template}})

    def is_held() -> bool:
        try:
            return create("try", {}, "?dryRun=All")["spec"].get("suspend") is True
        except Refused:
            return False

    plane.wait_for("the policies act", is_held)
    for name, pod in (("pinned", {}), ("gated", gated)):
        create(name, pod)
        plane.wait_for(f"{name} runs", lambda name=name: api.get(f"{jobs}/{name}")["status"].get("ready") == 2)  # type: ignore[misc]
    phases = [one["status"]["phase"] for one in api.items(f"{GROUP}/namespaces/team-a/workloads")]
    assert phases
    for name in ("pinned", "gated"):
        api.patch(f"{jobs}/{name}", {"metadata": {"annotations": {"muster.dev/suspend": "true"}}})
        plane.wait_for(f"{name} has stopped", lambda name=name: not api.get(f"{jobs}/{name}")["status"].get("active"))  # type: ignore[misc]
        api.delete(f"{jobs}/{name}", propagationPolicy="Background")
    plane.wait_for("their Workloads are gone", lambda: not api.items(f"{GROUP}/namespaces/team-a/workloads"))
    assert {call: codes for call, codes in running.calls().items() if codes & {"401", "403"}} == {}


@pytest.mark.usefixtures("controllers_of_kinds")
def test_job_sets_and_train_jobs_are_held_admitted_and_started_within_the_policies_once_their_crds_are_installed(
    plane: ControlPlane, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    began = datetime.now(UTC).isoformat(timespec="microseconds")
    api, running = plane.api, request.getfixturevalue("running")

    def events(api: Api) -> dict[str, set[str]]:
        return team_objects.kind_events(api, began)  # not those of the operator of an earlier test

    plane.wait_for("Events say what is missing", lambda: events(api)["KindNotInstalled"] >= team_objects.LATE_KINDS)
    with controllers.job_sets(plane, tmp_path / "jobset"), controllers.train_jobs(plane, tmp_path / "trainer"):
        runtime = {"template": {"spec": {"replicatedJobs": [team_objects.JOB]}}}
        team_objects.create(api, f"{team_objects.TRAINER}/trainingruntimes", "TrainingRuntime", "plain", runtime)
        train = {"runtimeRef": {"name": "plain", "kind": "TrainingRuntime"}, "trainer": {"numNodes": 1}}
        for path, kind, spec in (
            (team_objects.JOB_SETS, "JobSet", {"replicatedJobs": [{**team_objects.LABELLED_JOB, "replicas": 2}]}),
            (f"{team_objects.TRAINER}/trainjobs", "TrainJob", train),
        ):
            name = kind.lower()
            plane.wait_for(f"a {kind} is held", lambda p=path, k=kind, s=spec: team_objects.is_held(api, p, k, s))  # type: ignore[misc]
            team_objects.create(api, path, kind, name, spec)
            plane.wait_for("it runs", lambda name=name: team_objects.phase(api, name) == "Running")  # type: ignore[misc]
            api.patch(f"{path}/{name}", {"metadata": {"annotations": {"muster.dev/suspend": "true"}}})
            plane.wait_for("it has stopped", lambda one=f"{path}/{name}": api.get(one)["spec"]["suspend"])  # type: ignore[misc]
            with pytest.raises(Refused, match="Muster resumes it"):
                api.patch(f"{path}/{name}", {"spec": {"suspend": False}})
            api.delete(f"{path}/{name}", propagationPolicy="Background")
        plane.wait_for("their Workloads are gone", lambda: not api.items(f"{GROUP}/namespaces/team-a/workloads"))
        plane.wait_for("Events say what queues", lambda: events(api)["KindInstalled"] >= team_objects.LATE_KINDS)
    assert {call: codes for call, codes in running.calls().items() if codes & {"401", "403"}} == {}
