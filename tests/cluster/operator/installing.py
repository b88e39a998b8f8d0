"""What an operator needs to find in a cluster before it starts."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.controlplane.api import Refused
from tests.cluster.controlplane.plane import ControlPlane

CRDS = Path(__file__).resolve().parents[3] / "helm" / "crds.yaml"
SYSTEM = "muster-system"


def wait_until_served(plane: ControlPlane) -> None:
    """Wait until the CRDs count and objects of their kinds can be listed. Until then the answer is 404, then 429."""
    plane.kubectl("wait", "--for=condition=Established", "--timeout=120s", "-f", str(CRDS))
    for plural in ("trainingjobs", "queues", "flavors"):
        path = f"/apis/muster.dev/v1alpha1/{plural}"
        plane.wait_for(f"{plural} are served", lambda path=path: _answers(plane, path))  # type: ignore[misc]


def _answers(plane: ControlPlane, path: str) -> bool:
    try:
        plane.api.get(path)
    except Refused:
        return False
    return True


def install(plane: ControlPlane) -> None:
    """The CRDs, and the namespace of the operator's Lease."""
    plane.kubectl("apply", "-f", str(CRDS))
    wait_until_served(plane)
    if plane.api.gone(f"/api/v1/namespaces/{SYSTEM}"):
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
