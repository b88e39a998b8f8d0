"""YAML text to objects; all errors of a text are reported at once, with line, field and valid values.

`source_map` converts the text to plain values with their lines, `unknown_fields` and `pod_fields` compare field names
with those of `muster.api.spec` and Kubernetes, then pydantic validates, and `field_errors` writes the messages.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from muster.api.env_vars import is_redacted
from muster.api.spec import API_VERSION, Flavor, Queue, TrainingJob
from muster.api.yaml_input.field_errors import FieldError, format_value, parse_field_path, to_field_error
from muster.api.yaml_input.source_map import SourceMap, parse_yaml, shorten_message
from muster.api.yaml_input.unknown_fields import unknown_fields, unknown_to_kubernetes
from muster.errors import InvalidSpec
from muster.text import did_you_mean

__all__ = ["KINDS", "AnyObject", "ParsedObject", "load_objects", "parse_model", "parse_objects"]

AnyObject: TypeAlias = TrainingJob | Queue | Flavor
_Model = TypeVar("_Model", bound=BaseModel)
KINDS: dict[str, type[TrainingJob | Queue | Flavor]] = {
    "TrainingJob": TrainingJob,
    "Queue": Queue,
    "Flavor": Flavor,
}
_MAX_SHOWN = 12
_MAX_ERRORS = 100  # of each kind in an object, and in a text: to find all in a text of megabytes takes long
_SERVER_OWNED = ("uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp", "finalizers")


@dataclass(frozen=True, slots=True)
class ParsedObject:
    """An object, and where it is written. `warnings` are fields of Kubernetes that this Muster does not know, as
    `source:line: field: sentence`."""

    item: AnyObject
    source: str
    document: SourceMap
    warnings: tuple[str, ...] = ()

    def location(self, field: str) -> str:
        """`source:line` of a field, or of the nearest one above it that is written; without one, of the object."""
        return f"{self.source}:{self.document.line(parse_field_path(field) or ('metadata', 'name'))}"


def load_objects(text: str | bytes, source: str = "input") -> list[AnyObject]:
    """The objects of `parse_objects`, without their lines."""
    return [placed.item for placed in parse_objects(text, source)]


def parse_objects(
    text: str | bytes, source: str = "input", *, allow_unknown_pod_fields: bool = False, generate_names: bool = False
) -> list[ParsedObject]:
    """All objects of a multi-document YAML (or JSON) text, in order; empty documents are skipped.

    A field of a pod template that Kubernetes does not know, as far as this Muster knows Kubernetes, is an error; with
    `allow_unknown_pod_fields`, where a newer cluster may know it, one of the object's `warnings`.

    With `generate_names`, a job without a name gets `metadata.generateName` and six random characters as its name.

    Raises `InvalidSpec` whose text lists what is wrong as `source:line: field: value; what would be right`, and whose
    `field` is the first one's path. `status` and what a server fills into `metadata` are ignored, so that the output
    of `muster describe --json` can be submitted again, unless values of variables are hidden in it.
    """
    found: list[ParsedObject] = []
    errors: list[FieldError] = []
    first_lines: dict[tuple[str, str, str], int] = {}
    for document in parse_yaml(text, source):
        if document.value is None:
            continue
        if len(errors) >= _MAX_ERRORS:
            break
        model, wrong = _object_type(document)
        errors += wrong
        if model is None:
            continue
        if generate_names and model is TrainingJob:
            _generate_name(document.value)
        item, wrong = _validate(model, document)
        errors += wrong
        seen = {one.path for one in wrong}
        warnings = [
            FieldError(field.path, document.line(field.path), field.message)
            for field in islice(unknown_to_kubernetes(document.value), _MAX_ERRORS)
            if field.path not in seen
        ]
        errors += [] if allow_unknown_pod_fields else warnings
        if item is None:
            continue
        errors += _hidden_values(item, document)
        key = (item.kind, item.metadata.namespace or "", item.metadata.name)
        line = document.line(("metadata", "name"))
        if key in first_lines:
            message = f"{item.kind} {item.metadata.name!r} is already at line {first_lines[key]}; keep one of them"
            errors.append(FieldError(("metadata", "name"), line, message))
        first_lines.setdefault(key, line)
        found.append(
            ParsedObject(
                item, source, document, tuple(_error_lines(warnings, source)) if allow_unknown_pod_fields else ()
            )
        )
    if errors:
        raise _invalid_spec(errors, source)
    if not found:
        raise InvalidSpec(f"{source}: must contain at least one object of kind {', '.join(KINDS)}")
    return found


def parse_model(model: type[_Model], text: str | bytes, source: str) -> _Model:
    """The only document of a YAML text, which is not an API object. Raises `InvalidSpec` as `parse_objects` does."""
    documents = [document for document in parse_yaml(text, source) if document.value is not None]
    if len(documents) != 1:
        raise InvalidSpec(f"{source}: must contain one document; got {len(documents)}")
    if not isinstance(documents[0].value, dict):
        raise InvalidSpec(f"{source}: must be a mapping; got {format_value(documents[0].value)}")
    item, errors = _validate(model, documents[0])
    if item is None or errors:
        raise _invalid_spec(errors, source)
    return item


def _object_type(document: SourceMap) -> tuple[type[AnyObject] | None, list[FieldError]]:
    """The class that the document claims to be, and what the names of its fields show wrong."""
    value, line = document.value, document.line
    if not isinstance(value, dict):
        return None, [
            FieldError(
                (), line(()), f"must be an object with apiVersion, kind, metadata and spec; got {format_value(value)}"
            )
        ]
    wrong = []
    version, kind = value.get("apiVersion"), value.get("kind")
    if version != API_VERSION:
        message = f"must be {API_VERSION}; got {format_value(version)}"
        wrong.append(FieldError(("apiVersion",), line(("apiVersion",)), message))
    if not isinstance(kind, str) or kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS, "")
        message = f"must be one of {', '.join(KINDS)}; got {format_value(kind)}{f'; {hint}' if hint else ''}"
        return None, [*wrong, FieldError(("kind",), line(("kind",)), message)]
    return KINDS[kind], wrong


def _validate(model: type[_Model], document: SourceMap) -> tuple[_Model | None, list[FieldError]]:
    """The object, or all that is wrong with its fields."""
    unknown = list(islice(unknown_fields(model, document.value), _MAX_ERRORS))
    meant = {field.suggestion for field in unknown}
    errors = [FieldError(field.path, document.line(field.path), field.message) for field in unknown]
    try:
        return model.model_validate(_without_server_fields(document.value), strict=True), errors
    except ValidationError as error:
        for finding in error.errors(include_url=False)[:_MAX_ERRORS]:
            reported_already = finding["loc"] == ("apiVersion",) or (
                finding["type"] == "missing" and finding["loc"] in meant
            )
            if finding["type"] != "extra_forbidden" and not reported_already:
                errors.append(to_field_error(finding, document))
        return None, errors


def _generate_name(value: dict[str, Any]) -> None:
    """Replace `metadata.generateName` by a name; the name that an object already has comes first, as in Kubernetes."""
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("generateName"), str):
        prefix = metadata.pop("generateName")
        metadata.setdefault("name", f"{prefix}{secrets.token_hex(3)}")


def _hidden_values(item: AnyObject, document: SourceMap) -> list[FieldError]:
    """An error for each variable of a job whose value was hidden when the job was printed."""
    found = []
    for role, wanted in enumerate(item.spec.roles if isinstance(item, TrainingJob) else ()):
        pod = wanted.template.spec
        for kind, containers in (("containers", pod.containers), ("initContainers", pod.init_containers)):
            for index, container in enumerate(containers):
                for place, variable in enumerate(container.env):
                    if is_redacted(variable.value or ""):
                        path = ("spec", "roles", role, "template", "spec", kind, index, "env", place, "value")
                        message = (
                            f"must be the value of {variable.name}; got {variable.value!r}, as secrets are printed"
                        )
                        found.append(FieldError(path, document.line(path), message))
    return found


def _without_server_fields(value: dict[str, Any]) -> dict[str, Any]:
    kept = {key: item for key, item in value.items() if key != "status"}
    if isinstance(kept.get("metadata"), dict):
        kept["metadata"] = {key: item for key, item in kept["metadata"].items() if key not in _SERVER_OWNED}
    return kept


def _error_lines(errors: list[FieldError], source: str) -> list[str]:
    return [
        shorten_message(f"{source}:{item.line}: {item.field + ': ' if item.field else ''}{item.message}")
        for item in errors
    ]


def _invalid_spec(errors: list[FieldError], source: str) -> InvalidSpec:
    errors = sorted(errors, key=lambda item: item.line)
    shown = _error_lines(errors, source)
    if len(shown) > _MAX_SHOWN:
        least = "at least " if len(shown) >= _MAX_ERRORS else ""
        shown = [*shown[:_MAX_SHOWN], f"... and {least}{len(shown) - _MAX_SHOWN} more"]
    return InvalidSpec("\n".join(shown), field=errors[0].field)
