"""Finds the commit that made a benchmark slower: which commit to compare next with the good one, and what follows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from muster.bench.statistics import Criteria, RatioInterval


class CommitResult(StrEnum):
    """What is known of a commit."""

    GOOD = "good"
    BAD = "bad"
    BROKEN = "does not run"
    UNDECIDED = "undecided"
    """Not decided with the maximum number of runs; skipped as a commit that does not run."""


@dataclass(frozen=True, slots=True)
class SearchRange:
    """`commits` oldest first; the last one is bad, and what precedes the first is good."""

    commits: Sequence[str]
    results: Mapping[str, CommitResult]

    @property
    def candidates(self) -> Sequence[str]:
        """The commits of which one is the first bad one: from the first after the newest good one to the oldest bad."""
        bad = next(i for i, one in enumerate(self.commits) if self._known(one) is CommitResult.BAD)
        good = max((i for i, one in enumerate(self.commits[:bad]) if self._known(one) is CommitResult.GOOD), default=-1)
        return self.commits[good + 1 : bad + 1]

    @property
    def next_commit(self) -> str | None:
        """The commit without a result that is nearest to the middle of the candidates; None at the end."""
        candidates = self.candidates
        middle = (len(candidates) - 2) / 2  # the last candidate is bad
        unknown = [i for i, one in enumerate(candidates[:-1]) if self._known(one) is None]
        return candidates[min(unknown, key=lambda i: (abs(i - middle), i))] if unknown else None

    def _known(self, commit: str) -> CommitResult | None:
        return CommitResult.BAD if commit == self.commits[-1] else self.results.get(commit)


@dataclass(frozen=True, slots=True)
class StepRule:
    """When a commit is as slow as the bad one: its ratio to the good one is above the (geometric) middle between 1 and
    `bad_ratio`.

    The interval is looked at after each batch of pairs, so the rate of errors is divided by the number of looks.
    """

    bad_ratio: float
    criteria: Criteria

    @property
    def rate(self) -> float:
        """The rate for one bound of one look."""
        given = self.criteria
        return given.false_alarm_rate / (1 + math.ceil((given.max_pairs - given.min_pairs) / given.batch))

    def decide(self, interval: RatioInterval) -> CommitResult:
        """Good, bad, or undecided so far."""
        middle = math.sqrt(self.bad_ratio)
        if interval.low > middle:
            return CommitResult.BAD
        return CommitResult.GOOD if interval.high < middle else CommitResult.UNDECIDED

    def missing_pairs(self, interval: RatioInterval | None, pairs: int) -> int:
        """How many more pairs to run; 0 once it is decided or the maximum is reached."""
        endless = replace(self.criteria, precision=0.0)
        if interval is not None and self.decide(interval) is not CommitResult.UNDECIDED:
            return max(0, self.criteria.min_pairs - pairs)
        return endless.missing_pairs(interval, pairs)
