"""Reads the cluster's state for the tables of queues and nodes, and to refuse jobs that could never start.

Each command reads what it needs once. Checks that depend on objects which the user may not read are left to the
operator.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from muster import model
from muster.api.spec import Flavor, FlavorSpec, ObjectMeta, Queue, TrainingJob
from muster.api.validation import check_dependencies_valid, check_size, check_submit
from muster.api.validation.submit import name_hint
from muster.client import JobList
from muster.cluster import DecodeErrors, NodeView, ObservedState
from muster.errors import MusterError, NotFound, Refused
from muster.kube.convert import node_view, read_object
from muster.kube.objects import V1Namespace, V1Node, V1PriorityClass
from muster.kube.resources import FLAVORS, NAMESPACES, NODES, PRIORITY_CLASSES, QUEUES, TRAINING_JOBS
from muster.kube.sync_client import KubeClient
from muster.kubernetes.decode import decode_flavors, decode_jobs, decode_queues
from muster.lifecycle import is_finished, pod_name, pod_slots
from muster.state import snapshot_of
from muster.state.nodes import to_flavor, to_node
from muster.tables import node_rows, queue_rows, waiting_by_queue
from muster.workload.trainingjob import to_gang

_MAX_SUGGESTED_NAMES = 200
MAX_PREFLIGHT_NODES = 500
"""A submit reads at most one page of nodes; on larger clusters only the operator checks whether a job can ever fit."""


def list_queues(kube_client: KubeClient) -> list[Queue]:
    """All queues, invalid ones with their valid fields."""
    return _decode_queues(kube_client)[0]


def list_flavors(kube_client: KubeClient) -> list[Flavor]:
    """All flavors, undecodable ones with their name only."""
    found, unreadable = _decode_flavors(kube_client)
    return [*found, *map(_flavor_without_spec, unreadable)]


def list_jobs(kube_client: KubeClient, namespace: str | None) -> JobList:
    """The jobs of a namespace, or of all."""
    return decode_jobs(kube_client.list_items(TRAINING_JOBS.path(namespace)))


def get_job(kube_client: KubeClient, name: str, namespace: str) -> TrainingJob:
    """One job. Raises `NotFound` with the nearest name."""
    try:
        return read_object(TrainingJob, kube_client.get(TRAINING_JOBS.path(namespace, name)))
    except NotFound as error:
        raise job_not_found(kube_client, name, namespace) from error


def list_nodes(kube_client: KubeClient) -> tuple[NodeView, ...]:
    """All nodes, without the usage of unmanaged pods."""
    views = map(_node_view, kube_client.list_items(NODES.path()))
    return tuple(sorted(views, key=lambda node: node.name))


def queue_table_rows(kube_client: KubeClient) -> list[dict[str, Any]]:
    """Rows of the queue tree. Usage is computed from the jobs of all namespaces: raises `Refused` Forbidden if the user
    may not list them. Nodes are optional."""
    every = _list_all_jobs(kube_client)
    state = _observed_state(kube_client, every, _list_nodes_if_allowed(kube_client))
    return queue_rows(state.queues, snapshot_of(state).snapshot, waiting_by_queue(every), state.decode_errors.queues)


def node_table_rows(kube_client: KubeClient) -> list[dict[str, Any]]:
    """Rows of the nodes, with the pods that jobs have on them."""
    views = list_nodes(kube_client)
    every = _list_all_jobs(kube_client)
    state = _observed_state(kube_client, every, views)
    pods: dict[str, list[str]] = {}
    for job in every:
        for slot in pod_slots(job.status.placement) if not is_finished(job.status) else ():
            name = pod_name(job.metadata.name, job.metadata.uid, slot.role, slot.index, job.status.attempt)
            pods.setdefault(slot.node, []).append(name)
    return node_rows(views, snapshot_of(state).snapshot, pods)


def read_snapshot(kube_client: KubeClient) -> model.Snapshot:
    """A scheduling snapshot of the current state, for `muster replay`, without unmanaged pods."""
    views = list_nodes(kube_client)
    return snapshot_of(_observed_state(kube_client, _list_all_jobs(kube_client), views)).snapshot


def preflight_job(
    kube_client: KubeClient, job: TrainingJob, namespace: str, others: Iterable[Queue | Flavor] = ()
) -> None:
    """Refuse a job that could not start with the current objects and `others`, as far as the user may read them."""
    others = list(others)
    try:
        queues, queue_errors = _decode_queues(kube_client)
        flavors, flavor_errors = _decode_flavors(kube_client)
    except Refused as error:
        if error.reason != "Forbidden":
            raise
        return
    tree = {item.metadata.name: item for item in (*queues, *others) if isinstance(item, Queue)}
    valid_flavors = {item.metadata.name: item for item in (*flavors, *others) if isinstance(item, Flavor)}
    new = {(item.kind, item.metadata.name) for item in others}
    queue_errors = {name: reason for name, reason in queue_errors.items() if ("Queue", name) not in new}
    flavor_errors = {name: reason for name, reason in flavor_errors.items() if ("Flavor", name) not in new}
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    check_dependencies_valid(job, tree, queue_errors, flavor_errors)
    all_flavors = [*valid_flavors.values(), *map(_flavor_without_spec, flavor_errors)]
    classes = None if job.spec.priority_class_name is None else _priority_classes(kube_client)
    check_submit(job, tree.values(), all_flavors, _namespace_labels(kube_client, namespace), classes)
    gang = to_gang(job, time.time(), {})
    views = _list_nodes_if_few(kube_client)
    nodes = None if views is None else [to_node(view, list(valid_flavors.values())) for view in views]
    check_size(gang, tree.values(), [to_flavor(flavor) for flavor in valid_flavors.values()], nodes)


def nodes_with_flavors(kube_client: KubeClient, objects: Iterable[Queue | Flavor]) -> list[model.NodeInfo] | None:
    """All nodes with their flavors; None if the user may not list them or there are more than one page."""
    views = _list_nodes_if_few(kube_client)
    flavors = {item.metadata.name: item for item in objects if isinstance(item, Flavor)}
    return None if views is None else [to_node(view, list(flavors.values())) for view in views]


def job_not_found(kube_client: KubeClient, name: str, namespace: str) -> NotFound:
    """The error for a missing job, with the nearest name if the user may list jobs."""
    message = f"job {name!r} does not exist in namespace {namespace!r} of context {kube_client.config.context_name!r}"
    with contextlib.suppress(MusterError):
        page = kube_client.get(TRAINING_JOBS.path(namespace), {"limit": str(_MAX_SUGGESTED_NAMES)})
        message += f"; {name_hint(name, [item['metadata']['name'] for item in page['items']], 'job')}"
    return NotFound(message)


def is_not_forbidden(error: Refused) -> bool:
    """Whether a refusal has another reason than missing RBAC rights."""
    return error.reason != "Forbidden"


def _namespace_labels(kube_client: KubeClient, namespace: str) -> Mapping[str, str] | None:
    """The namespace's labels; None if the user may not read them or the namespace does not exist."""
    try:
        return msgspec.convert(kube_client.get(NAMESPACES.path(name=namespace)), V1Namespace).metadata.labels
    except Refused:
        return None


def _priority_classes(kube_client: KubeClient) -> Mapping[str, int] | None:
    """The values of all priority classes by name; None if the user may not list them."""
    try:
        items = kube_client.list_items(PRIORITY_CLASSES.path())
        return {one.metadata.name: one.value for one in msgspec.convert(list(items), list[V1PriorityClass])}
    except Refused:
        return None


def _node_view(node: Mapping[str, Any]) -> NodeView:
    return node_view(msgspec.convert(node, V1Node))


def _list_nodes_if_few(kube_client: KubeClient) -> list[NodeView] | None:
    """All nodes; None if the user may not list them or there are more than one page. Nodes that are not ready, cordoned
    or drained count as available: a temporary state must not refuse a job."""
    try:
        page = kube_client.get(NODES.path(), {"limit": str(MAX_PREFLIGHT_NODES)})
    except Refused:
        return None
    if page["metadata"].get("continue"):
        return None
    return [replace(_node_view(node), ready=True, cordoned=False, taints=()) for node in page["items"]]


def check_can_list_all_jobs(kube_client: KubeClient) -> None:
    """Raises `Refused` Forbidden if the user may not list the jobs of all namespaces."""
    kube_client.get(TRAINING_JOBS.path(), {"limit": "1"})


def _list_all_jobs(kube_client: KubeClient) -> list[TrainingJob]:
    try:
        return list_jobs(kube_client, None).jobs
    except Refused as error:
        if is_not_forbidden(error):
            raise
        message = (
            "usage is computed from the jobs of all namespaces, which you may not list; see instead: kubectl get mq"
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
    return decode_queues(kube_client.list_items(QUEUES.path()))


def _decode_flavors(kube_client: KubeClient) -> tuple[list[Flavor], dict[str, str]]:
    return decode_flavors(kube_client.list_items(FLAVORS.path()))


def _flavor_without_spec(flavor: str) -> Flavor:
    return Flavor.model_construct(metadata=ObjectMeta.model_construct(name=flavor), spec=FlavorSpec())


def _observed_state(kube_client: KubeClient, every: list[TrainingJob], views: tuple[NodeView, ...]) -> ObservedState:
    queues, queue_errors = _decode_queues(kube_client)
    flavors, flavor_errors = _decode_flavors(kube_client)
    return ObservedState(
        now=time.time(),
        nodes=views,
        flavors=tuple(flavors),
        queues=tuple(queues),
        jobs=tuple(every),
        pods={},
        decode_errors=DecodeErrors(queue_errors, flavor_errors),
    )
