"""One job as it changes, until it has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator

from muster.errors import ClusterError, NotFound
from muster.kubernetes import paths
from muster.kubernetes.decode import decode
from muster.kubernetes.kube_client import UNREACHABLE_TIMEOUT_S, JsonObject, KubeClient, decode_json
from muster.lifecycle import has_terminated
from muster.spec import TrainingJob

_WATCH_S = 240
_IDLE_GRACE_S = 30.0  # beyond its end
_PAUSE_S = 1.0


def watch_job(kube_client: KubeClient, name: str, namespace: str) -> Iterator[TrainingJob]:
    """The job now and after every change, until it is finished and its last process has ended. Raises `NotFound` when
    it is deleted, also if another has its name by then, and `ClusterError` when the server does not answer for two
    minutes."""
    last: TrainingJob | None = None
    deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
    while True:
        try:
            present = decode(TrainingJob, kube_client.get(paths.object_path("TrainingJob", name, namespace)))
            if last is not None and present.metadata.uid != last.metadata.uid:
                raise _deleted_error(last)
            for job in _watch_from(kube_client, present):
                deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
                if last is None or job.metadata.resource_version != last.metadata.resource_version:
                    yield job
                last = job
                if has_terminated(job.status):
                    return
        except ClusterError as error:
            wrong = last is None and error.reason != "Unreachable"  # no such cluster, no such user
            if wrong or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def _watch_from(kube_client: KubeClient, job: TrainingJob) -> Iterator[TrainingJob]:
    """The job, then what the server tells of it; ends when the server ends the watch."""
    yield job
    query = {
        "watch": "1",
        "fieldSelector": f"metadata.name={job.metadata.name}",
        "resourceVersion": job.metadata.resource_version,
        "timeoutSeconds": str(_WATCH_S),
    }
    path = paths.collection_path("TrainingJob", job.metadata.namespace)
    with kube_client.stream(path, query, _WATCH_S + _IDLE_GRACE_S) as lines:
        for line in lines:
            event = _decode_event(line)
            if event["type"] == "ERROR":  # usually 410: what we know is too old to go on from
                return
            seen = decode(TrainingJob, event["object"])
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
