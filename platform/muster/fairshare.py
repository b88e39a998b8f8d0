"""Who has used how much lately: resource-seconds that fade with a half-life, by leaf queue.

Usage orders the queues, it never evicts. It is counted exactly (the integral of what admitted gangs take, decaying all
the while) but shown to the planner as of the last tick, every 60 s, so that a plan can be reused in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from muster import spec
from muster.model import Placement, Role, Usage

TICK_S = 60.0
Cell: TypeAlias = tuple[str, str, str]
"""(leaf queue, flavor, resource)"""

_NEGLIGIBLE = 1e-3  # resource-seconds


def decayed(value: float, rate: float, elapsed_s: float, half_life_s: float) -> float:
    """Usage after `elapsed_s` more seconds at `rate`: u' = rate - u ln2 / half_life, solved exactly."""
    if elapsed_s <= 0:
        return value
    left = math.exp2(-elapsed_s / half_life_s)
    return value * left + rate * (1.0 - left) * half_life_s / math.log(2)


@dataclass(slots=True)
class _Count:
    value: float
    at: float
    rate: float = 0.0


@dataclass(slots=True)
class FairShare:
    """Usage of every leaf, kept up to date by whoever admits and releases gangs."""

    _counts: dict[Cell, _Count] = field(default_factory=dict)
    _charges: dict[str, Mapping[Cell, int]] = field(default_factory=dict)  # by job uid
    _half_lives: dict[str, float] = field(default_factory=dict)  # by queue
    _named: frozenset[tuple[str, str]] = frozenset()  # (flavor, resource) that some queue limits
    _loaded_at: dict[str, float] = field(default_factory=dict)  # by queue: until when its written usage counts
    _tick: float = -math.inf
    _published: tuple[Usage, ...] = ()

    def look_at_queues(self, queues: Iterable[spec.Queue]) -> None:
        """Half-lives and named resources as they are now; what a queue's status says is taken over at first sight."""
        by_name = {queue.metadata.name: queue for queue in queues}
        self._half_lives = {name: float(_root(name, by_name).spec.half_life_seconds) for name in by_name}
        self._named = frozenset(
            (entry.flavor, resource)
            for queue in by_name.values()
            for entry in queue.spec.resources
            for resource in (*entry.guaranteed, *entry.limit, *entry.lend)
        )
        for name, queue in by_name.items():
            written = queue.status.fair_share
            if name in self._loaded_at or written is None:
                continue
            self._loaded_at[name] = written.at
            for usage in written.usage:
                self._counts[name, usage.flavor, usage.resource] = _Count(usage.resource_seconds, written.at)

    def charge(
        self, uid: str, queue: str, placement: Placement, roles: Iterable[Role], since: float, now: float
    ) -> None:
        """From `since` (not before what was taken over) the job takes this room; an empty placement ends it."""
        charge = _charge(queue, placement, roles)
        old = self._charges.get(uid, {})
        if charge == old:
            return
        start = min(now, max(since, self._loaded_at.get(queue, -math.inf))) if not old else now
        for cell in {*charge, *old}:
            amount = charge.get(cell, 0)
            count = self._advance(cell, now)
            if cell not in old:
                count.value += decayed(0.0, amount, now - start, self._half_life(cell))
            count.rate += amount - old.get(cell, 0)
        if charge:
            self._charges[uid] = charge
        else:
            self._charges.pop(uid, None)

    def end(self, uid: str, now: float) -> None:
        """The job takes nothing any more; it is gone."""
        self.charge(uid, "", (), (), now, now)

    def usage(self, now: float) -> tuple[Usage, ...]:
        """Usage as of the last tick; the same tuple until the next one."""
        tick = math.floor(now / TICK_S) * TICK_S
        if tick != self._tick:
            self._tick = tick
            fresh = tuple(
                Usage(*cell, resource_seconds=value)
                for cell, count in sorted(self._counts.items())
                if cell[1:] in self._named and (value := self._value(cell, count, tick)) > _NEGLIGIBLE
            )
            self._published = fresh
        return self._published

    def status(self, queue: str, now: float) -> spec.FairShareStatus | None:
        """What to write down of a queue, as of `now`; None when it never used anything."""
        usage = [
            spec.FairShareUsage(flavor=cell[1], resource=cell[2], resource_seconds=round(value, 3))
            for cell, count in sorted(self._counts.items())
            if cell[0] == queue and cell[1:] in self._named and (value := self._value(cell, count, now)) > _NEGLIGIBLE
        ]
        return spec.FairShareStatus(usage=usage, at=now) if usage else None

    @property
    def busy(self) -> bool:
        """True while any job is charged."""
        return bool(self._charges)

    def _value(self, cell: Cell, count: _Count, at: float) -> float:
        return decayed(count.value, count.rate, at - count.at, self._half_life(cell))

    def _advance(self, cell: Cell, now: float) -> _Count:
        count = self._counts.setdefault(cell, _Count(0.0, now))
        count.value, count.at = self._value(cell, count, now), max(now, count.at)
        return count

    def _half_life(self, cell: Cell) -> float:
        return self._half_lives.get(cell[0], 7 * 24 * 3600.0)


def _charge(queue: str, placement: Placement, roles: Iterable[Role]) -> dict[Cell, int]:
    requests = {role.name: role.request for role in roles}
    charge: dict[Cell, int] = {}
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
