"""Reads jobs, queues and flavors, and the tables of queues and nodes. Each command reads what it needs once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster import model
from muster.api.spec import Flavor, FlavorSpec, ObjectMeta, Queue, TrainingJob, WorkloadRecord
from muster.client import JobList
from muster.cluster import DecodeErrors, NodeView
from muster.cluster_client.decode import decode_flavors, decode_jobs, decode_queues
from muster.cluster_client.nodes import is_not_forbidden, list_nodes, list_nodes_if_allowed
from muster.cluster_client.read_api import NO_OPERATOR, OperatorReader
from muster.errors import ClusterError, MusterError, NotFound, Refused
from muster.kinds.trainingjob.array_workloads import workloads_of
from muster.kinds.trainingjob.arrays import index_job
from muster.kinds.trainingjob.pods import pod_name
from muster.kube.convert import read_object, without_managed_fields
from muster.kube.resources import FLAVORS, QUEUES, TRAINING_JOBS, WORKLOADS
from muster.kube.sync_client import KubeClient
from muster.state import snapshot_of
from muster.tables import node_rows, queue_rows, waiting_by_queue
from muster.text import name_hint
from muster.workload.conditions import is_finished
from muster.workload.observed import ObservedState
from muster.workload.placement import pod_slots
from muster.workload.related import split_gang_name

_MAX_SUGGESTED_NAMES = 200
_WRITTEN_USAGE = "usage is that which the operator wrote into the queues last, at most every 30 s"


def list_queues(kube_client: KubeClient) -> list[Queue]:
    """All queues, invalid ones with their valid fields."""
    return decoded_queues(kube_client)[0]


def list_flavors(kube_client: KubeClient) -> list[Flavor]:
    """All flavors, undecodable ones with their name only."""
    found, unreadable = decoded_flavors(kube_client)
    return [*found, *map(flavor_without_spec, unreadable)]


def list_jobs(kube_client: KubeClient, namespace: str | None) -> JobList:
    """The jobs of a namespace, or of all."""
    return decode_jobs(kube_client.list_items(TRAINING_JOBS.path(namespace)))


def list_objects(kube_client: KubeClient, namespace: str | None) -> list[WorkloadRecord]:
    """The Workloads of a namespace, or of all; none where the cluster has no Workloads, or the user may not list
    them."""
    try:
        documents = list(kube_client.list_items(WORKLOADS.path(namespace)))
    except (NotFound, Refused):
        return []
    except ClusterError as error:
        if error.reason != "NotInstalled":
            raise
        return []  # CRDs of an earlier release
    found = [read_object(WorkloadRecord, without_managed_fields(one)) for one in documents]
    return sorted(found, key=lambda one: (one.metadata.creation_timestamp or 0.0, one.spec.object_ref.name))


def list_readable_jobs(kube_client: KubeClient, operator: OperatorReader, namespace: str | None) -> JobList:
    """The jobs of a namespace; of all namespaces, or where the user may not list these, of those that the operator says
    are readable. Raises `Refused` Forbidden if it does not."""
    try:
        return replace(list_jobs(kube_client, namespace), objects=list_objects(kube_client, namespace))
    except Refused as error:
        names = operator.namespaces() if namespace is None and not is_not_forbidden(error) else None
        if names is None:
            raise
    parts = [list_jobs(kube_client, name) for name in names]
    objects = [one for name in names for one in list_objects(kube_client, name)]
    jobs = [job for part in parts for job in part.jobs]
    jobs.sort(key=lambda job: (job.metadata.creation_timestamp or 0.0, job.metadata.name))
    return JobList(jobs, [item for part in parts for item in part.unreadable], objects)


def get_job(kube_client: KubeClient, name: str, namespace: str) -> TrainingJob:
    """One job, or the index of an array, JOB-INDEX. Raises `NotFound` with the nearest name."""
    try:
        return read_object(TrainingJob, kube_client.get(TRAINING_JOBS.path(namespace, name)))
    except NotFound as error:
        found = _array_index(kube_client, name, namespace)
        if found is None:
            raise job_not_found(kube_client, name, namespace) from error
        return found


def _array_index(kube_client: KubeClient, name: str, namespace: str) -> TrainingJob | None:
    parts = split_gang_name(name)
    if parts is not None:
        with contextlib.suppress(NotFound):
            array = read_object(TrainingJob, kube_client.get(TRAINING_JOBS.path(namespace, parts[0])))
            return index_job(array, parts[1])
    return None


def queue_table_rows(kube_client: KubeClient, operator: OperatorReader) -> list[dict[str, Any]]:
    """Rows of the queue tree, from the operator. If it does not answer, usage is computed from the jobs of all
    namespaces; where the user may not list them, it is that in the statuses of the queues. Raises `Refused` Forbidden
    if these have none either. Nodes are then optional."""
    rows = operator.queue_rows()
    if rows is not None:
        return rows
    try:
        every = _list_all_jobs(kube_client, operator)
    except Refused:
        with contextlib.suppress(Refused):  # the user may not read queues either
            rows = _queue_rows_of_statuses(*decoded_queues(kube_client), _flavor_names_if_allowed(kube_client))
        if rows is None:
            raise
        operator.notices.append(_WRITTEN_USAGE)
        return rows
    state = _observed_state(kube_client, every, list_nodes_if_allowed(kube_client))
    errors = state.decode_errors
    flavors = errors.flavor_names(state.flavors)
    waiting = waiting_by_queue((one.queue, one.status) for one in state.workloads)
    return queue_rows(state.queues, snapshot_of(state).snapshot, waiting, errors.queues, flavors)


def _flavor_names_if_allowed(kube_client: KubeClient) -> frozenset[str] | None:
    """The names of all flavors; None if the user may not list them."""
    try:
        flavors, errors = decoded_flavors(kube_client)
    except Refused as error:
        if is_not_forbidden(error):
            raise
        return None
    return DecodeErrors(flavors=errors).flavor_names(flavors)


def _queue_rows_of_statuses(
    queues: list[Queue], errors: Mapping[str, str], flavor_names: frozenset[str] | None
) -> list[dict[str, Any]] | None:
    """Rows with the usage that the operator wrote into the queues; None if it wrote none."""
    usage = {queue.metadata.name: queue.status.usage for queue in queues if queue.status.usage is not None}
    rows = queue_rows(queues, None, {}, errors, flavor_names) if usage else None
    for row in rows or ():
        written = usage.get(row["name"])
        flavors = {entry["flavor"]: entry | {"available": {}} for entry in row["resources"]}
        for part in written.flavors if written is not None else ():
            known = flavors.setdefault(
                part.flavor, {"flavor": part.flavor, "guaranteed": {}, "limit": {}, "lend": {}, "available": {}}
            )
            known |= {"used": part.used, "borrowed": part.borrowed}
        row["resources"] = list(flavors.values())
        if written is not None:
            row |= {"waiting": written.pending_jobs, "admitted": written.admitted_jobs}
    return rows


def node_table_rows(kube_client: KubeClient, operator: OperatorReader) -> list[dict[str, Any]]:
    """Rows of the nodes, with the pods that jobs have on them, from the operator. If it does not answer, from the nodes
    and the jobs of all namespaces."""
    rows = operator.node_rows()
    if rows is not None:
        return rows
    views = list_nodes(kube_client)
    every = _list_all_jobs(kube_client, operator)
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


def job_not_found(kube_client: KubeClient, name: str, namespace: str) -> NotFound:
    """The error for a missing job, with the nearest name if the user may list jobs."""
    message = f"job {name!r} does not exist in namespace {namespace!r} of context {kube_client.config.context_name!r}"
    with contextlib.suppress(MusterError):
        page = kube_client.get(TRAINING_JOBS.path(namespace), {"limit": str(_MAX_SUGGESTED_NAMES)})
        message += f"; {name_hint(name, [item['metadata']['name'] for item in page['items']], 'job')}"
    return NotFound(message)


def check_can_list_all_jobs(kube_client: KubeClient) -> None:
    """Raises `Refused` Forbidden if the user may not list the jobs of all namespaces."""
    kube_client.get(TRAINING_JOBS.path(), {"limit": "1"})


def _list_all_jobs(kube_client: KubeClient, operator: OperatorReader | None = None) -> list[TrainingJob]:
    try:
        return list_jobs(kube_client, None).jobs
    except Refused as error:
        if is_not_forbidden(error):
            raise
        message = (
            "usage is computed from the jobs of all namespaces, which you may not list; see instead: kubectl get mq"
        )
        if operator is not None and operator.notices:
            message = f"{NO_OPERATOR}, and {message}"
        raise Refused(f"{message} ({error})", reason="Forbidden") from error


def decoded_queues(kube_client: KubeClient) -> tuple[list[Queue], dict[str, str]]:
    """All queues, and the errors of invalid ones by name."""
    return decode_queues(kube_client.list_items(QUEUES.path()))


def decoded_flavors(kube_client: KubeClient) -> tuple[list[Flavor], dict[str, str]]:
    """All valid flavors, and the errors of the others by name."""
    return decode_flavors(kube_client.list_items(FLAVORS.path()))


def flavor_without_spec(flavor: str) -> Flavor:
    """A flavor of which only the name is known."""
    return Flavor.model_construct(metadata=ObjectMeta.model_construct(name=flavor), spec=FlavorSpec())


def _observed_state(kube_client: KubeClient, every: list[TrainingJob], views: tuple[NodeView, ...]) -> ObservedState:
    queues, queue_errors = decoded_queues(kube_client)
    flavors, flavor_errors = decoded_flavors(kube_client)
    return ObservedState(
        now=time.time(),
        nodes=views,
        flavors=tuple(flavors),
        queues=tuple(queues),
        workloads=tuple(one for job in every for one in workloads_of(job)),
        pods={},
        decode_errors=DecodeErrors(queue_errors, flavor_errors),
    )
