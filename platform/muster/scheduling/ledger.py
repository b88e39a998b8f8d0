"""Capacity and quota usage as a plan changes them: now, once terminating gangs have ended, and at later times.

Tentative changes are made inside a trial, which undoes them at its end.

The quota forecast is the usage of every queue as running gangs end, and what is claimed of it. A gang that exceeds its
quota waits for others to end. If all quota that becomes free went to later gangs one by one, a large gang would wait
forever. So the first such gang of a leaf has a claim from the time at which quota allows it; others may be charged
only beside it, or before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from muster.quota import UNLIMITED, CellAmounts, QueueTree, QuotaUsage
from muster.scheduling.capacity import FreeCapacity
from muster.scheduling.nodes import FloatArray, IntArray
from muster.scheduling.releases import ExpectedRelease, ExpectedReleases

MAX_TIME_POINTS = 256
"""Number of time points considered; with more releases than that, several share one."""


class QuotaForecast:
    """The usage of `muster.quota` with one more dimension: time points, each after some releases."""

    def __init__(self, usage_later: QuotaUsage, releases: ExpectedReleases) -> None:
        tree = self.tree = usage_later.tree
        count = len(releases)
        counts = np.unique(np.linspace(0, count, min(count + 1, MAX_TIME_POINTS)).astype(np.int64))
        order = np.argsort(releases.positions)
        times = np.concatenate([[-math.inf], releases.release_at[order]])
        self.released_counts: IntArray = counts  # number of releases up to each time point
        self.times: FloatArray = times[counts]
        self._releases = releases
        table_shape = (len(tree.queues), len(tree.cell_index), len(counts))
        change = np.zeros(table_shape, dtype=np.int64)
        time_point = np.searchsorted(counts, releases.positions + 1)
        cells = (releases.charge_queue, releases.charge_cell, time_point[releases.charge_gang])
        np.add.at(change, cells, -releases.charge_amount)
        below = usage_later.table()
        own = below.copy()
        for q, parent in enumerate(tree.parent):
            if parent >= 0:
                own[parent] -= below[q]
        change[:, :, 0] += own
        self._subtree_usage = np.cumsum(change, axis=2, out=change)
        self._usage = self._subtree_usage.copy()
        local_quota = np.array(tree.local_quota, dtype=np.int64).reshape(table_shape[:2])
        for children, parents in tree.depths:  # deepest first; children of one parent are adjacent
            edges = np.flatnonzero(np.diff(parents, prepend=-1))
            above = parents[edges]
            self._subtree_usage[above] += np.add.reduceat(self._subtree_usage[children], edges)
            lent = self._usage[children]
            lent -= local_quota[children][:, :, None]
            self._usage[above] += np.add.reduceat(np.maximum(lent, 0, out=lent), edges)

    def index_of_release(self, release: ExpectedRelease) -> int:
        """Index of the first time point at which a gang has ended. A gang that starts now comes before others that have
        ended by the same time; one that ended at minus infinity is charged at none."""
        index = self._releases.index_of(release)
        if index is not None:
            return int(np.searchsorted(self.released_counts, self._releases.positions[index] + 1))
        if release.release_at == math.inf:
            return len(self.times)
        return int(np.searchsorted(self.times, release.release_at, "left"))

    def index_after(self, count: int) -> int:
        """The first time point after this many releases."""
        return int(np.searchsorted(self.released_counts, count))

    def add(self, queue: int, amounts: CellAmounts, start: int, stop: int | None, sign: int = 1) -> None:
        """Charge amounts at the time points `start:stop`."""
        for cell, amount in amounts:
            amount *= sign
            added: int | IntArray = amount
            for q in self.tree.path[queue]:
                self._subtree_usage[q, cell, start:stop] += amount
                local_quota = self.tree.local_quota[q][cell]
                if not local_quota:  # all of U increases: the usual case, and U is never negative
                    self._usage[q, cell, start:stop] += added
                    continue
                before = self._usage[q, cell, start:stop].copy()
                self._usage[q, cell, start:stop] += added
                added = np.maximum(0, self._usage[q, cell, start:stop] - local_quota) - np.maximum(
                    0, before - local_quota
                )

    def fits(self, release: ExpectedRelease) -> bool:
        """Whether a gang is within quota, beside all claims, until it has ended."""
        stop = self.index_of_release(release)
        return all(
            bool((self.available(release.queue, cell)[:stop] >= amount).all()) for cell, amount in release.amounts
        )

    def available(self, queue: int, cell: int) -> IntArray:
        """How much more the queue may use, at each time point."""
        tree: QueueTree = self.tree
        root, *below = reversed(tree.path[queue])
        avail: IntArray = tree.subtree_quota[root][cell] - self._usage[root, cell]
        cap = self._below_limit(root, cell)
        avail = avail if cap is None else np.minimum(avail, cap)
        for q in below:
            if local_quota := tree.local_quota[q][cell]:
                avail = avail + np.maximum(0, local_quota - self._usage[q, cell])
            slack = self._below_limit(q, cell)
            if slack is not None:
                cap = slack if cap is None else np.minimum(cap, slack)
            if cap is not None:
                avail = np.minimum(avail, cap)
        return avail

    def earliest_fit(self, queue: int, amounts: CellAmounts) -> int | None:
        """The first time point from which on a request is within quota; None if there is none."""
        first = 0
        for cell, amount in amounts:
            short = np.flatnonzero(self.available(queue, cell) < amount)
            if len(short):
                first = max(first, int(short[-1]) + 1)
        return first if first < len(self.times) else None

    def _below_limit(self, queue: int, cell: int) -> IntArray | None:
        limit = self.tree.limit[queue][cell]
        return None if limit == UNLIMITED else limit - self._subtree_usage[queue, cell]


@dataclass(frozen=True, slots=True, eq=False)
class ReservedCapacity:
    """Capacity left beside a reservation at its time, when all releases up to and including `last` have happened."""

    remaining: FreeCapacity
    last_release: tuple[float, float, int]
    usage: QuotaUsage | None = None  # quota charged then, if its time is unknown and gangs are bound in any case

    def apply(self, release: ExpectedRelease, sign: int, *, now: bool) -> None:
        """A gang takes (-1) or releases capacity, `now` or once it has terminated."""
        if self.usage is None:
            if release.key > self.last_release:
                self.remaining.add(release.node_usage, sign)
        elif now:  # a running gang may be among the releases already
            self.remaining.add(release.node_usage, sign)
            if release.queue >= 0:
                self.usage.add(release.queue, release.amounts, -sign)


@dataclass(slots=True)
class Ledger:
    """Capacity and quota usage while a plan is made.

    `version` counts the changes outside trials; `times_freed` those after which more gangs may fit: a nomination ended,
    an admission was withdrawn, a gang is evicted or shrunk.
    """

    free_now: FreeCapacity
    free_later: FreeCapacity
    usage_now: QuotaUsage
    usage_later: QuotaUsage
    reserved: list[ReservedCapacity] = field(default_factory=list)
    quota_forecast: QuotaForecast | None = None
    version: int = 0
    times_freed: int = 0
    _changes_of_trial: list[tuple[ExpectedRelease, int, bool]] | None = None

    def start_quota_forecast(self, releases: ExpectedReleases) -> QuotaForecast:
        """Begin to forecast quota usage, from the releases with the changes so far."""
        self.quota_forecast = QuotaForecast(self.usage_later, releases)
        return self.quota_forecast

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
    def trial(self) -> Iterator[None]:
        """Undo the changes of the block at its end. Trials do not nest."""
        changes = self._changes_of_trial = []
        try:
            yield
        finally:
            for release, sign, now in reversed(changes):
                self._apply(release, -sign, now=now)
            self._changes_of_trial = None

    def _record(self, release: ExpectedRelease, sign: int, *, now: bool) -> None:
        self._apply(release, sign, now=now)
        if self._changes_of_trial is not None:
            self._changes_of_trial.append((release, sign, now))
        else:
            self.version += 1
            self.times_freed += sign > 0

    def _apply(self, release: ExpectedRelease, sign: int, *, now: bool) -> None:
        self.free_later.add(release.node_usage, sign)
        if now:
            self.free_now.add(release.node_usage, sign)
        for reserved in self.reserved:
            reserved.apply(release, sign, now=now)
        if release.queue >= 0:
            self.usage_later.add(release.queue, release.amounts, -sign)
            if now:
                self.usage_now.add(release.queue, release.amounts, -sign)
            if self.quota_forecast is not None:
                self.quota_forecast.add(
                    release.queue, release.amounts, 0, self.quota_forecast.index_of_release(release), -sign
                )
