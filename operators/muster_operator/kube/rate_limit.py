"""How fast the operator may write: a token bucket, as client-go has it.

Pure: time comes in, a delay comes out.
"""

from __future__ import annotations


class TokenBucket:
    """`per_s` tokens a second, at most `burst` at once. Times are seconds on one clock that never goes back."""

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_s = per_s
        self.burst = burst
        self._tokens = float(burst)
        self._at: float | None = None

    def reserve(self, now: float) -> float:
        """Take a token, perhaps one of the future; how many seconds to wait for it (0: it is there)."""
        self._refill(now)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self.per_s)

    def available(self, now: float) -> float:
        """Tokens left; negative while some of the future are taken."""
        self._refill(now)
        return self._tokens

    def _refill(self, now: float) -> None:
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now if self._at is None else max(now, self._at)
        self._tokens = min(float(self.burst), self._tokens + elapsed * self.per_s)
