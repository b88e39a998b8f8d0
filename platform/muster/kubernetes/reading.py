"""What the API server sends, as the objects of `muster.spec` and the nodes of `muster.cluster` (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from muster.cluster import NodeView
from muster.errors import ClusterError
from muster.model import Resources, Taint
from muster.quantity import parse_quantity
from muster.spec import Flavor, Queue, Strict, TrainingJob

T = TypeVar("T", bound=Strict)


def read(model: type[T], document: Mapping[str, Any]) -> T:
    """One object. Raises `ClusterError` WrongVersion where this Muster is older than the cluster's."""
    meta = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    try:
        return model.model_validate({**document, "metadata": meta})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        told = (
            f"{document.get('kind', model.__name__)} {meta.get('name')!r} cannot be read by this version of Muster: "
            f"{where}: {first['msg']}; install the version that the cluster has"
        )
        raise ClusterError(told, reason="WrongVersion") from error


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
