"""Installs the operator as a platform team does: two replicas of its image, with the chart."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.controlplane.api import Json
from tests.kubelets.archives import OPERATOR, TRAINER
from tests.kubelets.cluster import Cluster

CHART = Path(__file__).resolve().parents[2] / "helm" / "muster"
SYSTEM = "muster-system"
BUCKET, STORE_SECRET = "traces", "muster-store"


def install(cluster: Cluster) -> None:
    """`helm install` with the chart's defaults, except for the images, a store, and folders of the node (this machine's
    Python) in pods of jobs; returns when both pods are ready."""
    values = {
        "image.repository": OPERATOR.rpartition(":")[0],
        "image.tag": OPERATOR.rpartition(":")[2],
        "collector.image.repository": TRAINER.rpartition(":")[0],
        "collector.image.tag": TRAINER.rpartition(":")[2],
        "collector.store.url": f"s3://{BUCKET}/muster",
        "collector.store.secretName": STORE_SECRET,
        "admissionPolicy.allow.hostPath": "true",
    }
    flags = [flag for name, value in values.items() for flag in ("--set", f"{name}={value}")]
    cluster.plane.helm("install", "muster", str(CHART), "-n", SYSTEM, "--create-namespace", *flags, "--wait")


def pods(cluster: Cluster) -> list[Json]:
    """The operator's pods."""
    path, mine = f"/api/v1/namespaces/{SYSTEM}/pods", "app.kubernetes.io/name=muster-operator"
    return cluster.plane.api.items(path, labelSelector=mine)
