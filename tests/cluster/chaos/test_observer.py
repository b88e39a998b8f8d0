"""The observer as a process on a real cluster reports violations, with the objects that show them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import StartControlPlane
from tests.cluster.controlplane.plane import ControlPlane

ROOT = Path(__file__).resolve().parents[3]
CRDS = ROOT / "helm" / "crds.yaml"
GROUP = "/apis/muster.dev/v1alpha1"
JOBS = f"{GROUP}/namespaces/default/trainingjobs"
PODS = "/api/v1/namespaces/default/pods"
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "trainer"}]}}


def submit(plane: ControlPlane, name: str) -> str:
    """A user's job; its uid."""
    body = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"queue": "all", "roles": [{"name": "w", "template": TEMPLATE}]},
    }
    uid: str = plane.api.create(JOBS, body)["metadata"]["uid"]
    return uid


def create_pod(plane: ControlPlane, name: str, uid: str) -> None:
    """A pod as the operator would create it."""
    owner = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": name, "uid": uid}
    labels = {"muster.dev/role": "w", "muster.dev/index": "0", "muster.dev/attempt": "0"}
    meta = {"name": f"{name}-w-0", "labels": labels, "ownerReferences": [owner]}
    plane.api.create(PODS, {"metadata": meta, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}})


@pytest.mark.slow
def test_violations_of_an_operator_are_reported(start_control_plane: StartControlPlane, tmp_path: Path) -> None:
    plane = start_control_plane(readable=True)
    report, history = tmp_path / "report.jsonl", tmp_path / "history.gz"
    command = [sys.executable, "-m", "tests.cluster.chaos.observer"]
    observer = subprocess.Popen(
        [*command, f"--etcd={plane.etcd}", f"--report={report}", f"--record={history}"], cwd=ROOT
    )
    try:
        plane.kubectl("apply", "-f", str(CRDS))
        plane.wait_until_served(CRDS)
        plane.wait_for("the observer has begun", report.exists)
        uid = submit(plane, "early")
        plane.restart_apiserver()  # the observer does not depend on it
        create_pod(plane, "early", uid)
        observer.send_signal(signal.SIGTERM)
        assert observer.wait(120) == 1
    finally:
        observer.kill()
    *violations, last = lines(report)
    assert [(line["violation"], line["of"]) for line in violations] == [
        ("no pod before its admission", "default/early-w-0"),
        ("no leaked object", "default/early-w-0"),
        ("every job ends", "default/early"),
    ]
    objects = {one["kind"]: one for one in violations[0]["objects"]}
    assert objects["TrainingJob"]["object"]["metadata"]["uid"] == uid
    assert int(objects["TrainingJob"]["resourceVersion"]) < int(objects["Pod"]["resourceVersion"])
    assert last["summary"]["violations"]["no pod before its admission"] == 1

    again = tmp_path / "again.jsonl"
    replayed = subprocess.run([*command, f"--replay={history}", f"--report={again}"], cwd=ROOT, check=False)
    assert replayed.returncode == 1
    assert lines(again)[0] == violations[0]


def lines(report: Path) -> list[dict[str, Any]]:
    """A report, line by line."""
    return [json.loads(line) for line in report.read_text().splitlines()]
