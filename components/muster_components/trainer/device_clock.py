"""Step times of a script on the GPU, measured without waiting for the GPU.

A script that reads its loss every ten steps launches nine steps ahead, and the CPU only sees how long launching took.
So a CUDA event is recorded at the end of each step on the script's stream, and the metrics of a step are written once
the GPU has reached the event. Errors must not stop training: after the first CUDA error, CPU times are used for the
rest of the run.
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
"""Maximum number of launched steps whose metrics are not written yet; above it, the oldest is waited for."""

DRAIN_TIMEOUT_S: Final = 5.0
"""Time to wait for the last steps: a collective whose other ranks have ended never completes."""


class GpuEvent(Protocol):
    """A recorded GPU event with the methods of `torch.cuda.Event`. All raise RuntimeError if CUDA fails."""

    def query(self) -> bool:
        """Whether the GPU has reached the event."""
        ...

    def synchronize(self) -> None:
        """Wait until the GPU has reached the event."""
        ...

    def elapsed_time(self, end_event: Self, /) -> float:
        """Milliseconds from this event to `end_event`."""
        ...


def record_gpu_event(optimizer: Any) -> GpuEvent | None:
    """Record an event after all work launched so far on the GPU of the optimizer's parameters.

    None if they are not on a GPU. Raises RuntimeError, also while a graph is captured, which an event would break.
    """
    torch = sys.modules.get("torch")  # imported, since there is an optimizer
    if torch is None or not torch.cuda.is_initialized():
        return None
    parameter = next((p for group in optimizer.param_groups for p in group["params"]), None)
    if parameter is None or not parameter.is_cuda:
        return None
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a graph is being captured")
    # On the device of the parameters, which may not be the current device.
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(parameter.device))
    return cast(GpuEvent, event)


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A launched step. `metrics` have the CPU's time, which is used if an event is missing."""

    metrics: StepMetrics
    start_event: GpuEvent | None
    end_event: GpuEvent | None

    @property
    def events(self) -> tuple[GpuEvent, ...]:
        """The events that the GPU must reach before the device time is known."""
        return tuple(event for event in (self.start_event, self.end_event) if event is not None)

    def with_device_time(self) -> StepMetrics:
        """The metrics with the GPU's time. Raises RuntimeError, for example for events of two devices."""
        if self.start_event is None or self.end_event is None:
            return self.metrics
        # Negative if start and end are on different streams.
        return replace(self.metrics, step_time_s=max(self.start_event.elapsed_time(self.end_event) / 1000, 0.0))


class DeviceClock:
    """Takes the metrics of launched steps and returns them, in order, when the steps have ended on the GPU."""

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
        self._step_start: GpuEvent | None = None  # of the current step
        self._pending: deque[PendingStep] = deque()

    def step_launched(self, optimizer: object, metrics: StepMetrics) -> list[StepMetrics]:
        """Add a launched step; returns the metrics of all steps that have ended."""
        step_start = self._step_start
        self.restart_step(optimizer)
        if not self._usable:
            return [*self._drain_with_cpu_time(), metrics]
        self._pending.append(PendingStep(metrics, step_start, self._step_start))
        return self._completed(wait=len(self._pending) > MAX_PENDING_STEPS)

    def restart_step(self, optimizer: object) -> None:
        """Start the current step now, so that work since the end of the last step does not count."""
        self._disable_after_fork()
        try:
            self._step_start = self._record_event(optimizer) if self._usable else None
        except Exception:  # the script may have replaced anything
            self._usable = False

    def drain(self) -> list[StepMetrics]:
        """The metrics of all remaining steps, at the end of the script."""
        self._disable_after_fork()
        metrics, deadline_s = self._completed(), self._now_s() + DRAIN_TIMEOUT_S
        while self._pending and self._now_s() < deadline_s:
            self._sleep()
            metrics += self._completed()
        return metrics + self._drain_with_cpu_time()

    def _completed(self, *, wait: bool = False) -> list[StepMetrics]:
        """The metrics of steps that have ended, oldest first; `wait`: wait for the oldest."""
        completed: list[StepMetrics] = []
        try:
            while self._usable and self._pending:
                oldest = self._pending[0]
                for event in oldest.events if wait else ():
                    event.synchronize()
                if not all(event.query() for event in oldest.events):
                    return completed
                completed.append(oldest.with_device_time())
                self._pending.popleft()
                wait = False
        except Exception:  # the script may have replaced anything
            self._usable = False
        return completed if self._usable else completed + self._drain_with_cpu_time()

    def _drain_with_cpu_time(self) -> list[StepMetrics]:
        """The metrics of all pending steps, with the CPU's time."""
        metrics = [step.metrics for step in self._pending]
        self._pending.clear()
        return metrics

    def _disable_after_fork(self) -> None:
        """CUDA cannot be used in a forked child, and the pending steps belong to its parent."""
        if self._process_id() != self._owner_pid:
            self._usable = False
            self._pending.clear()
