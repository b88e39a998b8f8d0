"""Who holds capacity that no admitted gang uses: gangs whose last pods have not ended, and nominations.

Such capacity looks free to a user. So the message of each gang that waits for capacity or quota names its holders, and
what they wait for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.model import Gang, Placement
from muster.scheduling.feasibility import format_amount
from muster.scheduling.planner_cache import PlannerCache

_MAX_NAMED = 2


@dataclass(frozen=True, slots=True)
class Holders:
    """Sentences about holders of flavors, cached."""

    cache: PlannerCache
    _clauses: dict[tuple[tuple[str, ...], str], str] = field(default_factory=dict)

    def clause(self, flavors: tuple[str, ...], resource: str) -> str:
        """`; job team/a holds 4 GPUs until pod a-trainer-0-1a2b3 on n1 has ended; 8 GPUs are nominated for job team/b`;
        "" if there is no holder."""
        key = flavors, resource
        if key not in self._clauses:
            self._clauses[key] = self._make_clause(frozenset(flavors), resource)
        return self._clauses[key]

    def _make_clause(self, flavors: frozenset[str], resource: str) -> str:
        found: list[tuple[int, str, str]] = []  # amount, name, sentence
        for usage in self.cache.running.values():
            running = usage.running
            if usage.is_admitted or not running.waits_for:
                continue
            amount = _amount(running.gang, running.placement, flavors, resource)
            held = format_amount(resource, amount)
            found.append(
                (-amount, running.gang.name, f"job {running.gang.name} holds {held} until {running.waits_for}")
            )
        for active in self.cache.nominations:
            amount = _amount(active.gang, active.nomination.placement, flavors, resource)
            verb = "is" if amount == 1 else "are"
            sentence = f"{format_amount(resource, amount)} {verb} nominated for job {active.gang.name}"
            found.append((-amount, active.gang.name, sentence))
        named = [sentence for amount, _, sentence in sorted(found) if amount]
        more = f"; {len(named) - _MAX_NAMED} more jobs hold some" if len(named) > _MAX_NAMED else ""
        return "".join(f"; {sentence}" for sentence in named[:_MAX_NAMED]) + more


def _amount(gang: Gang, placement: Placement, flavors: frozenset[str], resource: str) -> int:
    request_of = {role.name: role.request.get(resource) for role in gang.roles}
    return sum(request_of.get(part.role, 0) * part.replicas for part in placement if part.flavor in flavors)
