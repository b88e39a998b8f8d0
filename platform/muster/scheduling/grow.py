"""Elastic gangs that run below their full size take up room that nobody who waits could use.

Growing costs the gang a checkpoint and a restart, so it happens at most every ten minutes; and never into room that
would have to be given back at once: of a flavor that a gang within its guarantee waits for, or one of the same leaf.
Reserved room is left alone as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from muster.model import GROWTH_REST_S
from muster.quota import Amounts
from muster.scheduling.backfill import Promises
from muster.scheduling.departures import Departure
from muster.scheduling.fit import Fit, fit
from muster.scheduling.holds import kept_pods
from muster.scheduling.ledger import Ledger
from muster.scheduling.memo import Memo, Stay
from muster.scheduling.refuse import Refusal
from muster.scheduling.shape import Request, largest_step


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """A running gang at a new size."""

    stay: Stay
    request: Request
    option: int
    fit: Fit  # the whole gang's places, the load of the new pods only
    more: Departure  # what it takes in addition


@dataclass(slots=True)
class Wanted:
    """Room that somebody waits for who could take it back from an elastic gang; found out when first asked."""

    facts: Memo
    ledger: Ledger
    refusals: Mapping[str, Refusal]
    _flavors: set[str] | None = None  # that gangs within a guarantee wait for
    _in_queue: set[tuple[int, str]] = field(default_factory=set)  # (queue, flavor) that gangs of that leaf wait for

    def by_others(self, queue: int, flavors: Iterable[str]) -> bool:
        """Tell whether a gang of this queue should not take more of these flavors than it is entitled to."""
        if self._flavors is None:
            self._flavors = self._find()
        return any(flavor in self._flavors or (queue, flavor) in self._in_queue for flavor in flavors)

    def _find(self) -> set[str]:
        flavors: set[str] = set()
        codes = ("NoRoom", "TopologyNoRoom", "Reserved")
        for request in {self.facts.requests[uid].request for uid, why in self.refusals.items() if why.code in codes}:
            for option, least in zip(request.shape.options, request.least, strict=True):
                self._in_queue.update((request.queue, flavor) for flavor in option.flavors)
                path = self.facts.tree.path[request.queue]
                if any(self.ledger.staying.guarantees(q, least) for q in path[:-1]):
                    flavors.update(option.flavors)
            if len(flavors) == len(self.facts.table.flavors):
                break
        return flavors


def growing(facts: Memo, ledger: Ledger, promises: Promises, wanted: Wanted, safe: Collection[str]) -> Iterator[Growth]:
    """One growth after the other; the caller takes the room of each before it asks for the next.

    `safe` are uids that have been asked to leave or shrink.
    """
    candidates = [
        stay
        for uid, stay in facts.stays.items()
        if stay.elastic
        and stay.settled
        and uid not in safe
        and uid not in facts.requests
        and stay.queue >= 0
        and facts.snapshot.now - _changed_at(stay) >= GROWTH_REST_S
        and not wanted.by_others(stay.queue, {part.flavor for part in stay.running.placement})
    ]
    for stay in sorted(candidates, key=lambda stay: (_changed_at(stay), stay.running.gang.uid)):
        growth = _growth(facts, ledger, promises, stay)
        if growth is not None:
            yield growth


def _changed_at(stay: Stay) -> float:
    resized_at = stay.running.resized_at
    return stay.running.admitted_at if resized_at is None else max(resized_at, stay.running.admitted_at)


def _growth(facts: Memo, ledger: Ledger, promises: Promises, stay: Stay) -> Growth | None:
    gang = stay.running.gang
    request = facts.shapes.request(gang)
    shape = request.shape
    kept = kept_pods(facts, gang, stay.running.placement)
    now = tuple(kept[role].pods if role in kept else 0 for role in range(len(gang.roles)))
    if request.trouble is not None or sum(now) != sum(part.replicas for part in stay.running.placement):
        return None  # its queue admits nothing, or one of its nodes is gone
    flavor_of = {part.role: part.flavor for part in stay.running.placement}
    flavors = tuple(flavor_of.get(role.name, "") for role in gang.roles)
    option = next((i for i, option in enumerate(shape.options) if option.flavors == flavors), None)
    step = sum(now) - sum(shape.least)
    if option is None or step >= shape.steps or shape.sizes(max(0, step)) != now:
        return None
    later = stay.later
    assert later is not None
    bound = promises.touching(shape.options[option], promises.binding(later.by))

    def grown(more: int) -> Growth | None:
        sizes = shape.sizes(step + more)
        amounts = _difference(request.amounts(option, sizes), stay.amounts)
        if not ledger.charged.allows(stay.queue, amounts):
            return None
        view = promises.view(bound)
        place = fit(facts.table, shape.options[option], sizes, view, kept)
        if place is None:
            return None
        taken = replace(later, load=place.load, amounts=amounts)
        return Growth(stay, request, option, place, taken) if promises.allow(taken) else None

    found = largest_step(shape.steps - step, grown)
    return None if found is None or found[0] == 0 else found[1]


def _difference(new: Amounts, old: Amounts) -> Amounts:
    before = dict(old)
    return tuple((cell, amount - before.get(cell, 0)) for cell, amount in new)
