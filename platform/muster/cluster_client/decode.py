"""Objects of the API server as the command line shows them, and the manifests that it sends (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from muster.api.spec import API_VERSION, Flavor, Queue, StrictModel, TrainingJob
from muster.api.validation.queues import INVALID_QUEUE_PREFIX
from muster.api.yaml_input.undecodable import invalid_reason, truncate_value
from muster.client import JobList, UnreadableJobItem
from muster.errors import ClusterError
from muster.heartbeats.progress import heartbeat_from_status
from muster.kube.convert import parse_time, read_object, read_queue_or_flavor, without_managed_fields

D = TypeVar("D", Queue, Flavor)


def decode_jobs(documents: Iterable[Mapping[str, Any]]) -> JobList:
    """Jobs, oldest first, and those that cannot be decoded."""
    jobs: list[TrainingJob] = []
    unreadable: list[UnreadableJobItem] = []
    for plain in map(without_managed_fields, documents):
        try:
            jobs.append(TrainingJob.model_validate(plain))
        except ValidationError as error:
            manifest = truncate_value({"apiVersion": API_VERSION, "kind": "TrainingJob", **plain})  # omitted in lists
            unreadable.append(UnreadableJobItem(manifest, invalid_reason(plain, "TrainingJob") or str(error)))
    jobs.sort(key=lambda job: (job.metadata.creation_timestamp or 0.0, job.metadata.name))
    return JobList(jobs, sorted(unreadable, key=lambda one: one.name))


def decode_queues(documents: Iterable[Mapping[str, Any]]) -> tuple[list[Queue], dict[str, str]]:
    """Queues with their valid fields, and errors by name: those found here, or reported by the operator."""
    queues, errors = _decode_all(Queue, documents)
    for queue in queues:
        if (error := _error_reported_by_operator(queue)) is not None:
            errors.setdefault(queue.metadata.name, error)
    return queues, errors


def decode_flavors(documents: Iterable[Mapping[str, Any]]) -> tuple[list[Flavor], dict[str, str]]:
    """Valid flavors, and the errors of the others by name."""
    return _decode_all(Flavor, documents)


def _decode_all(model: type[D], documents: Iterable[Mapping[str, Any]]) -> tuple[list[D], dict[str, str]]:
    items: list[D] = []
    errors: dict[str, str] = {}
    for plain in map(without_managed_fields, documents):
        item, error = read_queue_or_flavor(model, plain)
        if item is not None:
            items.append(item)
        if error is not None:
            errors[plain["metadata"]["name"]] = error
    return items, errors


def decodes_equal(model: type[StrictModel], one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two objects can be decoded and are equal."""
    try:
        return read_object(model, one) == read_object(model, other)
    except ClusterError:
        return False


def _error_reported_by_operator(queue: Queue) -> str | None:
    """The operator's error for this generation of a queue, from its condition Active."""
    for one in queue.status.conditions:
        if (one.type, one.reason, one.observed_generation) == ("Active", "InvalidSpec", queue.metadata.generation):
            return one.message.removeprefix(INVALID_QUEUE_PREFIX)
    return None


def to_manifest(item: TrainingJob | Queue | Flavor, namespace: str) -> dict[str, Any]:
    """The manifest to send: the fields that the user set, without defaults; a job without namespace in `namespace`."""
    written: dict[str, Any] = item.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    meta: dict[str, Any] = {"name": item.metadata.name}
    if isinstance(item, TrainingJob):
        meta["namespace"] = item.metadata.namespace or namespace
    for name in ("labels", "annotations"):
        if getattr(item.metadata, name):
            meta[name] = getattr(item.metadata, name)
    return {"apiVersion": item.api_version, "kind": item.kind, "metadata": meta, "spec": written.get("spec", {})}


def to_event_row(event: Mapping[str, Any]) -> dict[str, Any]:
    """An Event as shown by `muster describe`: the time last seen, and the count."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    at = next((time for time in (*times, event["metadata"].get("creationTimestamp")) if time), None)
    return {
        "at": 0.0 if at is None else parse_time(at),
        "type": event.get("type", "Normal"),
        "reason": event.get("reason", ""),
        "message": event.get("message", ""),
        "count": series.get("count") or event.get("count") or 1,
    }


def heartbeats_from_status(job: TrainingJob) -> list[dict[str, Any]]:
    """The progress in a job's status as a heartbeat of rank 0; empty if there is none."""
    progress = job.status.progress
    return [] if progress is None else [heartbeat_from_status(progress)]
