"""The operator: watches everything, and while it holds the Lease decides and writes, round after round.

The engine decides in a thread of its own, from values that nobody changes, so that watches are read and the Lease is
renewed however long a plan takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from muster.cluster import ObjectWrites, Phase, WriteStatus
from muster.engine import Engine, Round
from muster.errors import ClusterError
from muster.lifecycle import Bounds
from muster_operator import finalizers
from muster_operator.accounts import Accounts
from muster_operator.backlog import Backlog, Rush
from muster_operator.kube.api import Fenced
from muster_operator.metrics import Metrics
from muster_operator.sight.world import Sight
from muster_operator.traces import Traces
from muster_operator.unreadable import Complaints
from muster_operator.writer import Outcome, Writer

_LOG = logging.getLogger("muster.operator")
_AFTER_CONFLICT_S = 0.05  # for the watch to bring what changed
_TROUBLE_S = (0.2, 15.0)
_LONGEST_AFTER_REFUSALS_S = 5.0
_LONGEST_PAUSE_S = 60.0
_REST, _LONGEST_REST_S = 4.0, 2.0  # of what deciding took, from one round's begin to the next one's
_BEGIN_WITHIN_S = 2.0  # what is not begun by then is decided again, on news,
_PIECE = 64  # of the backlog, between two looks at what has changed
_CROWD_S = 60.0
_LOOK_S = 1.0  # how long a backlog rests at most, where no round has to
_WRITE_SHARE = 6.0  # but not before writing took so many times as long as deciding: that would decide for nothing


@dataclass(slots=True)
class Term:
    """One time of leading: an engine of its own, which remembers nothing of earlier ones."""

    engine: Engine
    last: Round | None = None
    rest_s: float = 0.0  # from the begin of one round to the next, at least: news come in crowds
    troubles: int = 0
    refusals: int = 0  # rounds that a refused status cut short, one after the other


class Leader:
    """Rounds, as long as `may_write` and nobody cancels."""

    def __init__(
        self, sight: Sight, writer: Writer, metrics: Metrics, accounts: Accounts, may_write: Callable[[], bool]
    ) -> None:
        self.changed = asyncio.Event()
        self.term: Term | None = None
        self.bounds = Bounds()
        self.traces: Traces | None = None  # None: nobody collects any
        self._sight = sight
        self._writer = writer
        self._metrics = metrics
        self._accounts = accounts
        self._may_write = may_write
        self.rush = Rush(
            lambda: self._unfinished or sight.jobs.unseen() or sight.pods.unbound(),
            lambda: sight.jobs.served + sight.pods.served,
        )
        self._backlog = Backlog()
        self._unfinished = False  # not everything of the last round was written
        self._complaints = Complaints(writer.api, sight, writer.outbox, writer.instance)

    async def lead(self) -> None:
        """Decide and write until the Lease is lost (returns) or cancelled."""
        term = self.term = Term(Engine(None, bounds=self.bounds))
        self._backlog.clear()
        self._writer.refusals.end_pauses()  # nobody remembers when they end
        self._writer.pending.begin()
        try:
            while self._may_write():
                await self._until_current()
                self.changed.clear()
                began = time.monotonic()
                pause_s = await self._round(term)
                if pause_s > 0:
                    await self._sleep(pause_s)
                await asyncio.sleep(max(0.0, began + term.rest_s - time.monotonic()))
        finally:
            self.term = None

    async def _round(self, term: Term) -> float:
        """One round; for how many seconds nothing needs to be done unless something changes."""
        try:
            outcome = await self._decide_and_write(term)
        except Fenced:
            return 0.0
        except ClusterError as error:
            return self._in_trouble(term, error)
        if outcome.trouble is not None:
            return 0.0 if isinstance(outcome.trouble, Fenced) else self._in_trouble(term, outcome.trouble)
        term.troubles, term.refusals = 0, term.refusals + 1 if outcome.refused else 0
        if outcome.conflicts or outcome.refused:
            self._metrics.conflicts.add(outcome.conflicts)
            return min(_LONGEST_AFTER_REFUSALS_S, _AFTER_CONFLICT_S * 2.0 ** min(term.refusals, 10))
        if outcome.unwritten:
            return 0.0
        assert term.last is not None
        waits = len(self._backlog) or self._sight.jobs.behind()
        wake_at, longest_s = term.last.wake_at, _LOOK_S if waits else _LONGEST_PAUSE_S
        longest_s = min(longest_s, self._writer.pending.due_in_s())
        return longest_s if wake_at is None else min(longest_s, max(0.0, wake_at - time.time()))

    async def _decide_and_write(self, term: Term) -> Outcome:
        outages = self._writer.api.outages
        await self._writer.doubts.settle()
        seen_at = outages.count
        began = time.monotonic()
        self._accounts.round_began = time.time()
        world = self._sight.observe()
        round_ = await asyncio.to_thread(term.engine.decide, world)
        if outages.count != seen_at:
            term.engine.recheck()
            raise Fenced("aborted: the API server could not be reached while this was decided")
        decided = time.monotonic()
        self._metrics.rounds.add()
        self._metrics.plan_s.observe(decided - began)
        term.last, term.rest_s = round_, min(_LONGEST_REST_S, _REST * (decided - began))
        try:
            patience_s = max(_BEGIN_WITHIN_S, _WRITE_SHARE * (decided - began))
            for phase in round_.phases:
                self._backlog.void(phase)
            self._backlog.add(round_.afterwards)
            outcome = await self._writer.carry_out(round_.phases, patience_s)
            self.rush.wrote(sum(map(len, round_.phases)) - len(outcome.unwritten))
            term.engine.recheck((outcome.unwritten - outcome.later) | outcome.unborn)
            self._unfinished = bool(outcome.unwritten - outcome.later)
            await self._catch_up(term, outcome)
        except BaseException:
            self._backlog.clear()
            term.engine.recheck()
            raise
        self._metrics.apply_s.observe(time.monotonic() - decided)
        for pause_s, uids in self._pauses(outcome.later).items():
            asyncio.get_running_loop().call_later(pause_s, self._again, term, uids)
        await finalizers.settle(self._writer.api, self._sight.queues, self._sight.jobs, self._writer.refusals)
        await self._complaints.settle()
        self._writer.pending.settle()
        if self.traces is not None and (due := self.traces.due()):
            told = tuple(ObjectWrites(write.job_uid, (write,)) for write in due)
            late = await self._writer.carry_out([told], _BEGIN_WITHIN_S)
            outcome.trouble = outcome.trouble or late.trouble  # what is refused is due again in the next round
        return outcome

    async def _catch_up(self, term: Term, outcome: Outcome) -> None:
        """Write what may be written later, piece by piece; once something changes, one for each second of rest."""
        pieces = 0
        while outcome.trouble is None and (piece := self._piece()):
            pieces += 1
            late = await self._writer.carry_out([piece], _BEGIN_WITHIN_S)
            term.engine.recheck(late.unwritten - late.later)
            outcome.join(late)
            if late.unwritten or (self.changed.is_set() and pieces >= term.rest_s):
                return

    def _piece(self) -> Phase:
        """What may be written now of what can wait."""
        owed = self._owed()
        count = self.rush.spares(min(_PIECE, len(owed) + len(self._backlog)))  # half for each, if both want it
        told = owed[: max(count - len(self._backlog), (count + 1) // 2)]
        return (*told, *self._backlog.take(count - len(told)))

    def _owed(self) -> Phase:
        """Statuses of jobs whose pods alone tell so far that they are admitted, but for those that are in the backlog.

        In a crowd most pods get ready before long, and one status tells both. So there it is owed after a minute only.
        """
        behind = self._sight.jobs.behind()
        due = float("inf") if len(behind) <= _PIECE else time.time() - _CROWD_S
        jobs = (
            one
            for one in behind
            if (one.job.status.admitted_at or 0.0) <= due
            and one.uid not in self._backlog
            and self._writer.refusals.may_try(one.uid)
        )
        return tuple(
            ObjectWrites(one.uid, (WriteStatus(one.uid, one.job.status, one.job.metadata.resource_version),))
            for one in islice(jobs, _PIECE)
        )

    def _pauses(self, refused: Iterable[str]) -> dict[float, set[str]]:
        """Jobs of which something was refused, by how many seconds they are left alone."""
        pauses: dict[float, set[str]] = {}
        for uid in refused:
            pauses.setdefault(self._writer.refusals.pause_s(uid), set()).add(uid)
        return pauses

    def _again(self, term: Term, uids: Iterable[str]) -> None:
        if term is self.term:
            term.engine.recheck(uids)
            self.changed.set()

    async def _until_current(self) -> None:
        """Until all is listed again, after an outage say, or the Lease is lost."""
        outages, began, logged_after_s = self._writer.api.outages, time.monotonic(), _LOOK_S
        while self._may_write() and not outages.current():
            try:
                async with asyncio.timeout(_LOOK_S):
                    await outages.wait_until_current()
            except TimeoutError:
                waited_s = time.monotonic() - began
                if waited_s >= logged_after_s:
                    logged_after_s = waited_s * 2.0
                    _LOG.warning("nothing is decided until all is listed again", extra={"missing": outages.missing()})

    def _in_trouble(self, term: Term, error: ClusterError) -> float:
        """What was not written is decided again, after a pause that grows."""
        if not self._writer.api.outages.current():
            _LOG.warning("round ended early", extra={"why": str(error)})
            return 0.0
        term.troubles += 1
        least, most = _TROUBLE_S
        pause_s = min(most, least * 2.0 ** min(term.troubles - 1, 10))
        _LOG.warning("round ended early", extra={"why": str(error), "again_in_s": pause_s})
        self.changed.clear()
        return pause_s

    async def _sleep(self, pause_s: float) -> None:
        """Until something changes, `pause_s` at most, or the Lease is lost."""
        until = time.monotonic() + pause_s
        while (left := until - time.monotonic()) > 0 and not self.changed.is_set() and self._may_write():
            try:
                async with asyncio.timeout(min(left, 1.0)):
                    await self.changed.wait()
            except TimeoutError:
                continue
