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
from muster.cluster import DecodeErrors, NodeView, ObservedState
from muster.errors import MusterError, NotFound, Refused
from muster.job_list import JobList
from muster.kubernetes import paths
from muster.kubernetes.decode import decode, decode_flavors, decode_jobs, decode_queues, to_node_view
from muster.kubernetes.kube_client import KubeClient
from muster.lifecycle import is_finished, pod_name, pod_slots
from muster.snapshot import SnapshotCache, build_snapshot
from muster.snapshot.jobs import to_gang, to_roles
from muster.snapshot.nodes import to_flavor, to_node
from muster.spec import Flavor, FlavorSpec, ObjectMeta, Queue, TrainingJob
from muster.tables import node_rows, queue_rows, waiting_by_queue
from muster.validation import check_dependencies_valid, check_size, check_submit
from muster.validation.submit import name_hint

_MAX_SUGGESTED_NAMES = 200
MAX_PREFLIGHT_NODES = 500
"""A submit looks at no more nodes than come in one page; on larger clusters the operator says what never fits."""


def list_queues(kube_client: KubeClient) -> list[Queue]:
    """All queues, each as far as it can be read."""
    return _decode_queues(kube_client)[0]


def list_flavors(kube_client: KubeClient) -> list[Flavor]:
    """All flavors; of one that cannot be read the name alone."""
    found, unreadable = _decode_flavors(kube_client)
    return [*found, *map(_flavor_without_spec, unreadable)]


def list_jobs(kube_client: KubeClient, namespace: str | None) -> JobList:
    """The jobs of a namespace, or of all."""
    return decode_jobs(kube_client.list_items(paths.collection_path("TrainingJob", namespace)))


def get_job(kube_client: KubeClient, name: str, namespace: str) -> TrainingJob:
    """One job. Raises `NotFound` with the nearest name."""
    try:
        return decode(TrainingJob, kube_client.get(paths.object_path("TrainingJob", name, namespace)))
    except NotFound as error:
        raise job_not_found(kube_client, name, namespace) from error


def list_nodes(kube_client: KubeClient) -> tuple[NodeView, ...]:
    """All nodes, without what foreign pods take."""
    return tuple(sorted(map(to_node_view, kube_client.list_items(paths.NODES_PATH)), key=lambda node: node.name))


def queue_table_rows(kube_client: KubeClient) -> list[dict[str, Any]]:
    """Rows of the queue tree. Use is counted from the jobs of all namespaces that can be read: raises `Refused` where
    some are not to be. Nodes need not be."""
    every = _list_all_jobs(kube_client)
    state = _observed_state(kube_client, every, _list_nodes_if_allowed(kube_client))
    return queue_rows(state.queues, _build_snapshot(state), waiting_by_queue(every), state.decode_errors.queues)


def node_table_rows(kube_client: KubeClient) -> list[dict[str, Any]]:
    """Rows of the nodes, with the pods that jobs have on them."""
    views = list_nodes(kube_client)
    every = _list_all_jobs(kube_client)
    state = _observed_state(kube_client, every, views)
    pods: dict[str, list[str]] = {}
    for job in every:
        for seat in pod_slots(job.status.placement) if not is_finished(job.status) else ():
            name = pod_name(job.metadata.name, job.metadata.uid, seat.role, seat.index, job.status.attempt)
            pods.setdefault(seat.node, []).append(name)
    return node_rows(views, _build_snapshot(state), pods)


def read_snapshot(kube_client: KubeClient) -> model.Snapshot:
    """The world as it can be read now, for `muster replay`; pods of others are not in it."""
    views = list_nodes(kube_client)
    return _build_snapshot(_observed_state(kube_client, _list_all_jobs(kube_client), views))


def preflight_job(
    kube_client: KubeClient, job: TrainingJob, namespace: str, others: Iterable[Queue | Flavor] = ()
) -> None:
    """Refuse a job that could not start as the objects are now, `others` counted in; as far as they may be read."""
    others = list(others)
    try:
        written, odd_queues = _decode_queues(kube_client)
        readable, odd_flavors = _decode_flavors(kube_client)
    except Refused as error:
        if error.reason != "Forbidden":
            raise
        return
    tree = {item.metadata.name: item for item in (*written, *others) if isinstance(item, Queue)}
    kinds = {item.metadata.name: item for item in (*readable, *others) if isinstance(item, Flavor)}
    new = {(item.kind, item.metadata.name) for item in others}
    odd_queues = {name: reason for name, reason in odd_queues.items() if ("Queue", name) not in new}
    odd_flavors = {name: reason for name, reason in odd_flavors.items() if ("Flavor", name) not in new}
    parsed = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    check_dependencies_valid(parsed, tree, odd_queues, odd_flavors)
    named = [*kinds.values(), *map(_flavor_without_spec, odd_flavors)]
    classes = None if job.spec.priority_class_name is None else _priority_classes(kube_client)
    check_submit(parsed, tree.values(), named, _namespace_labels(kube_client, namespace), classes)
    gang = to_gang(parsed, time.time(), {}, to_roles(parsed.spec))
    views = _list_nodes_if_few(kube_client)
    known = None if views is None else [to_node(view, list(kinds.values())) for view in views]
    check_size(gang, tree.values(), [to_flavor(flavor) for flavor in kinds.values()], known)


def nodes_with_flavors(kube_client: KubeClient, objects: Iterable[Queue | Flavor]) -> list[model.NodeInfo] | None:
    """All nodes with their flavors, if they may be read and are few; else None."""
    views = _list_nodes_if_few(kube_client)
    kinds = {item.metadata.name: item for item in objects if isinstance(item, Flavor)}
    return None if views is None else [to_node(view, list(kinds.values())) for view in views]


def job_not_found(kube_client: KubeClient, name: str, namespace: str) -> NotFound:
    """What to raise of a job that is not there: with the nearest name, as far as the others may be read."""
    message = f"there is no job {name!r} in namespace {namespace!r} of context {kube_client.config.context_name!r}"
    with contextlib.suppress(MusterError):
        page = kube_client.get(paths.collection_path("TrainingJob", namespace), {"limit": str(_MAX_SUGGESTED_NAMES)})
        message += f"; {name_hint(name, [item['metadata']['name'] for item in page['items']], 'job')}"
    return NotFound(message)


def is_not_forbidden(error: Refused) -> bool:
    """Whether it is something else than a right that its user lacks."""
    return error.reason != "Forbidden"


def _namespace_labels(kube_client: KubeClient, namespace: str) -> Mapping[str, str] | None:
    """The namespace's labels; None where they may not be read or there is no such namespace, which its jobs show."""
    try:
        labels: dict[str, str] = kube_client.get(f"{paths.NAMESPACES_PATH}/{namespace}")["metadata"].get("labels", {})
    except Refused:
        return None
    return labels


def _priority_classes(kube_client: KubeClient) -> Mapping[str, int] | None:
    """The values of all priority classes by name; None where they may not be read."""
    try:
        return {item["metadata"]["name"]: item["value"] for item in kube_client.list_items(paths.PRIORITY_CLASSES_PATH)}
    except Refused:
        return None


def _list_nodes_if_few(kube_client: KubeClient) -> list[NodeView] | None:
    """All nodes, if they may be read and are few; else None. Those that are down, cordoned or drained count as there:
    only what cannot heal is refused."""
    try:
        page = kube_client.get(paths.NODES_PATH, {"limit": str(MAX_PREFLIGHT_NODES)})
    except Refused:
        return None
    if page["metadata"].get("continue"):
        return None
    return [replace(to_node_view(node), ready=True, cordoned=False, taints=()) for node in page["items"]]


def check_can_list_all_jobs(kube_client: KubeClient) -> None:
    """Raises `Refused` Forbidden where the jobs of all namespaces may not be listed."""
    kube_client.get(paths.collection_path("TrainingJob"), {"limit": "1"})


def _list_all_jobs(kube_client: KubeClient) -> list[TrainingJob]:
    try:
        return list_jobs(kube_client, None).jobs
    except Refused as error:
        if is_not_forbidden(error):
            raise
        message = (
            "what is used is counted from the jobs of all namespaces, and you may not list them; see: kubectl get mq"
        )
        raise Refused(f"{message} ({error})", reason="Forbidden") from error


def _list_nodes_if_allowed(kube_client: KubeClient) -> tuple[NodeView, ...]:
    try:
        return list_nodes(kube_client)
    except Refused as error:
        if is_not_forbidden(error):
            raise
        return ()


def _decode_queues(kube_client: KubeClient) -> tuple[list[Queue], dict[str, str]]:
    return decode_queues(kube_client.list_items(paths.collection_path("Queue")))


def _decode_flavors(kube_client: KubeClient) -> tuple[list[Flavor], dict[str, str]]:
    return decode_flavors(kube_client.list_items(paths.collection_path("Flavor")))


def _flavor_without_spec(flavor: str) -> Flavor:
    return Flavor.model_construct(metadata=ObjectMeta.model_construct(name=flavor), spec=FlavorSpec())


def _observed_state(kube_client: KubeClient, every: list[TrainingJob], views: tuple[NodeView, ...]) -> ObservedState:
    tree, odd_queues = _decode_queues(kube_client)
    kinds, odd_flavors = _decode_flavors(kube_client)
    return ObservedState(
        now=time.time(),
        nodes=views,
        flavors=tuple(kinds),
        queues=tuple(tree),
        jobs=tuple(every),
        pods={},
        decode_errors=DecodeErrors(odd_queues, odd_flavors),
    )


def _build_snapshot(world: ObservedState) -> model.Snapshot:
    return build_snapshot(world, SnapshotCache()).snapshot
