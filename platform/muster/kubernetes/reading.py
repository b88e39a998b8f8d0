"""What the API server sends, as the objects of `muster.spec` and the nodes of `muster.cluster` (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from muster.admission.queues import UNREADABLE
from muster.cluster import NodeView
from muster.errors import ClusterError
from muster.listing import Listing, Unreadable
from muster.model import Resources, Taint
from muster.progress import told
from muster.quantity import parse_quantity
from muster.spec import API_VERSION, Flavor, Queue, Strict, TrainingJob

T = TypeVar("T", bound=Strict)

WRONG_VERSION = "WrongVersion"
"""The reason of what cannot be read."""


def read(model: type[T], document: Mapping[str, Any]) -> T:
    """One object. Raises `ClusterError` WrongVersion where this Muster cannot read it."""
    plain = _plain(document)
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        told = (
            f"{model.__name__} {plain['metadata'].get('name')!r} cannot be read by this version of Muster: "
            f"{_complaint(plain, model, error)}; mend it, or install the version that the cluster has"
        )
        raise ClusterError(told, reason=WRONG_VERSION) from error


def read_jobs(documents: Iterable[Mapping[str, Any]]) -> Listing:
    """Jobs, oldest first, and those of them that cannot be read."""
    jobs: list[TrainingJob] = []
    unreadable: list[Unreadable] = []
    for plain in map(_plain, documents):
        try:
            jobs.append(TrainingJob.model_validate(plain))
        except ValidationError as error:
            from muster.documents.shorn import shallow  # seldom needed

            whole = shallow({"apiVersion": API_VERSION, "kind": "TrainingJob", **plain})  # which lists leave out
            unreadable.append(Unreadable(whole, _complaint(plain, TrainingJob, error)))
    jobs.sort(key=lambda job: (job.metadata.creation_timestamp or 0.0, job.metadata.name))
    return Listing(jobs, sorted(unreadable, key=lambda one: one.name))


def read_queues(documents: Iterable[Mapping[str, Any]]) -> tuple[list[Queue], dict[str, str]]:
    """Queues as far as each can be read, and by name why some cannot: by us, or by the operator as it says itself."""
    queues: list[Queue] = []
    faults: dict[str, str] = {}
    for plain in map(_plain, documents):
        try:
            queue, wrong = Queue.model_validate(plain), None
        except ValidationError:
            from muster.documents.unreadable import complaint, readable_part

            queue, wrong = readable_part(plain), complaint(plain, "Queue")
        queues.append(queue)
        if (wrong := wrong or _told_by_operator(queue)) is not None:
            faults[queue.metadata.name] = wrong
    return queues, faults


def read_flavors(documents: Iterable[Mapping[str, Any]]) -> tuple[list[Flavor], dict[str, str]]:
    """Flavors, and by name why others cannot be read. Their statuses are left out."""
    flavors: list[Flavor] = []
    faults: dict[str, str] = {}
    for document in documents:
        plain = {key: part for key, part in _plain(document).items() if key != "status"}
        try:
            flavors.append(Flavor.model_validate(plain))
        except ValidationError as error:
            faults[plain["metadata"]["name"]] = _complaint(plain, Flavor, error)
    return flavors, faults


def reads_alike(model: type[Strict], one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two objects can be read and say the same."""
    try:
        return read(model, one) == read(model, other)
    except ClusterError:
        return False


def _complaint(document: Mapping[str, Any], model: type[Strict], error: ValidationError) -> str:
    from muster.documents.unreadable import complaint  # seldom needed, and it brings YAML along

    return complaint(document, model.__name__) or str(error)


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    meta = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return {**document, "metadata": meta}


def _told_by_operator(queue: Queue) -> str | None:
    """What the operator says is wrong with this generation of a queue."""
    for one in queue.status.conditions:
        if (one.type, one.reason, one.observed_generation) == ("Active", "InvalidSpec", queue.metadata.generation):
            return one.message.removeprefix(UNREADABLE)
    return None


def manifest(item: TrainingJob | Queue | Flavor, namespace: str) -> dict[str, Any]:
    """The object as it is sent: what its user wrote, no defaults; a job in `namespace` where it names none."""
    written: dict[str, Any] = item.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    meta: dict[str, Any] = {"name": item.metadata.name}
    if isinstance(item, TrainingJob):
        meta["namespace"] = item.metadata.namespace or namespace
    for name in ("labels", "annotations"):
        if getattr(item.metadata, name):
            meta[name] = getattr(item.metadata, name)
    return {"apiVersion": item.api_version, "kind": item.kind, "metadata": meta, "spec": written.get("spec", {})}


def node_view(node: Mapping[str, Any]) -> NodeView:
    """A node, without what pods take of it."""
    meta, wanted, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    ready: Mapping[str, Any] = next((one for one in status.get("conditions", ()) if one["type"] == "Ready"), {})
    return NodeView(
        name=meta["name"],
        allocatable=_amounts(status.get("allocatable", {}).items()),
        labels=meta.get("labels", {}),
        taints=tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in wanted.get("taints", ())),
        ready=ready.get("status") == "True",
        cordoned=bool(wanted.get("unschedulable")),
    )


def event_row(event: Mapping[str, Any]) -> dict[str, Any]:
    """An Event in the form of `muster describe`: when it was last seen, how often."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    at = next((time for time in (*times, event["metadata"].get("creationTimestamp")) if time), None)
    return {
        "at": 0.0 if at is None else unix(at),
        "type": event.get("type", "Normal"),
        "reason": event.get("reason", ""),
        "message": event.get("message", ""),
        "count": series.get("count") or event.get("count") or 1,
    }


def told_beats(job: TrainingJob) -> list[dict[str, Any]]:
    """What a job's status tells of how far it is, as the beat of rank 0; empty where it tells nothing."""
    progress = job.status.progress
    return [] if progress is None else [told(progress)]


def unix(text: str) -> float:
    """A time of the API server in Unix seconds."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _amounts(texts: Iterable[tuple[str, Any]]) -> Resources:
    """Quantities that cannot be read count as nothing: one odd device must not hide a node."""
    found = {}
    for name, text in texts:
        try:
            found[name] = parse_quantity(text, name)
        except ValueError:
            continue
    return Resources.of(found)
