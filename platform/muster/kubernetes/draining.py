"""Draining a node: the taint `muster.dev/drain`, which the lifecycle and the planner heed (see `muster.cluster`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from muster.cluster import DRAIN
from muster.errors import Conflict, NotFound
from muster.kubernetes import paths
from muster.kubernetes.connection import MERGE_PATCH, Connection
from muster.lifecycle import is_finished
from muster.spec import TrainingJob

_TRIES = 5
_Taints = list[dict[str, Any]]


def drain(connection: Connection, node: str) -> None:
    """Put the taint on a node. Raises `NotFound`, `Refused` Forbidden."""
    _change(connection, node, lambda taints: [*_without(taints), {"key": DRAIN, "effect": "NoSchedule"}])


def undrain(connection: Connection, node: str) -> None:
    """Take the taint away. Raises as `drain` does."""
    _change(connection, node, _without)


def jobs_on(jobs: Iterable[TrainingJob], node: str) -> list[TrainingJob]:
    """Unfinished jobs that have a place on the node."""
    return [
        job
        for job in jobs
        if not is_finished(job.status)
        and any(share.node == node for part in job.status.placement for share in part.nodes)
    ]


def _without(taints: _Taints) -> _Taints:
    return [taint for taint in taints if taint["key"] != DRAIN]


def _change(connection: Connection, name: str, change: Callable[[_Taints], _Taints]) -> None:
    """The list of taints is written whole, hence guarded: others write it too, the node's own controllers above all."""
    for left in reversed(range(_TRIES)):
        try:
            node = connection.get(paths.node(name))
        except NotFound as error:
            raise NotFound(f"there is no node {name!r}; see: muster nodes", field="node") from error
        taints: _Taints = node.get("spec", {}).get("taints", [])
        wanted = change(taints)
        if [(t["key"], t["effect"]) for t in wanted] == [(t["key"], t["effect"]) for t in taints]:
            return
        guarded = {"resourceVersion": node["metadata"]["resourceVersion"]}
        body = {"metadata": guarded, "spec": {"taints": wanted or None}}
        try:
            connection.request("PATCH", paths.node(name), body, content_type=MERGE_PATCH)
        except Conflict:
            if not left:
                raise
            continue
        return
