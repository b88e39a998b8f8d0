"""Traces collected by each job's collectors, from heartbeats and termination messages."""

from __future__ import annotations

from collections.abc import Collection


class TraceCounts:
    """Counts by job uid, then by (role, index). A collector also counts the traces of earlier attempts that it still
    finds, so the maximum of each pod counts."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[str, int], int]] = {}
        self._pending: set[str] = set()

    def record(self, uid: str, slot: tuple[str, int], traces: int) -> None:
        """The collector of this pod has collected so many."""
        counts = self._counts.setdefault(uid, {})
        counts[slot] = max(traces, counts.get(slot, 0))

    def record_final(self, uid: str, slot: tuple[str, int], traces: int) -> None:
        """The collector of this pod has ended with so many."""
        self.record(uid, slot, traces)
        self._pending.add(uid)

    def count(self, uid: str) -> int:
        """Sum over the pods of a job."""
        return sum(self._counts.get(uid, {}).values())

    def pending(self) -> list[str]:
        """Jobs with a collector that ended since `mark_written`, sorted."""
        return sorted(self._pending)

    def mark_written(self, uid: str) -> None:
        """The final counts of a job were written."""
        self._pending.discard(uid)

    def retain(self, uids: Collection[str]) -> None:
        """Forget all other jobs."""
        for uid in self._counts.keys() - uids:
            del self._counts[uid]
            self._pending.discard(uid)
