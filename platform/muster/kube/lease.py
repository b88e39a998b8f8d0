"""Leader election by a Lease.

The holder renews; another candidate takes over once the Lease has not changed for its whole duration, measured on its
own clock since it observed the last change. The holder counts from the *start* of its last renewal and stops earlier
(`renew_deadline_s`), so that even a process that was frozen writes nothing after another took over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from muster.errors import ClusterError
from muster.kube.async_client import ApiError, AsyncKubeClient
from muster.kube.resources import LEASES

_LOG = logging.getLogger("muster.kube")


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds; duration > renew deadline > retry."""

    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0

    @property
    def lease_duration_seconds(self) -> int:
        """The duration for the Lease in whole seconds, rounded up: never less than the holder assumes."""
        return math.ceil(self.duration_s)


class _Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class _Meta(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Lease(msgspec.Struct, rename="camel"):
    """The fields of a Lease that we read and write."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    api_version: str = LEASES.api_version
    kind: str = LEASES.kind


class LeaseCandidate:
    """What one candidate knows of the Lease, and therefore may do. Pure: `now` is an argument, from one monotonic
    clock."""

    def __init__(self, identity: str, times: LeaseTimes) -> None:
        self.identity = identity
        self.times = times
        self._last_spec: _Spec | None = None
        self._changed_at = 0.0
        self._renewed_at: float | None = None
        self.acquired: str | None = None
        """When we acquired the Lease; unchanged until another has held it."""

    def observe(self, lease: Lease, now: float) -> None:
        """The Lease was read."""
        if lease.spec != self._last_spec:
            self._last_spec, self._changed_at = lease.spec, now
        if lease.spec.holder_identity != self.identity:
            self._renewed_at = None

    def on_renewed(self, lease: Lease, began_at: float, now: float) -> None:
        """Our write as holder was acknowledged; it was started at `began_at`."""
        self.observe(lease, now)
        self._renewed_at = began_at
        self.acquired = lease.spec.acquire_time

    def stop(self) -> None:
        """Give up leadership, whatever the Lease says."""
        self._renewed_at = None

    def may_acquire(self, now: float) -> bool:
        """Whether the Lease is free, held by this candidate, or not renewed for its whole duration."""
        if self._last_spec is None:
            return False
        holder, duration_s = self._last_spec.holder_identity, self._last_spec.lease_duration_seconds
        return holder in ("", self.identity) or now >= self._changed_at + duration_s

    def holds(self, now: float) -> bool:
        """Whether we may write."""
        return self._renewed_at is not None and now < self._renewed_at + self.times.renew_deadline_s

    def next_lease(self, lease: Lease, wall: str) -> Lease:
        """The Lease to write: held by us, renewed at wall time `wall`."""
        old = lease.spec
        is_holder = old.holder_identity == self.identity
        return Lease(
            lease.metadata,
            _Spec(
                holder_identity=self.identity,
                lease_duration_seconds=self.times.lease_duration_seconds,
                acquire_time=old.acquire_time if is_holder else wall,
                renew_time=wall,
                lease_transitions=old.lease_transitions + (0 if is_holder or not old.holder_identity else 1),
            ),
        )


def boot_clock() -> float:
    """Seconds on a clock that continues while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LeaderElector:
    """Acquires and renews the Lease; sets and clears `leading`.

    Needs an `api` of its own: renewals must not wait for other requests.
    """

    def __init__(
        self,
        api: AsyncKubeClient,
        namespace: str,
        name: str,
        candidate: LeaseCandidate,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self.leading = asyncio.Event()
        self.lost = asyncio.Event()
        self._api = api
        self._collection = LEASES.path(namespace)
        self._path = LEASES.path(namespace, name)
        self._new_lease = Lease(_Meta(name=name, namespace=namespace))
        self._candidate = candidate
        self._clock = clock
        self._current: Lease | None = None
        self._released = False  # by `release`

    def may_write(self) -> bool:
        """Whether a write may start; checked before every write."""
        return self._candidate.holds(self._clock())

    @property
    def acquired(self) -> str | None:
        """When we acquired the Lease; unchanged until another has held it. None: never."""
        return self._candidate.acquired

    def refresh(self) -> None:
        """Set or clear `leading` according to the Lease and the clock."""
        self._update_state()

    async def run(self) -> None:
        """Acquire the Lease when possible and renew it, until cancelled."""
        retry_s = self._candidate.times.retry_s
        while True:
            began = self._clock()
            try:
                async with asyncio.timeout(self._candidate.times.renew_deadline_s / 2):
                    await self._acquire_or_renew()
            except Exception as error:  # no answer, or an invalid Lease, which may be repaired
                self._current = None
                _LOG.warning("lease", extra={"why": str(error) or type(error).__name__})
            self._update_state()
            pause = retry_s if self.leading.is_set() else retry_s * random.uniform(0.8, 1.2)
            await asyncio.sleep(max(0.05, pause - (self._clock() - began)))
            self._update_state()

    async def release(self) -> None:
        """Release the Lease, so that another need not wait for it to expire. We write nothing from now on."""
        was_holder = self.may_write()
        self._released = True
        self._candidate.stop()
        self._update_state()
        if not was_holder:
            return
        try:
            current = await self._read()  # a renewal may have been in progress
            if current.spec.holder_identity == self._candidate.identity:
                kept = _Spec(lease_duration_seconds=1, lease_transitions=current.spec.lease_transitions)
                await self._api.put(self._path, msgspec.json.encode(Lease(current.metadata, kept)))
        except (ClusterError, ValueError) as error:
            _LOG.warning("lease not released", extra={"why": str(error)})

    async def _acquire_or_renew(self) -> None:
        if self._current is None or not self._candidate.holds(self._clock()):
            self._current = await self._read()
            self._candidate.observe(self._current, self._clock())
        if not self._candidate.may_acquire(self._clock()):
            return
        began = self._clock()
        wanted = msgspec.json.encode(self._candidate.next_lease(self._current, _now_rfc3339()))
        try:
            if self._current.metadata.resource_version:
                answer = await self._api.put(self._path, wanted)
            else:
                answer = await self._api.post(self._collection, wanted)
        except ApiError as error:
            if error.code != 409:
                raise
            self._current = None  # another candidate was faster
            self._candidate.stop()
            return
        self._current = msgspec.json.decode(answer, type=Lease)
        self._candidate.on_renewed(self._current, began, self._clock())

    async def _read(self) -> Lease:
        try:
            return msgspec.json.decode(await self._api.get(self._path), type=Lease)
        except ApiError as error:
            if error.code == 404:
                return self._new_lease
            raise

    def _update_state(self) -> None:
        holds = self.may_write()
        if holds and not self.leading.is_set():
            _LOG.info("leadership acquired", extra={"identity": self._candidate.identity})
            self.lost.clear()
            self.leading.set()
        elif not holds and self.leading.is_set():
            level, what = (logging.INFO, "released") if self._released else (logging.WARNING, "lost")
            _LOG.log(level, "leadership %s", what, extra={"identity": self._candidate.identity})
            self.leading.clear()
            self.lost.set()


class Fence:
    """Whether this operator may write: it holds the Lease, and its state was listed in the present term.

    Both are needed, because a Lease can be lost and acquired again during a decision or a list. An operator that was
    frozen then and checked the Lease only would write decisions from before another leader's term. Without leader
    election it may always write.
    """

    def __init__(self, election: LeaderElector | None) -> None:
        self.election = election
        self._term: str | None = None

    def __call__(self) -> bool:
        """Whether a write may start now."""
        election = self.election
        return election is None or (election.may_write() and election.acquired == self._term)

    def enter(self, term: str | None) -> None:
        """Everything was listed in this term (`LeaderElector.acquired`): decisions from it may be written in no other
        term."""
        self._term = term


def _now_rfc3339() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
