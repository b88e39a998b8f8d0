"""Capacity and quota usage as a plan changes them: now, once terminating gangs are gone, and at the times of
reservations.

Tentative changes are made inside a trial, which undoes them unless it is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from muster.quota import QuotaUsage
from muster.scheduling.capacity import FreeCapacity
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.quota_forecast import QuotaForecast
from muster.scheduling.releases import ExpectedRelease


@dataclass(slots=True)
class Trial:
    """Changes that are undone at its end unless it is committed."""

    committed: bool = False

    def commit(self) -> None:
        """Keep the changes."""
        self.committed = True


@dataclass(frozen=True, slots=True, eq=False)
class ReservedCapacity:
    """Capacity left beside a reservation at its time, when all releases up to and including `last` have happened."""

    remaining: FreeCapacity
    last_release: tuple[float, float, int]


@dataclass(slots=True)
class Ledger:
    """Capacity and quota usage while a plan is made. `version` counts the committed changes."""

    free_now: FreeCapacity
    free_later: FreeCapacity
    usage_now: QuotaUsage
    usage_later: QuotaUsage
    reserved: list[ReservedCapacity] = field(default_factory=list)
    quota_forecast: QuotaForecast | None = None
    version: int = 0
    _trials: int = 0
    _undo: list[tuple[ExpectedRelease, int, bool]] = field(default_factory=list)

    @classmethod
    def of(cls, cache: PlannerCache) -> Ledger:
        """A copy of the cache, to write on."""
        return cls(cache.free_now.fork(), cache.free_later.fork(), cache.usage_now.fork(), cache.usage_later.fork())

    def allocate(self, release: ExpectedRelease) -> None:
        """A gang takes capacity and quota, from now until its release."""
        self._record(release, -1, now=True)

    def deallocate(self, release: ExpectedRelease) -> None:
        """The opposite of `allocate`."""
        self._record(release, 1, now=True)

    def mark_releasing(self, release: ExpectedRelease) -> None:
        """A running gang is evicted or shrunk: what it gives up is free later, not now."""
        self._record(release, 1, now=False)

    def unmark_releasing(self, release: ExpectedRelease) -> None:
        """The opposite of `mark_releasing`."""
        self._record(release, -1, now=False)

    @contextmanager
    def trial(self) -> Iterator[Trial]:
        """Undo the changes of the block at its end, unless the trial is committed. Trials nest."""
        mark = len(self._undo)
        trial = Trial()
        self._trials += 1
        try:
            yield trial
        finally:
            self._trials -= 1
            if not trial.committed:
                while len(self._undo) > mark:
                    gang, sign, now = self._undo.pop()
                    self._apply(gang, -sign, now=now)
            elif not self._trials:
                self._undo.clear()
                self.version += 1

    def _record(self, release: ExpectedRelease, sign: int, *, now: bool) -> None:
        self._apply(release, sign, now=now)
        if self._trials:
            self._undo.append((release, sign, now))
        else:
            self.version += 1

    def _apply(self, release: ExpectedRelease, sign: int, *, now: bool) -> None:
        self.free_later.add(release.node_usage, sign)
        if now:
            self.free_now.add(release.node_usage, sign)
        for promised in self.reserved:
            if release.key > promised.last_release:
                promised.remaining.add(release.node_usage, sign)
        if release.queue >= 0:
            self.usage_later.add(release.queue, release.amounts, -sign)
            if now:
                self.usage_now.add(release.queue, release.amounts, -sign)
            if self.quota_forecast is not None:
                self.quota_forecast.add(
                    release.queue, release.amounts, 0, self.quota_forecast.index_of_release(release), -sign
                )
