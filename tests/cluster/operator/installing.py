"""What an operator needs to find in a cluster before it starts."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.controlplane.plane import ControlPlane

CRDS = Path(__file__).resolve().parents[3] / "helm" / "crds.yaml"
SYSTEM = "muster-system"


def install(plane: ControlPlane) -> None:
    """The CRDs, if the control plane was not started with them, and the namespace of the operator's Lease."""
    plane.create_crds(CRDS)
    if plane.api.gone(f"/api/v1/namespaces/{SYSTEM}"):
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
