"""What Kubernetes' clients ask of an aggregated API beside its objects: discovery, the OpenAPI document (generated from
the types), tables for `kubectl get`, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

from muster.visibility.columns import Column, columns_of
from muster.visibility.list_types import ItemList, ListResponse
from muster.visibility.requests import JOB_ORDERS, MAX_LIMIT, PENDING_JOB_ORDERS, RESOURCES, ReadableResource
from muster.visibility.types import API_VERSION, BASE_PATH, GROUP, VERSION, Item
from muster.visibility.usage import USAGE_PARAMETERS

_META = "meta.k8s.io/v1"
_REF = "#/components/schemas/{model}"
_TEXT = {"type": "string"}


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
            "verbs": [*(["get"] if resource.readable else []), *(["list"] if resource.page else [])],
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
    kind = answer.kind.removesuffix("List")
    columns = columns_of(kind, *_TABLES[kind])
    meta = answer.metadata.model_dump(mode="json", by_alias=True) if isinstance(answer, ListResponse) else {}
    return {
        "kind": "Table",
        "apiVersion": _META,
        "metadata": meta,
        "columnDefinitions": [
            {
                "name": column.title,
                "type": {"flag": "boolean", "count": "integer"}.get(
                    column.form if column.text is None else "", "string"
                ),
                "format": "name" if column.title == "Name" else "",
                "description": "",
                "priority": 0,
            }
            for column in columns
        ],
        "rows": [
            {
                "cells": [_cell(column, item, now) for column in columns],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": _META,
                    "metadata": item.metadata.model_dump(mode="json", by_alias=True, exclude_none=True),
                },
            }
            for item in items
        ],
    }


_TABLES: Mapping[str, tuple[str, ...]] = {
    "QueueSummary": ("Name", "Parent", "Active", "Pending", "Admitted", "Used", "Guaranteed"),
    "PendingJob": ("Name", "Queue", "Position", "Estimated start", "Reason", "Message"),
    "JobSummary": ("Name", "Queue", "Phase", "Pods", "Position", "Estimated start", "Reason", "Age"),
    "JobCurve": ("Name", "Step", "Loss"),
    "NodeSummary": ("Name", "Flavor", "Ready", "Pods", "Used"),
    "Preemption": ("Name", "Queue", "Reason", "Time", "Message"),
    "UsageSummary": ("Name", "Flavor", "Resource", "Used"),
}
"""What `kubectl get` shows of each kind (`muster.visibility.columns`)."""
_TYPES = {"flag": "boolean", "count": "integer"}


def _cell(column: Column, item: Item, now: float) -> str | int | bool:
    """A flag and an integer as such, since kubectl sorts them."""
    value = column.value(item, now)
    return value if isinstance(value, bool | int) and column.text is None else column.show(item, now)


@cache
def openapi_document() -> Mapping[str, Any]:
    """OpenAPI 3.0."""
    models = [model for resource in RESOURCES.values() for model in (resource.item, resource.page) if model]
    _, schemas = models_json_schema([(model, "serialization") for model in models], by_alias=True, ref_template=_REF)
    paths: dict[str, Any] = {}
    for resource in RESOURCES.values():
        prefixes = ["", "/namespaces/{namespace}"] if resource.namespaced else [""]
        if (page := resource.page) is not None:
            for prefix in prefixes:
                paths[f"{BASE_PATH}{prefix}/{resource.plural}"] = _list_path(resource, page, bool(prefix))
        if resource.readable:
            path = f"{BASE_PATH}{prefixes[-1]}/{resource.plural}/{{name}}"
            paths[path] = _read_path(resource)
    return {
        "openapi": "3.0.0",
        "info": {
            "title": "Muster visibility",
            "version": VERSION,
            "description": ("Queues, jobs, nodes, preemptions and usage over time, from the daemon or the operator."),
        },
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _list_path(resource: ReadableResource, page: type[ItemList], namespaced: bool) -> dict[str, Any]:
    parameters = [
        _parameter(
            "limit", {"type": "integer"}, f"Maximum number of items; at most {MAX_LIMIT}, which is the default."
        ),
        _parameter("continue", _TEXT, "metadata.continue of the page before."),
    ]
    if resource.selectable:
        valid = ", ".join(f"{field}=VALUE" for field in resource.selectable)
        parameters.append(_parameter("fieldSelector", _TEXT, f"{valid}, with commas between several."))
    if resource.plural == "jobs":
        text = "Order: by namespace and name (the default), the newest first, running jobs first, "
        text += "jobs with nodes and then those that ended last, or by estimated start."
        parameters.append(_parameter("sort", {"type": "string", "enum": list(JOB_ORDERS)}, text))
    if resource.plural == "pendingjobs":
        text = "Order: by namespace and name (the default), or by position in the queue."
        parameters.append(_parameter("sort", {"type": "string", "enum": list(PENDING_JOB_ORDERS)}, text))
    if resource.plural == "usage":
        parameters += [_parameter(name, _TEXT, text) for name, text in USAGE_PARAMETERS.items()]
    if namespaced:
        parameters.append(_parameter("namespace", _TEXT, "The namespace.", "path"))
    scope = "of a namespace" if namespaced else "of all namespaces that you may read" if resource.namespaced else ""
    operation = f"list{resource.item.__name__}{'ForAllNamespaces' if resource.namespaced and not namespaced else ''}"
    return {
        "get": {
            "operationId": operation,
            "description": " ".join(filter(None, (_first_sentence(page), scope))),
            "parameters": parameters,
            "responses": _responses(page.__name__),
        }
    }


def _read_path(resource: ReadableResource) -> dict[str, Any]:
    parameters = [_parameter("name", _TEXT, "Name of the object.", "path")]
    if resource.namespaced:
        parameters.append(_parameter("namespace", _TEXT, "The namespace.", "path"))
    return {
        "get": {
            "operationId": f"read{resource.item.__name__}",
            "description": _first_sentence(resource.item),
            "parameters": parameters,
            "responses": _responses(resource.item.__name__),
        }
    }


def _first_sentence(model: type) -> str:
    return " ".join((model.__doc__ or "").split())


def _responses(model: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(model=model)}
    return {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}}


def _parameter(name: str, schema: dict[str, Any], description: str, place: str = "query") -> dict[str, Any]:
    required = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, "description": description, "schema": schema, **required}
