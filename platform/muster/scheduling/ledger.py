"""The scratch copy that a plan writes on: room on nodes and charges of queues, now, once the leaving have left, and at
the times for which something is promised.

What may turn out wrong is done inside a trial: unless it is kept, everything is put back as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from muster.quota import Charges
from muster.scheduling.departures import Departure
from muster.scheduling.memo import Memo
from muster.scheduling.outlook import Outlook
from muster.scheduling.room import Room


@dataclass(slots=True)
class Trial:
    """Changes of a ledger that are undone at its end unless it is kept."""

    kept: bool = False

    def keep(self) -> None:
        """Let the changes stand."""
        self.kept = True


@dataclass(frozen=True, slots=True, eq=False)
class Promised:
    """Room that is left beside a reservation at its time, when everyone up to and including `last` has left."""

    spare: Room
    last: tuple[float, float, int]


@dataclass(slots=True)
class Ledger:
    """Room and charges while a plan is made. `version` counts the changes that stand."""

    now: Room
    later: Room
    charged: Charges
    staying: Charges
    promised: list[Promised] = field(default_factory=list)
    outlook: Outlook | None = None
    version: int = 0
    _trials: int = 0
    _undo: list[tuple[Departure, int, bool]] = field(default_factory=list)

    @classmethod
    def of(cls, memo: Memo) -> Ledger:
        """A copy of the facts, to write on."""
        return cls(memo.now.fork(), memo.later.fork(), memo.charged.fork(), memo.staying.fork())

    def take(self, gang: Departure) -> None:
        """A gang gets room and is charged for it, from now until its departure."""
        self._post(gang, -1, now=True)

    def give(self, gang: Departure) -> None:
        """The opposite of `take`."""
        self._post(gang, 1, now=True)

    def dismiss(self, gang: Departure) -> None:
        """A running gang is told to leave, or to give up a part: that is free later, not now."""
        self._post(gang, 1, now=False)

    def reinstate(self, gang: Departure) -> None:
        """The opposite of `dismiss`."""
        self._post(gang, -1, now=False)

    @contextmanager
    def trial(self) -> Iterator[Trial]:
        """Changes within the block are put back at its end, unless the trial is kept. Trials nest."""
        mark = len(self._undo)
        trial = Trial()
        self._trials += 1
        try:
            yield trial
        finally:
            self._trials -= 1
            if not trial.kept:
                while len(self._undo) > mark:
                    gang, sign, now = self._undo.pop()
                    self._write(gang, -sign, now=now)
            elif not self._trials:
                self._undo.clear()
                self.version += 1

    def _post(self, gang: Departure, sign: int, *, now: bool) -> None:
        self._write(gang, sign, now=now)
        if self._trials:
            self._undo.append((gang, sign, now))
        else:
            self.version += 1

    def _write(self, gang: Departure, sign: int, *, now: bool) -> None:
        self.later.add(gang.load, sign)
        if now:
            self.now.add(gang.load, sign)
        for promised in self.promised:
            if gang.key > promised.last:
                promised.spare.add(gang.load, sign)
        if gang.queue >= 0:
            self.staying.charge(gang.queue, gang.amounts, -sign)
            if now:
                self.charged.charge(gang.queue, gang.amounts, -sign)
            if self.outlook is not None:
                self.outlook.charge(gang.queue, gang.amounts, 0, self.outlook.until(gang), -sign)
