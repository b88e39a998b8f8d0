"""Watches one job until it has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator

from muster.api.spec import TrainingJob
from muster.errors import ClusterError, NotFound
from muster.kube.convert import read_object
from muster.kube.resources import TRAINING_JOBS
from muster.kube.sync_client import UNREACHABLE_TIMEOUT_S, JsonObject, KubeClient, decode_json
from muster.lifecycle import has_terminated

_WATCH_S = 240
_IDLE_GRACE_S = 30.0  # beyond the watch's timeoutSeconds
_PAUSE_S = 1.0


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
    """Raises `ClusterError` Unreachable for half an event: something between us and the server ended the answer."""
    try:
        event = decode_json(line)
    except ValueError as error:
        raise ClusterError("the API server's answer broke off", reason="Unreachable") from error
    return event
