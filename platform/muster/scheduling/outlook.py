"""Quota over time: what will be charged to every queue as running gangs leave, and what is promised out of it.

A gang that is over its quota waits for others to leave. If whatever comes free in between went to later gangs one by
one, a large gang would wait for ever. So the first such gang of a leaf has a claim from the time on at which quota
will allow it, and others may be charged beside it only, or before it.
"""

from __future__ import annotations

import math

import numpy as np

from muster.quota import UNLIMITED, Amounts, Charges, QueueTree
from muster.scheduling.departures import Departure, Departures
from muster.scheduling.nodes import FloatArray, IntArray

MOMENTS = 256
"""So many moments are looked at; with more departures than that, several fall into one."""


class Outlook:
    """The charges of `muster.quota` with one more dimension: moments, each after some have left."""

    def __init__(self, staying: Charges, departures: Departures) -> None:
        tree = self.tree = staying.tree
        count = len(departures)
        left = np.unique(np.linspace(0, count, min(count + 1, MOMENTS)).astype(np.int64))
        order = np.argsort(departures.rank)
        times = np.concatenate([[-math.inf], departures.by[order]])
        self.left: IntArray = left  # how many have left at each moment
        self.times: FloatArray = times[left]
        self._departures = departures
        shape = (len(tree.queues), len(tree.cells), len(left))
        change = np.zeros(shape, dtype=np.int64)
        moment = np.searchsorted(left, departures.rank + 1)
        place = (departures.charge_queue, departures.charge_cell, moment[departures.charge_owner])
        np.add.at(change, place, -departures.charge_amount)
        below = staying.table()
        own = below.copy()
        for q, parent in enumerate(tree.parent):
            if parent >= 0:
                own[parent] -= below[q]
        change[:, :, 0] += own
        self._below = np.cumsum(change, axis=2, out=change)
        self._used = self._below.copy()
        kept = np.array(tree.kept, dtype=np.int64).reshape(shape[:2])
        for children, parents in tree.levels:  # the lowest first; those of one parent lie side by side
            edges = np.flatnonzero(np.diff(parents, prepend=-1))
            above = parents[edges]
            self._below[above] += np.add.reduceat(self._below[children], edges)
            lent = self._used[children]
            lent -= kept[children][:, :, None]
            self._used[above] += np.add.reduceat(np.maximum(lent, 0, out=lent), edges)

    def until(self, gang: Departure) -> int:
        """Moments at which a gang has not left yet: those before this index.

        One that starts now leaves before others that are gone by the same time.
        """
        known = self._departures.place_of(gang)
        if known is not None:
            return int(np.searchsorted(self.left, self._departures.rank[known] + 1))
        return len(self.times) if math.isinf(gang.by) else max(1, int(np.searchsorted(self.times, gang.by, "left")))

    def after(self, count: int) -> int:
        """The first moment at which so many have left."""
        return int(np.searchsorted(self.left, count))

    def charge(self, queue: int, amounts: Amounts, start: int, stop: int | None, sign: int = 1) -> None:
        """Charge amounts at the moments `start:stop`."""
        for cell, amount in amounts:
            amount *= sign
            grown: int | IntArray = amount
            for q in self.tree.path[queue]:
                self._below[q, cell, start:stop] += amount
                kept = self.tree.kept[q][cell]
                if not kept:  # all of U goes up: the usual case, and U is never negative
                    self._used[q, cell, start:stop] += grown
                    continue
                before = self._used[q, cell, start:stop].copy()
                self._used[q, cell, start:stop] += grown
                grown = np.maximum(0, self._used[q, cell, start:stop] - kept) - np.maximum(0, before - kept)

    def allows(self, gang: Departure) -> bool:
        """Tell whether a gang is within quota, beside all that is promised, until it leaves."""
        stop = self.until(gang)
        return all(bool((self._avail(gang.queue, cell)[:stop] >= amount).all()) for cell, amount in gang.amounts)

    def avail(self, queue: int, cell: int) -> IntArray:
        """How much more the queue may use, at each moment."""
        return self._avail(queue, cell)

    def earliest(self, queue: int, amounts: Amounts) -> int | None:
        """The first moment from which on a request is within quota; None when there is none."""
        first = 0
        for cell, amount in amounts:
            short = np.flatnonzero(self._avail(queue, cell) < amount)
            if len(short):
                first = max(first, int(short[-1]) + 1)
        return first if first < len(self.times) else None

    def _avail(self, queue: int, cell: int) -> IntArray:
        tree: QueueTree = self.tree
        root, *below = reversed(tree.path[queue])
        avail: IntArray = tree.total[root][cell] - self._used[root, cell]
        cap = self._slack(root, cell)
        avail = avail if cap is None else np.minimum(avail, cap)
        for q in below:
            if kept := tree.kept[q][cell]:
                avail = avail + np.maximum(0, kept - self._used[q, cell])
            slack = self._slack(q, cell)
            if slack is not None:
                cap = slack if cap is None else np.minimum(cap, slack)
            if cap is not None:
                avail = np.minimum(avail, cap)
        return avail

    def _slack(self, queue: int, cell: int) -> IntArray | None:
        limit = self.tree.limit[queue][cell]
        return None if limit == UNLIMITED else limit - self._below[queue, cell]
