"""Events that wait to be sent: a bounded number, and namespaces take turns.

A tenant can cause any number of Events. Where too many wait, those of the namespace with the most are dropped; and each
turn of a namespace sends one, so that the others do not wait until theirs have expired.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

_MAX_PENDING = 20_000
_MAX_AGE_S = 900.0  # of Events other than warnings
_NORMAL_EVERY = 4


def _monotonic() -> float:
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An Event, and its namespace."""

    namespace: str
    manifest: dict[str, Any]
    key: str = ""  # the object and reason
    supersedes: str = ""  # key of the pending Event that this one makes obsolete
    queued_at: float = field(default_factory=_monotonic, compare=False)

    @property
    def is_warning(self) -> bool:
        return bool(self.manifest.get("type") == "Warning")


_OfNamespace = OrderedDict[int, PendingEvent]  # oldest first


class PendingEvents:
    """`on_drop` is called for each Event that will not be sent."""

    def __init__(self, on_drop: Callable[[], None]) -> None:
        self._on_drop = on_drop
        # by namespace, the next one first
        self._warnings: OrderedDict[str, _OfNamespace] = OrderedDict()
        self._normal: OrderedDict[str, _OfNamespace] = OrderedDict()
        self._counts: Counter[str] = Counter()  # by namespace
        self._by_key: dict[str, tuple[int, PendingEvent]] = {}
        self._sequence = 0
        self._taken = 0

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, event: PendingEvent) -> None:
        """Add one; the one that it supersedes is removed, and one is dropped where too many wait."""
        if event.supersedes in self._by_key:
            self._remove(*self._by_key[event.supersedes])
        if len(self) >= _MAX_PENDING and not self._drop_for(event):
            return
        self._sequence += 1
        self._of_type(event).setdefault(event.namespace, OrderedDict())[self._sequence] = event
        self._counts[event.namespace] += 1
        if event.key:
            self._by_key[event.key] = self._sequence, event

    def take(self) -> tuple[int, PendingEvent] | None:
        """Remove and return the next one, with its number: warnings first, with one other after every three. None if
        all pending ones have expired."""
        while len(self):
            normal_first = (self._taken + 1) % _NORMAL_EVERY == 0
            queues = (self._normal or self._warnings) if normal_first else (self._warnings or self._normal)
            namespace, events = next(iter(queues.items()))
            number, event = next(iter(events.items()))
            queues.move_to_end(namespace)
            self._remove(number, event)
            if event.is_warning or event.queued_at >= _monotonic() - _MAX_AGE_S:
                self._taken += 1
                return number, event
            self._on_drop()
        return None

    def put_back(self, number: int, event: PendingEvent) -> None:
        """Put one back in front that was taken and not sent."""
        queues = self._of_type(event)
        events = queues.setdefault(event.namespace, OrderedDict())
        events[number] = event
        events.move_to_end(number, last=False)
        queues.move_to_end(event.namespace, last=False)
        self._counts[event.namespace] += 1
        if event.key:
            self._by_key.setdefault(event.key, (number, event))

    def clear(self) -> None:
        for _ in range(len(self)):
            self._on_drop()
        for every in (self._warnings, self._normal, self._counts, self._by_key):
            every.clear()

    def all(self) -> list[PendingEvent]:
        """Warnings, then others, oldest first."""
        found = []
        for queues in (self._warnings, self._normal):
            found += [event for _, event in sorted(chain.from_iterable(one.items() for one in queues.values()))]
        return found

    def _drop_for(self, event: PendingEvent) -> bool:
        """Drop the oldest of a namespace that has more than its part, one that is no warning if it has any; whether
        that was another one than this."""
        self._on_drop()
        namespace = event.namespace
        if self._counts[namespace] * (len(self._counts) + 1) <= _MAX_PENDING:
            ((namespace, _),) = self._counts.most_common(1)
        events = self._normal.get(namespace)
        if events is None and namespace == event.namespace and not event.is_warning:
            return False
        self._remove(*next(iter((events or self._warnings[namespace]).items())))
        return True

    def _of_type(self, event: PendingEvent) -> OrderedDict[str, _OfNamespace]:
        return self._warnings if event.is_warning else self._normal

    def _remove(self, number: int, event: PendingEvent) -> None:
        queues = self._of_type(event)
        del queues[event.namespace][number]
        if not queues[event.namespace]:
            del queues[event.namespace]
        self._counts[event.namespace] -= 1
        if not self._counts[event.namespace]:
            del self._counts[event.namespace]
        if self._by_key.get(event.key, (0, event))[0] == number:
            del self._by_key[event.key]
