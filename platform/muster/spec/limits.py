"""How large the pod templates of one job may be.

Whoever watches jobs holds something of every one of them, and what is decoded takes far more memory than its text: 36
times as much where it consists of empty objects. Kubernetes keeps fields that nobody knows, up to 1.5 MiB of them.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_ROLES_BYTES = 256 * 1024
"""Of `spec.roles` as compact JSON."""
MAX_ROLES_VALUES = 5_000
"""Of `spec.roles`: objects, lists, texts, numbers, true, false and null, at every depth."""
_ROLES_PATH = ("spec", "roles")


def check_roles_size(document: Any) -> Any:
    """The document of a job, unless its roles are too large. Raises pydantic's ValidationError, which names them."""
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
    """What is wrong with roles of so many values and bytes of JSON; None where nothing is."""
    if values > MAX_ROLES_VALUES:
        return f"all roles and their pod templates must have at most {MAX_ROLES_VALUES:,} values; these have more"
    if size > MAX_ROLES_BYTES:
        return f"all roles and their pod templates must be at most {MAX_ROLES_BYTES:,} bytes of JSON; got {size:,}"
    return None


def _count_values(value: Any) -> int:
    """How many values it is, itself included, without going down by recursion."""
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
