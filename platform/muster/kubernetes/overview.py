"""The world as a user may read it: for the tables of queues and nodes, and to refuse early what could never start.

The operator keeps the whole world in memory; a verb reads what it needs, once. What its user may not read is left to
the operator to say.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from muster import model
from muster.admission import check_size, check_submit
from muster.cluster import NodeView, World
from muster.errors import Refused
from muster.kubernetes import paths
from muster.kubernetes.connection import Connection
from muster.kubernetes.reading import node_view, read
from muster.lifecycle import is_finished, pod_name, seats
from muster.overview import node_rows, queue_rows, waiting_by_queue
from muster.snapshot import Cache, build
from muster.snapshot.jobs import to_gang, to_roles
from muster.snapshot.nodes import to_flavor, to_node
from muster.spec import Flavor, Queue, TrainingJob

MOST_NODES = 500
"""A submit looks at no more nodes than come in one page; on larger clusters the operator says what never fits."""


def queues(connection: Connection) -> list[Queue]:
    """All queues."""
    return [read(Queue, item) for item in connection.items(paths.collection("Queue"))]


def flavors(connection: Connection) -> list[Flavor]:
    """All flavors."""
    return [read(Flavor, item) for item in connection.items(paths.collection("Flavor"))]


def jobs(connection: Connection, namespace: str | None) -> list[TrainingJob]:
    """The jobs of a namespace, or of all, oldest first."""
    found = [read(TrainingJob, item) for item in connection.items(paths.collection("TrainingJob", namespace))]
    return sorted(found, key=lambda job: (job.metadata.creation_timestamp or 0.0, job.metadata.name))


def nodes(connection: Connection) -> tuple[NodeView, ...]:
    """All nodes, without what foreign pods take."""
    return tuple(sorted(map(node_view, connection.items(paths.NODES)), key=lambda node: node.name))


def table_of_queues(connection: Connection) -> list[dict[str, Any]]:
    """Rows of the queue tree. Use is counted from the jobs of all namespaces: raises `Refused` where some are not to
    be read. Nodes need not be."""
    every = _everybodys_jobs(connection)
    tree = queues(connection)
    world = _world(every, tree, flavors(connection), _if_allowed_nodes(connection))
    return queue_rows(tree, _snapshot(world), waiting_by_queue(every))


def table_of_nodes(connection: Connection) -> list[dict[str, Any]]:
    """Rows of the nodes, with the pods that jobs have on them."""
    views = nodes(connection)
    every = _everybodys_jobs(connection)
    world = _world(every, queues(connection), flavors(connection), views)
    pods: dict[str, list[str]] = {}
    for job in every:
        for seat in seats(job.status.placement) if not is_finished(job.status) else ():
            name = pod_name(job.metadata.name, job.metadata.uid, seat.role, seat.index, job.status.attempt)
            pods.setdefault(seat.node, []).append(name)
    return node_rows(views, _snapshot(world), pods)


def newest_snapshot(connection: Connection) -> model.Snapshot:
    """The world as it can be read now, for `muster replay`; pods of others are not in it."""
    views = nodes(connection)
    return _snapshot(_world(_everybodys_jobs(connection), queues(connection), flavors(connection), views))


def check_new(connection: Connection, job: TrainingJob, namespace: str, others: Iterable[Queue | Flavor] = ()) -> None:
    """Refuse a job that could not start as the objects are now, `others` counted in; as far as they may be read."""
    others = list(others)
    try:
        tree = {queue.metadata.name: queue for queue in queues(connection)}
        kinds = {flavor.metadata.name: flavor for flavor in flavors(connection)}
    except Refused as error:
        if error.reason != "Forbidden":
            raise
        return
    tree |= {item.metadata.name: item for item in others if isinstance(item, Queue)}
    kinds |= {item.metadata.name: item for item in others if isinstance(item, Flavor)}
    placed = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    check_submit(placed, tree.values(), kinds.values(), _labels(connection, namespace))
    gang = to_gang(placed, time.time(), {}, to_roles(placed.spec))
    views = _first_nodes(connection)
    known = None if views is None else [to_node(view, list(kinds.values())) for view in views]
    check_size(gang, tree.values(), [to_flavor(flavor) for flavor in kinds.values()], known)


def allowed(error: Refused) -> bool:
    """Whether it is something else than a right that its user lacks."""
    return error.reason != "Forbidden"


def _labels(connection: Connection, namespace: str) -> Mapping[str, str] | None:
    """The namespace's labels; None where they may not be read or there is no such namespace, which its jobs show."""
    try:
        labels: dict[str, str] = connection.get(f"{paths.NAMESPACES}/{namespace}")["metadata"].get("labels", {})
    except Refused:
        return None
    return labels


def _first_nodes(connection: Connection) -> list[NodeView] | None:
    """All nodes, if they may be read and are few; else None. Those that are down, cordoned or drained count as there:
    only what cannot heal is refused."""
    try:
        page = connection.get(paths.NODES, {"limit": str(MOST_NODES)})
    except Refused:
        return None
    if page["metadata"].get("continue"):
        return None
    return [replace(node_view(node), ready=True, cordoned=False, taints=()) for node in page["items"]]


def _everybodys_jobs(connection: Connection) -> list[TrainingJob]:
    try:
        return jobs(connection, None)
    except Refused as error:
        if allowed(error):
            raise
        told = "what is used is counted from the jobs of all namespaces, and you may not list them; see: kubectl get mq"
        raise Refused(f"{told} ({error})", reason="Forbidden") from error


def _if_allowed_nodes(connection: Connection) -> tuple[NodeView, ...]:
    try:
        return nodes(connection)
    except Refused as error:
        if allowed(error):
            raise
        return ()


def _world(every: list[TrainingJob], tree: list[Queue], kinds: list[Flavor], views: tuple[NodeView, ...]) -> World:
    return World(now=time.time(), nodes=views, flavors=tuple(kinds), queues=tuple(tree), jobs=tuple(every), pods={})


def _snapshot(world: World) -> model.Snapshot:
    return build(world, Cache()).snapshot
