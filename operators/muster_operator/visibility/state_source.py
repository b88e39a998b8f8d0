"""The state that the operator's read API answers from: the caches, and on the leader the last scheduling cycle."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from muster.errors import ClusterError
from muster.usage.report import RecordedUsage
from muster.visibility.state import CycleView, ReadState
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.leader import Leader

_MAX_AGE_S = 1.0


class StateSource:
    """Requests within a second share one state. `unsynced` returns the resources that are not listed yet, `leads`
    whether this operator holds the Lease, `recorded_usage` the durable record of usage."""

    def __init__(
        self,
        cache: ClusterCache,
        leader: Leader,
        identity: str,
        unsynced: Callable[[], Sequence[str]],
        leads: Callable[[], bool],
        recorded_usage: Callable[[], RecordedUsage] = RecordedUsage,
    ) -> None:
        self._cache = cache
        self._leader = leader
        self._identity = identity
        self._unsynced = unsynced
        self._leads = leads
        self._recorded_usage = recorded_usage
        self._state: ReadState | None = None
        self._made_at = 0.0

    def state(self) -> ReadState:
        """The state now, at most a second old. Raises `ClusterError` while something is not listed yet."""
        if missing := self._unsynced():
            raise ClusterError(f"not listed yet: {', '.join(missing)}", reason="NotSynced")
        now = time.monotonic()
        if self._state is None or now > self._made_at + _MAX_AGE_S:
            self._state, self._made_at = self._read(), now
        return self._state

    def _read(self) -> ReadState:
        term = self._leader.term if self._leads() else None
        cycle = None
        if term is not None and (last := term.last_cycle) is not None:
            cycle = CycleView(term.last_cycle_id, last.waits, last.snapshot)
        return ReadState(
            self._cache.read_state(),
            cycle,
            self._identity,
            leading=term is not None,
            preemptions=self._cache.preemptions.newest_first(),
            recorded_usage=self._recorded_usage(),
        )
