"""The leader's loop: while this operator holds the Lease, one scheduling cycle after another (observe, decide, write).

The engine decides in a thread, on immutable values, so that watches are read and the Lease is renewed however long it
takes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from muster.backoff import Backoff
from muster.cluster import ObjectWrites
from muster.engine import CycleResult, Engine
from muster.errors import ClusterError
from muster.kube.async_client import Fenced, is_server_wide
from muster.workload.timeouts import Timeouts
from muster_operator.avoided_nodes import AvoidedNodeReporter
from muster_operator.hang_sentences import HangSentences
from muster_operator.invalid_objects import InvalidObjectReporter
from muster_operator.job_status import hung_rank_writes
from muster_operator.logs import CYCLE, CycleDurations, log_cycle
from muster_operator.metrics import OperatorMetrics
from muster_operator.orphans import OrphanDeleter
from muster_operator.shared_key import SharedKey
from muster_operator.writes.finalizers import reconcile_finalizers
from muster_operator.writes.left_workloads import delete_left_workloads
from muster_operator.writes.queue import WriteResult
from muster_operator.writes.writer import JobWriter

_LOG = logging.getLogger("muster.operator")
_CONFLICT_PAUSE_S = 0.05  # for the watch to deliver the change
_MAX_IDLE_S = 60.0
_INTERVAL_FACTOR, _MAX_INTERVAL_S = 4.0, 2.0  # minimum interval between the starts of cycles, times the time to decide
_START_WITHIN_S = 2.0  # what is not started by then is decided again on newer state,
_POLL_S = 1.0  # longest sleep while deferred statuses or pods of deleted jobs wait, or jobs are paused
_MIN_WRITE_FACTOR = (
    6.0  # but not before writing took this many times as long as deciding: otherwise most decisions would be discarded
)


@dataclass(slots=True)
class LeaderTerm:
    """One period of leadership, with a new engine without state of earlier ones."""

    engine: Engine
    id: str = field(default_factory=lambda: secrets.token_hex(3))
    cycles: int = 0
    last_cycle: CycleResult | None = None
    last_cycle_id: str = ""
    paused: frozenset[str] = frozenset()  # jobs that the last cycle left out
    orphans_left: bool = False  # pods of deleted jobs are still to be deleted
    min_interval_s: float = 0.0  # between the starts of two cycles: changes come in bursts
    failures: Backoff = field(default_factory=lambda: Backoff(0.2, 15.0))  # of cycles that were aborted
    rejections: Backoff = field(default_factory=lambda: Backoff(0.1, 5.0))  # of cycles with a rejected status


class Leader:
    """Runs scheduling cycles while `may_write` allows. `wakeup` is set when the engine would see a change."""

    def __init__(
        self,
        writer: JobWriter,
        invalid_objects: InvalidObjectReporter,
        metrics: OperatorMetrics,
        may_write: Callable[[], bool],
        wakeup: asyncio.Event,
        timeouts: Timeouts,
        hangs: HangSentences,
        key: SharedKey,
        *,
        start_within_s: float = _START_WITHIN_S,
    ) -> None:
        self._start_within_s = start_within_s
        self.term: LeaderTerm | None = None
        self._writer = writer
        self._queue = writer.queue
        self._cache = writer.cache
        self._invalid_objects = invalid_objects
        self._orphans = OrphanDeleter(writer.api, writer.cache, writer.queue, timeouts)
        self._metrics = metrics
        self._may_write = may_write
        self._wakeup = wakeup
        self._timeouts = timeouts
        self._hangs = hangs
        self._key = key
        self._avoided_nodes = AvoidedNodeReporter(writer.events, metrics.avoided_nodes)

    async def run_term(self) -> None:
        """Run cycles until the Lease is lost (returns) or cancelled."""
        term = self.term = LeaderTerm(Engine(timeouts=self._timeouts, clock=time.monotonic))
        self._queue.begin_term()
        self._writer.events.begin_term()
        try:
            while self._may_write():
                await self._wait_until_synced()
                self._wakeup.clear()
                began = time.monotonic()
                pause_s = await self._run_cycle(term)
                CYCLE.set(None)
                if pause_s > 0:
                    await self._sleep(pause_s)
                await asyncio.sleep(max(0.0, began + term.min_interval_s - time.monotonic()))
        finally:
            CYCLE.set(None)
            self.term = None
            self._queue.end_term()
            self._avoided_nodes.reset()

    async def _run_cycle(self, term: LeaderTerm) -> float:
        """Run one cycle; returns how many seconds to wait unless something changes."""
        try:
            result = await self._decide_and_write(term)
        except Fenced:
            return 0.0
        except ClusterError as error:
            return self._back_off(term, error)
        if result.api_error is not None:
            return 0.0 if isinstance(result.api_error, Fenced) else self._back_off(term, result.api_error)
        term.failures.reset()
        if result.conflicts:
            self._metrics.conflicts.inc(result.conflicts)
        if result.refused:
            return term.rejections.fail(time.monotonic())
        term.rejections.reset()
        if result.conflicts:
            return _CONFLICT_PAUSE_S
        if result.unwritten:
            return 0.0
        assert term.last_cycle is not None
        wake_at, longest_s = term.last_cycle.wake_at, _MAX_IDLE_S
        if term.paused or term.orphans_left or self._queue.has_deferred():
            longest_s = _POLL_S
        longest_s = min(longest_s, self._writer.events.due_in_s())
        return longest_s if wake_at is None else min(longest_s, max(0.0, wake_at - time.time()))

    async def _decide_and_write(self, term: LeaderTerm) -> WriteResult:
        await self._queue.uncertain.settle()
        term.engine.recheck(self._queue.uncertain.take_settled_jobs())
        await self._load_key()
        cycle, durations = await self._decide(term)
        decided = time.monotonic()
        try:
            start_within_s = max(self._start_within_s, _MIN_WRITE_FACTOR * durations.decide_s)
            result = await self._queue.write_cycle(cycle.phases, cycle.deferred, start_within_s, self._writer.write)
            term.engine.recheck(result.unwritten - result.deferred)
            await self._write_deferred(term, result)
        except BaseException:
            self._queue.clear_deferred()
            term.engine.recheck()
            raise
        durations.write_s = time.monotonic() - decided
        self._metrics.write_s.observe(durations.write_s)
        log_cycle(cycle, durations, self._cache, len(result.unwritten))
        for pause_s, uids in self._queue.by_pause(result.deferred).items():
            asyncio.get_running_loop().call_later(pause_s, self._retry, term, uids)
        await reconcile_finalizers(self._cache, self._queue)
        await delete_left_workloads(self._cache, self._queue)
        term.orphans_left = await self._orphans.delete(cycle.snapshot.now)
        await self._invalid_objects.report()
        self._avoided_nodes.report(cycle.avoided_nodes)
        self._writer.events.record_pending_reasons()
        due = [ObjectWrites(write.job_uid, (write,)) for write in self._writer.traces.due_writes()]
        due += hung_rank_writes(self._cache, self._hangs)
        paused = self._queue.paused_jobs()
        settled = tuple(
            one for one in due if not self._queue.uncertain.concerns(one.job_uid) and one.job_uid not in paused
        )
        if settled:
            later = await self._queue.write([settled], self._start_within_s, self._writer.write)
            result.api_error = result.api_error or later.api_error  # what was rejected is due again in the next cycle
        return result

    async def _load_key(self) -> None:
        """Load the operator's key, so that pods of jobs that were deleted are recognized before anything is decided.
        Without it no pod is created, and their events say why; everything else goes on. Raises ClusterError for errors
        that affect all objects."""
        key = self._key
        if key.loaded is not None or not self._queue.may_retry(key.name):
            return
        try:
            await key.load()
            self._queue.reset(key.name)
        except ClusterError as error:
            if is_server_wide(error):
                raise
            self._queue.record_failure(key.name, error, set())
            _LOG.warning("pods of deleted jobs are not recognized", extra={"why": str(error)})

    async def _decide(self, term: LeaderTerm) -> tuple[CycleResult, CycleDurations]:
        """Observe and decide. Raises Fenced where the API server was unreachable meanwhile."""
        outages = self._queue.api.outages
        outages_before, began = outages.count, time.monotonic()
        self._writer.metrics.on_cycle_started()
        term.cycles += 1
        CYCLE.set(f"{term.id}-{term.cycles}")
        refused = self._queue.refused.observed()
        observed = replace(self._cache.observe(), paused=self._queue.paused_jobs(), refused=refused)
        term.paused = observed.paused
        observed_at = time.monotonic()
        cycle = await asyncio.to_thread(term.engine.reconcile, observed)
        if outages.count != outages_before:
            term.engine.recheck()
            raise Fenced("aborted: the API server was unreachable during the decision")
        decide_s = time.monotonic() - began
        self._metrics.cycles.inc()
        self._metrics.scheduling_s.observe(decide_s)
        term.last_cycle_id = CYCLE.get() or ""
        term.last_cycle, term.min_interval_s = cycle, min(_MAX_INTERVAL_S, _INTERVAL_FACTOR * decide_s)
        observe_s = observed_at - began
        return cycle, CycleDurations(observe_s, decide_s - observe_s - cycle.plan_s, cycle.plan_s)

    async def _write_deferred(self, term: LeaderTerm, result: WriteResult) -> None:
        """Write deferred statuses in batches; after a change, one batch per second of the minimum interval."""
        batches = 0
        while result.api_error is None and (batch := self._queue.next_deferred()):
            batches += 1
            later = await self._queue.write([batch], self._start_within_s, self._writer.write)
            term.engine.recheck(later.unwritten - later.deferred)
            result.merge(later)
            if later.unwritten or (self._wakeup.is_set() and batches >= term.min_interval_s):
                return

    def _retry(self, term: LeaderTerm, uids: Iterable[str]) -> None:
        if term is self.term:
            term.engine.recheck({uid for uid in uids if not self._queue.uncertain.recheck_when_settled(uid)})
            self._wakeup.set()

    async def _wait_until_synced(self) -> None:
        """Wait until everything is listed again, for example after an outage, or the Lease is lost."""
        outages, began, logged_after_s = self._queue.api.outages, time.monotonic(), _POLL_S
        while self._may_write() and not outages.is_synced():
            try:
                async with asyncio.timeout(_POLL_S):
                    await outages.wait_until_synced()
            except TimeoutError:
                waited_s = time.monotonic() - began
                if waited_s >= logged_after_s:
                    logged_after_s = waited_s * 2.0
                    _LOG.warning("waiting until all resources are listed again", extra={"missing": outages.unsynced()})

    def _back_off(self, term: LeaderTerm, error: ClusterError) -> float:
        """Seconds until the next cycle, which decides again what was not written; grows with consecutive failures."""
        if not self._queue.api.outages.is_synced():
            _LOG.warning("scheduling cycle aborted", extra={"why": str(error)})
            return 0.0
        pause_s = term.failures.fail(time.monotonic())
        _LOG.warning("scheduling cycle aborted", extra={"why": str(error), "again_in_s": pause_s})
        self._wakeup.clear()
        return pause_s

    async def _sleep(self, pause_s: float) -> None:
        """Sleep until something changes, `pause_s` at most, or the Lease is lost."""
        until = time.monotonic() + pause_s
        while (left := until - time.monotonic()) > 0 and not self._wakeup.is_set() and self._may_write():
            try:
                async with asyncio.timeout(min(left, 1.0)):
                    await self._wakeup.wait()
            except TimeoutError:
                continue
