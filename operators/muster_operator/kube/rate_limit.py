"""Client-side rate limit: a token bucket, as in client-go.

Pure: time is an argument, a delay is returned.
"""

from __future__ import annotations


class TokenBucket:
    """`per_s` tokens a second, at most `burst` at once. Times are seconds of one monotonic clock."""

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_s = per_s
        self.burst = burst
        self._tokens = float(burst)
        self._at: float | None = None

    def reserve(self, now: float) -> float:
        """Take a token; seconds to wait for it (0: available now)."""
        self._refill(now)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self.per_s)

    def available(self, now: float) -> float:
        """Tokens left; negative while some are reserved in advance."""
        self._refill(now)
        return self._tokens

    def _refill(self, now: float) -> None:
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now if self._at is None else max(now, self._at)
        self._tokens = min(float(self.burst), self._tokens + elapsed * self.per_s)
