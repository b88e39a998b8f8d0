"""Checks jobs against the objects of a cluster, and creates them, all or none; a job may have an archive of code.

Checks that depend on objects which the user may not read are left to the operator.

Kubernetes has no transactions, and a response can be lost: a job whose creation was not confirmed is looked up, jobs
created before a refused one are deleted again, and errors name the jobs whose state remains unknown.
"""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from muster.api.spec import Flavor, Queue, TrainingJob, TrainingJobStatus
from muster.api.validation import already_exists_conflict, check_size
from muster.cluster import DecodeErrors, NodeView
from muster.cluster_client import nodes, queries
from muster.cluster_client.decode import to_manifest
from muster.errors import ClusterError, Conflict, MusterError, NotFound, Refused
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.kinds.trainingjob.submit import KnownObjects, check_depends_on, check_pod_security, check_submit
from muster.kube.config import DEFAULT_NAMESPACE
from muster.kube.convert import device_classes_by_resource, read_object
from muster.kube.objects import V1DeviceClass, V1Namespace, V1PriorityClass
from muster.kube.requests import DRY_RUN, MERGE_PATCH, STRICT_FIELD_VALIDATION, is_uid_mismatch, uid_precondition
from muster.kube.resources import CONFIG_MAPS, DEVICE_CLASSES, NAMESPACES, PRIORITY_CLASSES, TRAINING_JOBS
from muster.kube.sync_client import KubeClient
from muster.model import Gang
from muster.state.projection import to_flavor, to_node
from muster.usage.segments import USER_LABEL, with_user
from muster.workload.gates import devices_gate, refuse_closed

_MAX_LOOKUPS = 10
_MISSES_UNTIL_ABSENT = 2  # look-ups without a result
_PAUSE_S = 1.0
ARCHIVE = "workspace.tar.gz"
"""The key of the archive in the ConfigMap."""


def preflight_job(
    kube_client: KubeClient, job: TrainingJob, namespace: str, others: Iterable[Queue | Flavor] = ()
) -> None:
    """Refuse a job that could not start with the current objects and `others`, as far as the user may read them."""
    others = list(others)
    try:
        queues, queue_errors = queries.decoded_queues(kube_client)
        flavors, flavor_errors = queries.decoded_flavors(kube_client)
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
    known = KnownObjects(
        tree,
        valid_flavors,
        DecodeErrors(queue_errors, flavor_errors),
        _namespace_labels(kube_client, namespace),
        None if job.spec.priority_class_name is None else _priority_classes(kube_client),
    )
    gang = check_submit(job, known, time.time())
    check_pod_security(job, tree.values())
    views = nodes.list_nodes_if_few(kube_client)
    if views is not None:
        state = replace(known.gate_state(job), device_classes=_unlisted_device_classes(kube_client, gang, views))
        refuse_closed((devices_gate,), TrainingJobWorkload(job), gang, state, gang.submitted_at)
    known_nodes = None if views is None else [to_node(view, list(valid_flavors.values())) for view in views]
    check_size(gang, tree.values(), [to_flavor(flavor) for flavor in valid_flavors.values()], known_nodes)


def _check_depends_on(kube_client: KubeClient, job: TrainingJob, jobs: Sequence[TrainingJob]) -> None:
    """As `check_depends_on`, as far as the user may read jobs."""
    default = kube_client.config.namespace
    namespace = job.metadata.namespace or default

    def find(name: str) -> TrainingJob | None:
        with contextlib.suppress(NotFound):
            return queries.get_job(kube_client, name, namespace)
        return None

    submitted = [one.metadata.name for one in jobs if (one.metadata.namespace or default) == namespace]
    try:
        check_depends_on(job, find, submitted)
    except Refused as error:
        if error.reason != "Forbidden":
            raise


def submit_jobs(kube_client: KubeClient, jobs: Sequence[TrainingJob], dry_run: bool) -> list[TrainingJob]:
    """Create jobs, all or none, and return them with server-set fields. Raises as `apply.apply_objects`; the error
    names the job that it concerns, and jobs that were or may have been created and were not deleted again."""
    for job in jobs:
        with _attribute_errors_to(job):
            preflight_job(kube_client, job, job.metadata.namespace or kube_client.config.namespace)
            _check_depends_on(kube_client, job, jobs)
    jobs = _of_user(kube_client, jobs)
    checked = [_create(kube_client, job, DRY_RUN) for job in jobs]
    if dry_run:
        return checked
    created: list[TrainingJob] = []
    try:
        for job, expected in zip(jobs, checked, strict=True):
            created.append(_create_confirmed(kube_client, job, expected))
    except MusterError as error:
        remaining = _roll_back(kube_client, created)
        if remaining:
            names = " ".join(map(_job_label, remaining))
            error.args = (f"{error}; created before that and not rolled back; run: muster delete job {names}",)
        raise
    return created


def _of_user(kube_client: KubeClient, jobs: Sequence[TrainingJob]) -> Sequence[TrainingJob]:
    """The jobs with the label of the user, to whom their usage is attributed; without it if the user is not known."""
    if all(USER_LABEL in job.metadata.labels for job in jobs):
        return jobs
    try:
        user = kube_client.username()
    except MusterError:
        return jobs
    return [with_user(job, user) for job in jobs]


def _create(kube_client: KubeClient, job: TrainingJob, query: Mapping[str, str]) -> TrainingJob:
    with _attribute_errors_to(job):
        manifest = to_manifest(job, kube_client.config.namespace)
        name, namespace = job.metadata.name, manifest["metadata"]["namespace"]
        path = TRAINING_JOBS.path(namespace)
        try:
            return read_object(
                TrainingJob, kube_client.request("POST", path, manifest, query={**STRICT_FIELD_VALIDATION, **query})
            )
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            raise already_exists_conflict(name, namespace, _status_if_known(kube_client, path, name)) from error


def _status_if_known(kube_client: KubeClient, path: str, name: str) -> TrainingJobStatus | None:
    """The status of a job; None if it cannot be read."""
    try:
        return read_object(TrainingJob, kube_client.get(f"{path}/{name}")).status
    except MusterError:
        return None


def _create_confirmed(kube_client: KubeClient, job: TrainingJob, expected: TrainingJob) -> TrainingJob:
    """Create a job; if the response is lost, look it up. `expected` is the result of the dry run."""
    try:
        return _create(kube_client, job, {})
    except ClusterError as error:
        name = _job_label(expected)
        try:
            found = _find_created(kube_client, expected)
        except MusterError:
            error.args = (f"{error}; it is unknown whether job {name} was created: muster describe {name}",)
            raise error from None
        if found is None:
            raise
        if found.spec != expected.spec:
            error.args = (f"{error}; job {name} now exists with a different spec: muster describe {name}",)
            raise
        return found


def _find_created(kube_client: KubeClient, job: TrainingJob) -> TrainingJob | None:
    """The job that is there; None where there is none, also a while later: a request may be late. Raises as
    `KubeClient.request` does."""
    path = TRAINING_JOBS.path(job.metadata.namespace, job.metadata.name)
    missing = 0
    for retries_left in reversed(range(_MAX_LOOKUPS)):
        try:
            return read_object(TrainingJob, kube_client.get(path))
        except NotFound:
            missing += 1
            if missing == _MISSES_UNTIL_ABSENT:
                return None
        except ClusterError:
            if not retries_left:
                raise
        time.sleep(_PAUSE_S)
    return None


def _roll_back(kube_client: KubeClient, jobs: Sequence[TrainingJob]) -> list[TrainingJob]:
    """Delete the jobs that were just created; returns those that exist or may exist afterwards."""
    remaining = []
    for job in jobs:
        meta = job.metadata
        try:
            kube_client.request(
                "DELETE",
                TRAINING_JOBS.path(meta.namespace, meta.name),
                uid_precondition(meta.uid),
            )
        except NotFound:
            continue
        except MusterError as error:  # not raised: the refusal of the other job is reported
            if not is_uid_mismatch(error):
                remaining.append(job)
    return remaining


def _unlisted_device_classes(kube_client: KubeClient, gang: Gang, nodes: Iterable[NodeView]) -> Mapping[str, str]:
    """The device classes of the gang's resources that no node lists, as far as the user may read them."""
    listed = {name for node in nodes for name, amount in node.allocatable if amount}
    unlisted = {name for role in gang.roles for name, _ in role.request} - listed
    if not unlisted:
        return {}
    try:
        items = list(kube_client.list_items(DEVICE_CLASSES.path()))
    except Refused:  # or not served
        return {}
    classes = device_classes_by_resource(msgspec.convert(items, list[V1DeviceClass]))
    return {resource: classes[resource] for resource in unlisted & classes.keys()}


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


@contextlib.contextmanager
def _attribute_errors_to(job: TrainingJob) -> Iterator[None]:
    """Set `error.job` of errors raised inside to this job."""
    try:
        yield
    except MusterError as error:
        error.job = _job_label(job)
        raise


def _job_label(job: TrainingJob) -> str:
    return f"{job.metadata.namespace or DEFAULT_NAMESPACE}/{job.metadata.name}"


def archive_name(job: str) -> str:
    """The name of the ConfigMap of a job."""
    return f"{job}-workspace"


def read_archive(kube_client: KubeClient, name: str, namespace: str) -> bytes | None:
    """The archive of a job; None if it has none, or if the user may not read it."""
    try:
        found = kube_client.get(CONFIG_MAPS.path(namespace, archive_name(name)))
        return base64.b64decode(found["binaryData"][ARCHIVE])
    except (Refused, KeyError, ValueError):
        return None


def submit_with_archive(kube_client: KubeClient, job: TrainingJob, archive: bytes) -> TrainingJob:
    """Create the ConfigMap, then the job that becomes its owner, so that both are deleted together.

    Raises the errors of `submit_jobs`; a refused job leaves no ConfigMap. If the client or the server fails in between,
    the ConfigMap may remain without an owner.
    """
    namespace = job.metadata.namespace or kube_client.config.namespace
    name = archive_name(job.metadata.name)
    document = {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "immutable": True,
        "binaryData": {ARCHIVE: base64.b64encode(archive).decode()},
    }
    kube_client.request("POST", CONFIG_MAPS.path(namespace), document, query=STRICT_FIELD_VALIDATION)
    path = CONFIG_MAPS.path(namespace, name)
    try:
        (created,) = submit_jobs(kube_client, [job], dry_run=False)
    except ClusterError:  # the job may have been created
        raise
    except MusterError:
        with contextlib.suppress(MusterError):
            kube_client.request("DELETE", path)
        raise
    owner = {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "name": created.metadata.name,
        "uid": created.metadata.uid,
    }
    with contextlib.suppress(MusterError):  # the job is submitted
        kube_client.request("PATCH", path, {"metadata": {"ownerReferences": [owner]}}, content_type=MERGE_PATCH)
    return created
