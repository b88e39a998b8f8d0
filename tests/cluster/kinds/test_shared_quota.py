"""The example in which a Job, a JobSet and a TrainingJob share one quota, as a reader would run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.controlplane.api import Refused
from tests.cluster.operator.pools import GROUP, KWOK, Pool

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "examples" / "17-queue-what-you-have" / "run.sh"
PODS = "/api/v1/namespaces/muster-shared/pods"


@pytest.mark.usefixtures("job_set_controller")
def test_a_job_a_job_set_and_a_training_job_share_one_quota_and_muster_jobs_says_who_waits_for_whom(pool: Pool) -> None:
    """Nodes without kubelets run nothing: here the pods end once those who wait were shown."""
    pool.add_nodes(1, gpus=0)
    flavor = {"apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "default"}}
    pool.api.create(f"{GROUP}/flavors", {**flavor, "spec": {"nodeLabels": {"pool": pool.namespace}}})
    kubectl = pool.plane.binaries["kubectl"].path
    environ = {
        **os.environ,
        "KUBECONFIG": str(pool.plane.kubeconfig()),
        "MUSTER": str(Path(sys.executable).with_name("muster")),
        "NO_COLOR": "1",
        "COLUMNS": "160",
        "PATH": f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}",
    }
    shown = pool.plane.folder / "example.log"
    with shown.open("wb") as out:
        scenario = subprocess.Popen(
            ["bash", str(SCRIPT)], env=environ, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        until = time.monotonic() + 300
        while scenario.poll() is None and time.monotonic() < until:
            if "Each gets its turn" in shown.read_text():
                end_pods(pool)
            time.sleep(0.3)
        if scenario.poll() is None:
            os.killpg(scenario.pid, signal.SIGKILL)
        scenario.wait()
        text = shown.read_text()
        assert scenario.returncode == 0, text
        lines = {line.split()[0]: line for line in text.split("Each gets its turn")[0].splitlines() if line.split()}
        assert [lines[name].split()[1] for name in ("job", "jobset", "training")] == ["Job", "JobSet", "TrainingJob"]
        assert "Running" in lines["job"]
        assert "#1 InsufficientQuota" in lines["jobset"] or "#1 QuotaExceeded" in lines["jobset"]
        assert "#2" in lines["training"]
    finally:
        scenario.kill()
        scenario.wait()
        pool.api.delete(f"{GROUP}/flavors/default")


def end_pods(pool: Pool) -> None:
    """Every pod that runs ends soon."""
    ends = {f"{KWOK}run-seconds": "1", f"{KWOK}exit-code": "0"}
    try:
        for pod in pool.api.items(PODS):
            if ends.items() - pod["metadata"].get("annotations", {}).items():
                pool.api.patch(f"{PODS}/{pod['metadata']['name']}", {"metadata": {"annotations": ends}})
    except Refused as refused:  # the pod, or the namespace, has just gone
        if refused.code != 404:
            raise
