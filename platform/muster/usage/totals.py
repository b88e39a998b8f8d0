"""Exact sums of usage by hour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.usage.segments import ChargedSegment

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_HOURS = 24


class UsageKey(NamedTuple):
    """What usage is summed by. `day`: days since 1970-01-01 UTC."""

    day: int
    namespace: str
    queue: str
    user: str
    flavor: str
    resource: str


@dataclass(slots=True)
class UsageTotals:
    """Sums in units of a resource (milli-cores of cpu) times milliseconds: whole numbers, so that no order of additions
    changes them. Each key has 24, one for each hour of its day in UTC."""

    hours: dict[UsageKey, list[int]] = field(default_factory=dict)

    def add(self, segment: ChargedSegment) -> None:
        """Add a segment, divided between the hours in which it was."""
        start = segment.since_ms
        while start < segment.until_ms:
            hour = start // HOUR_MS
            end = min(segment.until_ms, (hour + 1) * HOUR_MS)
            day, hour_of_day = divmod(hour, _HOURS)
            for (flavor, resource), amount in segment.amounts:
                key = UsageKey(day, segment.namespace, segment.queue, segment.user, flavor, resource)
                self.hours.setdefault(key, [0] * _HOURS)[hour_of_day] += amount * (end - start)
            start = end

    def add_all(self, segments: Iterable[ChargedSegment]) -> None:
        for segment in segments:
            self.add(segment)

    def merge(self, other: Mapping[UsageKey, Iterable[int]]) -> None:
        for key, hours in other.items():
            sums = self.hours.setdefault(key, [0] * _HOURS)
            for hour, amount in enumerate(hours):
                sums[hour] += amount

    def copy(self) -> UsageTotals:
        """Independent sums."""
        return UsageTotals({key: list(hours) for key, hours in self.hours.items()})

    def cells(self) -> Iterator[tuple[UsageKey, int, int]]:
        """Key, hour since 1970 and amount of every sum that is not 0."""
        for key, hours in self.hours.items():
            for hour, amount in enumerate(hours):
                if amount:
                    yield key, key.day * _HOURS + hour, amount
