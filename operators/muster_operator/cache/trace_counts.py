"""How many traces the collectors of each job have collected, as they last said: when asked, and at their end."""

from __future__ import annotations

from collections.abc import Collection


class TraceCounts:
    """By job uid, then by (role, index): a collector counts what those of earlier attempts had listed, as far as it
    still can see it, so that the greatest number of each pod counts."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[str, int], int]] = {}
        self._pending: set[str] = set()

    def record(self, uid: str, slot: tuple[str, int], traces: int) -> None:
        """The collector of this pod has so many."""
        counts = self._counts.setdefault(uid, {})
        counts[slot] = max(traces, counts.get(slot, 0))

    def record_final(self, uid: str, slot: tuple[str, int], traces: int) -> None:
        """It has ended with so many."""
        self.record(uid, slot, traces)
        self._pending.add(uid)

    def count(self, uid: str) -> int:
        """Of all its pods."""
        return sum(self._counts.get(uid, {}).values())

    def pending(self) -> list[str]:
        """Jobs of which a collector has ended since they were settled, in order."""
        return sorted(self._pending)

    def mark_written(self, uid: str) -> None:
        """All that it said is written."""
        self._pending.discard(uid)

    def retain(self, uids: Collection[str]) -> None:
        """Forget all other jobs."""
        for uid in self._counts.keys() - uids:
            del self._counts[uid]
            self._pending.discard(uid)
