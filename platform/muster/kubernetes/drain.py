"""Draining a node: the taint `muster.dev/drain`, which the lifecycle and the planner act on (see `muster.cluster`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.api.spec import TrainingJob
from muster.client import JobList
from muster.cluster import DRAIN_TAINT
from muster.errors import ClusterError, Conflict, NotFound
from muster.kube.convert import WRONG_VERSION
from muster.kube.requests import MERGE_PATCH
from muster.kube.resources import NODES
from muster.kube.sync_client import KubeClient
from muster.lifecycle import is_finished

_MAX_ATTEMPTS = 5
_Taints = list[dict[str, Any]]


def drain(kube_client: KubeClient, node: str) -> None:
    """Add the taint to a node. Raises `NotFound`, `Refused` Forbidden."""
    _update_taints(
        kube_client, node, lambda taints: [*_without_drain_taint(taints), {"key": DRAIN_TAINT, "effect": "NoSchedule"}]
    )


def undrain(kube_client: KubeClient, node: str) -> None:
    """Remove the taint. Raises as `drain` does."""
    _update_taints(kube_client, node, _without_drain_taint)


def jobs_on_node(job_list: JobList, node: str) -> list[TrainingJob]:
    """Unfinished jobs placed on the node. Raises `ClusterError` WrongVersion for one that cannot be decoded."""
    for one in job_list.unreadable:
        if node in one.nodes and one.phase not in ("Succeeded", "Failed"):
            message = f"job {one.name} on node {node} cannot be read by this version of Muster: {one.error}"
            raise ClusterError(message, reason=WRONG_VERSION)
    return [
        job
        for job in job_list.jobs
        if not is_finished(job.status)
        and any(share.node == node for part in job.status.placement for share in part.nodes)
    ]


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
