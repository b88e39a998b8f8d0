"""The leader's loop: while this operator holds the Lease, one scheduling cycle after another (observe, decide, write).

The engine decides in a thread, on immutable values, so that watches are read and the Lease is renewed however long it
takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from muster.backoff import Backoff
from muster.cluster import ObjectWrites, WritePhase, WriteStatus
from muster.engine import CycleResult, Engine
from muster.errors import ClusterError
from muster.kube.async_client import Fenced
from muster.lifecycle import Timeouts
from muster_operator import finalizers
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cycle_log import CycleDurations, log_cycle
from muster_operator.decision_writer import DecisionWriter, WriteResult
from muster_operator.deferred_statuses import DeferredStatusQueue, WriteThrottle
from muster_operator.invalid_objects import InvalidObjectReporter
from muster_operator.job_metrics import JobMetrics
from muster_operator.json_logs import CYCLE
from muster_operator.metrics import OperatorMetrics
from muster_operator.trace_status import TraceStatusTracker

_LOG = logging.getLogger("muster.operator")
_CONFLICT_PAUSE_S = 0.05  # for the watch to deliver the change
_MAX_IDLE_S = 60.0
_INTERVAL_FACTOR, _MAX_INTERVAL_S = 4.0, 2.0  # minimum interval between the starts of cycles, times the time to decide
_START_WITHIN_S = 2.0  # what is not started by then is decided again on newer state,
_DEFERRED_BATCH = 64  # deferred statuses between two checks for changes
_BULK_DEFERRAL_S = 60.0
_POLL_S = 1.0  # longest sleep while deferred statuses wait
_MIN_WRITE_FACTOR = (
    6.0  # but not before writing took this many times as long as deciding: otherwise most decisions would be discarded
)


@dataclass(slots=True)
class LeaderTerm:
    """One period of leadership, with an engine of its own that knows nothing of earlier ones."""

    engine: Engine
    last_cycle: CycleResult | None = None
    min_interval_s: float = 0.0  # between the starts of two cycles: changes come in bursts
    failures: Backoff = field(default_factory=lambda: Backoff(0.2, 15.0))  # of cycles that were aborted
    refusals: Backoff = field(default_factory=lambda: Backoff(0.1, 5.0))  # of cycles with a rejected status


class Leader:
    """Runs scheduling cycles while `may_write` allows."""

    def __init__(
        self,
        cache: ClusterCache,
        writer: DecisionWriter,
        metrics: OperatorMetrics,
        job_metrics: JobMetrics,
        may_write: Callable[[], bool],
    ) -> None:
        self.wakeup = asyncio.Event()
        self.term: LeaderTerm | None = None
        self.timeouts = Timeouts()
        self.trace_status: TraceStatusTracker | None = None  # None: no traces are collected
        self._cache = cache
        self._writer = writer
        self._metrics = metrics
        self._job_metrics = job_metrics
        self._may_write = may_write
        self.throttle = WriteThrottle(
            lambda: self._is_incomplete or cache.jobs.has_unobserved() or cache.pods.has_unbound(),
            lambda: cache.jobs.decided_count + cache.pods.bound_count,
        )
        self._deferred_statuses = DeferredStatusQueue()
        self._cycle_number = 0
        self._is_incomplete = False  # the last cycle left something unwritten
        self._invalid_objects = InvalidObjectReporter(writer.api, cache, writer.events, writer.instance)

    async def run_term(self) -> None:
        """Run cycles until the Lease is lost (returns) or cancelled."""
        term = self.term = LeaderTerm(Engine(timeouts=self.timeouts, clock=time.monotonic))
        self._deferred_statuses.clear()
        self._writer.retry_limiter.end_backoffs()  # the timers that ended them belong to the previous term
        self._writer.pending_reasons.reset()
        try:
            while self._may_write():
                await self._wait_until_synced()
                self.wakeup.clear()
                began = time.monotonic()
                pause_s = await self._run_cycle(term)
                CYCLE.set(None)
                if pause_s > 0:
                    await self._sleep(pause_s)
                await asyncio.sleep(max(0.0, began + term.min_interval_s - time.monotonic()))
        finally:
            CYCLE.set(None)
            self.term = None

    async def _run_cycle(self, term: LeaderTerm) -> float:
        """Run one cycle; returns how many seconds to wait unless something changes."""
        try:
            outcome = await self._decide_and_write(term)
        except Fenced:
            return 0.0
        except ClusterError as error:
            return self._back_off(term, error)
        if outcome.api_error is not None:
            return 0.0 if isinstance(outcome.api_error, Fenced) else self._back_off(term, outcome.api_error)
        term.failures.reset()
        if outcome.conflicts:
            self._metrics.conflicts.inc(outcome.conflicts)
        if outcome.refused:
            return term.refusals.fail(time.monotonic())
        term.refusals.reset()
        if outcome.conflicts:
            return _CONFLICT_PAUSE_S
        if outcome.unwritten:
            return 0.0
        assert term.last_cycle is not None
        waits = len(self._deferred_statuses) or self._cache.jobs.lagging()
        wake_at, longest_s = term.last_cycle.wake_at, _POLL_S if waits else _MAX_IDLE_S
        longest_s = min(longest_s, self._writer.pending_reasons.due_in_s())
        return longest_s if wake_at is None else min(longest_s, max(0.0, wake_at - time.time()))

    async def _decide_and_write(self, term: LeaderTerm) -> WriteResult:
        outages = self._writer.api.outages
        await self._writer.uncertain_writes.resolve_all()
        seen_at = outages.count
        began = time.monotonic()
        self._job_metrics.cycle_started_at = time.time()
        self._cycle_number += 1
        CYCLE.set(self._cycle_number)
        observed = self._cache.observe()
        observed_at = time.monotonic()
        cycle = await asyncio.to_thread(term.engine.reconcile, observed)
        if outages.count != seen_at:
            term.engine.recheck()
            raise Fenced("aborted: the API server was unreachable during the decision")
        decided = time.monotonic()
        self._metrics.cycles.inc()
        self._metrics.scheduling_s.observe(decided - began)
        term.last_cycle, term.min_interval_s = cycle, min(_MAX_INTERVAL_S, _INTERVAL_FACTOR * (decided - began))
        try:
            patience_s = max(_START_WITHIN_S, _MIN_WRITE_FACTOR * (decided - began))
            for phase in cycle.phases:
                self._deferred_statuses.discard(phase)
            self._deferred_statuses.add(cycle.deferred)
            outcome = await self._writer.apply(cycle.phases, patience_s)
            self.throttle.record_writes(sum(map(len, cycle.phases)) - len(outcome.unwritten))
            term.engine.recheck((outcome.unwritten - outcome.deferred) | outcome.not_admitted)
            self._is_incomplete = bool(outcome.unwritten - outcome.deferred)
            await self._write_deferred(term, outcome)
        except BaseException:
            self._deferred_statuses.clear()
            term.engine.recheck()
            raise
        written_at = time.monotonic()
        self._metrics.write_s.observe(written_at - decided)
        reconcile_s = decided - observed_at - cycle.plan_s
        durations = CycleDurations(observed_at - began, reconcile_s, cycle.plan_s, written_at - decided)
        log_cycle(cycle, durations, self._cache.jobs, len(outcome.unwritten))
        for pause_s, uids in self._by_backoff(outcome.deferred).items():
            asyncio.get_running_loop().call_later(pause_s, self._retry, term, uids)
        await finalizers.reconcile_finalizers(
            self._writer.api, self._cache.queues, self._cache.jobs, self._writer.retry_limiter
        )
        await self._invalid_objects.report()
        self._writer.pending_reasons.record_due()
        if self.trace_status is not None and (due := self.trace_status.due_writes()):
            phase = tuple(ObjectWrites(write.job_uid, (write,)) for write in due)
            late = await self._writer.apply([phase], _START_WITHIN_S)
            outcome.api_error = outcome.api_error or late.api_error  # what was rejected is due again in the next cycle
        return outcome

    async def _write_deferred(self, term: LeaderTerm, outcome: WriteResult) -> None:
        """Write deferred statuses in batches; after a change, one batch per second of the minimum interval."""
        batches = 0
        while outcome.api_error is None and (batch := self._next_deferred()):
            batches += 1
            late = await self._writer.apply([batch], _START_WITHIN_S)
            term.engine.recheck(late.unwritten - late.deferred)
            outcome.merge(late)
            if late.unwritten or (self.wakeup.is_set() and batches >= term.min_interval_s):
                return

    def _next_deferred(self) -> WritePhase:
        """The deferred statuses to write now."""
        lagging = self._lagging_statuses()
        # half for each kind, if both have some
        count = self.throttle.take_budget(min(_DEFERRED_BATCH, len(lagging) + len(self._deferred_statuses)))
        phase = lagging[: max(count - len(self._deferred_statuses), (count + 1) // 2)]
        return (*phase, *self._deferred_statuses.take(count - len(phase)))

    def _lagging_statuses(self) -> WritePhase:
        """Statuses of jobs whose admission only their pods record, except those with a deferred status.

        In a burst most pods become ready soon, and one status then covers both. So there it is written after a minute.
        """
        lagging = self._cache.jobs.lagging()
        due = float("inf") if len(lagging) <= _DEFERRED_BATCH else time.time() - _BULK_DEFERRAL_S
        jobs = (
            one
            for one in lagging
            if (one.job.status.admitted_at or 0.0) <= due
            and one.uid not in self._deferred_statuses
            and self._writer.retry_limiter.may_retry(one.uid)
        )
        return tuple(
            ObjectWrites(one.uid, (WriteStatus(one.uid, one.job.status, one.job.metadata.resource_version),))
            for one in islice(jobs, _DEFERRED_BATCH)
        )

    def _by_backoff(self, uids: Iterable[str]) -> dict[float, set[str]]:
        """Jobs with a rejected write, by seconds until the retry."""
        pauses: dict[float, set[str]] = {}
        for uid in uids:
            pauses.setdefault(self._writer.retry_limiter.backoff_s(uid), set()).add(uid)
        return pauses

    def _retry(self, term: LeaderTerm, uids: Iterable[str]) -> None:
        if term is self.term:
            term.engine.recheck(uids)
            self.wakeup.set()

    async def _wait_until_synced(self) -> None:
        """Wait until everything is listed again, for example after an outage, or the Lease is lost."""
        outages, began, logged_after_s = self._writer.api.outages, time.monotonic(), _POLL_S
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
        if not self._writer.api.outages.is_synced():
            _LOG.warning("scheduling cycle aborted", extra={"why": str(error)})
            return 0.0
        pause_s = term.failures.fail(time.monotonic())
        _LOG.warning("scheduling cycle aborted", extra={"why": str(error), "again_in_s": pause_s})
        self.wakeup.clear()
        return pause_s

    async def _sleep(self, pause_s: float) -> None:
        """Sleep until something changes, `pause_s` at most, or the Lease is lost."""
        until = time.monotonic() + pause_s
        while (left := until - time.monotonic()) > 0 and not self.wakeup.is_set() and self._may_write():
            try:
                async with asyncio.timeout(min(left, 1.0)):
                    await self.wakeup.wait()
            except TimeoutError:
                continue
