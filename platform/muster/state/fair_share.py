"""Fair-share usage: resource-seconds by leaf queue that decay with a half-life.

Usage orders the queues; it never evicts. It is the exact integral of what admitted gangs take, decayed, but the planner
sees it as of the last tick, every 60 s, so that a plan can be reused in between.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from muster.api import spec
from muster.model import DecayedUsage, Placement, Role

TICK_S = 60.0
UsageKey: TypeAlias = tuple[str, str, str]
"""(leaf queue, flavor, resource)"""
Charge: TypeAlias = Mapping[UsageKey, int]
"""What a job takes now; empty: nothing."""

_NEGLIGIBLE = 1e-3  # resource-seconds
_MAX_ENDED = 10_000  # jobs that take nothing now


def decay(value: float, rate: float, elapsed_s: float, half_life_s: float) -> float:
    """Usage after `elapsed_s` more seconds at `rate`: u' = rate - u ln2 / half_life, solved exactly."""
    if elapsed_s <= 0:
        return value
    left = math.exp2(-elapsed_s / half_life_s)
    return value * left + rate * (1.0 - left) * half_life_s / math.log(2)


@dataclass(slots=True)
class _DecayingUsage:
    """`value` as of `at`. `rate` is the sum of what jobs are charged: it is kept when the value is reset."""

    value: float
    at: float
    rate: int = 0


@dataclass(slots=True)
class _KnownQueue:
    """A queue as first observed: its uid, and the time of the usage in its status (-inf: none)."""

    uid: str  # empty: it could not be decoded
    counted_until: float


@dataclass(slots=True)
class FairShare:
    """Usage of every leaf queue, updated when gangs are admitted and released. Callers keep the charge of each job."""

    _usage: dict[UsageKey, _DecayingUsage] = field(default_factory=dict)
    _half_lives: dict[str, float] = field(default_factory=dict)  # by queue
    _limited: frozenset[tuple[str, str]] = frozenset()  # (flavor, resource) that some queue limits
    _known_queues: dict[str, _KnownQueue] = field(default_factory=dict)  # by queue
    _ended_at: OrderedDict[str, float] = field(default_factory=OrderedDict)  # by job uid: until when it was counted
    _tick: float = -math.inf
    _published: tuple[DecayedUsage, ...] = ()

    def update_queues(self, queues: Iterable[spec.Queue], now: float) -> None:
        """Update half-lives and named resources.

        When a queue is first observed, its usage is that of its status; later changes of the status are ignored. A
        queue that was deleted and created again starts from its status again.
        """
        by_name = {queue.metadata.name: queue for queue in queues}
        half_lives = {name: float(_root(name, by_name).spec.half_life_seconds) for name in by_name}
        for cell in self._usage:
            if half_lives.get(cell[0]) != self._half_lives.get(cell[0]):
                self._advance(cell, now)
        self._half_lives = half_lives
        self._limited = frozenset(
            (entry.flavor, resource)
            for queue in by_name.values()
            for entry in queue.spec.resources
            for resource in (*entry.guaranteed, *entry.limit, *entry.lend)
        )
        fresh = [queue for queue in by_name.values() if self._is_new(queue)]
        self._reset({queue.metadata.name for queue in fresh} | (self._known_queues.keys() - by_name.keys()), now)
        for queue in fresh:
            self._restore(queue, now)

    def _is_new(self, queue: spec.Queue) -> bool:
        """Whether the queue is observed for the first time."""
        seen, uid = self._known_queues.get(queue.metadata.name), queue.metadata.uid
        if seen is None:
            return True
        seen.uid = seen.uid or uid
        return uid not in ("", seen.uid)

    def _restore(self, queue: spec.Queue, now: float) -> None:
        name, written = queue.metadata.name, queue.status.fair_share
        until = -math.inf if written is None else min(now, written.at)  # clocks differ
        self._known_queues[name] = _KnownQueue(queue.metadata.uid, until)
        for usage in () if written is None else written.usage:
            count = self._usage.setdefault((name, usage.flavor, usage.resource), _DecayingUsage(0.0, now))
            count.value = decay(max(0.0, usage.resource_seconds), 0, now - until, self._half_lives[name])

    def _reset(self, queues: AbstractSet[str], now: float) -> None:
        """These queues were deleted. Jobs that still run there count from now on, for the next queue of the name."""
        for name in queues:
            self._known_queues.pop(name, None)
        for cell, count in list(self._usage.items()):
            if cell[0] in queues:
                del self._usage[cell]
                if count.rate:
                    self._usage[cell] = _DecayingUsage(0.0, now, count.rate)
        if any(usage.queue in queues for usage in self._published):
            self._published = tuple(usage for usage in self._published if usage.queue not in queues)

    def charge(self, uid: str, old: Charge, new: Charge, since: float, now: float) -> None:
        """The job takes `new` instead of `old`: from `since` on, as far as that is not counted yet, if it took nothing
        before."""
        if new == old:
            return
        start = now if old else min(now, max(since, self._counted_until(uid, next(iter(new))[0])))
        for cell in {*new, *old}:
            amount = new.get(cell, 0)
            count = self._advance(cell, now)
            if cell not in old:
                count.value += decay(0.0, amount, now - start, self._half_life(cell))
            count.rate += amount - old.get(cell, 0)
        if not new:
            self._ended_at[uid] = now
            if len(self._ended_at) > _MAX_ENDED:
                self._ended_at.popitem(last=False)

    def _counted_until(self, uid: str, queue: str) -> float:
        """The job was counted before this time: in the usage of the queue's status, or here, if its end was not written
        after all or it was not observed for a while."""
        seen = self._known_queues.get(queue)
        return max(self._ended_at.pop(uid, -math.inf), -math.inf if seen is None else seen.counted_until)

    def published_usage(self, now: float) -> tuple[DecayedUsage, ...]:
        """Usage as of the last tick; the same tuple until the next one."""
        tick = math.floor(now / TICK_S) * TICK_S
        if tick != self._tick:
            self._tick = tick
            fresh = tuple(
                DecayedUsage(*cell, resource_seconds=value)
                for cell, count in sorted(self._usage.items())
                if cell[1:] in self._limited and (value := self._value(cell, count, tick)) > _NEGLIGIBLE
            )
            self._published = fresh
        return self._published

    def status(self, queue: str, now: float) -> spec.FairShareStatus | None:
        """Usage to write to a queue's status, as of `now`; None if it never used anything."""
        usage = [
            spec.FairShareUsage(flavor=cell[1], resource=cell[2], resource_seconds=round(value, 3))
            for cell, count in sorted(self._usage.items())
            if cell[0] == queue and cell[1:] in self._limited and (value := self._value(cell, count, now)) > _NEGLIGIBLE
        ]
        return spec.FairShareStatus(usage=usage, at=now) if usage else None

    @property
    def has_charges(self) -> bool:
        """True while any job is charged."""
        return any(count.rate for count in self._usage.values())

    def _value(self, cell: UsageKey, count: _DecayingUsage, at: float) -> float:
        return decay(count.value, count.rate, at - count.at, self._half_life(cell))

    def _advance(self, cell: UsageKey, now: float) -> _DecayingUsage:
        count = self._usage.setdefault(cell, _DecayingUsage(0.0, now))
        count.value, count.at = self._value(cell, count, now), max(now, count.at)
        return count

    def _half_life(self, cell: UsageKey) -> float:
        return self._half_lives.get(cell[0], 7 * 24 * 3600.0)


def charge_of(queue: str, placement: Placement, roles: Iterable[Role]) -> Charge:
    """What a queue is charged for a gang at a placement."""
    requests = {role.name: role.request for role in roles}
    charge: dict[UsageKey, int] = {}
    for part in placement:
        for resource, amount in requests.get(part.role, ()):
            cell = (queue, part.flavor, resource)
            charge[cell] = charge.get(cell, 0) + amount * part.replicas
    return charge


def _root(name: str, by_name: Mapping[str, spec.Queue]) -> spec.Queue:
    seen, queue = {name}, by_name[name]
    while queue.spec.parent in by_name and queue.spec.parent not in seen:
        seen.add(str(queue.spec.parent))
        queue = by_name[str(queue.spec.parent)]
    return queue
