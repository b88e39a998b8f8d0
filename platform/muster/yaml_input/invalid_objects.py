"""Objects on an API server that this version cannot decode, because an older or newer CRD accepted them.

Errors have the messages of `muster submit`. The valid part of a queue is used: it keeps its place in the tree, and its
running jobs remain charged to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from muster import spec
from muster.yaml_input.field_errors import to_field_error
from muster.yaml_input.source_map import SourceMap
from muster.yaml_input.unknown_fields import unknown_fields

_MODELS: Mapping[str, type[spec.TrainingJob | spec.Queue | spec.Flavor]] = {
    "TrainingJob": spec.TrainingJob,
    "Queue": spec.Queue,
    "Flavor": spec.Flavor,
}
_MAX_ERRORS_SHOWN = 3


def invalid_reason(document: Mapping[str, Any], kind: str) -> str | None:
    """The validation errors of an object, or None if it is valid.

    The status of a queue or flavor is not validated, since it is computed again.
    """
    validated = document if kind == "TrainingJob" else {key: part for key, part in document.items() if key != "status"}
    try:
        _MODELS[kind].model_validate(validated)
    except ValidationError as error:
        unknown = {field.path: field.message for field in unknown_fields(_MODELS[kind], validated)}
        found = [to_field_error(finding, SourceMap(document, {})) for finding in error.errors()]
        message = [f"{one.field}: {unknown.get(one.path, one.message)}" for one in found[:_MAX_ERRORS_SHOWN]]
        more = len(found) - len(message)
        return "; ".join(message) + (f"; and {more} more" if more else "")
    return None


def valid_part(document: Mapping[str, Any]) -> spec.Queue:
    """A queue with all valid fields of its spec and all valid entries of its resources; the others count as not set. An
    invalid status is replaced by an empty one."""
    written = document.get("spec")
    fields = written if isinstance(written, dict) else {}
    kept = {name: value for name, value in fields.items() if _is_valid({name: value})}
    entries = fields.get("resources")
    if "resources" not in kept and isinstance(entries, list):
        readable = {"resources": [entry for entry in entries if _is_valid({"resources": [entry]})]}
        kept |= readable if _is_valid(readable) else {}
    return spec.Queue.model_construct(
        api_version=spec.API_VERSION,
        kind="Queue",
        metadata=metadata_of(document),
        spec=spec.QueueSpec.model_validate(kept),
        status=_status(document.get("status")),
    )


def metadata_of(document: Mapping[str, Any]) -> spec.ObjectMeta:
    """The metadata of an object; only the name if it is invalid."""
    written = document["metadata"]
    try:
        return spec.ObjectMeta.model_validate(written)
    except ValidationError:
        return spec.ObjectMeta.model_construct(name=written["name"])


def _is_valid(fields: Mapping[str, Any]) -> bool:
    try:
        spec.QueueSpec.model_validate(fields)
    except ValidationError:
        return False
    return True


def _status(written: Any) -> spec.QueueStatus:
    try:
        return spec.QueueStatus.model_validate({} if written is None else written)
    except ValidationError:
        return spec.QueueStatus()
