"""Objects of one resource as far as we know them: what watches brought, and our own writes before watches bring them.

The newest resourceVersion wins, whoever brought it. So an acknowledged write counts at once, an event that is older
than it changes nothing, and the event of the write itself is no news.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Kept(Generic[T]):
    version: int
    value: T


class Shelf(Generic[T]):
    """Values by key. `changed(key, old, new)` is told of every change; None: there is or was none."""

    def __init__(self, changed: Callable[[str, T | None, T | None], None]) -> None:
        self._changed = changed
        self._kept: dict[str, _Kept[T]] = {}
        self._reached = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[T]:
        return (kept.value for kept in self._kept.values())

    def get(self, key: str) -> T | None:
        """The value, or None."""
        kept = self._kept.get(key)
        return None if kept is None else kept.value

    def is_news(self, key: str, version: int) -> bool:
        """Whether something of this version is newer than what is known."""
        kept = self._kept.get(key)
        return kept is None or version > kept.version

    def is_gone(self, key: str, version: int) -> bool:
        """Whether something of this version was deleted since: watches have passed it and do not show it."""
        return key not in self._kept and version <= self._reached

    def put(self, key: str, version: int, value: T) -> None:
        """A watch or list shows it."""
        kept = self._kept.get(key)
        if kept is None:
            self._kept[key] = _Kept(version, value)
            self._changed(key, None, value)
        elif version > kept.version:
            old, kept.version, kept.value = kept.value, version, value
            self._changed(key, old, value)

    def drop(self, key: str, version: int) -> None:
        """A watch shows that it was deleted, at this version."""
        kept = self._kept.get(key)
        if kept is not None and version >= kept.version:
            del self._kept[key]
            self._changed(key, kept.value, None)

    def wrote(self, key: str, version: int, value: T) -> None:
        """Our own write was acknowledged. One that watches have passed and do not show was deleted since."""
        if not self.is_gone(key, version):
            self.put(key, version, value)

    def amend(self, key: str, value: T) -> None:
        """We know more of what is known, at the version that it has: whatever is newer still counts."""
        kept = self._kept[key]
        old, kept.value = kept.value, value
        self._changed(key, old, value)

    def progress(self, version: int) -> None:
        """Watches have told everything up to this version."""
        self._reached = max(self._reached, version)

    def keep_only(self, keys: Iterable[str], version: int) -> None:
        """A list of this version has these keys: others are gone, unless they were written after it."""
        here = set(keys)
        for key in [key for key, kept in self._kept.items() if key not in here and kept.version <= version]:
            old = self._kept.pop(key)
            self._changed(key, old.value, None)
        self.progress(version)
