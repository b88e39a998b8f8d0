"""Cache of one resource, from watches and from our own acknowledged writes (as client-go's MutationCache).

The highest resourceVersion wins, whatever its source. So an acknowledged write counts at once, an older event changes
nothing, and the event of the write itself is not a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    version: int
    value: T


class MutationCache(Generic[T]):
    """Values by key. `changed(key, old, new)` is called on every change; None: absent."""

    def __init__(self, changed: Callable[[str, T | None, T | None], None]) -> None:
        self._changed = changed
        self._entries: dict[str, _Entry[T]] = {}
        self._observed_version = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return (entry.value for entry in self._entries.values())

    def get(self, key: str) -> T | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def is_newer(self, key: str, version: int) -> bool:
        """Whether this version is newer than the cached one."""
        entry = self._entries.get(key)
        return entry is None or version > entry.version

    def is_deleted(self, key: str, version: int) -> bool:
        """Whether the object of this version was deleted since: watches have passed it and do not have it."""
        return key not in self._entries and version <= self._observed_version

    def upsert(self, key: str, version: int, value: T) -> None:
        """A watch or list delivered the object."""
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(version, value)
            self._changed(key, None, value)
        elif version > entry.version:
            old, entry.version, entry.value = entry.value, version, value
            self._changed(key, old, value)

    def delete(self, key: str, version: int) -> None:
        """A watch delivered the deletion, at this version."""
        entry = self._entries.get(key)
        if entry is not None and version >= entry.version:
            del self._entries[key]
            self._changed(key, entry.value, None)

    def on_written(self, key: str, version: int, value: T) -> None:
        """Our write was acknowledged. An object that watches have passed and do not have was deleted since."""
        if not self.is_deleted(key, version):
            self.upsert(key, version, value)

    def replace(self, key: str, value: T) -> None:
        """Replace a value at its present version, with more knowledge; anything newer still wins."""
        entry = self._entries[key]
        old, entry.value = entry.value, value
        self._changed(key, old, value)

    def advance(self, version: int) -> None:
        """Watches have delivered everything up to this version."""
        self._observed_version = max(self._observed_version, version)

    def retain(self, keys: Iterable[str], version: int) -> None:
        """A list at this version has exactly these keys: others are deleted, unless written after it."""
        listed = set(keys)
        for key in [key for key, entry in self._entries.items() if key not in listed and entry.version <= version]:
            old = self._entries.pop(key)
            self._changed(key, old.value, None)
        self.advance(version)


class WatchedCache(Generic[T]):
    """The methods of an event handler that are the same for all resources; see `muster.kube.reflector`."""

    _cache: MutationCache[T]

    def on_list(self, keys: set[str], version: int) -> None:
        self._cache.retain(keys, version)

    def on_delete(self, item: Any) -> None:
        self._cache.delete(item.metadata.key, item.metadata.version)

    def on_bookmark(self, version: int) -> None:
        """Everything up to `version` was delivered."""
        self._cache.advance(version)
