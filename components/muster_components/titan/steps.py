"""What a rank of TorchTitan reports of its steps: heartbeats, metrics, and traces of selected steps. Steps are global:
they go on where a checkpoint was saved."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from muster_components.trainer.capture import CaptureInbox
from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import RunContext
from muster_components.trainer.profile import ProfilerTransition, StepTracer
from muster_components.trainer.progress import StepTimer
from muster_components.trainer.reporter import Phase, RankHeartbeat, Reporter, StepMetrics, TraceWindow

MAX_LOSS: Final = 1e300


@dataclass(frozen=True, slots=True)
class RunShape:
    """`steps`: the last one. `tokens`: of a step of all ranks. `flops`: of a step, divided by the peak FLOP/s of all
    devices; None if that is unknown."""

    steps: int
    tokens: int
    flops: float | None = None

    def mfu(self, step_time_s: float | None) -> float | None:
        """Model FLOPs utilization of a step of so many seconds."""
        return None if self.flops is None or not step_time_s else self.flops / step_time_s

    def tokens_per_s(self, step_time_s: float | None) -> float | None:
        """Tokens per second of all ranks."""
        return self.tokens / step_time_s if step_time_s else None


class StepObserver:
    """The steps of one attempt. Before each step call `begin`, after it `end`; `finish` at the end of the run."""

    def __init__(self, context: RunContext, trace: TraceConfig, reporter: Reporter, shape: RunShape) -> None:
        self._context = context
        self._reporter = reporter
        self._shape = shape
        self._window = TraceWindow(trace, context, reporter)
        inbox = CaptureInbox(context, reporter) if context.accepts_captures else None
        self._tracer = StepTracer(trace, context, reporter, inbox)
        self._timer: StepTimer | None = None
        self._tracing_s: dict[ProfilerTransition, float] = {}
        self._first = 1
        self._step = 0
        self._loss: float | None = None

    def resume(self, step: int) -> None:
        """The attempt continues after this step, 0 if it begins anew."""
        self._first, self._step = step + 1, step
        self._window.announce(self._first, self._shape.steps)
        self._timer = StepTimer(time.perf_counter())
        self.write_heartbeat("setup")

    def begin(self, step: int) -> None:
        """`step` is about to start."""
        assert self._timer is not None
        transition, started_s = self._tracer.next_transition(step), time.perf_counter()
        self._tracer.begin_step(step)
        ended_s = time.perf_counter()
        self._tracing_s = {} if transition is None else {transition: ended_s - started_s}
        if transition is not None:
            self._timer.exclude(started_s, ended_s)

    def end(self, step: int, ended_s: float, loss: float | None) -> None:
        """`step` ended at `ended_s` (perf_counter); what followed until now, such as a checkpoint, is not part of a
        step. `loss`: if it is known of this step."""
        assert self._timer is not None
        step_time_s = self._timer.step_ended(ended_s)
        self._timer.exclude(ended_s, time.perf_counter())
        self._step = step
        self._loss = self._loss if loss is None else loss
        self._reporter.write_metrics(
            StepMetrics(
                step=step,
                step_time_s=step_time_s,
                loss=loss,
                tokens=self._shape.tokens,
                tokens_per_s=self._shape.tokens_per_s(step_time_s),
                mfu=self._shape.mfu(step_time_s),
                trace_start_s=self._tracing_s.get("start"),
                trace_write_s=self._tracing_s.get("write"),
            )
        )
        self.write_heartbeat("train")

    def out_of_memory(self) -> None:
        """The GPU has no memory left in the present step."""
        self._tracer.save_snapshot(self._step + 1)

    def finish(self, *, done: bool) -> None:
        """The run has ended after the last step that was reported; `done`: it is not to go on."""
        self._tracer.close(self._step)
        self._window.finish(self._first, self._step, self._shape.steps)
        self.write_heartbeat("done" if done else "checkpoint")

    def write_heartbeat(self, phase: Phase) -> None:
        """Write the newest values with this phase."""
        shape, median_s = self._shape, None if self._timer is None else self._timer.median_s()
        self._reporter.write_heartbeat(
            RankHeartbeat(
                rank=self._context.rank,
                world_size=self._context.world_size,
                attempt=self._context.attempt,
                step=self._step,
                steps=shape.steps,
                loss=self._loss,
                tokens_per_s=shape.tokens_per_s(median_s),
                step_time_s=median_s,
                eta_s=None if median_s is None else median_s * max(0, shape.steps - self._step),
                mfu=shape.mfu(median_s),
                phase=phase,
            )
        )
