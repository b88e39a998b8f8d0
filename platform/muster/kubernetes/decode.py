"""What the API server sends, as the objects of `muster.spec` and the nodes of `muster.cluster` (pure)."""

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
"""The reason of what cannot be read."""


def decode(model: type[T], document: Mapping[str, Any]) -> T:
    """One object. Raises `ClusterError` WrongVersion where this Muster cannot read it."""
    plain = _without_managed_fields(document)
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        message = (
            f"{model.__name__} {plain['metadata'].get('name')!r} cannot be read by this version of Muster: "
            f"{_decode_error_message(plain, model, error)}; mend it, or install the version that the cluster has"
        )
        raise ClusterError(message, reason=WRONG_VERSION) from error


def decode_jobs(documents: Iterable[Mapping[str, Any]]) -> JobList:
    """Jobs, oldest first, and those of them that cannot be read."""
    jobs: list[TrainingJob] = []
    unreadable: list[UnreadableJobItem] = []
    for plain in map(_without_managed_fields, documents):
        try:
            jobs.append(TrainingJob.model_validate(plain))
        except ValidationError as error:
            from muster.yaml_input.truncate import truncate_value

            total = truncate_value({"apiVersion": API_VERSION, "kind": "TrainingJob", **plain})  # which lists leave out
            unreadable.append(UnreadableJobItem(total, _decode_error_message(plain, TrainingJob, error)))
    jobs.sort(key=lambda job: (job.metadata.creation_timestamp or 0.0, job.metadata.name))
    return JobList(jobs, sorted(unreadable, key=lambda one: one.name))


def decode_queues(documents: Iterable[Mapping[str, Any]]) -> tuple[list[Queue], dict[str, str]]:
    """Queues as far as each can be read, and by name why some cannot: by us, or by the operator as it says itself."""
    queues: list[Queue] = []
    faults: dict[str, str] = {}
    for plain in map(_without_managed_fields, documents):
        try:
            queue, wrong = Queue.model_validate(plain), None
        except ValidationError:
            from muster.yaml_input.invalid_objects import invalid_reason, valid_part

            queue, wrong = valid_part(plain), invalid_reason(plain, "Queue")
        queues.append(queue)
        if (wrong := wrong or _error_reported_by_operator(queue)) is not None:
            faults[queue.metadata.name] = wrong
    return queues, faults


def decode_flavors(documents: Iterable[Mapping[str, Any]]) -> tuple[list[Flavor], dict[str, str]]:
    """Flavors, and by name why others cannot be read. Their statuses are left out."""
    flavors: list[Flavor] = []
    faults: dict[str, str] = {}
    for document in documents:
        plain = {key: part for key, part in _without_managed_fields(document).items() if key != "status"}
        try:
            flavors.append(Flavor.model_validate(plain))
        except ValidationError as error:
            faults[plain["metadata"]["name"]] = _decode_error_message(plain, Flavor, error)
    return flavors, faults


def decodes_equal(model: type[StrictModel], one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two objects can be read and say the same."""
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
    """What the operator says is wrong with this generation of a queue."""
    for one in queue.status.conditions:
        if (one.type, one.reason, one.observed_generation) == ("Active", "InvalidSpec", queue.metadata.generation):
            return one.message.removeprefix(INVALID_QUEUE_PREFIX)
    return None


def to_manifest(item: TrainingJob | Queue | Flavor, namespace: str) -> dict[str, Any]:
    """The object as it is sent: what its user wrote, no defaults; a job in `namespace` where it names none."""
    written: dict[str, Any] = item.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    meta: dict[str, Any] = {"name": item.metadata.name}
    if isinstance(item, TrainingJob):
        meta["namespace"] = item.metadata.namespace or namespace
    for name in ("labels", "annotations"):
        if getattr(item.metadata, name):
            meta[name] = getattr(item.metadata, name)
    return {"apiVersion": item.api_version, "kind": item.kind, "metadata": meta, "spec": written.get("spec", {})}


def to_node_view(node: Mapping[str, Any]) -> NodeView:
    """A node, without what pods take of it."""
    meta, requested, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    ready: Mapping[str, Any] = next((one for one in status.get("conditions", ()) if one["type"] == "Ready"), {})
    return NodeView(
        name=meta["name"],
        allocatable=_parse_resources(status.get("allocatable", {}).items()),
        labels=meta.get("labels", {}),
        taints=tuple(NodeTaint(t["key"], t.get("value", ""), t["effect"]) for t in requested.get("taints", ())),
        ready=ready.get("status") == "True",
        cordoned=bool(requested.get("unschedulable")),
    )


def to_event_row(event: Mapping[str, Any]) -> dict[str, Any]:
    """An Event in the form of `muster describe`: when it was last seen, how often."""
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
    """What a job's status tells of how far it is, as the beat of rank 0; empty where it tells nothing."""
    progress = job.status.progress
    return [] if progress is None else [heartbeat_from_status(progress)]


def to_unix_seconds(text: str) -> float:
    """A time of the API server in Unix seconds."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _parse_resources(texts: Iterable[tuple[str, Any]]) -> Resources:
    """Quantities that cannot be read count as nothing: one odd device must not hide a node."""
    found = {}
    for name, text in texts:
        try:
            found[name] = parse_quantity(text, name)
        except ValueError:
            continue
    return Resources.of(found)
