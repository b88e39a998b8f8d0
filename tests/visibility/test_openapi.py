"""The OpenAPI document describes what is served."""

from __future__ import annotations

import re
from typing import Any

from tests.state.observed_states import admitted, named
from tests.visibility.states import leader, read, two_queues

from muster.visibility.discovery import openapi_document
from muster.visibility.requests import parse_request

SCHEMAS = openapi_document()["components"]["schemas"]


def undeclared(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    """Paths of the value's fields that the schema does not declare."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        (schema,) = (branch for branch in schema["anyOf"] if branch.get("type") != "null")
        return undeclared(value, schema, path)
    if isinstance(value, list):
        return [found for item in value for found in undeclared(item, schema["items"], path)]
    if not isinstance(value, dict) or isinstance(schema.get("additionalProperties"), dict):
        return []
    fields = schema["properties"]
    missing = [f"{path}.{name}" for name in value if name not in fields]
    below = (undeclared(item, fields[name], f"{path}.{name}") for name, item in value.items() if name in fields)
    return [*missing, *(found for part in below for found in part)]


def test_every_path_is_a_route() -> None:
    for path in openapi_document()["paths"]:
        parse_request(re.sub(r"\{\w+\}", "x", path))


def test_answers_have_only_declared_fields() -> None:
    state = leader(two_queues(admitted("a"), named("b")))
    for route in (
        "queues",
        "nodes",
        "jobs",
        "pendingjobs",
        "preemptions",
        "usage?to=1970-01-02",
        "namespaces/default/jobs/a",
    ):
        found = read(state, route)
        assert undeclared(found, SCHEMAS[found["kind"]], route) == []


def test_every_field_has_a_description() -> None:
    own = {name: schema for name, schema in SCHEMAS.items() if name.endswith(("List", "Summary", "Job", "Preemption"))}
    assert len(own) == 12
    missing = [
        f"{name}.{field}"
        for name, schema in own.items()
        for field, declared in schema["properties"].items()
        if "description" not in declared
    ]
    assert missing == []
