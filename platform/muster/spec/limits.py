"""The maximum size of the pod templates of one job.

The operator keeps a part of every job in memory. Decoded JSON takes up to 36 times the memory of its text (empty
objects), and Kubernetes preserves up to 1.5 MiB of unknown fields in an object.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_ROLES_BYTES = 256 * 1024
"""Maximum size of `spec.roles` as compact JSON."""
MAX_ROLES_VALUES = 5_000
"""Maximum number of values in `spec.roles` at every depth: objects, lists, strings, numbers, booleans and null."""
_ROLES_PATH = ("spec", "roles")


def check_roles_size(document: Any) -> Any:
    """Return the document of a job. Raises pydantic's ValidationError if its roles are too large."""
    wanted = document.get("spec") if isinstance(document, dict) else None
    roles = wanted.get("roles") if isinstance(wanted, dict) else None
    if isinstance(roles, list):
        fault = size_error(_count_values(roles), _json_bytes(roles))
        if fault is not None:
            detail = InitErrorDetails(
                type=PydanticCustomError("too_large", "{message}", {"message": fault}), loc=_ROLES_PATH, input=None
            )
            raise ValidationError.from_exception_data("bounds", [detail])
    return document


def size_error(values: int, size: int) -> str | None:
    """The error message for roles of this many values and bytes of JSON; None if they are within the limits."""
    if values > MAX_ROLES_VALUES:
        return f"all roles and their pod templates must have at most {MAX_ROLES_VALUES:,} values; these have more"
    if size > MAX_ROLES_BYTES:
        return f"all roles and their pod templates must be at most {MAX_ROLES_BYTES:,} bytes of JSON; got {size:,}"
    return None


def _count_values(value: Any) -> int:
    """The number of values, `value` included. Iterative, since `value` may be deeper than the stack."""
    count, layer = 0, [value]
    while layer:
        count += len(layer)
        if count > MAX_ROLES_VALUES:
            return count  # at least
        layer = [inner for outer in layer for inner in _nested_values(outer)]
    return count


def _nested_values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _json_bytes(value: Any) -> int:
    return len(json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"))
