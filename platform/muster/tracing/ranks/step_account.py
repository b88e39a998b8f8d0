"""The account of a typical step of each rank, as pages and the console show it, and of the steps that took much longer.

A checkpoint of ten seconds in one of four steps is no part of a typical step: it has a row of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from muster.tracing.account.kernel_classes import KERNEL_CLASSES
from muster.tracing.account.kinds import Spent
from muster.tracing.account.rank_account import Amounts
from muster.tracing.account.rank_record import RankRecord
from muster.tracing.account.step_slots import FIRST, STEP_SLOTS
from muster.tracing.ranks.attribution import Account
from muster.tracing.ranks.rank_comparison import RankComparison

LONGER = 2.0  # times the median step
MAX_LONGER = 6
MAX_PLACES = 4


class Use(StrEnum):
    """What a rank's time is used for. All but compute is lost to computing."""

    COMPUTE = "compute"
    TRANSFER = "transfer"
    WAITING = "waiting"
    STAGES = "stages"
    CHECKPOINT = "checkpoint"
    COPY = "copy"
    ALLOCATOR = "allocator"
    GARBAGE = "garbage"
    PREPROCESS = "preprocess"
    DATA = "data"
    COMPILE = "compile"
    HOST = "host"
    SYNC = "sync"
    LAUNCH = "launch"
    UNKNOWN = "unknown"


_BY_NAME = {
    "COMPUTE": Use.COMPUTE,
    "CHECKPOINT": Use.CHECKPOINT,
    "COPY": Use.COPY,
    "ALLOCATOR": Use.ALLOCATOR,
    "GARBAGE": Use.GARBAGE,
    "PREPROCESS": Use.PREPROCESS,
    "DATA": Use.DATA,
    "COMPILE": Use.COMPILE,
    "SYNC": Use.SYNC,
    "OPERATOR": Use.LAUNCH,
    "PYTHON": Use.LAUNCH,
    "UNKNOWN": Use.UNKNOWN,
}
USES: dict[Spent, Use] = {spent: _BY_NAME.get(spent.name, Use.HOST) for spent in Spent if spent is not Spent.COLLECTIVE}
"""Of collectives the time is divided into transfer and waiting; in a pipeline it is that of sends and receives."""


@dataclass(frozen=True, slots=True)
class TimePart:
    """Milliseconds of a step for one use, and the places with most of it, as far as they have names: of compute on a
    device all classes of kernels."""

    use: Use
    ms: float
    places: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepRow:
    """The parts of a rank's step, which sum to `ms`. `step` is None for the mean of the typical steps."""

    rank: int
    step: int | None
    ms: float
    parts: tuple[TimePart, ...]

    def of(self, use: Use) -> float:
        """Milliseconds of a use."""
        return next((part.ms for part in self.parts if part.use is use), 0.0)

    @property
    def lost_ms(self) -> float:
        return self.ms - self.of(Use.COMPUTE)


@dataclass(frozen=True, slots=True)
class RankSlots:
    """What a rank does in a step: a use for each of 400 equal parts of it, as a position among all uses, `a` for the
    first one."""

    rank: int
    step: int
    ms: float
    uses: str
    start_ns: int = 0
    """Of the step, since the origin of the rank's trace."""

    def span(self, first: int, end: int) -> tuple[int, int]:
        """The nanoseconds of some of its parts, since the origin of the rank's trace."""
        part_ns = 1e6 * self.ms / STEP_SLOTS
        return self.start_ns + round(first * part_ns), self.start_ns + round(end * part_ns)

    def runs(self) -> list[tuple[Use, int, int]]:
        """Adjacent parts of one use: the use, the first part and the one after the last."""
        found, at = [], 0
        for letter, same in groupby(self.uses):
            end = at + len(list(same))
            found.append((tuple(Use)[ord(letter) - FIRST], at, end))
            at = end
        return found


@dataclass(frozen=True, slots=True)
class StepAccount:
    """`ranks` has the mean typical step of each rank; `longer` the longest rank in each step of more than twice the
    median, the longest first; `steps` is the number of typical steps, `longer_steps` that of the others."""

    steps: int
    longer_steps: int
    ranks: tuple[StepRow, ...]
    longer: tuple[StepRow, ...]
    total_ms: float
    """All traced steps, on the mean rank."""
    slots: tuple[RankSlots, ...] = ()
    """Of one step of all ranks; empty if none was chosen."""

    @property
    def step_ms(self) -> float:
        """The mean typical step of the slowest rank."""
        return max(row.ms for row in self.ranks)

    @property
    def lost_ms(self) -> float:
        """Of a typical step, on the mean rank."""
        return float(np.mean([row.lost_ms for row in self.ranks]))

    def longest_run(self, use: Use, ranks: Sequence[int]) -> tuple[RankSlots, int, int] | None:
        """The longest span of a use in the shown step of these ranks (empty: all): the rank's, and the first and the
        end of its 400 parts; None without any."""
        found = [
            (end - start, -one.rank, start, one)
            for one in self.slots
            if not ranks or one.rank in ranks
            for of_run, start, end in one.runs()
            if of_run is use
        ]
        if not found:
            return None
        length, _, start, one = max(found, key=lambda run: run[:3])
        return one, start, start + length

    def mean(self, use: Use) -> float:
        """Milliseconds of a use in a typical step, on the mean rank."""
        return float(np.mean([row.of(use) for row in self.ranks]))


def step_account(found: Account, ranks: RankComparison) -> StepAccount:
    """The account of compared ranks."""
    steps = ranks.steps
    slowest = found.step_ms.max(axis=0)
    typical = slowest <= LONGER * np.median(slowest)
    columns = _columns(found, ranks)
    rows = tuple(_row(rank, None, columns, i, typical) for i, rank in enumerate(found.ranks))
    others = sorted(np.flatnonzero(~typical).tolist(), key=lambda at: (-slowest[at], at))
    longer = []
    for at in others[:MAX_LONGER]:
        i = _most_named(columns, at)
        longer.append(_row(found.ranks[i], int(steps[at]), columns, i, np.arange(len(steps)) == at))
    return StepAccount(int(typical.sum()), len(others), rows, tuple(longer), float(found.step_ms.sum(axis=1).mean()))


_Columns = dict[tuple[Use, str], NDArray[np.float64]]


def _columns(found: Account, ranks: RankComparison) -> _Columns:
    columns: defaultdict[tuple[Use, str], NDArray[np.float64]] = defaultdict(lambda: np.zeros(found.step_ms.shape))
    for label, ms in found.spent_ms.items():
        if label.spent in USES:
            columns[USES[label.spent], label.place] += ms
    columns[Use.STAGES if ranks.in_pipeline else Use.TRANSFER, ""] += found.transfer_ms
    columns[Use.WAITING, ""] += found.waiting_ms
    for i, record in enumerate(ranks.records):
        for number in np.unique(record.account.compute.label).tolist():
            ms = _of_labels(ranks, record, record.account.compute, [number])
            columns[Use.COMPUTE, KERNEL_CLASSES[number]][i] += ms
            columns[Use.COMPUTE, ""][i] -= ms
    return dict(columns)


def _most_named(columns: _Columns, at: int) -> int:
    """The rank with most time for something other than computing and communication in a step: what made it long."""
    common = (Use.COMPUTE, Use.TRANSFER, Use.WAITING, Use.STAGES, Use.LAUNCH, Use.UNKNOWN)
    named = [ms[:, at] for (use, _), ms in columns.items() if use not in common]
    return int(np.sum(named, axis=0).argmax()) if named else 0


def _row(rank: int, step: int | None, columns: _Columns, i: int, which: NDArray[np.bool_]) -> StepRow:
    parts = []
    for use in Use:
        places = {place: float(ms[i, which].mean()) for (one, place), ms in columns.items() if one is use}
        total = sum(places.values())
        if total > 0:
            longest = sorted(((p, ms) for p, ms in places.items() if p and ms > 0), key=lambda one: (-one[1], one[0]))
            parts.append(TimePart(use, total, tuple(longest if use is Use.COMPUTE else longest[:MAX_PLACES])))
    return StepRow(rank, step, sum(part.ms for part in parts), tuple(parts))


def spent_on(ranks: RankComparison, use: Use, wanted: Sequence[int]) -> NDArray[np.float64]:
    """Milliseconds of a use in each common step, on the mean of the wanted ranks (empty: all)."""
    rows = []
    for record in ranks.records:
        if not wanted or record.rank in wanted:
            labels = [i for i, label in enumerate(record.account.labels) if USES.get(label.spent) is use]
            rows.append(_of_labels(ranks, record, record.account.steps, labels))
    return np.mean(rows, axis=0) if rows else np.zeros(len(ranks.steps))


def _of_labels(
    ranks: RankComparison, record: RankRecord, amounts: Amounts, labels: Sequence[int]
) -> NDArray[np.float64]:
    """Milliseconds of some labels in each common step."""
    chosen = np.isin(amounts.label, labels)
    ms = np.bincount(amounts.step[chosen], weights=amounts.ns[chosen] / 1e6, minlength=len(record.steps))
    return ranks.per_step(record, ms.astype(np.float64))


def with_slots(account: StepAccount, ranks: RankComparison, step: int) -> StepAccount:
    """The same with the slots of a step."""
    letters = {chr(FIRST + spent): _letter(use) for spent, use in USES.items()}
    letters[chr(FIRST + Spent.COLLECTIVE)] = _letter(Use.STAGES if ranks.in_pipeline else Use.WAITING)
    slots = []
    for record in ranks.records:
        at = np.flatnonzero(record.steps == step)
        if len(at) and at[0] < len(record.account.slots):
            uses = record.account.slots[at[0]].translate(str.maketrans(letters))
            start = int(record.windows.start[at[0]])
            slots.append(RankSlots(record.rank, step, float(record.step_ms[at[0]]), uses, start))
    return replace(account, slots=tuple(slots))


def _letter(use: Use) -> str:
    return chr(FIRST + list(Use).index(use))
