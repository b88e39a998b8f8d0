"""The example with kubectl, as a reader would run it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.cluster.controlplane.api import Refused
from tests.cluster.operator.pools import GROUP, Pool
from tests.cluster.users.conftest import kubeconfig

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "04-kubectl" / "run.sh"
PODS = "/api/v1/namespaces/muster-example/pods"


def test_the_jobs_of_the_example_with_kubectl_succeed(pool: Pool) -> None:
    """Nodes without kubelets run nothing: here the pods of `second`, and of `first` once it was suspended, are made
    when to end."""
    pool.add_nodes(1, gpus=0)
    flavor = {"apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "default"}}
    pool.api.create(f"{GROUP}/flavors", {**flavor, "spec": {"nodeLabels": {"pool": pool.namespace}}})
    pool.plane.write_log("I am one of two")
    kubectl = pool.plane.binaries["kubectl"].path
    environ = {
        **os.environ,
        "KUBECONFIG": kubeconfig(pool),
        "PATH": f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}",
    }
    scenario = subprocess.Popen(
        ["bash", str(SCRIPT)], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 600
        while scenario.poll() is None and time.monotonic() < until:
            end_pods(pool)
            time.sleep(0.5)
        if scenario.poll() is None:
            os.killpg(scenario.pid, signal.SIGKILL)
        out, _ = scenario.communicate()
        assert scenario.returncode == 0, out
        assert out.rstrip().endswith("nothing is left"), out
        assert "minReplicas" in out
        assert "queue muster-example-later does not exist" in out
        assert "main] I am one of two" in out
    finally:
        scenario.kill()
        scenario.wait()
        pool.api.delete(f"{GROUP}/flavors/default")
    assert pool.api.gone("/api/v1/namespaces/muster-example")
    assert pool.api.gone(f"{GROUP}/queues/muster-example")


def end_pods(pool: Pool) -> None:
    try:
        pods = pool.api.items(PODS)
        for pod in pods:
            labels = pod["metadata"]["labels"]
            if labels["muster.dev/job"] == "second" or labels["muster.dev/attempt"] != "0":
                ends = {"kwok.muster.dev/run-seconds": "0.5", "kwok.muster.dev/exit-code": "0"}
                if ends.items() - pod["metadata"].get("annotations", {}).items():
                    pool.api.patch(f"{PODS}/{pod['metadata']['name']}", {"metadata": {"annotations": ends}})
    except Refused as refused:  # the pod, or the namespace, has just gone
        if refused.code != 404:
            raise
