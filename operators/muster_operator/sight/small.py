"""Namespaces and priority classes: a few values by name that change seldom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from muster_operator.sight.shapes import Meta, Namespace, PriorityClass
from muster_operator.sight.shelf import Shelf


class _Named(Protocol):
    @property
    def metadata(self) -> Meta: ...


O_in = TypeVar("O_in", bound=_Named)
V = TypeVar("V")


class ByName(Generic[O_in, V]):
    """A sink that keeps one value of each object, by name."""

    def __init__(self, value: Callable[[O_in], V], changed: Callable[[], None]) -> None:
        self._value = value
        self._changed = changed
        self._shelf = Shelf[V](self._note)
        self._values: dict[str, V] = {}

    def keep_only(self, keys: set[str], version: int) -> None:
        """There are no others."""
        self._shelf.keep_only(keys, version)

    def put(self, item: O_in) -> None:
        """Created or changed."""
        self._shelf.put(item.metadata.name, item.metadata.version, self._value(item))

    def drop(self, item: O_in) -> None:
        """Deleted."""
        self._shelf.drop(item.metadata.name, item.metadata.version)

    def progress(self, version: int) -> None:
        """Everything up to here has been told."""
        self._shelf.progress(version)

    def values(self) -> Mapping[str, V]:
        """By name; the same mapping as long as nothing changed, never changed afterwards."""
        return self._values

    def _note(self, name: str, old: V | None, new: V | None) -> None:
        if old == new:
            return
        values = dict(self._values)
        if new is None:
            values.pop(name, None)
        else:
            values[name] = new
        self._values = values
        self._changed()


def labels(namespace: Namespace) -> Mapping[str, str]:
    """A namespace's labels."""
    return namespace.metadata.labels


def value(priority_class: PriorityClass) -> int:
    """A priority class's value."""
    return priority_class.value
