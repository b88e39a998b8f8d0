"""The OpenAPI document of the read API, generated from its types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

from muster.visibility.requests import JOB_ORDERS, MAX_LIMIT, RESOURCES, ReadableResource
from muster.visibility.types import BASE_PATH, VERSION
from muster.visibility.usage import USAGE_PARAMETERS

OPENAPI_FILE = "docs/visibility-openapi.json"
_REF = "#/components/schemas/{model}"
_TEXT = {"type": "string"}


@cache
def openapi_document() -> Mapping[str, Any]:
    """OpenAPI 3.0."""
    models = [model for resource in RESOURCES.values() for model in (resource.item, resource.page)]
    _, schemas = models_json_schema([(model, "serialization") for model in models], by_alias=True, ref_template=_REF)
    paths: dict[str, Any] = {}
    for resource in RESOURCES.values():
        prefixes = ["", "/namespaces/{namespace}"] if resource.namespaced else [""]
        for prefix in prefixes:
            paths[f"{BASE_PATH}{prefix}/{resource.plural}"] = _list_path(resource, namespaced=bool(prefix))
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


def files() -> Mapping[str, str]:
    """Text of the generated file by path."""
    return {OPENAPI_FILE: json.dumps(openapi_document(), indent=1) + "\n"}


def _list_path(resource: ReadableResource, *, namespaced: bool) -> dict[str, Any]:
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
        text = "Order: by namespace and name (the default), the newest first, or running jobs first."
        parameters.append(_parameter("sort", {"type": "string", "enum": list(JOB_ORDERS)}, text))
    if resource.plural == "usage":
        parameters += [_parameter(name, _TEXT, text) for name, text in USAGE_PARAMETERS.items()]
    if namespaced:
        parameters.append(_parameter("namespace", _TEXT, "The namespace.", "path"))
    scope = "of a namespace" if namespaced else "of all namespaces that you may read" if resource.namespaced else ""
    operation = f"list{resource.item.__name__}{'ForAllNamespaces' if resource.namespaced and not namespaced else ''}"
    return {
        "get": {
            "operationId": operation,
            "description": " ".join(filter(None, (_first_sentence(resource.page), scope))),
            "parameters": parameters,
            "responses": _responses(resource.page.__name__),
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
