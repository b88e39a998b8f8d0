"""How many traces the collectors of each job have collected, as they last said: when asked, and at their end."""

from __future__ import annotations

from collections.abc import Collection


class Collected:
    """By job uid, then by (role, index): a collector counts what those of earlier attempts had listed, as far as it
    still can see it, so that the greatest number of each pod counts."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[str, int], int]] = {}
        self._news: set[str] = set()

    def said(self, uid: str, seat: tuple[str, int], traces: int) -> None:
        """The collector of this pod has so many."""
        counts = self._counts.setdefault(uid, {})
        counts[seat] = max(traces, counts.get(seat, 0))

    def ended(self, uid: str, seat: tuple[str, int], traces: int) -> None:
        """It has ended with so many."""
        self.said(uid, seat, traces)
        self._news.add(uid)

    def count(self, uid: str) -> int:
        """Of all its pods."""
        return sum(self._counts.get(uid, {}).values())

    def news(self) -> list[str]:
        """Jobs of which a collector has ended since they were settled, in order."""
        return sorted(self._news)

    def settled(self, uid: str) -> None:
        """All that it said is written."""
        self._news.discard(uid)

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all other jobs."""
        for uid in self._counts.keys() - uids:
            del self._counts[uid]
            self._news.discard(uid)
