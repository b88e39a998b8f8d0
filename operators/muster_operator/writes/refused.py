"""Statuses of jobs that the API server refuses: an admission policy, a webhook or a validation forbids them.

A change that concerns other jobs' capacity (a nomination, an admission, a growth, an eviction for another job) is not
decided again before the API server would accept it: a dry run of the refused status, in the background, tells. Decided
again at once it would be refused again, after other jobs were evicted together with it, or for it. The rest of the job
goes on: a gang that cannot be evicted for another one still completes.

Any other refused status of a job, such as the end of its admission or its progress, is decided again after a pause,
since what is to be written changes with its pods. Meanwhile the job is left as it is. All pauses grow.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from muster.api import spec
from muster.backoff import Backoff
from muster.cluster import RefusedChange, RefusedStatus
from muster.errors import ClusterError
from muster.kube.async_client import INVALID_REQUEST_CODES, ApiError, AsyncKubeClient, is_server_wide
from muster.workload.conditions import is_admitted, is_evicting, is_finished
from muster.workload.placement import pod_count
from muster_operator.cache.cached_workload import CachedWorkload, StatusRequest
from muster_operator.cache.cluster_cache import ClusterCache


class StatusRefused(ClusterError):
    """The API server refused the status of a job, which is recorded in `RefusedStatuses`."""

    reason = "StatusRefused"


StatusChange: TypeAlias = RefusedChange | Literal["Release", "Update"]
"""What a status changes. Release: the job gives up its capacity by itself (it ends, restarts, is drained or suspended).
Update: nothing that capacity depends on."""

_OWN_CHANGES = ("Release", "Update")
MIN_PAUSE_S = 1.0
_MAX_PAUSE_S, _MAX_DRY_RUN_PAUSE_S = 30.0, 120.0
_FORGET_S = 600.0  # after the pause, without another refusal
_REPORT_S = 600.0  # between reports of the same change of a job
_MAX_MESSAGE = 500
_MAX_REPORTS = _MAX_BACKOFFS = 50_000
_DRY_RUNS = 4  # at once


@dataclass(slots=True)
class _Refusal:
    job: CachedWorkload  # as it was
    change: StatusChange
    beneficiary: str  # uid of the job that it was to be evicted for
    request: StatusRequest
    backoff: Backoff
    message: str = ""
    invalid: bool = True
    task: asyncio.Task[None] | None = None

    @property
    def is_tried_as_dry_run(self) -> bool:
        return self.change not in _OWN_CHANGES

    def fail(self, error: ApiError, now: float, min_invalid_pause_s: float) -> None:
        self.message = (error.message or str(error))[:_MAX_MESSAGE]
        self.invalid = error.code in INVALID_REQUEST_CODES
        self.backoff.fail(now, min_invalid_pause_s if self.invalid else MIN_PAUSE_S)


@dataclass(slots=True)
class RefusedStatuses:
    """By job and change. `changed` is called when one may be decided again."""

    api: AsyncKubeClient
    cache: ClusterCache
    changed: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    min_invalid_pause_s: float = 5.0  # for rejections that a user has to fix
    _entries: dict[tuple[str, StatusChange], _Refusal] = field(default_factory=dict)
    _backoffs: dict[tuple[str, StatusChange], Backoff] = field(default_factory=dict)  # until it is written
    _reported: dict[tuple[str, StatusChange], float] = field(default_factory=dict)  # when
    _dry_runs: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_DRY_RUNS))

    def record(self, known: CachedWorkload, status: spec.QueueingStatus, error: ApiError) -> StatusChange | None:
        """The API server refused this status. Returns the change if it is to be reported: the first time, and every ten
        minutes while it lasts."""
        change, now = status_change(known.status, status), self.clock()
        key = known.uid, change
        refusal = self._entries.get(key)
        if refusal is None:
            beneficiary = status.eviction.beneficiary if change == "Eviction" and status.eviction is not None else ""
            request = known.status_request(status, guarded=False)
            most_s = _MAX_PAUSE_S if change in _OWN_CHANGES else _MAX_DRY_RUN_PAUSE_S
            if len(self._backoffs) >= _MAX_BACKOFFS:
                self._backoffs.clear()  # costs only shorter pauses
            backoff = self._backoffs.setdefault(key, Backoff(MIN_PAUSE_S, most_s, reset_after_s=_FORGET_S))
            refusal = _Refusal(known, change, beneficiary, request, backoff)
            self._entries[key] = refusal
        refusal.fail(error, now, self.min_invalid_pause_s)
        if refusal.task is None or refusal.task.done():
            wait = self._try_again(refusal) if refusal.is_tried_as_dry_run else self._pause(refusal)
            refusal.task = asyncio.create_task(wait)
        if now < self._reported.get(key, float("-inf")) + _REPORT_S:
            return None
        if len(self._reported) >= _MAX_REPORTS:
            self._reported.clear()  # costs only more reports
        self._reported[key] = now
        return change

    def accepted(self, uid: str, before: spec.QueueingStatus, status: spec.QueueingStatus) -> None:
        """The status of a job was written."""
        if self._backoffs:
            change = status_change(before, status)
            self._backoffs.pop((uid, change), None)
            self._forget(uid, change)

    def observed(self) -> tuple[RefusedStatus, ...]:
        """The changes that are not to be decided now."""
        self._prune()
        return tuple(
            RefusedStatus(uid, change, one.message, one.invalid, one.beneficiary)
            for (uid, change), one in self._entries.items()
            if change != "Release" and change != "Update"
        )

    def paused_jobs(self) -> frozenset[str]:
        """Jobs that are not to be decided on now."""
        now, entries = self.clock(), self._entries.values()
        return frozenset(one.job.uid for one in entries if not one.is_tried_as_dry_run and now < one.backoff.retry_at)

    def counts(self) -> Counter[str]:
        """Number of refused statuses by change."""
        self._prune()
        return Counter(change for _, change in self._entries)

    def clear(self) -> None:
        """Another operator may lead from here on."""
        for uid, change in tuple(self._entries):
            self._forget(uid, change)
        self._reported.clear()
        self._backoffs.clear()

    def _forget(self, uid: str, change: StatusChange) -> None:
        refusal = self._entries.pop((uid, change), None)
        if refusal is not None and refusal.task is not None and refusal.task is not asyncio.current_task():
            refusal.task.cancel()

    def _prune(self) -> None:
        """Forget what is obsolete, and pauses that ended long ago without another refusal."""
        now = self.clock()
        for (uid, change), one in tuple(self._entries.items()):
            ended = not one.is_tried_as_dry_run and now > one.backoff.retry_at + _FORGET_S
            if ended or self._is_obsolete(one):
                self._forget(uid, change)

    def _is_obsolete(self, refusal: _Refusal) -> bool:
        """Whether the job no longer exists, or is over or was admitted or released since."""
        known = self.cache.workload(refusal.job.uid)
        if known is None or not refusal.is_tried_as_dry_run:
            return known is None
        before, status = refusal.job.status, known.status
        return is_finished(status) or is_admitted(status) != is_admitted(before)

    async def _pause(self, refusal: _Refusal) -> None:
        await asyncio.sleep(refusal.backoff.pause_s)
        self.changed()

    async def _try_again(self, refusal: _Refusal) -> None:
        """Try the status as a dry run, with growing pauses, until it is accepted."""
        while not self._is_obsolete(refusal):
            await asyncio.sleep(refusal.backoff.pause_s)
            try:
                await self._dry_run(refusal)
                break
            except ApiError as error:
                if error.code == 404:
                    break
                if not is_server_wide(error):
                    refusal.fail(error, self.clock(), self.min_invalid_pause_s)
            except ClusterError:  # no answer: try again after the same pause
                continue
        self._forget(refusal.job.uid, refusal.change)
        self.changed()

    async def _dry_run(self, refusal: _Refusal) -> None:
        request, params = refusal.request, {"dryRun": "All"}
        body = msgspec.json.encode(request.body)
        async with self._dry_runs:
            if request.collection:
                await self.api.post(request.collection, body, params)
            else:
                await self.api.patch(request.path, body, params)


def status_change(old: spec.QueueingStatus, new: spec.QueueingStatus) -> StatusChange:
    """What a new status changes."""
    if not is_admitted(old):
        if is_admitted(new):
            return "Admission"
        return "Nomination" if new.nomination is not None and new.nomination != old.nomination else "Update"
    if new.eviction is not None and new.eviction != old.eviction:
        return "Eviction"
    if is_admitted(new) and pod_count(new.placement) > pod_count(old.placement):
        return "Growth"
    releases = not is_admitted(new) or is_evicting(new) != is_evicting(old) or new.attempt != old.attempt
    return "Release" if releases else "Update"
