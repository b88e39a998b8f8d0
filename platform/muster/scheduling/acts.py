"""The decisions of a plan in the making.

Every act is written in the ledger, told to the promises, and noted as a decision: nothing is decided that the rest of
the plan does not reckon with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from muster.model import Admit, Decision, Evict, Gang, HoldRoom, Placement, Resize, RolePlacement
from muster.quota import Amounts
from muster.scheduling.backfill import Promises
from muster.scheduling.departures import Departure, gone_by, tie_of
from muster.scheduling.fit import Fit
from muster.scheduling.grow import Growth
from muster.scheduling.holds import Held, named
from muster.scheduling.ledger import Ledger
from muster.scheduling.memo import Memo, charge_of, placed_load
from muster.scheduling.refuse import Refusal
from muster.scheduling.room import Load
from muster.scheduling.search import Freed
from muster.scheduling.shape import Request
from muster.scheduling.victims import Reason, Victim, Victims


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """A gang that starts; `step` is its size (see `Shape`)."""

    gang: Gang
    request: Request
    option: int
    step: int
    placement: Placement
    taken: Departure
    backfilled: bool


@dataclass(slots=True)
class Acts:
    """What has been decided so far."""

    facts: Memo
    ledger: Ledger
    promises: Promises
    victims: Victims
    refusals: dict[str, Refusal] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)
    withdrawn: list[Start] = field(default_factory=list)  # starts that were taken back, each gang once
    released: int = 0  # holds that have ended, and starts that were taken back
    _holders: set[str] = field(default_factory=set)  # uids of those for whom room was held when the plan began
    _holds: list[HoldRoom] = field(default_factory=list)
    _leaving: list[Evict | Resize] = field(default_factory=list)
    _growths: list[Resize] = field(default_factory=list)

    def set_aside(self, held: Held) -> None:
        """A hold stands: its room is nobody else's."""
        self._holders.add(held.gang.uid)
        self.victims.held[held.gang.uid] = held
        self._take(held.taken)

    def gets_hold(self, uid: str) -> bool:
        """Whether this plan holds room for the gang, in place of what was held for it."""
        return any(hold.gang == uid for hold in self._holds)

    def release(self, held: Held) -> None:
        """A hold ends."""
        self.released += 1
        del self.victims.held[held.gang.uid]
        self.ledger.give(held.taken)
        self.promises.gone(held.taken)

    def start(self, gang: Gang, request: Request, placement: Placement, load: Load, amounts: Amounts) -> None:
        """A gang starts where room was held for it."""
        option = self._option_of(request, placement)
        least = sum(request.shape.least)
        step = sum(part.replicas for part in placement) - least
        self._start(gang, request, option, step, placement, load, amounts)

    def start_at(self, gang: Gang, request: Request, option: int, step: int, place: Fit, amounts: Amounts) -> None:
        """A gang starts."""
        placement = self.placement(request, option, place)
        self._start(gang, request, option, step, placement, place.load, amounts)

    def restart_at(self, start: Start, step: int, place: Fit, amounts: Amounts) -> None:
        """A gang that starts in this plan starts at another size instead; its old place was given back before."""
        placement = self.placement(start.request, start.option, place)
        taken = replace(start.taken, load=place.load, amounts=amounts)
        self._take(taken)
        self.starts[start.gang.uid] = replace(start, step=step, placement=placement, taken=taken)

    def withdraw(self, gang: Gang, freed: Freed) -> Sequence[tuple[Victim, Reason]]:
        """Those of its victims who were to start do not start after all; the others are returned."""
        others = []
        for victim, reason in freed.victims:
            uid = victim.gang.uid
            start = self.starts.get(uid)
            if start is None or start.taken is not victim.freed:
                others.append((victim, reason))
                continue
            del self.starts[uid], self.victims.starting[uid]
            self.released += 1
            self.ledger.give(start.taken)
            self.promises.gone(start.taken)
            self.refusals[uid] = Refusal("NoRoom", text=f"{gang.name} comes first, and needs the room")
            if all(uid != earlier.gang.uid for earlier in self.withdrawn):
                self.withdrawn.append(start)
        return others

    def hold(self, gang: Gang, request: Request, freed: Freed, victims: Sequence[tuple[Victim, Reason]]) -> None:
        """Room is held for a gang, and those are told to leave who have to."""
        wait_for: list[str] = []
        for victim, reason in victims:
            uid = victim.gang.uid
            if victim.stay is None:
                wait_for += self._drop_hold(uid)
            else:
                wait_for.append(uid)
                self._dismiss(victim)
            self.victims.asked.add(uid)
            leaves = Resize(uid, victim.kept, gang.uid, reason) if victim.kept else Evict(uid, gang.uid, reason)
            self._leaving.append(leaves)
        now = self.facts.snapshot.now
        expires_at = now + max(victim.gang.grace_s for victim, _ in victims) + gang.start_timeout_s
        placement = self.placement(request, freed.option, freed.fit)
        self._holds.append(HoldRoom(gang.uid, placement, tuple(dict.fromkeys(wait_for)), expires_at))
        by, amounts = gone_by(gang, expires_at), request.least[freed.option]
        self._take(Departure(gang.uid, by, now, tie_of(gang.uid), freed.fit.load, request.queue, amounts))
        names = named([victim.gang.name for victim, _ in victims])
        self.refusals[gang.uid] = Refusal("HoldWaiting", text=f"room is being freed for it; waits for {names} to leave")

    def grow(self, growth: Growth) -> None:
        """A running gang goes on with more pods."""
        self._take(growth.more)
        placement = self.placement(growth.request, growth.option, growth.fit)
        self._growths.append(Resize(growth.more.uid, placement, None, "Grown"))

    def decisions(self) -> Iterator[Decision]:
        """In the order to carry them out."""
        yield from self._holds
        yield from self._leaving
        for start in self.starts.values():
            yield Admit(start.gang.uid, start.placement, start.backfilled)
        yield from self._growths

    def placement(self, request: Request, option: int, place: Fit) -> Placement:
        """A fit with the nodes' names."""
        nodes, shape = self.facts.table.nodes, request.shape
        parts = []
        for role, flavor, spread in zip(shape.roles, shape.options[option].flavors, place.spreads, strict=True):
            pods = zip(spread.rows.tolist(), spread.counts.tolist(), strict=True)
            parts.append(RolePlacement(role.name, flavor, tuple((nodes[row].name, count) for row, count in pods)))
        return tuple(parts)

    def _start(
        self,
        gang: Gang,
        request: Request,
        option: int,
        step: int,
        placement: Placement,
        load: Load,
        amounts: Amounts,
    ) -> None:
        root, flavors = self.facts.tree.root(request.queue), request.shape.options[option].flavors
        behind = any(r.root == root and not r.flavors.isdisjoint(flavors) for r in self.promises.reservations)
        now = self.facts.snapshot.now
        taken = Departure(gang.uid, gone_by(gang, now), now, tie_of(gang.uid), load, request.queue, amounts)
        self._take(taken)
        if gang.uid not in self._holders:  # those come first in any case
            self.victims.start(gang, taken)
        self.starts[gang.uid] = Start(gang, request, option, step, placement, taken, behind)

    def _option_of(self, request: Request, placement: Placement) -> int:
        flavor_of = {part.role: part.flavor for part in placement}
        flavors = tuple(flavor_of.get(role.name, "") for role in request.shape.roles)
        return next((i for i, option in enumerate(request.shape.options) if option.flavors == flavors), 0)

    def _dismiss(self, victim: Victim) -> None:
        """A running gang leaves, or goes on with less."""
        stay = victim.stay
        assert stay is not None
        assert stay.later is not None
        self.ledger.dismiss(victim.freed)
        self.promises.gone(stay.later)
        if victim.kept:
            load = placed_load(self.facts.table, victim.gang, victim.kept)
            amounts = charge_of(self.facts.tree, stay.queue, victim.gang, victim.kept)
            self.promises.come(replace(stay.later, load=load, amounts=amounts))

    def _drop_hold(self, uid: str) -> list[str]:
        """Take somebody's hold away; those who leave for it now leave for somebody else."""
        held = self.victims.held[uid]
        self.release(held)
        if uid in self.facts.requests and uid not in self.facts.never:  # else it backs off, or could not use it anyway
            self.refusals[uid] = Refusal("NoRoom", text="the room that was held for it went to a gang that comes first")
        return [victim for victim in held.hold.victims if victim in self.facts.stays]

    def _take(self, gang: Departure) -> None:
        self.ledger.take(gang)
        self.promises.come(gang)
