"""What makes a rank late: what it spends beyond the others, on its device's timeline and on its host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from muster.tracing.account.kinds import HOST, Label, Spent
from muster.tracing.account.rank_record import RankRecord
from muster.tracing.ranks.attribution import Account, Float64
from muster.tracing.ranks.rank_comparison import RankComparison

UNNAMED = (Spent.OPERATOR, Spent.PYTHON, Spent.UNKNOWN)
ONE_PLACE = 0.5  # of the pauses of a host that is blocked in code
REGULAR, MIN_STEPS_REGULAR = 0.2, 4  # the deviation of a pause that code makes, to its mean
_TOGETHER = {Spent.PREPROCESS: Spent.DATA}


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds in each step by label, and their sums by kind, in which preparing inputs is a part of loading them.
    The arrays may have a row for each rank."""

    labels: Mapping[Label, Float64]
    kinds: Mapping[Spent, Float64]

    @classmethod
    def of(cls, labels: Mapping[Label, Float64], steps: int) -> Times:
        """The sums of labels."""
        kinds: defaultdict[Spent, Float64] = defaultdict(lambda: np.zeros(steps))
        for label, ms in labels.items():
            kind = _TOGETHER.get(label.spent, label.spent)
            kinds[kind] = kinds[kind] + ms
        return cls(labels, kinds)

    def mean(self, kind: Spent) -> float:
        """Milliseconds a step of a kind."""
        return float(self.kinds[kind].mean())

    def most(self, kind: Spent) -> Label:
        """The label of a kind with most of it."""
        of_kind = [label for label in self.labels if _TOGETHER.get(label.spent, label.spent) is kind]
        return max(of_kind, key=lambda label: (self.labels[label].mean(), label.place), default=Label(kind))


@dataclass(frozen=True, slots=True)
class Lateness:
    """By what a rank is late, in milliseconds per step: `ms` altogether, `net` without what the others are late by.

    `spent` is its part by label, `beyond` what the rank spends beyond the median of the others, `usual` that median.
    `host` is what its host does beyond the others, also while the device works: `BLOCKED` are its pauses, by the
    operator after each.
    """

    ranks: RankComparison
    record: RankRecord
    ms: Float64
    net: Float64
    spent: Times
    beyond: Times
    usual: Times
    host: Times

    @classmethod
    def of(cls, ranks: RankComparison, found: Account, own: int) -> Lateness:
        """Of a rank by its position."""
        record, steps = ranks.records[own], len(ranks.steps)
        late = np.zeros((len(ranks.records), steps))
        for loss in found.losses:
            late[found.ranks.index(loss.rank)] += loss.ms
        peers = {other.rank for other in ranks.others(record)}
        others = [i for i, other in enumerate(ranks.records) if other.rank in peers]
        host = {
            label: ms[own] - np.median(ms[others], axis=0)
            for label, ms in found.host_ms.items()
            if label.spent in (*HOST, Spent.BLOCKED)
        }
        return cls(
            ranks=ranks,
            record=record,
            ms=late[own],
            net=late[own] - np.median(np.delete(late, own, axis=0), axis=0),
            spent=Times.of({loss.label: loss.ms for loss in found.losses if loss.rank == record.rank}, steps),
            beyond=Times.of(found.beyond(own, others), steps),
            usual=Times.of({label: np.median(ms[others], axis=0) for label, ms in found.spent_ms.items()}, steps),
            host=Times.of(host, steps),
        )

    @property
    def cost_ms(self) -> float:
        """The mean of the steps."""
        return float(self.ms.mean())

    @property
    def steady(self) -> bool:
        """Whether lateness is beyond its variation between steps; of two ranks each may be late now and then."""
        return is_steady(self.net)

    @property
    def pauses_ms(self) -> float:
        """How much longer the host pauses a step than the others."""
        pauses = [float(ms.mean()) for label, ms in self.host.labels.items() if label.spent is Spent.BLOCKED]
        return sum(ms for ms in pauses if ms > 0)

    @property
    def _longest_pause(self) -> Float64:
        return self.host.labels.get(self.host.most(Spent.BLOCKED), np.zeros(len(self.ms)))

    @property
    def scattered(self) -> bool:
        """Whether most of the host's pauses are at no one place: code pauses before the same operator."""
        return float(self._longest_pause.mean()) < ONE_PLACE * self.pauses_ms

    def is_regular(self, at_least_ms: float) -> bool:
        """Whether the host pauses as long in each step at one place: no other process does that."""
        pause = self._longest_pause
        if len(pause) < MIN_STEPS_REGULAR or self.scattered:
            return False
        return bool(pause.mean() >= at_least_ms and pause.std(ddof=1) <= REGULAR * pause.mean())


def is_steady(ms: Float64) -> bool:
    """Whether a mean exceeds its variation between steps."""
    return bool(ms.mean() > 1.5 * ms.std(ddof=1) / np.sqrt(len(ms)) + 1e-9) if len(ms) > 1 else True
