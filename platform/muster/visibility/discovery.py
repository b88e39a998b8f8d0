"""What Kubernetes' clients ask of an aggregated API beside its objects: discovery, tables for `kubectl get`, errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from muster.text import format_duration
from muster.visibility.openapi import openapi_document
from muster.visibility.requests import RESOURCES
from muster.visibility.types import (
    API_VERSION,
    GROUP,
    VERSION,
    Item,
    ItemList,
    JobSummary,
    ListResponse,
    NodeSummary,
    PendingJob,
    Preemption,
    QueueSummary,
    UsageSummary,
)

_Cell: TypeAlias = str | int | float | bool
_META = "meta.k8s.io/v1"


@cache
def discovery_documents() -> Mapping[str, Mapping[str, Any]]:
    """Documents by path."""
    version = {"groupVersion": API_VERSION, "version": VERSION}
    group = {"name": GROUP, "versions": [version], "preferredVersion": version}
    resources = [
        {
            "name": resource.plural,
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": resource.item.__name__,
            "verbs": ["get", "list"] if resource.readable else ["list"],
        }
        for resource in RESOURCES.values()
    ]
    document = f"/openapi/v3/apis/{API_VERSION}"
    return {
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
        f"/apis/{GROUP}": {"kind": "APIGroup", "apiVersion": "v1", **group},
        f"/apis/{API_VERSION}": {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": API_VERSION,
            "resources": resources,
        },
        "/openapi/v3": {"paths": {f"apis/{API_VERSION}": {"serverRelativeURL": document}}},
        document: openapi_document(),
    }


def status_object(code: int, reason: str, message: str) -> dict[str, Any]:
    """An error as Kubernetes' Status."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def accepts_table(accept: str) -> bool:
    """Whether the first choice of a header Accept is a Table, as that of `kubectl get`."""
    first = accept.partition(",")[0].replace(" ", "")
    return {"as=Table", "v=v1", "g=meta.k8s.io"} <= set(first.split(";"))


def to_table(answer: Item | ItemList, now: float) -> dict[str, Any]:
    """A Table with one row for each item."""
    items: Sequence[Item] = answer.items if isinstance(answer, ListResponse) else [answer]
    kind = answer.kind.removesuffix("List") if isinstance(answer, ListResponse) else answer.kind
    columns = _COLUMNS[kind]
    meta = answer.metadata.model_dump(mode="json", by_alias=True) if isinstance(answer, ListResponse) else {}
    return {
        "kind": "Table",
        "apiVersion": _META,
        "metadata": meta,
        "columnDefinitions": [
            {"name": name, "type": kind, "format": "name" if name == "Name" else "", "description": "", "priority": 0}
            for name, kind, _ in columns
        ],
        "rows": [
            {
                "cells": [cell(item, now) for _, _, cell in columns],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": _META,
                    "metadata": item.metadata.model_dump(mode="json", by_alias=True, exclude_none=True),
                },
            }
            for item in items
        ],
    }


def _amounts(item: QueueSummary, column: str) -> str:
    """`RESOURCE=AMOUNT` of all flavors, or `FLAVOR/RESOURCE=AMOUNT` if there are several."""
    several = len(item.resources) > 1
    return ",".join(
        f"{f'{entry.flavor}/' if several else ''}{name}={amount}"
        for entry in item.resources
        for name, amount in getattr(entry, column).items()
    )


def _since(at: float | None, now: float) -> str:
    return "" if at is None else format_duration(max(0.0, now - at))


def _until(at: float | None, now: float) -> str:
    return "" if at is None else f"in {format_duration(max(0.0, at - now))}"


_Column: TypeAlias = tuple[str, str, Callable[[Any, float], _Cell]]
_NAME: _Column = ("Name", "string", lambda item, now: item.metadata.name)
_QUEUE: _Column = ("Queue", "string", lambda item, now: item.queue)
_REASON: _Column = ("Reason", "string", lambda item, now: item.reason)
_MESSAGE: _Column = ("Message", "string", lambda item, now: item.message)
_POSITION: _Column = ("Position", "string", lambda item, now: "" if item.position is None else str(item.position))
_STARTS: _Column = ("Starts", "string", lambda item, now: _until(item.estimated_start, now))
_COLUMNS: dict[str, tuple[_Column, ...]] = {
    QueueSummary.__name__: (
        _NAME,
        ("Parent", "string", lambda item, now: item.parent or ""),
        ("Active", "boolean", lambda item, now: item.active),
        ("Pending", "integer", lambda item, now: item.pending),
        ("Admitted", "integer", lambda item, now: item.admitted),
        ("Used", "string", lambda item, now: _amounts(item, "used")),
        ("Guaranteed", "string", lambda item, now: _amounts(item, "guaranteed")),
    ),
    PendingJob.__name__: (_NAME, _QUEUE, _POSITION, _STARTS, _REASON, _MESSAGE),
    JobSummary.__name__: (
        _NAME,
        _QUEUE,
        ("Phase", "string", lambda item, now: item.phase),
        ("Pods", "string", lambda item, now: f"{item.pods_ready}/{item.pods_wanted or item.max_pods}"),
        _POSITION,
        _STARTS,
        _REASON,
        ("Age", "string", lambda item, now: _since(item.metadata.creation_timestamp, now)),
    ),
    NodeSummary.__name__: (
        _NAME,
        ("Flavor", "string", lambda item, now: item.flavor or ""),
        ("Ready", "boolean", lambda item, now: item.ready),
        ("Pods", "integer", lambda item, now: item.pod_count),
        ("Used", "string", lambda item, now: ",".join(f"{name}={amount}" for name, amount in item.used.items())),
    ),
    Preemption.__name__: (
        _NAME,
        _QUEUE,
        _REASON,
        ("Ago", "string", lambda item, now: _since(item.at, now)),
        _MESSAGE,
    ),
    UsageSummary.__name__: (
        _NAME,
        ("Flavor", "string", lambda item, now: item.flavor),
        ("Resource", "string", lambda item, now: item.resource),
        ("Hours", "string", lambda item, now: f"{item.hours:.1f}"),
    ),
}
