"""The order of measurements: schedulers alternate, so that a slow hour of the machine affects all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement; `number` counts the repetitions from 0."""

    number: int
    case: str
    scheduler: str


def turns(cases: Sequence[str], schedulers: Sequence[str], repeat: int, own: Collection[str]) -> Iterator[Turn]:
    """All measurements of a run; the cases in `own` are put to Muster alone."""
    for number in range(repeat):
        for case in cases:
            for scheduler in schedulers:
                if case not in own or scheduler == "muster":
                    yield Turn(number, case, scheduler)
