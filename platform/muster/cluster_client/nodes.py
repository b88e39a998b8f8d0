"""Nodes of a cluster: reading them, and draining one.

A drained node has the taint `muster.dev/drain`, which the lifecycle and the planner act on (see `muster.cluster`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from muster import model
from muster.api.spec import Flavor, Queue
from muster.client import JobList, NodeJobs
from muster.cluster import DRAIN_TAINT, NodeView
from muster.errors import ClusterError, Conflict, NotFound, Refused
from muster.kube.convert import WRONG_VERSION, node_view
from muster.kube.objects import V1Node
from muster.kube.requests import MERGE_PATCH
from muster.kube.resources import NODES
from muster.kube.sync_client import KubeClient
from muster.state.projection import to_node
from muster.workload.conditions import is_finished
from muster.workload.placement import nodes_of

MAX_PREFLIGHT_NODES = 500
"""A submit reads at most one page of nodes; on larger clusters only the operator checks whether a job can ever fit."""
_MAX_ATTEMPTS = 5
_Taints = list[dict[str, Any]]


def list_nodes(kube_client: KubeClient) -> tuple[NodeView, ...]:
    """All nodes, without the usage of unmanaged pods."""
    views = map(_node_view, kube_client.list_items(NODES.path()))
    return tuple(sorted(views, key=lambda node: node.name))


def list_nodes_if_allowed(kube_client: KubeClient) -> tuple[NodeView, ...]:
    """All nodes; none if the user may not list them."""
    try:
        return list_nodes(kube_client)
    except Refused as error:
        if is_not_forbidden(error):
            raise
        return ()


def list_nodes_if_few(kube_client: KubeClient) -> list[NodeView] | None:
    """All nodes; None if the user may not list them or there are more than one page. Nodes that are not ready, cordoned
    or drained count as available: a temporary state must not refuse a job."""
    try:
        page = kube_client.get(NODES.path(), {"limit": str(MAX_PREFLIGHT_NODES)})
    except Refused:
        return None
    if page["metadata"].get("continue"):
        return None
    return [replace(_node_view(node), ready=True, cordoned=False, taints=()) for node in page["items"]]


def nodes_with_flavors(kube_client: KubeClient, objects: Iterable[Queue | Flavor]) -> list[model.NodeInfo] | None:
    """All nodes with their flavors; None if the user may not list them or there are more than one page."""
    views = list_nodes_if_few(kube_client)
    flavors = {item.metadata.name: item for item in objects if isinstance(item, Flavor)}
    return None if views is None else [to_node(view, list(flavors.values())) for view in views]


def is_not_forbidden(error: Refused) -> bool:
    """Whether a refusal has another reason than missing RBAC rights."""
    return error.reason != "Forbidden"


def drain(kube_client: KubeClient, node: str) -> None:
    """Add the taint to a node. Raises `NotFound`, `Refused` Forbidden."""
    _update_taints(
        kube_client, node, lambda taints: [*_without_drain_taint(taints), {"key": DRAIN_TAINT, "effect": "NoSchedule"}]
    )


def undrain(kube_client: KubeClient, node: str) -> None:
    """Remove the taint. Raises as `drain` does."""
    _update_taints(kube_client, node, _without_drain_taint)


def jobs_on_node(job_list: JobList, node: str) -> NodeJobs:
    """Unfinished jobs placed on the node, from all jobs. Raises `ClusterError` WrongVersion for one that cannot
    be decoded."""
    for one in job_list.unreadable:
        if node in one.nodes and one.phase not in ("Succeeded", "Failed"):
            message = f"job {one.name} on node {node} cannot be read by this version of Muster: {one.error}"
            raise ClusterError(message, reason=WRONG_VERSION)
    unfinished = (job for job in job_list.jobs if not is_finished(job.status))
    placed = [job.metadata for job in unfinished if node in nodes_of(job.status.placement)]
    return NodeJobs([f"{meta.namespace or 'default'}/{meta.name}" for meta in placed])


def _without_drain_taint(taints: _Taints) -> _Taints:
    return [taint for taint in taints if taint["key"] != DRAIN_TAINT]


def _update_taints(kube_client: KubeClient, name: str, change: Callable[[_Taints], _Taints]) -> None:
    """Replace the list of taints, with the resourceVersion as precondition since node controllers write it, too."""
    for retries_left in reversed(range(_MAX_ATTEMPTS)):
        try:
            node = kube_client.get(NODES.path(name=name))
        except NotFound as error:
            raise NotFound(f"node {name!r} does not exist; see: muster nodes", field="node") from error
        taints: _Taints = node.get("spec", {}).get("taints", [])
        changed = change(taints)
        if [(t["key"], t["effect"]) for t in changed] == [(t["key"], t["effect"]) for t in taints]:
            return
        precondition = {"resourceVersion": node["metadata"]["resourceVersion"]}
        body = {"metadata": precondition, "spec": {"taints": changed or None}}
        try:
            kube_client.request("PATCH", NODES.path(name=name), body, content_type=MERGE_PATCH)
        except Conflict:
            if not retries_left:
                raise
            continue
        return


def _node_view(node: Mapping[str, Any]) -> NodeView:
    return node_view(msgspec.convert(node, V1Node))
