"""Exponential backoff: pauses after consecutive failures."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


def backoff_s(failures: int, min_s: float, max_s: float, factor: float = 2.0) -> float:
    """The pause after this number of consecutive failures: `min_s` after the first, then `factor` times as long each,
    at most `max_s`; 0 without failures."""
    if failures < 1:
        return 0.0
    return float(min(max_s, min_s * factor ** min(failures - 1, 30)))


@dataclass(slots=True)
class Backoff:
    """Counts consecutive failures. A failure later than `reset_after_s` after the previous one is a first one.

    Times are seconds of one clock of the caller.
    """

    min_s: float
    max_s: float
    factor: float = 2.0
    reset_after_s: float = inf
    failures: int = 0
    pause_s: float = 0.0  # after the last failure
    retry_at: float = -inf  # end of that pause

    def fail(self, now: float, min_s: float | None = None) -> float:
        """Count a failure; returns the seconds to wait. `min_s` replaces the minimum for this failure."""
        if now - (self.retry_at - self.pause_s) > self.reset_after_s:
            self.failures = 0
        self.failures += 1
        self.pause_s = backoff_s(self.failures, self.min_s if min_s is None else min_s, self.max_s, self.factor)
        self.retry_at = now + self.pause_s
        return self.pause_s

    def end_pause(self) -> None:
        """The next attempt may start now. The failures still count."""
        self.retry_at = -inf

    def reset(self) -> None:
        """A success: the next failure is a first one."""
        self.failures, self.pause_s, self.retry_at = 0, 0.0, -inf
