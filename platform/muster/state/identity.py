"""The planner finds differences by identity: a result equal to the last one is returned as the same object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def reuse_equal(old: T | None, new: T) -> T:
    """The old object if it equals the new one."""
    return old if old is not None and old == new else new


def reuse_tuple(new: Iterable[T], old: tuple[T, ...]) -> tuple[T, ...]:
    """A tuple of the new items; the old tuple if it has the same objects."""
    items = tuple(new)
    return old if same_objects(items, old) else items


def same_objects(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    """Whether both have the same objects in the same order."""
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
