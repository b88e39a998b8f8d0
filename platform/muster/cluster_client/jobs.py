"""One job of a cluster: watching it, changing its spec, and where its run is."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from muster.api.spec import TrainingJob
from muster.api.validation import check_unfinished, with_replicas
from muster.cluster_client import queries
from muster.cluster_client.submit import preflight_job
from muster.errors import ClusterError, Conflict, InvalidSpec, NotFound
from muster.kinds.trainingjob.array_changes import with_index_cancelled, with_retry
from muster.kinds.trainingjob.arrays import array_name, index_job, index_of
from muster.kube.convert import read_object
from muster.kube.requests import JSON_PATCH, MERGE_PATCH, replaced_conflict, uid_mismatch_as_conflict
from muster.kube.resources import TRAINING_JOBS
from muster.kube.sync_client import UNREACHABLE_TIMEOUT_S, JsonObject, KubeClient, decode_json
from muster.workload.conditions import has_terminated

VOLUME_SCHEMES = ("pvc", "volume")
"""Schemes of locations that are not in a store: pvc://CLAIM/FOLDER, volume://NAME-IN-THE-POD/FOLDER."""
_WATCH_S = 240
_IDLE_GRACE_S = 30.0  # beyond the watch's timeoutSeconds
_PAUSE_S = 1.0


def patch_job_spec(kube_client: KubeClient, job: TrainingJob, fields: JsonObject) -> TrainingJob:
    """Set spec fields of an unfinished job. Raises `Conflict` if another job has its name by now."""
    check_unfinished(job, stopping=any(fields.values()))
    path = TRAINING_JOBS.path(job.metadata.namespace, job.metadata.name)
    patch = {"metadata": {"uid": job.metadata.uid}, "spec": fields}
    with uid_mismatch_as_conflict(_label(job)):
        return read_object(TrainingJob, kube_client.request("PATCH", path, patch, content_type=MERGE_PATCH))


def retry_array(kube_client: KubeClient, array: TrainingJob) -> TrainingJob:
    """Queue the failed indices of an array again. Raises as `with_retry` does."""
    wanted = with_retry(array).spec.array
    assert wanted is not None
    return _patch_array(kube_client, array, {"retries": wanted.retries})


def patch_index(kube_client: KubeClient, one: TrainingJob, fields: JsonObject) -> TrainingJob:
    """Cancel an index of an array; that index. Raises `InvalidSpec` for other fields, `Conflict` if it has ended."""
    index = index_of(one)
    assert index is not None
    check_unfinished(one, stopping=True)
    array = queries.get_job(kube_client, array_name(one), one.metadata.namespace or "default")
    wanted = with_index_cancelled(array, index, fields).spec.array
    assert wanted is not None
    return index_job(_patch_array(kube_client, array, {"cancel": wanted.cancel}), index) or one


def _patch_array(kube_client: KubeClient, array: TrainingJob, fields: JsonObject) -> TrainingJob:
    path = TRAINING_JOBS.path(array.metadata.namespace, array.metadata.name)
    patch = {
        "metadata": {"uid": array.metadata.uid, "resourceVersion": array.metadata.resource_version},
        "spec": {"array": fields},
    }
    with uid_mismatch_as_conflict(_label(array)):
        return read_object(TrainingJob, kube_client.request("PATCH", path, patch, content_type=MERGE_PATCH))


def scale_job(kube_client: KubeClient, job: TrainingJob, replicas: Mapping[str, int]) -> TrainingJob:
    """Change the number of pods of roles. The patch tests the job's uid and the role names by index, so that it raises
    `Conflict` rather than overwrite a concurrent edit."""
    check_unfinished(job)
    requested = with_replicas(job, replicas)
    name, namespace = job.metadata.name, job.metadata.namespace or kube_client.config.namespace
    preflight_job(kube_client, requested, namespace)
    patch = [
        step
        for index, role in enumerate(requested.spec.roles)
        if role.replicas != job.spec.roles[index].replicas
        for step in (
            {"op": "test", "path": f"/spec/roles/{index}/name", "value": role.name},
            {"op": "replace", "path": f"/spec/roles/{index}/replicas", "value": role.replicas},
        )
    ]
    if requested.spec.elastic_replicas is None and job.spec.elastic_replicas is not None:
        patch.append({"op": "remove", "path": "/spec/elasticReplicas"})
    if not patch:
        return job
    path = TRAINING_JOBS.path(namespace, name)
    uid_test = {"op": "test", "path": "/metadata/uid", "value": job.metadata.uid}
    try:
        return read_object(TrainingJob, kube_client.request("PATCH", path, [uid_test, *patch], content_type=JSON_PATCH))
    except InvalidSpec as error:  # the server does not say which test failed
        if error.field:
            raise
        current = queries.get_job(kube_client, name, namespace)
        if current.metadata.uid != job.metadata.uid:
            raise replaced_conflict(_label(job)) from error
        if [role.name for role in current.spec.roles] != [role.name for role in job.spec.roles]:
            raise Conflict(f"the roles of job {name!r} were changed concurrently; check the job and retry") from error
        raise


def watch_job(kube_client: KubeClient, name: str, namespace: str) -> Iterator[TrainingJob]:
    """The job now and after every change, until it is finished and its last process has ended. Raises `NotFound` if it
    is deleted or recreated, `ClusterError` if the server does not answer for `UNREACHABLE_TIMEOUT_S`."""
    last: TrainingJob | None = None
    deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
    while True:
        try:
            current = read_object(TrainingJob, kube_client.get(TRAINING_JOBS.path(namespace, name)))
            if last is not None and current.metadata.uid != last.metadata.uid:
                raise _deleted_error(last)
            for job in _watch_from(kube_client, current):
                deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
                if last is None or job.metadata.resource_version != last.metadata.resource_version:
                    yield job
                last = job
                if has_terminated(job.status):
                    return
        except ClusterError as error:
            is_permanent = last is None and error.reason != "Unreachable"  # for example invalid credentials
            if is_permanent or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def watch_index(arrays: Iterator[TrainingJob], index: int) -> Iterator[TrainingJob]:
    """An index of an array at each change of the array, until it has ended."""
    for array in arrays:
        one = index_job(array, index)
        if one is not None:
            yield one
        if one is None or has_terminated(one.status):
            return


def is_remote_store(location: str) -> bool:
    """Whether a location can be read from outside the cluster."""
    return urlsplit(location).scheme not in ("", *VOLUME_SCHEMES)


def report_command(job: TrainingJob, context: str) -> str | None:
    """The command that builds the report of a job in this context; None if its run is not in a store."""
    traces, meta = job.status.traces, job.metadata
    if traces is None or not is_remote_store(traces.location):
        return None
    named = ["--context", context] if context else []
    return shlex.join(["muster", "report", f"{meta.namespace or 'default'}/{meta.name}", *named])


def _watch_from(kube_client: KubeClient, job: TrainingJob) -> Iterator[TrainingJob]:
    """The job, then its changes until the server ends the watch."""
    yield job
    query = {
        "watch": "1",
        "fieldSelector": f"metadata.name={job.metadata.name}",
        "resourceVersion": job.metadata.resource_version,
        "timeoutSeconds": str(_WATCH_S),
    }
    path = TRAINING_JOBS.path(job.metadata.namespace)
    with kube_client.stream(path, query, _WATCH_S + _IDLE_GRACE_S) as lines:
        for line in lines:
            event = _decode_event(line)
            if event["type"] == "ERROR":  # usually 410: the resourceVersion is too old
                return
            seen = read_object(TrainingJob, event["object"])
            if event["type"] == "DELETED" or seen.metadata.uid != job.metadata.uid:
                raise _deleted_error(job)
            yield seen


def _deleted_error(job: TrainingJob) -> NotFound:
    return NotFound(f"job {job.metadata.namespace}/{job.metadata.name} was deleted")


def _decode_event(line: bytes) -> JsonObject:
    """Raises `ClusterError` Unreachable for half an event, and InvalidAnswer for anything else that is not an event:
    something between us and the server ended or replaced the answer."""
    try:
        event = decode_json(line)
    except ValueError as error:
        raise ClusterError(
            "the API server's answer is incomplete: the connection was closed", reason="Unreachable"
        ) from error
    if not isinstance(event, dict) or "type" not in event or not isinstance(event.get("object"), dict):
        raise ClusterError(
            f"the API server's answer is not an event of a watch: {line[:200]!r}", reason="InvalidAnswer"
        )
    found: JsonObject = event
    return found


def _label(job: TrainingJob) -> str:
    return f"trainingjob {job.metadata.namespace}/{job.metadata.name}"
