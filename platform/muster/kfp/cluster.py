"""The cluster of a step: as for the command line the one that the environment names; else that of the step's pod, or
this host."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from muster.client import ClusterClient
from muster.errors import InvalidSpec, MusterError
from muster.kfp.job import Resources

_POD_NAME = "KFP_POD_NAME"
"""Variable that Kubeflow Pipelines sets in the pod of a step."""
_STEP_CONTAINER = "main"


@dataclass(frozen=True, slots=True)
class StepCluster:
    """`namespace` is that of jobs without one. `step_resources` reads the resources set on the step."""

    client: ClusterClient
    namespace: str
    in_cluster: bool
    step_resources: Callable[[], Resources]


def connect(environ: Mapping[str, str] = os.environ) -> StepCluster:
    """The cluster of MUSTER_CONTEXT or MUSTER_CLUSTER; without them, that of the pod, or this host, whose daemon starts
    on demand. Raises `InvalidSpec` for another MUSTER_CLUSTER, and the errors of the clients."""
    kind, context = environ.get("MUSTER_CLUSTER") or None, environ.get("MUSTER_CONTEXT") or None
    if kind not in (None, "local", "kubernetes"):
        raise InvalidSpec(f"MUSTER_CLUSTER: must be local or kubernetes; got {kind!r}", field="MUSTER_CLUSTER")
    if kind == "local" or (kind is None and context is None and "KUBERNETES_SERVICE_HOST" not in environ):
        from muster.local.client import LocalClient

        return StepCluster(LocalClient.connect(), "default", in_cluster=False, step_resources=dict)
    from muster.cluster_client.client import KubernetesClusterClient
    from muster.kube.config import KubeContext, load_config
    from muster.kube.sync_client import KubeClient

    kube_client = KubeClient(load_config(KubeContext(context=context)))
    return StepCluster(
        KubernetesClusterClient(kube_client),
        kube_client.config.namespace,
        in_cluster=True,
        step_resources=lambda: _resources_of_pod(kube_client, environ.get(_POD_NAME, "")),
    )


def _resources_of_pod(kube_client: Any, pod_name: str) -> Resources:
    """Requests and limits of the step's container; none if the pod may not be read, which is printed."""
    if not pod_name:
        return {}
    try:
        pod = kube_client.get(f"/api/v1/namespaces/{kube_client.config.namespace}/pods/{pod_name}")
    except MusterError as error:
        print(f"muster: the resources set on the step cannot be read, and are not passed on: {error}", flush=True)
        return {}
    containers = {container["name"]: container for container in pod["spec"]["containers"]}
    resources = containers.get(_STEP_CONTAINER, {}).get("resources", {})
    return {kind: resources.get(kind, {}) for kind in ("requests", "limits")}
