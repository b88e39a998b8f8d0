"""Decodes objects of the API server into those of `muster.spec` and the nodes of `muster.cluster` (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from muster.cluster import NodeView
from muster.errors import ClusterError
from muster.job_list import JobList, UnreadableJobItem
from muster.model import NodeTaint, Resources
from muster.progress import heartbeat_from_status
from muster.quantity import parse_quantity
from muster.spec import API_VERSION, Flavor, Queue, StrictModel, TrainingJob
from muster.validation.queue_readiness import INVALID_QUEUE_PREFIX

T = TypeVar("T", bound=StrictModel)

WRONG_VERSION = "WrongVersion"
"""The error reason for an object that this version cannot decode."""


def decode(model: type[T], document: Mapping[str, Any]) -> T:
    """One object. Raises `ClusterError` WrongVersion if this version of Muster cannot decode it."""
    plain = _without_managed_fields(document)
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        message = (
            f"{model.__name__} {plain['metadata'].get('name')!r} cannot be read by this version of Muster: "
            f"{_decode_error_message(plain, model, error)}; fix the object, or install the cluster's version of Muster"
        )
        raise ClusterError(message, reason=WRONG_VERSION) from error


def decode_jobs(documents: Iterable[Mapping[str, Any]]) -> JobList:
    """Jobs, oldest first, and those that cannot be decoded."""
    jobs: list[TrainingJob] = []
    unreadable: list[UnreadableJobItem] = []
    for plain in map(_without_managed_fields, documents):
        try:
            jobs.append(TrainingJob.model_validate(plain))
        except ValidationError as error:
            from muster.yaml_input.truncate import truncate_value

            manifest = truncate_value({"apiVersion": API_VERSION, "kind": "TrainingJob", **plain})  # omitted in lists
            unreadable.append(UnreadableJobItem(manifest, _decode_error_message(plain, TrainingJob, error)))
    jobs.sort(key=lambda job: (job.metadata.creation_timestamp or 0.0, job.metadata.name))
    return JobList(jobs, sorted(unreadable, key=lambda one: one.name))


def decode_queues(documents: Iterable[Mapping[str, Any]]) -> tuple[list[Queue], dict[str, str]]:
    """Queues with their valid fields, and errors by name: those found here, or reported by the operator."""
    queues: list[Queue] = []
    errors: dict[str, str] = {}
    for plain in map(_without_managed_fields, documents):
        try:
            queue, reason = Queue.model_validate(plain), None
        except ValidationError:
            from muster.yaml_input.invalid_objects import invalid_reason, valid_part

            queue, reason = valid_part(plain), invalid_reason(plain, "Queue")
        queues.append(queue)
        if (reason := reason or _error_reported_by_operator(queue)) is not None:
            errors[queue.metadata.name] = reason
    return queues, errors


def decode_flavors(documents: Iterable[Mapping[str, Any]]) -> tuple[list[Flavor], dict[str, str]]:
    """Flavors without status, and decode errors by name."""
    flavors: list[Flavor] = []
    errors: dict[str, str] = {}
    for document in documents:
        plain = {key: part for key, part in _without_managed_fields(document).items() if key != "status"}
        try:
            flavors.append(Flavor.model_validate(plain))
        except ValidationError as error:
            errors[plain["metadata"]["name"]] = _decode_error_message(plain, Flavor, error)
    return flavors, errors


def decodes_equal(model: type[StrictModel], one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two objects can be decoded and are equal."""
    try:
        return decode(model, one) == decode(model, other)
    except ClusterError:
        return False


def _decode_error_message(document: Mapping[str, Any], model: type[StrictModel], error: ValidationError) -> str:
    from muster.yaml_input.invalid_objects import invalid_reason

    return invalid_reason(document, model.__name__) or str(error)


def _without_managed_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    meta = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return {**document, "metadata": meta}


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


def to_node_view(node: Mapping[str, Any]) -> NodeView:
    """A node, without the usage of its pods."""
    meta, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    ready: Mapping[str, Any] = next((one for one in status.get("conditions", ()) if one["type"] == "Ready"), {})
    return NodeView(
        name=meta["name"],
        allocatable=_parse_resources(status.get("allocatable", {}).items()),
        labels=meta.get("labels", {}),
        taints=tuple(NodeTaint(t["key"], t.get("value", ""), t["effect"]) for t in spec.get("taints", ())),
        ready=ready.get("status") == "True",
        cordoned=bool(spec.get("unschedulable")),
    )


def to_event_row(event: Mapping[str, Any]) -> dict[str, Any]:
    """An Event as shown by `muster describe`: the time last seen, and the count."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    at = next((time for time in (*times, event["metadata"].get("creationTimestamp")) if time), None)
    return {
        "at": 0.0 if at is None else to_unix_seconds(at),
        "type": event.get("type", "Normal"),
        "reason": event.get("reason", ""),
        "message": event.get("message", ""),
        "count": series.get("count") or event.get("count") or 1,
    }


def heartbeats_from_status(job: TrainingJob) -> list[dict[str, Any]]:
    """The progress in a job's status as a heartbeat of rank 0; empty if there is none."""
    progress = job.status.progress
    return [] if progress is None else [heartbeat_from_status(progress)]


def to_unix_seconds(text: str) -> float:
    """A time of the API server in Unix seconds."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _parse_resources(texts: Iterable[tuple[str, Any]]) -> Resources:
    """Invalid quantities are ignored: one invalid device resource must not hide a node."""
    found = {}
    for name, text in texts:
        try:
            found[name] = parse_quantity(text, name)
        except ValueError:
            continue
    return Resources.of(found)
