"""Conversion of a pydantic model to the structural OpenAPI schema of a CRD.

References, unions with null and empty defaults of pydantic's JSON schema are removed; preserved unknown fields and CEL
rules are added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from tools.crdgen.rules import LABEL_RULES, QUANTITY_RULES, VALIDATION_RULES, ValidationRule

from muster.api.spec.fields import LABEL_VALUE

Schema = dict[str, Any]

_KEPT_KEYS = (
    "type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "maxProperties", "anyOf", "x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
)  # fmt: skip
_EMPTY_DEFAULTS: tuple[object, ...] = (None, "", [], {})
_METADATA = {"type": "object", "properties": {"name": {"type": "string"}}}  # the API server defines all other fields


def object_schema(model: type[BaseModel]) -> Schema:
    """The schema of a whole object: apiVersion, kind, metadata, spec and status.

    Defaults apply to `spec` only; undeclared fields of the status are pruned.
    """
    raw = model.model_json_schema(by_alias=True)
    defs: Mapping[str, Schema] = raw["$defs"]
    rules = {cls.__name__: found for cls, found in VALIDATION_RULES.items()}
    parts = raw["properties"]
    return {
        "type": "object",
        "description": _one_line(raw["description"]),
        **({"required": ["spec"]} if "spec" in raw["required"] else {}),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": _METADATA,
            "spec": _SchemaWriter(defs, rules, with_defaults=True, keep_unknown=True).write(parts["spec"]),
            "status": _SchemaWriter(defs, {}, with_defaults=False, keep_unknown=False).write(parts["status"]),
        },
        **_validations(rules.get(model.__name__, ())),
    }


class _SchemaWriter:
    """Converts the schema of `spec` or `status`."""

    def __init__(
        self,
        defs: Mapping[str, Schema],
        rules: Mapping[str, tuple[ValidationRule, ...]],
        *,
        with_defaults: bool,
        keep_unknown: bool,
    ) -> None:
        self._defs, self._rules = defs, rules
        self._with_defaults, self._keep_unknown = with_defaults, keep_unknown

    def write(self, raw: Schema) -> Schema:
        node, rules = self._resolved(raw)
        if node.get("type") == "null":  # a field that a CEL rule refuses
            return {"type": "string", "description": _one_line(raw["description"])}
        out: Schema = {key: _normalize_number(node[key]) for key in _KEPT_KEYS if key in node}
        if "description" in node:
            out["description"] = _one_line(node["description"])
        if "const" in node:
            out["enum"] = [node["const"]]
        if "exclusiveMinimum" in node:
            out |= {"minimum": _normalize_number(node["exclusiveMinimum"]), "exclusiveMinimum": True}
        if "items" in node:
            out["items"] = self.write(node["items"])
        more = node.get("additionalProperties")
        if "properties" in node:
            out["properties"] = {name: self.write(item) for name, item in node["properties"].items()}
            if node.get("required"):
                out["required"] = node["required"]
        elif isinstance(more, dict):
            out["additionalProperties"] = self.write(more)
            if more.get("x-kubernetes-int-or-string"):
                rules = QUANTITY_RULES
            elif more.get("pattern") == LABEL_VALUE:
                rules = LABEL_RULES
        if more is True and self._keep_unknown:
            out["x-kubernetes-preserve-unknown-fields"] = True
        if self._with_defaults and (default := self._default(node, out)) is not None:
            out["default"] = default
        return {**out, **_validations(rules)}

    def _resolved(self, raw: Schema) -> tuple[Schema, tuple[ValidationRule, ...]]:
        """The node behind references and optional unions; keys beside the reference take precedence."""
        if "anyOf" in raw and "x-kubernetes-int-or-string" not in raw:
            (only,) = (branch for branch in raw["anyOf"] if branch.get("type") != "null")
            node, rules = self._resolved(only)
            return {**node, **{key: value for key, value in raw.items() if key != "anyOf"}}, rules
        if "$ref" not in raw:
            return raw, ()
        name = raw["$ref"].rpartition("/")[2]
        beside = {key: value for key, value in raw.items() if key != "$ref"}
        return {**self._defs[name], **beside}, self._rules.get(name, ())

    def _default(self, node: Schema, out: Schema) -> Any:
        """The default that the API server sets; None for an empty default.

        An object gets the default {} if one of its fields has a default: the API server then sets that too.
        """
        default = node.get("default")
        if isinstance(default, dict):
            return {} if any("default" in field for field in out.get("properties", {}).values()) else None
        return None if default in _EMPTY_DEFAULTS else _normalize_number(default)


def _validations(rules: tuple[ValidationRule, ...]) -> Schema:
    return {"x-kubernetes-validations": [rule.as_schema() for rule in rules]} if rules else {}


def _normalize_number(value: Any) -> Any:
    """1.0 as 1, as the API server returns it: else a second `kubectl apply` would report a change."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _one_line(text: str) -> str:
    return " ".join(text.split())
