"""Namespaces and PriorityClasses: few values by name that seldom change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from muster.kube.objects import V1Namespace, V1ObjectMeta, V1PriorityClass
from muster_operator.cache.mutation_cache import MutationCache


class _Named(Protocol):
    @property
    def metadata(self) -> V1ObjectMeta: ...


O_in = TypeVar("O_in", bound=_Named)
V = TypeVar("V")


class NameIndex(Generic[O_in, V]):
    """Event handler that keeps one value of each object, by name."""

    def __init__(self, value: Callable[[O_in], V], changed: Callable[[], None]) -> None:
        self._value = value
        self._changed = changed
        self._cache = MutationCache[V](self._on_change)
        self._values: dict[str, V] = {}

    def on_list(self, keys: set[str], version: int) -> None:
        """A list at `version` has exactly these keys."""
        self._cache.retain(keys, version)

    def on_upsert(self, item: O_in) -> None:
        """An object was created or changed."""
        self._cache.upsert(item.metadata.name, item.metadata.version, self._value(item))

    def on_delete(self, item: O_in) -> None:
        """An object was deleted."""
        self._cache.delete(item.metadata.name, item.metadata.version)

    def on_bookmark(self, version: int) -> None:
        """Everything up to `version` was delivered."""
        self._cache.advance(version)

    def values(self) -> Mapping[str, V]:
        """Values by name; the same immutable mapping until something changes."""
        return self._values

    def _on_change(self, name: str, old: V | None, new: V | None) -> None:
        if old == new:
            return
        values = dict(self._values)
        if new is None:
            values.pop(name, None)
        else:
            values[name] = new
        self._values = values
        self._changed()


def namespace_labels(namespace: V1Namespace) -> Mapping[str, str]:
    """Labels of a namespace."""
    return namespace.metadata.labels


def priority_value(priority_class: V1PriorityClass) -> int:
    """Value of a PriorityClass."""
    return priority_class.value
