"""Who owns the time that ranks lose: waiting is passed on to what made the late rank late.

At each collective the last rank to enter is the one that the others wait for. What it spent in the step beyond what
the others spent made it late. Victims own nothing: waiting is not a kind of work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from muster.tracing.account.kinds import HOST, Label, Spent
from muster.tracing.account.rank_account import Amounts
from muster.tracing.ranks.exposed_waits import exposed_waits
from muster.tracing.ranks.rank_comparison import RankComparison

Float64 = NDArray[np.float64]
LATE = Label(Spent.UNKNOWN, "late")
"""What a rank is late by without having spent more than the others."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Time that a rank costs all others: milliseconds in each of the common steps."""

    rank: int
    label: Label
    ms: Float64


@dataclass(frozen=True, slots=True)
class Account:
    """All ranks. `spent_ms` are the milliseconds of each label per rank and common step; `host_ms` those in which the
    host did it, also while the device worked, or paused; `losses` what late ranks cost;
    `waiting_ms` and `transfer_ms` the exposed collectives per rank and step, divided."""

    ranks: tuple[int, ...]
    step_ms: Float64
    spent_ms: Mapping[Label, Float64]
    host_ms: Mapping[Label, Float64]
    losses: tuple[Loss, ...]
    waiting_ms: Float64
    transfer_ms: Float64

    def beyond(self, own: int, others: Sequence[int]) -> dict[Label, Float64]:
        """What a rank (by position) spends in each step beyond the median of others, by label.

        A rank may idle more than others for what all hosts do: the devices of the others wait for it meanwhile. So what
        a kind exceeds the others by is at most what the hosts differ in.
        """
        found = {
            label: ms[own] - np.median(ms[list(others)], axis=0)
            for label, ms in self.spent_ms.items()
            if label.spent is not Spent.COLLECTIVE
        }
        for kind in HOST:
            of_kind = [label for label in found if label.spent is kind]
            idle = sum(float(found[label].mean()) for label in of_kind)
            hosts = _total(self.host_ms, kind)
            differ = float((hosts[own] - np.median(hosts[list(others)], axis=0)).mean()) if np.ndim(hosts) else 0.0
            if idle > 0:
                found.update({label: found[label] * np.clip(differ / idle, 0, 1) for label in of_kind})
        return found


def _total(amounts: Mapping[Label, Float64], kind: Spent) -> Float64:
    """The milliseconds of a kind at all places, by rank and step; without any, of no dimension."""
    return sum((ms for label, ms in amounts.items() if label.spent is kind), np.zeros(()))


def account(ranks: RankComparison) -> Account:
    """The account of the compared ranks."""
    number = {rank: i for i, rank in enumerate(record.rank for record in ranks.records)}
    step_of = {step: i for i, step in enumerate(ranks.steps)}
    spent = _per_step(ranks, step_of, [record.account.steps for record in ranks.records])
    hosts = _per_step(ranks, step_of, [record.account.host for record in ranks.records])
    collective = _total(spent, Spent.COLLECTIVE) + np.zeros((len(number), len(step_of)))
    step_ms = np.array([ranks.per_step(record, record.step_ms) for record in ranks.records])
    found = Account(tuple(number), step_ms, spent, hosts, (), collective, collective)
    losses, waiting = _losses(ranks, found, number)
    waiting = np.minimum(waiting, collective)
    return replace(found, losses=losses, waiting_ms=waiting, transfer_ms=collective - waiting)


def _per_step(ranks: RankComparison, step_of: Mapping[int, int], of_records: Sequence[Amounts]) -> dict[Label, Float64]:
    found: defaultdict[Label, Float64] = defaultdict(lambda: np.zeros((len(ranks.records), len(step_of))))
    for i, (record, amounts) in enumerate(zip(ranks.records, of_records, strict=True)):
        numbers = record.steps.tolist()
        for window, label, ns in zip(amounts.step.tolist(), amounts.label.tolist(), amounts.ns.tolist(), strict=True):
            if (step := step_of.get(numbers[window])) is not None:
                found[record.account.labels[label]][i, step] += ns / 1e6
    return dict(found)


def _losses(ranks: RankComparison, found: Account, number: Mapping[int, int]) -> tuple[tuple[Loss, ...], Float64]:
    """The losses, and the waiting of each rank in each step."""
    if len(number) < 2:
        return (), np.zeros((len(number), len(ranks.steps)))
    waits, in_pipeline = exposed_waits(ranks), ranks.in_pipeline
    late = _awaited_in_pipeline(ranks, found.spent_ms) if in_pipeline else waits.awaited_ms
    losses = []
    for i, record in enumerate(ranks.records):
        others = [number[other.rank] for other in ranks.peers(record) or ranks.records if other is not record]
        if not others:
            continue
        beyond = found.beyond(i, others)
        if not in_pipeline:
            idle = _own_idle(found, beyond, i, others) - _awaited_later(late[i], beyond)
            late[i] = np.maximum(late[i], idle)
        losses += [Loss(record.rank, label, ms) for label, ms in _divide(late[i], beyond).items()]
    return tuple(losses), waits.waited_ms


OWN_IDLE = (Spent.COPY, *HOST, Spent.BLOCKED)


def _own_idle(found: Account, beyond: Mapping[Label, Float64], own: int, others: Sequence[int]) -> Float64:
    """What a rank idles beyond the median of the others for a named reason, less what it waits for others: a rank that
    does not wait is one that the step waits for, also where the others compute beside the waiting collective."""
    idle = sum((ms for label, ms in beyond.items() if label.spent in OWN_IDLE), np.zeros(()))
    for label, ms in found.spent_ms.items():
        if label.spent is Spent.COLLECTIVE:
            idle = idle - ms[own]
    return np.maximum(idle, 0)


def _awaited_later(late: Float64, beyond: Mapping[Label, Float64]) -> Float64:
    """What others wait for in the step after each beyond all that the rank spends there: it is late from the step
    before, such as by a checkpoint at its end, and `_divide` keeps the cause."""
    spent = [sum(_due({label: float(ms[step]) for label, ms in beyond.items()}).values()) for step in range(len(late))]
    return np.append(np.maximum(late - spent, 0)[1:], 0.0)


def _awaited_in_pipeline(ranks: RankComparison, spent: Mapping[Label, Float64]) -> Float64:
    """Stages wait for each other in turn: a rank is late by what it waits less than the median of the others."""
    waited = sum((ms for label, ms in spent.items() if label.spent is Spent.COLLECTIVE), np.zeros(()))
    found = np.zeros((len(ranks.records), len(ranks.steps)))
    for i in range(len(found)) if np.ndim(waited) else ():
        found[i] = np.maximum(np.median(np.delete(waited, i, axis=0), axis=0) - waited[i], 0)
    return found


def _divide(late: Float64, beyond: Mapping[Label, Float64]) -> dict[Label, Float64]:
    """What made a rank late in each step: of each kind what it spent beyond the others, and within the kind by place.
    The rest is late for no known cause."""
    labels = list(beyond)
    kept: defaultdict[Label, float] = defaultdict(float)
    found: defaultdict[Label, Float64] = defaultdict(lambda: np.zeros(len(late)))
    for step in range(len(late)):
        here = {label: kept[label] + float(beyond[label][step]) for label in labels}
        due = _due(here)
        total = sum(due.values())
        share = min(1.0, float(late[step]) / total) if total > 0 else 0.0
        for label, ms in due.items():
            found[label][step] = ms * share
        found[LATE][step] = max(float(late[step]) - total, 0.0)
        # What the others have not waited for yet they may wait for in the next step, as for a checkpoint at its end.
        spent_here = _due({label: float(beyond[label][step]) for label in labels})
        kept = defaultdict(
            float, {label: min(ms, due.get(label, 0.0) * (1 - share)) for label, ms in spent_here.items()}
        )
    return {label: ms for label, ms in found.items() if ms.any()}


def _due(beyond: Mapping[Label, float]) -> dict[Label, float]:
    """The positive parts: of each kind its sum, divided among the places in which it is positive."""
    kinds: defaultdict[Spent, float] = defaultdict(float)
    positive: defaultdict[Spent, float] = defaultdict(float)
    for label, ms in beyond.items():
        kinds[label.spent] += ms
        positive[label.spent] += max(ms, 0.0)
    return {label: ms * max(kinds[label.spent], 0.0) / positive[label.spent] for label, ms in beyond.items() if ms > 0}
