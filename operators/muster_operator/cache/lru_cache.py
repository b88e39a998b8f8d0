"""What was worked out lately and may be worked out again: as much of it as there is room for.

Users decide how long a text is and how many they write; both must not make the process grow without bound.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_ENTRIES = 20_000
MAX_BYTES = 32 * 2**20


class LRUCache(Generic[K, V]):
    """Values by key. Beyond `most` of them, or `most_bytes` of their sizes together, those go that were not asked for
    the longest."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: dict[K, tuple[V, int]] = {}  # the one asked for last is last
        self.bytes = 0
        """Of all that are kept, by the sizes that were told."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value, or None: there never was one, or it had to go."""
        kept = self._entries.pop(key, None)
        if kept is None:
            return None
        self._entries[key] = kept
        return kept[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep it. One that is larger than everything together may be is not kept."""
        _, before = self._entries.pop(key, (None, 0))
        self._entries[key] = value, size
        self.bytes += size - before
        while len(self._entries) > self._max_entries or self.bytes > self._max_bytes:
            _, gone = self._entries.pop(next(iter(self._entries)))
            self.bytes -= gone
