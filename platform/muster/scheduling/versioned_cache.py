"""A cache whose values hold for one version of what they are derived from."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class VersionedCache(Generic[K, V]):
    """Values by key, of one version only: those of an earlier version are dropped when a later one is requested.

    A version is a counter of changes, or a tuple of counters. No code has to clear the cache, and no value that it
    returns is out of date.
    """

    __slots__ = ("_values", "_version")

    def __init__(self) -> None:
        self._version: Hashable = None
        self._values: dict[K, V] = {}

    def at(self, version: Hashable) -> dict[K, V]:
        """The values of this version: look one up, or add it."""
        if version != self._version:
            self._version = version
            self._values = {}
        return self._values
