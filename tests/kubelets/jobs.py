"""Jobs of a cluster with real nodes."""

from __future__ import annotations

from tests.kubelets.cluster import Cluster

JOBS = "/apis/muster.dev/v1alpha1/namespaces/default/trainingjobs"


def phase(cluster: Cluster, name: str) -> str:
    """The job's phase."""
    value: str = cluster.plane.api.get(f"{JOBS}/{name}").get("status", {}).get("phase", "")
    return value
