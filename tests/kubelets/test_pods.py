"""Tests that need real kubelets: the operator's image under its chart, DNS between pods, and logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.controlplane.nodes import GPU
from tests.kubelets import operator
from tests.kubelets.archives import TRAINER
from tests.kubelets.cluster import Cluster
from tests.kubelets.jobs import phase
from tests.kubelets.layout import CGROUP

# Replica 0 serves; the others connect to it by the name for rendezvous.
MEET = """
if [ "$MUSTER_REPLICA" = 0 ]; then
  python -c 'if True:
    import socket
    with socket.create_server(("", 29500)) as server:
      served, (address, _) = server.accept()
      served.sendall(b"present")
      print("asked by", address, flush=True)'
else
  until python -c 'if True:
    import os, socket
    print(socket.create_connection((os.environ["MUSTER_RANK0_HOST"], 29500)).recv(99).decode(), flush=True)'
  do sleep 0.5; done
fi
"""


def test_both_nodes_are_ready_with_their_gpus(cluster: Cluster) -> None:
    nodes = cluster.plane.api.items("/api/v1/nodes")
    offered = {node["metadata"]["name"]: node["status"]["allocatable"][GPU] for node in nodes}
    assert offered == {"node-1": "2", "node-2": "2"}
    assert {node["status"]["nodeInfo"]["containerRuntimeVersion"][:13] for node in nodes} == {"containerd://"}


def test_pods_have_half_the_cpu_weight_of_a_process(cluster: Cluster) -> None:
    assert cluster.nodes
    weights = {"cpu/{}/cpu.shares": 1024, "{}/cpu.weight": 100}  # of a process, with version 1 and 2 of cgroups
    of_pods = {Path("/sys/fs/cgroup", name.format(CGROUP)): weight // 2 for name, weight in weights.items()}
    (file,) = [file for file in of_pods if file.exists()]
    assert int(file.read_text()) == of_pods[file]


def test_two_unprivileged_replicas_run_on_two_nodes_and_one_leads(cluster: Cluster) -> None:
    pods = operator.pods(cluster)
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {"muster-operator"}
    program = "import os; print(os.getuid(), os.access('/', os.W_OK), os.path.exists('/var/run/secrets/kubernetes.io'))"
    for pod in pods:
        output = cluster.plane.kubectl(
            "exec", "-n", operator.SYSTEM, pod["metadata"]["name"], "--", "python", "-c", program
        )
        assert output.split() == ["65532", "False", "True"]
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{operator.SYSTEM}/leases/muster-operator"

    def one_leads() -> bool:
        holder = "" if cluster.plane.api.gone(lease) else cluster.plane.api.get(lease)["spec"].get("holderIdentity", "")
        return [pod["metadata"]["name"] in holder for pod in pods].count(True) == 1

    cluster.plane.wait_for("one of them leads", one_leads)


def test_pods_of_a_gang_on_two_nodes_resolve_each_other_and_kubectl_shows_their_logs(
    cluster: Cluster,
) -> None:
    cluster.plane.kubectl("apply", "-f", "-", stdin=json.dumps(pair("pair")))
    try:
        cluster.plane.wait_for("the job is over", lambda: phase(cluster, "pair") in ("Succeeded", "Failed"), 300)
        selector = {"labelSelector": "muster.dev/job=pair"}
        pods = cluster.plane.api.items("/api/v1/namespaces/default/pods", **selector)
        at = {pod["metadata"]["labels"]["muster.dev/index"]: pod for pod in pods}
        output = {index: cluster.plane.kubectl("logs", pod["metadata"]["name"]) for index, pod in at.items()}
        assert phase(cluster, "pair") == "Succeeded", output
        assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}
        assert f"asked by {at['1']['status']['podIP']}\n" in output["0"]
        assert output["1"].endswith("present\n")
    finally:
        cluster.plane.kubectl("delete", "trainingjob", "pair")


def pair(name: str) -> dict[str, Any]:
    """A job of two pods that need a node each."""
    main = {
        "name": "main",
        "image": TRAINER,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", MEET],
        "resources": {"limits": {GPU: 2}},
    }
    template = {"spec": {"containers": [main], "terminationGracePeriodSeconds": 5}}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"queue": "default", "roles": [{"name": "worker", "replicas": 2, "template": template}]},
    }
