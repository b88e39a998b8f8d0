"""One plan, told in order: from a snapshot of the world to what should be done about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from muster.model import Decision, Gang, Snapshot, WaitCode
from muster.quota import Amounts
from muster.scheduling.acts import Acts
from muster.scheduling.backfill import Bound, Promises
from muster.scheduling.departures import Departure, gone_by, tie_of
from muster.scheduling.entitle import Entitlement
from muster.scheduling.estimate import estimates
from muster.scheduling.evict import Evictions
from muster.scheduling.explain import waits
from muster.scheduling.fit import Fit, fit, fits
from muster.scheduling.futile import Futile
from muster.scheduling.grow import Wanted, growing
from muster.scheduling.holds import completed, held_room, stands, stands_aside, waits_for
from muster.scheduling.leaves import Order, Waiting
from muster.scheduling.ledger import Ledger
from muster.scheduling.memo import Memo, read
from muster.scheduling.order import Line, Shares, line
from muster.scheduling.policy import MUSTER, Policy
from muster.scheduling.refuse import Refusal, refusal
from muster.scheduling.search import Freed
from muster.scheduling.shape import Option, Request, largest_step
from muster.scheduling.victims import Victims


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, and what to remember for the next plan.

    Decisions come in the order to carry them out: room is held before anyone leaves for it, gangs leave or shrink,
    gangs start, gangs grow, and the others are told why they wait.
    """

    decisions: tuple[Decision, ...]
    memo: Memo


def plan(snapshot: Snapshot, memo: Memo | None = None, policy: Policy = MUSTER) -> Plan:
    """Decide about every waiting gang. Pure; with the memo of any earlier plan the decisions are the same."""
    facts = read(snapshot, memo)  # 1. what is known
    cycle = _Cycle.of(facts, policy)
    cycle.set_aside_held_room()  # 2. room that was promised durably is not free
    cycle.refuse_the_impossible()  # 3. who can never start as things are
    cycle.start_from_holds()  # 4. those for whom room was held come first
    cycle.go_down_the_line()  # 5. everyone else in turn: start, make room, get a promise, or wait
    cycle.let_elastic_gangs_grow()  # 6. into what is left
    return Plan(cycle.decisions(), facts)  # 7. what was decided, and why others wait


@dataclass(slots=True)
class _Cycle:
    """The state of one plan while it is made."""

    facts: Memo
    policy: Policy
    ledger: Ledger
    promises: Promises
    acts: Acts
    evictions: Evictions
    entitlement: Entitlement
    futile: Futile
    _released: int = 0
    _full: dict[tuple[Option, Bound], WaitCode] = field(default_factory=dict)
    _later: dict[tuple[Option, Bound], tuple[int, bool]] = field(default_factory=dict)
    _helpless: set[tuple[Request, int]] = field(default_factory=set)

    @classmethod
    def of(cls, facts: Memo, policy: Policy) -> _Cycle:
        """A plan that has not decided anything yet."""
        ledger = Ledger.of(facts)
        promises = Promises(ledger, facts.departures)
        victims, entitlement = Victims(facts), Entitlement(ledger)
        acts = Acts(facts, ledger, promises, victims)
        evictions = Evictions(facts, ledger, promises, victims, entitlement)
        futile = Futile(facts, ledger, victims)
        return cls(facts, policy, ledger, promises, acts, evictions, entitlement, futile)

    # -- 2

    def set_aside_held_room(self) -> None:
        """Take the room of every hold that counts, so that nobody else gets it."""
        for held in held_room(self.facts):
            self.acts.set_aside(held)

    # -- 3

    def refuse_the_impossible(self) -> None:
        """Gangs that cannot start even if everybody else left, and those whose last pods are still stopping."""
        facts, refusals = self.facts, self.acts.refusals
        refusals.update(facts.never)
        for uid in facts.requests.keys() & facts.stays.keys():
            refusals.setdefault(uid, Refusal("HoldWaiting", text="its pods of the last attempt are still stopping"))

    # -- 4

    def start_from_holds(self) -> None:
        """A gang with a hold starts on it, or waits for the last to leave it; if its room is lost, it goes first."""
        facts, ledger, acts = self.facts, self.ledger, self.acts
        ready = [h for uid, h in acts.victims.held.items() if uid in facts.requests and uid not in acts.refusals]
        for held in sorted(ready, key=lambda held: facts.requests[held.gang.uid].order):
            if held.gang.uid not in acts.victims.held:
                continue  # one that came before took it over
            gang, request = held.gang, held.request
            if not stands_aside(facts, held, ledger.now, ledger.charged) and stands_aside(
                facts, held, ledger.later, ledger.staying
            ):
                acts.refusals[gang.uid] = Refusal("HoldWaiting", text=waits_for(facts, held))
                continue  # the usual case, and nothing has to be moved for it
            acts.release(held)
            if stands(facts, held, ledger.now, ledger.charged):
                acts.start(gang, request, held.hold.placement, held.taken.load, held.taken.amounts)
            elif (whole := completed(facts, held, ledger.now, ledger.charged)) is not None:
                option, place, amounts = whole
                acts.start_at(gang, request, option, 0, place, amounts)
            elif stands(facts, held, ledger.later, ledger.staying) or completed(
                facts, held, ledger.later, ledger.staying
            ):
                acts.set_aside(held)
                acts.refusals[gang.uid] = Refusal("HoldWaiting", text=waits_for(facts, held))
            else:
                self._decide(gang, request)
                if gang.uid in acts.refusals and not acts.gets_hold(gang.uid):
                    acts.set_aside(held)  # it stands in the status until it runs out: what it charges is nobody's

    # -- 5

    def go_down_the_line(self) -> None:
        """Everyone who may start, in turn."""
        acts = self.acts
        spoken = acts.refusals.keys() | acts.starts.keys()
        shares = Shares(self.facts.tree, self.facts.snapshot.usage)
        turns = line(self.facts.leaves, spoken, self.entitlement, shares, self.policy, self._pass_over)
        behind: Refusal | None = None  # what everybody is told once the first one is blocked
        for gang, request, _ in turns:
            if behind is not None:
                acts.refusals[gang.uid] = behind
            elif not self._decide(gang, request, turns) and self.policy.behind_head == "none":
                behind = Refusal("BehindHead", text=f"waits behind {gang.name}, which comes first and cannot start")
        for start in acts.withdrawn:  # more may be added meanwhile
            if start.gang.uid not in acts.starts:
                del acts.refusals[start.gang.uid]
                self._decide(start.gang, start.request)

    def _pass_over(self, entries: list[Waiting], limit: Order | None) -> bool:
        """Refuse and take off those at the end of a list, up to `limit`, whose turns would change nothing: they need
        no trial and get no promise. Tell whether it ended at one whose turn may change something."""
        if self.policy.behind_head != "easy":
            return True
        futile, promises, refusals = self.futile, self.promises, self.acts.refusals
        while entries and (limit is None or entries[-1].order <= limit):
            gang, request, _ = entries[-1]
            why = futile.why(gang, request)
            if why is None or promises.may_promise(request, why.code):
                return True
            refusals[gang.uid] = why
            self.entitlement.waits(request)
            entries.pop()
        return False

    def _decide(self, gang: Gang, request: Request, turns: Line | None = None) -> bool:
        """Start a gang, or make room for it, or give it a promise; tell whether it starts, or may in a later turn."""
        outcome = self.futile.why(gang, request)
        if outcome is None:
            until = gone_by(gang, self.facts.snapshot.now)
            binding = self.promises.binding(until)
            found = self._attempt(gang, request, until, binding)
            if not isinstance(found, Refusal):
                option, step, place, amounts = found
                if turns is not None and turns.postponed(gang, request, option):
                    return True
                self.acts.start_at(gang, request, option, step, place, amounts)
                self.futile.changed()
                if turns is not None:
                    turns.placed(request.queue, amounts)
                return True
            freed = self._freed(gang, request, binding) if self.policy.evicts else None
            if freed is not None:
                if turns is not None and turns.postponed(gang, request, freed.option):
                    return True
                self.futile.changed()
                victims = self.acts.withdraw(gang, freed)
                if not victims:
                    return self._decide(gang, request, turns)
                self.acts.hold(gang, request, freed, victims)
                return False
            outcome = found
        self.acts.refusals[gang.uid] = outcome
        self.entitlement.waits(request)
        if self.policy.behind_head == "easy" and self.promises.may_promise(request, outcome.code):
            self.promises.promise(gang.uid, request, outcome.code)
        return False

    def _attempt(
        self, gang: Gang, request: Request, until: float, binding: Bound
    ) -> tuple[int, int, Fit, Amounts] | Refusal:
        """The first option that quota, room and promises allow, at the largest size there; or why there is none."""
        if self._released != self.acts.released:
            self._released = self.acts.released
            self._full.clear()
        first: Refusal | None = None
        for index in range(len(request.shape.options)):
            bound = self.promises.touching(request.shape.options[index], binding)
            why = self._known_refusal(request, index, bound)
            if why is None and not self._full_for_sure(request, index, bound):
                attempt = partial(self._allowed, gang, request, index, until, bound)
                found = largest_step(self._most_steps(request, index), attempt)
                if found is not None:
                    return index, found[0], *found[1]
            first = first or why or self._reason(request, index, bound)
        assert first is not None
        return first

    def _known_refusal(self, request: Request, index: int, bound: Bound) -> Refusal | None:
        """Why the minimum cannot start in one option, if that is known already: while a plan goes down the line and no
        hold ends, room only shrinks, so what did not fit once does not fit later."""
        if not self.ledger.charged.allows(request.queue, request.least[index]):
            return refusal("QuotaExceeded", index)
        code = self._full.get((request.shape.options[index], bound))
        return None if code is None else refusal(code, index)

    def _full_for_sure(self, request: Request, index: int, bound: Bound) -> bool:
        """Tell whether a look at the counts of its one kind of pod is enough to see that there is no room."""
        option = request.shape.options[index]
        alike = len(option.spots) == 1 and len(option.spots[0].pods) == 1
        return alike and not fits(self.facts.table, option, request.shape.least, self.promises.view(bound))

    def _reason(self, request: Request, index: int, bound: Bound) -> Refusal:
        """Why the minimum cannot start in one option that quota allows."""
        option, sizes = request.shape.options[index], request.shape.least
        if fits(self.facts.table, option, sizes, self.promises.view(bound)):
            return refusal("Reserved", index)  # quota is: that is the gang's own matter, not the shape's
        code: WaitCode = "Reserved"
        if not bound or not fits(self.facts.table, option, sizes, self.ledger.now):
            code = "TopologyNoRoom" if any(spot.required is not None for spot in option.spots) else "NoRoom"
        self._full[option, bound] = code
        return refusal(code, index)

    def _allowed(
        self, gang: Gang, request: Request, index: int, until: float, bound: Bound, step: int
    ) -> tuple[Fit, Amounts] | None:
        option, sizes = request.shape.options[index], request.shape.sizes(step)
        amounts = request.amounts(index, sizes)
        if not self.ledger.charged.allows(request.queue, amounts):
            return None
        place = fit(self.facts.table, option, sizes, self.promises.view(bound))
        if place is None:
            return None
        now, tie = self.facts.snapshot.now, tie_of(gang.uid)
        taken = Departure(gang.uid, until, now, tie, place.load, request.queue, amounts)
        return (place, amounts) if self.promises.allow(taken) else None

    def _most_steps(self, request: Request, index: int) -> int:
        """How much above its minimum a gang may be in its turn: within its guarantee. More comes at the end, for
        borrowed extras would have to be given back to those who are entitled and come later in the line."""
        shape = request.shape
        if not shape.steps or not self.policy.grows:
            return shape.steps
        charges, queue = self.ledger.charged, request.queue
        found = largest_step(
            shape.steps, lambda step: charges.guarantees(queue, request.amounts(index, shape.sizes(step))) or None
        )
        return 0 if found is None else found[0]

    def _freed(self, gang: Gang, request: Request, binding: Bound) -> Freed | None:
        """Whom to ask to leave, if the gang is entitled to and that is enough for it to start."""
        key = (request, gang.priority)
        if key in self._helpless or not self.evictions.may_ask(gang, request):
            return None
        self._helpless.add(key)
        for option, least in zip(request.shape.options, request.least, strict=True):
            if self.ledger.staying.allows(request.queue, least) and self._fits_later(request, option, binding):
                return None  # it fits once those who are leaving have left: nobody else has to
        freed = self.evictions.room_for(gang, request)
        if freed is not None:
            self._helpless.clear()
        return freed

    def _fits_later(self, request: Request, option: Option, binding: Bound) -> bool:
        """Tell whether the minimum fits once those who are leaving have left."""
        bound, version = self.promises.touching(option, binding), self.ledger.version
        known = self._later.get((option, bound))
        if known is None or known[0] != version:
            view = self.promises.view(bound, later=True)
            known = version, fits(self.facts.table, option, request.shape.least, view)
            self._later[option, bound] = known
        return known[1]

    # -- 6

    def let_elastic_gangs_grow(self) -> None:
        """Elastic gangs take what no waiting gang has a better right to: those that start, then those that run."""
        if not self.policy.grows:
            return
        wanted = Wanted(self.facts, self.ledger, self.acts.refusals)
        for start in [start for start in self.acts.starts.values() if start.step < start.request.shape.steps]:
            queue, flavors = start.request.queue, start.request.shape.options[start.option].flavors
            if not wanted.by_others(queue, flavors):
                self.ledger.give(start.taken)
                option, binding = start.request.shape.options[start.option], self.promises.binding(start.taken.by)
                bound = self.promises.touching(option, binding)
                attempt = partial(self._allowed, start.gang, start.request, start.option, start.taken.by, bound)
                found = largest_step(start.request.shape.steps, attempt)
                if found is not None and found[0] > start.step:
                    self.acts.restart_at(start, found[0], *found[1])
                else:
                    self.ledger.take(start.taken)
        for growth in growing(self.facts, self.ledger, self.promises, wanted, self.acts.victims.asked):
            self.acts.grow(growth)

    # -- 7

    def decisions(self) -> tuple[Decision, ...]:
        """Everything that was decided, in the order to carry it out."""
        refusals = self.acts.refusals
        expected = estimates(self.facts, self.ledger, self.promises, refusals)
        return (*self.acts.decisions(), *waits(self.facts, self.ledger, refusals, expected))
