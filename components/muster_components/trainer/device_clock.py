"""The time of a script's steps on the GPU, read without waiting for it.

A script that reads its loss every tenth step launches nine steps ahead meanwhile, and the CPU sees of them only how
long it took to launch them. So an event is recorded where a step ends, on the stream that the script computes on, and a
step is told once the GPU has got there. Nothing of this may stop a training: after the first error of CUDA the time
that the CPU sees counts, for good.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self, cast

from muster_components.trainer.beats import Metrics

MOST_AHEAD: Final = 1000
"""So many steps may be launched and not told yet; before the next one the oldest is waited for."""

LAST_WAIT_S: Final = 5.0
"""How long the last steps are waited for: a collective that the other ranks have left never ends."""


class Event(Protocol):
    """A moment on the GPU, recorded, as `torch.cuda.Event` has it. All raise RuntimeError where CUDA fails."""

    def query(self) -> bool:
        """Whether the GPU has got there."""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...

    def elapsed_time(self, end_event: Self, /) -> float:
        """Milliseconds from here to `end_event`."""
        ...


def event_now(optimizer: Any) -> Event | None:
    """Where the GPU of the optimizer's parameters will be when it has done all that was launched up to now.

    None if they are not on a GPU. Raises RuntimeError, also while a graph is captured, which an event would spoil.
    """
    torch = sys.modules.get("torch")  # whoever has an optimizer has imported it
    if torch is None or not torch.cuda.is_initialized():
        return None
    parameter = next((p for group in optimizer.param_groups for p in group["params"]), None)
    if parameter is None or not parameter.is_cuda:
        return None
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a graph is being captured")
    # Of that device: the current one may be another, where an event would take up memory and tell nothing.
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(parameter.device))
    return cast(Event, event)


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that is not told yet; the time in its `line` is the CPU's, and counts where an event is missing."""

    line: Metrics
    began: Event | None
    ended: Event | None

    @property
    def events(self) -> tuple[Event, ...]:
        """What has to happen before the step can be told."""
        return tuple(event for event in (self.began, self.ended) if event is not None)

    def timed(self) -> Metrics:
        """The line, with the GPU's time. Raises RuntimeError, as for events of two devices."""
        if self.began is None or self.ended is None:
            return self.line
        # Of two streams the one that began the step may be behind.
        return replace(self.line, step_time_s=max(self.began.elapsed_time(self.ended) / 1000, 0.0))


class DeviceClock:
    """Takes the lines of steps as they are launched and returns them, in order, as the steps end."""

    def __init__(
        self,
        event: Callable[[Any], Event | None] = event_now,
        process: Callable[[], int] = os.getpid,
        pause: Callable[[], None] = lambda: time.sleep(0.001),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._event, self._process, self._pause, self._now_s = event, process, pause, now_s
        self._owner = process()
        self._usable = True
        self._began: Event | None = None  # of the step that is under way
        self._ahead: deque[Launched] = deque()

    def launched(self, optimizer: object, line: Metrics) -> list[Metrics]:
        """The optimizer has launched the step of `line`; the lines of all that have ended by now."""
        began = self._began
        self.resume(optimizer)
        if not self._usable:
            return [*self._given_up(), line]
        self._ahead.append(Launched(line, began, self._began))
        return self._ended(wait=len(self._ahead) > MOST_AHEAD)

    def resume(self, optimizer: object) -> None:
        """What was done since the last step ended is no part of the next one, which begins here."""
        self._mind_a_fork()
        try:
            self._began = self._event(optimizer) if self._usable else None
        except Exception:  # whatever a script does with its optimizers
            self._usable = False

    def last(self) -> list[Metrics]:
        """The script has ended: all lines that are left."""
        self._mind_a_fork()
        lines, until_s = self._ended(), self._now_s() + LAST_WAIT_S
        while self._ahead and self._now_s() < until_s:
            self._pause()
            lines += self._ended()
        return lines + self._given_up()

    def _ended(self, *, wait: bool = False) -> list[Metrics]:
        """From the oldest on, as far as they have ended; with `wait` the oldest in any case."""
        lines: list[Metrics] = []
        try:
            while self._usable and self._ahead:
                oldest = self._ahead[0]
                for event in oldest.events if wait else ():
                    event.synchronize()
                if not all(event.query() for event in oldest.events):
                    return lines
                lines.append(oldest.timed())
                self._ahead.popleft()
                wait = False
        except Exception:  # whatever a script does with its optimizers
            self._usable = False
        return lines if self._usable else lines + self._given_up()

    def _given_up(self) -> list[Metrics]:
        """What is left, as the CPU saw it."""
        lines = [step.line for step in self._ahead]
        self._ahead.clear()
        return lines

    def _mind_a_fork(self) -> None:
        """In a fork's child CUDA cannot be used, and the steps that were launched are its parent's to tell."""
        if self._process() != self._owner:
            self._usable = False
            self._ahead.clear()
