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

from muster_components.trainer.reporter import StepMetrics

MAX_PENDING_STEPS: Final = 1000
"""So many steps may be launched and not told yet; before the next one the oldest is waited for."""

DRAIN_TIMEOUT_S: Final = 5.0
"""How long the last steps are waited for: a collective that the other ranks have left never ends."""


class GpuEvent(Protocol):
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


def record_gpu_event(optimizer: Any) -> GpuEvent | None:
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
    return cast(GpuEvent, event)


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step that is not told yet; the time in its `line` is the CPU's, and counts where an event is missing."""

    metrics: StepMetrics
    start_event: GpuEvent | None
    end_event: GpuEvent | None

    @property
    def events(self) -> tuple[GpuEvent, ...]:
        """What has to happen before the step can be told."""
        return tuple(event for event in (self.start_event, self.end_event) if event is not None)

    def with_device_time(self) -> StepMetrics:
        """The line, with the GPU's time. Raises RuntimeError, as for events of two devices."""
        if self.start_event is None or self.end_event is None:
            return self.metrics
        # Of two streams the one that began the step may be behind.
        return replace(self.metrics, step_time_s=max(self.start_event.elapsed_time(self.end_event) / 1000, 0.0))


class DeviceClock:
    """Takes the lines of steps as they are launched and returns them, in order, as the steps end."""

    def __init__(
        self,
        record_event: Callable[[Any], GpuEvent | None] = record_gpu_event,
        process_id: Callable[[], int] = os.getpid,
        sleep: Callable[[], None] = lambda: time.sleep(0.001),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._record_event, self._process_id, self._sleep, self._now_s = record_event, process_id, sleep, now_s
        self._owner_pid = process_id()
        self._usable = True
        self._step_start: GpuEvent | None = None  # of the step that is under way
        self._pending: deque[PendingStep] = deque()

    def step_launched(self, optimizer: object, metrics: StepMetrics) -> list[StepMetrics]:
        """The optimizer has launched the step of `line`; the lines of all that have ended by now."""
        began = self._step_start
        self.restart_step(optimizer)
        if not self._usable:
            return [*self._drain_with_cpu_time(), metrics]
        self._pending.append(PendingStep(metrics, began, self._step_start))
        return self._completed(wait=len(self._pending) > MAX_PENDING_STEPS)

    def restart_step(self, optimizer: object) -> None:
        """What was done since the last step ended is no part of the next one, which begins here."""
        self._disable_after_fork()
        try:
            self._step_start = self._record_event(optimizer) if self._usable else None
        except Exception:  # whatever a script does with its optimizers
            self._usable = False

    def drain(self) -> list[StepMetrics]:
        """The script has ended: all lines that are left."""
        self._disable_after_fork()
        lines, until_s = self._completed(), self._now_s() + DRAIN_TIMEOUT_S
        while self._pending and self._now_s() < until_s:
            self._sleep()
            lines += self._completed()
        return lines + self._drain_with_cpu_time()

    def _completed(self, *, wait: bool = False) -> list[StepMetrics]:
        """From the oldest on, as far as they have ended; with `wait` the oldest in any case."""
        lines: list[StepMetrics] = []
        try:
            while self._usable and self._pending:
                oldest = self._pending[0]
                for event in oldest.events if wait else ():
                    event.synchronize()
                if not all(event.query() for event in oldest.events):
                    return lines
                lines.append(oldest.with_device_time())
                self._pending.popleft()
                wait = False
        except Exception:  # whatever a script does with its optimizers
            self._usable = False
        return lines if self._usable else lines + self._drain_with_cpu_time()

    def _drain_with_cpu_time(self) -> list[StepMetrics]:
        """What is left, as the CPU saw it."""
        lines = [step.metrics for step in self._pending]
        self._pending.clear()
        return lines

    def _disable_after_fork(self) -> None:
        """In a fork's child CUDA cannot be used, and the steps that were launched are its parent's to tell."""
        if self._process_id() != self._owner_pid:
            self._usable = False
            self._pending.clear()
