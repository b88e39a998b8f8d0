"""The maximum nesting depth of an object, and the maximum size of the pod templates of one job.

The API server preserves unknown fields of a pod template, up to 10,000 levels deep and 1.5 MiB. Code that processes an
object by recursion would exceed the stack, so deeper objects are refused before anything else reads them. The operator
keeps a part of every job in memory, and decoded JSON takes up to 36 times the memory of its text (empty objects).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_DEPTH = 64
"""Levels of mappings and lists, the object itself included."""
_MAX_PATH_PARTS = 10  # of a field's path in a message
_MAX_PART_LENGTH = 64  # characters
Path = tuple[str | int, ...]
MAX_ROLES_BYTES = 256 * 1024
"""Maximum size of `spec.roles` as compact JSON."""
MAX_ROLES_VALUES = 5_000
"""Maximum number of values in `spec.roles` at every depth: objects, lists, strings, numbers, booleans and null."""
_ROLES_PATH = ("spec", "roles")


def check_depth(value: Any, parent_levels: int, path: Path = ()) -> None:
    """Raise pydantic's ValidationError, which names the field, if `value` is nested too deep. It is at `path` of an
    object, below `parent_levels` levels."""
    found = find_too_deep(value, MAX_DEPTH - parent_levels)
    if found is not None:
        message = f"must be nested at most {MAX_DEPTH} levels deep"
        detail = InitErrorDetails(
            type=PydanticCustomError("too_deep", "{message}", {"message": message}),
            loc=_truncate_path((*path, *found)),
            input=None,
        )
        raise ValidationError.from_exception_data("depth", [detail])


def _truncate_path(path: Path) -> Path:
    return tuple(
        f"{part[:_MAX_PART_LENGTH]}..." if isinstance(part, str) and len(part) > _MAX_PART_LENGTH else part
        for part in path[:_MAX_PATH_PARTS]
    )


def check_spec_depth(document: Any) -> Any:
    """Return the document of an object. Raises as `check_depth` does if its spec is nested too deep."""
    if isinstance(document, dict):
        check_depth(document.get("spec"), 1, ("spec",))
    return document


def find_too_deep(value: Any, max_levels: int) -> Path | None:
    """The path at which `value` has more than `max_levels` levels of mappings and lists; None if it has not."""
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(max_levels):
        layer = [inner for outer in layer for _, inner in _nested_collections(outer)]
        if not layer:
            return None
    return _path_at_depth(value, max_levels) if layer else None


def _path_at_depth(value: Any, levels: int) -> Path:
    """The first path of `levels` parts to a mapping or list. Iterative, since `value` may be deeper than the stack."""
    path: list[str | int] = []
    ways: list[Iterator[tuple[str | int, Any]]] = [iter(_nested_collections(value))]
    while len(ways) <= levels:
        step = next(ways[-1], None)
        if step is None:
            ways.pop()
            path.pop()
        else:
            path.append(step[0])
            ways.append(iter(_nested_collections(step[1])))
    return tuple(path)


def _nested_collections(value: Any) -> Iterable[tuple[str | int, Any]]:
    """The mappings and lists directly inside a mapping or list, by key or index."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    return [(key, inner) for key, inner in entries if isinstance(inner, dict | list)]


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


def size_error(values: int, size: int, what: str = "all roles and their pod templates") -> str | None:
    """The error message for roles of this many values and bytes of JSON; None if they are within the limits."""
    if values > MAX_ROLES_VALUES:
        return f"{what} must have at most {MAX_ROLES_VALUES:,} values; got more"
    if size > MAX_ROLES_BYTES:
        return f"{what} must be at most {MAX_ROLES_BYTES:,} bytes of JSON; got {size:,}"
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
