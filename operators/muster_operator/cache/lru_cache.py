"""A cache of recomputable values, bounded in number and in bytes.

Users decide how many texts there are and how long each is; neither may make the process grow without bound.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_ENTRIES = 20_000
MAX_BYTES = 32 * 2**20


class LRUCache(Generic[K, V]):
    """Values by key; evicts the least recently used beyond `max_entries` or `max_bytes` in total."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: dict[K, tuple[V, int]] = {}  # most recently used last
        self.bytes = 0
        """Sum of the sizes of all entries."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value; None: never put, or evicted."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._entries[key] = entry
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Add a value, unless its `size` alone exceeds the limit."""
        _, before = self._entries.pop(key, (None, 0))
        self._entries[key] = value, size
        self.bytes += size - before
        while len(self._entries) > self._max_entries or self.bytes > self._max_bytes:
            _, size = self._entries.pop(next(iter(self._entries)))
            self.bytes -= size
