"""Gangs that cannot start even if everybody else left, and the word for why a gang waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from muster.model import Gang, WaitCode
from muster.quota import QueueTree
from muster.scheduling.fit import fits
from muster.scheduling.room import Room
from muster.scheduling.shape import Request, Shape
from muster.scheduling.wording import Wording


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
    """Which requests can never start, with the sentence that says so; found out once for each, as long as nodes and
    queues are the same."""

    words: Wording
    ideal: Room  # with nobody of ours on the nodes, and all of them up; `words.bare` where there are no other pods
    _known: dict[Request, Refusal | None] = field(default_factory=dict)
    _fitting: dict[Shape, tuple[int, ...]] = field(default_factory=dict)  # options that the empty cluster holds
    _foreign: set[Request] = field(default_factory=set)  # what only pods that are not ours keep out

    def of(self, request: Request) -> Refusal | None:
        """Why gangs with this request cannot start even if everybody else left; None if they can."""
        if request not in self._known:
            self._known[request] = self._find(request)
        return self._known[request]

    def is_foreign(self, request: Request) -> bool:
        """Whether gangs with this request would fit if pods that are not ours left, and not before."""
        return request in self._foreign

    def _find(self, request: Request) -> Refusal | None:
        if request.trouble is not None:
            return Refusal(request.trouble[0], text=request.trouble[1])
        shape = request.shape
        if shape not in self._fitting:
            self._fitting[shape] = self._held(shape, self.ideal)
        options = self._fitting[shape]
        if self._allowed(request, options):
            return None
        if self.words.bare is not self.ideal:
            options = self._held(shape, self.words.bare)
            allowed = self._allowed(request, options)
            if allowed:
                self._foreign.add(request)
                inside = any(spot.required is not None for spot in shape.options[allowed[0]].spots)
                return refusal("TopologyNoRoom" if inside else "NoRoom", allowed[0])
        if not options:
            return Refusal("LargerThanCluster", text=self.words.too_large(shape))
        return Refusal("LargerThanQuota", options[0], self.words.too_much(request, options[0]))

    def _held(self, shape: Shape, room: Room) -> tuple[int, ...]:
        """The options that a room holds."""
        held = (fits(self.words.table, option, shape.least, room) for option in shape.options)
        return tuple(index for index, fit in enumerate(held) if fit)

    def _allowed(self, request: Request, options: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the options that the queue could ever pay for."""
        return tuple(index for index in options if self.words.empty.allows(request.queue, request.least[index]))


def too_high(tree: QueueTree, gang: Gang, request: Request) -> Refusal | None:
    """A priority above the cap of its queue, or of one above it."""
    cap = tree.caps[request.queue] if request.queue >= 0 else None
    if cap is None or gang.priority <= cap:
        return None
    return Refusal("PriorityTooHigh", text=f"has priority {gang.priority}; queue {gang.queue} allows at most {cap}")
