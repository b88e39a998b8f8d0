"""Ranks that did not stop, from the termination messages of their collectors, until the job's status says it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from muster.capture.protocol import HungRank


@dataclass(slots=True)
class HungAttempt:
    """The ranks of an attempt, by rank."""

    attempt: int
    ranks: dict[int, HungRank] = field(default_factory=dict)


class HungRanks:
    """The newest such attempt of each job, by uid."""

    def __init__(self) -> None:
        self._attempts: dict[str, HungAttempt] = {}

    def record(self, uid: str, attempt: int, ranks: Collection[HungRank]) -> None:
        """A pod of this attempt has ended with these ranks."""
        known = self._attempts.get(uid)
        if known is None or known.attempt < attempt:
            known = self._attempts[uid] = HungAttempt(attempt)
        if known.attempt == attempt:
            known.ranks.update({one.rank: one for one in ranks})

    def pending(self) -> list[tuple[str, HungAttempt]]:
        """Attempts whose ranks are not in the status yet, by uid."""
        return sorted(self._attempts.items(), key=lambda item: item[0])

    def mark_written(self, uid: str) -> None:
        """The status says it, or never will."""
        self._attempts.pop(uid, None)

    def retain(self, uids: Collection[str]) -> None:
        """Forget all other jobs."""
        for uid in self._attempts.keys() - uids:
            del self._attempts[uid]
