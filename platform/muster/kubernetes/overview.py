"""The world as a user may read it: for the tables of queues and nodes, and to refuse early what could never start.

The operator keeps the whole world in memory; a verb reads what it needs, once. What its user may not read is left to
the operator to say.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from muster import model
from muster.admission import check_readable, check_size, check_submit
from muster.admission.submitting import nearest
from muster.cluster import NodeView, Unreadable, World
from muster.errors import MusterError, NotFound, Refused
from muster.kubernetes import paths
from muster.kubernetes.connection import Connection
from muster.kubernetes.reading import node_view, read, read_flavors, read_jobs, read_queues
from muster.lifecycle import is_finished, pod_name, seats
from muster.listing import Listing
from muster.overview import node_rows, queue_rows, waiting_by_queue
from muster.snapshot import Cache, build
from muster.snapshot.jobs import to_gang, to_roles
from muster.snapshot.nodes import to_flavor, to_node
from muster.spec import Flavor, FlavorSpec, ObjectMeta, Queue, TrainingJob

_MOST_NAMED = 200
MOST_NODES = 500
"""A submit looks at no more nodes than come in one page; on larger clusters the operator says what never fits."""


def queues(connection: Connection) -> list[Queue]:
    """All queues, each as far as it can be read."""
    return _queues(connection)[0]


def flavors(connection: Connection) -> list[Flavor]:
    """All flavors; of one that cannot be read the name alone."""
    found, odd = _flavors(connection)
    return [*found, *map(_named_alone, odd)]


def listing(connection: Connection, namespace: str | None) -> Listing:
    """The jobs of a namespace, or of all."""
    return read_jobs(connection.items(paths.collection("TrainingJob", namespace)))


def job(connection: Connection, name: str, namespace: str) -> TrainingJob:
    """One job. Raises `NotFound` with the nearest name."""
    try:
        return read(TrainingJob, connection.get(paths.one("TrainingJob", name, namespace)))
    except NotFound as error:
        raise no_job(connection, name, namespace) from error


def nodes(connection: Connection) -> tuple[NodeView, ...]:
    """All nodes, without what foreign pods take."""
    return tuple(sorted(map(node_view, connection.items(paths.NODES)), key=lambda node: node.name))


def table_of_queues(connection: Connection) -> list[dict[str, Any]]:
    """Rows of the queue tree. Use is counted from the jobs of all namespaces that can be read: raises `Refused` where
    some are not to be. Nodes need not be."""
    every = _everybodys_jobs(connection)
    world = _world(connection, every, _if_allowed_nodes(connection))
    return queue_rows(world.queues, _snapshot(world), waiting_by_queue(every), world.unreadable.queues)


def table_of_nodes(connection: Connection) -> list[dict[str, Any]]:
    """Rows of the nodes, with the pods that jobs have on them."""
    views = nodes(connection)
    every = _everybodys_jobs(connection)
    world = _world(connection, every, views)
    pods: dict[str, list[str]] = {}
    for job in every:
        for seat in seats(job.status.placement) if not is_finished(job.status) else ():
            name = pod_name(job.metadata.name, job.metadata.uid, seat.role, seat.index, job.status.attempt)
            pods.setdefault(seat.node, []).append(name)
    return node_rows(views, _snapshot(world), pods)


def newest_snapshot(connection: Connection) -> model.Snapshot:
    """The world as it can be read now, for `muster replay`; pods of others are not in it."""
    views = nodes(connection)
    return _snapshot(_world(connection, _everybodys_jobs(connection), views))


def check_new(connection: Connection, job: TrainingJob, namespace: str, others: Iterable[Queue | Flavor] = ()) -> None:
    """Refuse a job that could not start as the objects are now, `others` counted in; as far as they may be read."""
    others = list(others)
    try:
        written, odd_queues = _queues(connection)
        readable, odd_flavors = _flavors(connection)
    except Refused as error:
        if error.reason != "Forbidden":
            raise
        return
    tree = {item.metadata.name: item for item in (*written, *others) if isinstance(item, Queue)}
    kinds = {item.metadata.name: item for item in (*readable, *others) if isinstance(item, Flavor)}
    new = {(item.kind, item.metadata.name) for item in others}
    odd_queues = {name: why for name, why in odd_queues.items() if ("Queue", name) not in new}
    odd_flavors = {name: why for name, why in odd_flavors.items() if ("Flavor", name) not in new}
    placed = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    check_readable(placed, tree, odd_queues, odd_flavors)
    named = [*kinds.values(), *map(_named_alone, odd_flavors)]
    classes = None if job.spec.priority_class_name is None else _priority_classes(connection)
    check_submit(placed, tree.values(), named, _labels(connection, namespace), classes)
    gang = to_gang(placed, time.time(), {}, to_roles(placed.spec))
    views = _first_nodes(connection)
    known = None if views is None else [to_node(view, list(kinds.values())) for view in views]
    check_size(gang, tree.values(), [to_flavor(flavor) for flavor in kinds.values()], known)


def nodes_of(connection: Connection, objects: Iterable[Queue | Flavor]) -> list[model.Node] | None:
    """All nodes with their flavors, if they may be read and are few; else None."""
    views = _first_nodes(connection)
    kinds = {item.metadata.name: item for item in objects if isinstance(item, Flavor)}
    return None if views is None else [to_node(view, list(kinds.values())) for view in views]


def no_job(connection: Connection, name: str, namespace: str) -> NotFound:
    """What to raise of a job that is not there: with the nearest name, as far as the others may be read."""
    told = f"there is no job {name!r} in namespace {namespace!r} of context {connection.access.context!r}"
    with contextlib.suppress(MusterError):
        page = connection.get(paths.collection("TrainingJob", namespace), {"limit": str(_MOST_NAMED)})
        told += f"; {nearest(name, [item['metadata']['name'] for item in page['items']], 'job')}"
    return NotFound(told)


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


def _priority_classes(connection: Connection) -> Mapping[str, int] | None:
    """The values of all priority classes by name; None where they may not be read."""
    try:
        return {item["metadata"]["name"]: item["value"] for item in connection.items(paths.PRIORITY_CLASSES)}
    except Refused:
        return None


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


def check_everybodys_jobs(connection: Connection) -> None:
    """Raises `Refused` Forbidden where the jobs of all namespaces may not be listed."""
    connection.get(paths.collection("TrainingJob"), {"limit": "1"})


def _everybodys_jobs(connection: Connection) -> list[TrainingJob]:
    try:
        return listing(connection, None).jobs
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


def _queues(connection: Connection) -> tuple[list[Queue], dict[str, str]]:
    return read_queues(connection.items(paths.collection("Queue")))


def _flavors(connection: Connection) -> tuple[list[Flavor], dict[str, str]]:
    return read_flavors(connection.items(paths.collection("Flavor")))


def _named_alone(flavor: str) -> Flavor:
    return Flavor.model_construct(metadata=ObjectMeta.model_construct(name=flavor), spec=FlavorSpec())


def _world(connection: Connection, every: list[TrainingJob], views: tuple[NodeView, ...]) -> World:
    tree, odd_queues = _queues(connection)
    kinds, odd_flavors = _flavors(connection)
    return World(
        now=time.time(),
        nodes=views,
        flavors=tuple(kinds),
        queues=tuple(tree),
        jobs=tuple(every),
        pods={},
        unreadable=Unreadable(odd_queues, odd_flavors),
    )


def _snapshot(world: World) -> model.Snapshot:
    return build(world, Cache()).snapshot
