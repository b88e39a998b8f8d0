"""Usage between two times: the durable record, and what it does not have yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from muster.usage.segments import JobSegments
from muster.usage.totals import HOUR_MS, UsageKey, UsageTotals

UsageGroup: TypeAlias = Literal["queue", "namespace", "user"]
UsageStep: TypeAlias = Literal["hour", "day"]
STEP_HOURS: Mapping[UsageStep, int] = {"hour": 1, "day": 24}


@dataclass(frozen=True, slots=True)
class RecordedUsage:
    """The durable record as last read, and jobs that were deleted since. Never changed once it is published.

    `totals`: sums; several count together. `counted`: number of ended segments in them, by job uid; of every job that
    may still be observed. `deleted`: all segments of jobs that are not observed any more.
    """

    totals: tuple[UsageTotals, ...] = ()
    counted: Mapping[str, int] = field(default_factory=dict)
    deleted: tuple[JobSegments, ...] = ()


@dataclass(frozen=True, slots=True)
class UsagePeriod:
    """Hours since 1970, `first` inclusive to `last` exclusive, in steps from `first`."""

    first: int
    last: int
    step: UsageStep


@dataclass(frozen=True, slots=True)
class UsageSeries:
    """What was used of one resource of one flavor: in resource units (milli-cores of cpu) times milliseconds, by the
    hour since 1970 at which a step begins; steps without usage are absent."""

    name: str
    flavor: str
    resource: str
    amounts: Mapping[int, int]

    @property
    def total(self) -> int:
        return sum(self.amounts.values())


def usage_series(
    recorded: RecordedUsage,
    live: Iterable[JobSegments],
    period: UsagePeriod,
    by: UsageGroup,
    may_read: Callable[[str], bool],
) -> list[UsageSeries]:
    """Usage in the period, of namespaces that `may_read` allows, by name, flavor and resource. `live`: segments of the
    observed jobs."""
    step = STEP_HOURS[period.step]
    found: dict[tuple[str, str, str], dict[int, int]] = {}
    for totals in (*recorded.totals, _not_counted(recorded, live)):
        for key, hour, amount in _cells_in(totals, period):
            if may_read(key.namespace):
                name: str = getattr(key, by)
                amounts = found.setdefault((name, key.flavor, key.resource), {})
                start = hour - (hour - period.first) % step
                amounts[start] = amounts.get(start, 0) + amount
    return [UsageSeries(*names, amounts=dict(sorted(amounts.items()))) for names, amounts in sorted(found.items())]


def namespaces_with_usage(recorded: RecordedUsage, period: UsagePeriod) -> set[str]:
    """Namespaces of which the record or a deleted job has usage on the days of the period."""
    first_day, last_day = _days(period)
    found = {key.namespace for totals in recorded.totals for key in totals.hours if first_day <= key.day <= last_day}
    return found | {segment.namespace for job in recorded.deleted for segment in job.ended}


def _cells_in(totals: UsageTotals, period: UsagePeriod) -> Iterator[tuple[UsageKey, int, int]]:
    first_day, last_day = _days(period)
    for key, hours in totals.hours.items():
        if first_day <= key.day <= last_day:
            for hour_of_day, amount in enumerate(hours):
                hour = key.day * 24 + hour_of_day
                if amount and period.first <= hour < period.last:
                    yield key, hour, amount


def _days(period: UsagePeriod) -> tuple[int, int]:
    return period.first // 24, (period.last - 1) // 24


def _not_counted(recorded: RecordedUsage, live: Iterable[JobSegments]) -> UsageTotals:
    totals = UsageTotals()
    for job in (*recorded.deleted, *live):
        counted = recorded.counted.get(job.uid, 0)
        totals.add_all(job.after(counted))
        if job.current is not None and counted <= job.count:
            totals.add(job.current)
    return totals


def hour_of(time_s: float) -> int:
    """The hour since 1970 of a Unix time."""
    return round(time_s * 1000) // HOUR_MS
