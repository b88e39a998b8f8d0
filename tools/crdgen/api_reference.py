"""Generation of docs/reference/api.md: every field of each kind with type, default and meaning, and the CEL rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tools.crdgen.crds import GROUP, KINDS, VERSION, CustomResource
from tools.crdgen.rules import QUANTITY_RULES
from tools.crdgen.schema import Schema, object_schema

_INTRODUCTION = f"""\
# API reference

<!-- Written by `make manifests` from `platform/muster/api/spec`. -->

Group `{GROUP}`, version `{VERSION}`. `kubectl apply`, `muster submit` and `muster apply` accept the same documents.
The API server refuses an object that is invalid by itself, by the types below and by the rules under each kind. An
invalid relation between objects (a queue that does not exist, a flavor without the level) is accepted, and the job
waits with a reason.

Quantities are written as in Kubernetes: `8`, `"500m"`, `16Gi`. The API server accepts a fraction only as text: `"0.5"`
or `500m`. Times are RFC 3339. Lists marked *by name* are merged by that key in a server-side apply.
"""


def api_reference() -> str:
    """The page as Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(kind) for kind in KINDS)])


def _section(kind: CustomResource) -> str:
    schema = object_schema(kind.model)
    scope = "Namespaced" if kind.namespaced else "Cluster-scoped"
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    lines = [
        f"## {kind.name}",
        "",
        f"{schema['description']} {scope}; `kubectl get {kind.short_names[0]}`.",
        "",
        *_table(spec, "spec", ("field", "type", "default", "meaning")),
        "",
        *_rule_lines(schema),
        "### Status",
        "",
        "Written only by Muster.",
        "",
        *_table(status, "status", ("field", "type", "meaning")),
        "",
    ]
    return "\n".join(lines)


def _rule_lines(schema: Schema) -> list[str]:
    rules = [f"- `{place}`: {message}." for place, message in _rules(schema, "")]
    return ["Validation rules:", "", *rules, ""] if rules else []


def _table(schema: Schema, path: str, columns: tuple[str, ...]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for place, field, required in _fields(schema, path):
        default = "required" if required else _default(field)
        cells = {
            "field": f"`{place}`",
            "type": _type_text(field),
            "default": default,
            "meaning": field.get("description", "").replace("|", "\\|"),
        }
        yield f"| {' | '.join(cells[column] for column in columns)} |"


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    """(path, schema, required) of every field below an object, depth first."""
    for name, field in schema.get("properties", {}).items():
        place = f"{path}.{name}"
        yield place, field, name in schema.get("required", ())
        yield from _fields(field, place)
        yield from _fields(field.get("items", {}), f"{place}[]")


def _default(field: Schema) -> str:
    default: Any = field.get("default", {})
    return "" if default == {} else f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _type_text(field: Schema) -> str:
    """The type of a field, with its bounds."""
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"] if value)
    if "items" in field:
        keys = field.get("x-kubernetes-list-map-keys")
        bounds = _range_text(field.get("minItems"), field.get("maxItems"))
        return f"list of {_type_text(field['items'])}{f' by {keys[0]}' if keys else ''}{bounds}"
    if "additionalProperties" in field:
        inner = field["additionalProperties"]
        return "map of quantity" if "x-kubernetes-int-or-string" in inner else "map of string"
    if field["type"] in ("integer", "number"):
        least = f"above {field['minimum']}" if field.get("exclusiveMinimum") else None
        bounds = (
            f" ({least}, at most {field['maximum']})"
            if least
            else _range_text(field.get("minimum"), field.get("maximum"))
        )
        return f"{field['type']}{bounds}"
    if field["type"] == "string":
        if field.get("format") == "date-time":
            return "time"
        return "name" if "pattern" in field else "string"
    return str(field["type"])


def _range_text(minimum: object, maximum: object) -> str:
    if minimum is None and maximum is None:
        return ""
    if maximum is None:
        return f" ({minimum} or more)"
    return f" (at most {maximum})" if minimum is None else f" ({minimum} to {maximum})"


def _rules(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if rule["message"] != QUANTITY_RULES[0].message:  # the same for every quantity: left out
            yield f"{path}{rule.get('fieldPath', '')}".lstrip("."), rule["message"]
    for name, field in schema.get("properties", {}).items():
        place = f"{path}.{name}".lstrip(".")
        yield from _rules(field, place)
        yield from _rules(field.get("items", {}), f"{place}[]")
