"""Gangs that cannot start even if everybody else left, and the word for why a gang waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from muster.model import Gang, WaitCode
from muster.quota import Charges, QueueTree
from muster.scheduling.fit import fits
from muster.scheduling.nodes import NodeTable
from muster.scheduling.room import Room
from muster.scheduling.shape import Request, Shape


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a gang waits: a code, the option that its sentence is about, and the sentence if it is known already."""

    code: WaitCode
    option: int = 0
    text: str = ""


@cache
def refusal(code: WaitCode, option: int = 0) -> Refusal:
    """A refusal whose sentence is made at the end."""
    return Refusal(code, option)


@dataclass(slots=True)
class Verdicts:
    """Which requests can never start; found out once for each, as long as nodes and queues are the same."""

    table: NodeTable
    tree: QueueTree
    ideal: Room
    empty: Charges  # with nobody charged
    _known: dict[Request, Refusal | None] = field(default_factory=dict)
    _fitting: dict[Shape, tuple[int, ...]] = field(default_factory=dict)  # options that the empty cluster holds

    def of(self, request: Request) -> Refusal | None:
        """Why gangs with this request cannot start even if everybody else left; None if they can."""
        if request not in self._known:
            self._known[request] = self._find(request)
        return self._known[request]

    def _find(self, request: Request) -> Refusal | None:
        if request.trouble is not None:
            return Refusal(request.trouble[0], text=request.trouble[1])
        shape = request.shape
        if shape not in self._fitting:
            held = (fits(self.table, option, shape.least, self.ideal) for option in shape.options)
            self._fitting[shape] = tuple(index for index, fit in enumerate(held) if fit)
        options = self._fitting[shape]
        if not options:
            return refusal("LargerThanCluster")
        if not any(self.empty.allows(request.queue, request.least[index]) for index in options):
            return refusal("LargerThanQuota", options[0])
        return None


def too_high(tree: QueueTree, gang: Gang, request: Request) -> Refusal | None:
    """A priority above the cap of its queue, or of one above it."""
    cap = tree.caps[request.queue] if request.queue >= 0 else None
    if cap is None or gang.priority <= cap:
        return None
    return Refusal("PriorityTooHigh", text=f"has priority {gang.priority}; queue {gang.queue} allows at most {cap}")
