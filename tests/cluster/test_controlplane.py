"""The control plane of the tests: nodes, users, what survives a restart, and that it ends with its owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path

import pytest
from tests.cluster.conftest import AddNodes, StartControlPlane
from tests.cluster.controlplane.api import Refused
from tests.cluster.controlplane.catalogue import CURRENT
from tests.cluster.controlplane.clients import CommandFailed
from tests.cluster.controlplane.nodes import BLOCK, GPU, RACK, Shape
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.pods import Pods, ready

ROOT = Path(__file__).resolve().parents[2]

OWNER = """
import pathlib, sys, time
from tests.cluster.controlplane.plane import ControlPlane
plane = ControlPlane.start(pathlib.Path(sys.argv[1]))
names = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
print(*(plane.pid(name) for name in names), flush=True)
time.sleep(3600)
"""


def test_nodes_are_created_ready_with_capacity_and_topology(control_plane: ControlPlane, add_nodes: AddNodes) -> None:
    names = add_nodes(5, Shape(gpus=4, per_rack=2, racks_per_block=2, labels={"gpu.model": "h200"}), prefix="born")
    nodes = [control_plane.api.get(f"/api/v1/nodes/{name}") for name in names]
    assert [ready(node) for node in nodes] == ["True"] * 5
    assert [node["status"]["allocatable"][GPU] for node in nodes] == ["4"] * 5
    places = [(node["metadata"]["labels"][BLOCK], node["metadata"]["labels"][RACK]) for node in nodes]
    assert places == [(f"block-{block}", f"rack-{rack}") for block, rack in [(0, 0), (0, 0), (0, 1), (0, 1), (1, 2)]]


def test_a_node_that_is_applied_with_kubectl_becomes_ready(control_plane: ControlPlane) -> None:
    metadata = {"name": "applied", "labels": {"gpu.model": "h200"}}  # KWOK overlooks a node without any label
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"capacity": {"cpu": "8"}}}
    control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    try:
        control_plane.kubectl("wait", "node/applied", "--for=condition=Ready", "--timeout=600s")
        assert control_plane.api.get("/api/v1/nodes/applied")["status"]["allocatable"] == {"cpu": "8"}
    finally:
        control_plane.delete_nodes("applied")


def test_a_nodes_status_stays_as_written(control_plane: ControlPlane, add_nodes: AddNodes) -> None:
    (name,) = add_nodes(1, prefix="written")
    since = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=1)
    control_plane.set_ready(name, "Unknown", since)
    # The controller manager has seen it once it has tainted the node.
    control_plane.wait_for(
        "the node is tainted",
        lambda: "taints" in control_plane.api.get(f"/api/v1/nodes/{name}")["spec"],
    )
    condition = control_plane.api.get(f"/api/v1/nodes/{name}")["status"]["conditions"][0]
    assert (condition["status"], condition["lastTransitionTime"]) == ("Unknown", "2026-01-01T01:00:00Z")


def test_a_user_without_rights_may_do_nothing_until_a_role_is_bound(
    control_plane: ControlPlane, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with pytest.raises(Refused) as refused:
        control_plane.api_as("alice").get(pods)
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
    with pytest.raises(CommandFailed, match="Forbidden"):
        control_plane.kubectl("get", "pods", "-n", namespace, user="alice")
    control_plane.kubectl("create", "rolebinding", "a", "-n", namespace, "--clusterrole=view", "--group=team-a")
    control_plane.wait_for("alice may", lambda: _may(lambda: control_plane.api_as("alice").get(pods)))
    with pytest.raises(Refused):
        control_plane.api_as("bob").get(pods)


def test_an_invalid_token_is_unauthenticated(control_plane: ControlPlane) -> None:
    path = control_plane.kubeconfig("mallory", token="wrong")
    with pytest.raises(CommandFailed, match=r"Unauthorized|logged in"):
        control_plane.kubectl("--kubeconfig", str(path), "get", "pods")


def test_a_service_accounts_token_is_the_service_account(control_plane: ControlPlane, namespace: str) -> None:
    token = control_plane.token_for_service_account(namespace, "default")
    path = control_plane.kubeconfig("an-account", token=token, namespace=namespace)
    who = control_plane.kubectl(
        "--kubeconfig", str(path), "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"
    )
    assert who == f"system:serviceaccount:{namespace}:default"


def test_helm_installs_a_chart(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: small\nversion: 0.1.0\n")
    body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-helm}\ndata: {a: {{ .Values.a | quote }}}\n"
    (chart / "templates" / "map.yaml").write_text(body)
    control_plane.helm("install", "small", str(chart), "-n", namespace, "--set", "a=b")
    assert control_plane.api.get(f"/api/v1/namespaces/{namespace}/configmaps/from-helm")["data"] == {"a": "b"}


def test_a_killed_api_server_restarts_with_its_data_and_pods_continue(
    start_control_plane: StartControlPlane,
) -> None:
    plane = start_control_plane()
    plane.add_nodes(1)
    pods = Pods(plane, "default")
    pods.create("before", stop_seconds="0.1")
    pods.reach("before", "Running")
    token = plane.token_for_service_account("default", "default")
    server, first = plane.server, plane.pid("kube-apiserver")
    plane.kill_apiserver()
    with pytest.raises((OSError, HTTPException)):
        plane.api.create(pods.path, {})
    plane.resume_apiserver()
    assert (plane.server, plane.pid("kube-apiserver") == first) == (server, False)
    assert pods.get("before")["status"]["phase"] == "Running"
    pods.create("after")
    pods.reach("after", "Running")
    pods.delete("before")
    pods.until_gone("before")
    account = plane.kubeconfig("an-account", token=token)
    assert "system:serviceaccount" in plane.kubectl("--kubeconfig", str(account), "auth", "whoami")


def test_a_user_can_be_added_later(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane(scheduler=False, kwok=False)
    plane.token_for("dave", ["team-d"])
    assert "team-d" in plane.kubectl("auth", "whoami", user="dave")
    assert "team-a" in plane.kubectl("auth", "whoami", user="alice")


def test_feature_gates_serve_the_native_gang_api(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane(gates=CURRENT.gang_gates)
    served = plane.api.get("/apis/scheduling.k8s.io/v1alpha2")["resources"]
    assert {"workloads", "podgroups"} <= {resource["name"] for resource in served}
    plane.add_nodes(1)
    Pods(plane, "default").create("a")
    Pods(plane, "default").reach("a", "Running")


def test_a_program_that_dies_is_named_with_its_log(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane(scheduler=False, kwok=False)
    os.kill(plane.pid("kube-controller-manager"), signal.SIGKILL)
    with pytest.raises(Exception, match=r"kube-controller-manager ended.*kube-controller-manager\.log"):
        plane.wait_for("nothing ever", lambda: False)


def test_nothing_is_left_when_its_owner_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "control-plane"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    supervisors = [_parent(pid) for pid in pids]
    assert len(pids) == 5
    owner.kill()
    owner.wait()
    owner.stdout.close()
    _until(lambda: not any(_lives(pid) for pid in [*pids, *supervisors]))
    _until(lambda: not (folder / "etcd-data").exists())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent")
def test_a_program_ends_with_its_supervisor(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane(scheduler=False, kwok=False)
    program = plane.pid("etcd")
    os.kill(_parent(program), signal.SIGKILL)
    _until(lambda: not _lives(program))


def _may(act: Callable[[], object]) -> bool:
    try:
        act()
    except Refused:
        return False
    return True


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _lives(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return _stat(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
