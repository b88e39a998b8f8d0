"""Counts the optimizer steps of an unmodified script, writes heartbeats, and traces configured and requested steps.

torch calls a global hook after every step of every optimizer. The steps of the first optimizer count (a GAN has two);
if it is deleted, those of the next one. The hook is installed when the script imports `torch.optim`, not before, so
that settings that the script makes before importing torch (threads, devices) remain effective.

Steps count from 1, or from that of a framework's checkpoint (framework_stops.py). The hook runs at the end of a step,
so tracing can start with the second step of an attempt at the earliest. On a GPU the step may not have run yet: its
metrics are written when it has ended there, by a later hook or at the end.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from muster_components.trainer.capture import CaptureInbox
from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import RunContext
from muster_components.trainer.device_clock import DeviceClock
from muster_components.trainer.import_hook import when_imported
from muster_components.trainer.reporter import Phase, RankHeartbeat, Reporter, StepMetrics, TraceWindow
from muster_components.trainer.time_slices import TimeSlices

if TYPE_CHECKING:
    from muster_components.trainer.profile import ProfilerTransition, StepTracer

OPTIMIZER_MODULE: Final = "torch.optim.optimizer"
FIRST_TRACEABLE_STEP: Final = 2
"""The first step that can be recorded: torch's hook runs at the end of a step."""


class OptimizerWatcher:
    """Counts the optimizer steps of the script, writes heartbeats and metrics, and traces steps."""

    def __init__(
        self, context: RunContext, trace: TraceConfig, reporter: Reporter, clock: DeviceClock | None = None
    ) -> None:
        self._context = context
        self._trace = trace
        self._reporter = reporter
        self._window = TraceWindow(trace, context, reporter)
        self._inbox = CaptureInbox(context, reporter) if context.accepts_captures else None
        self._clock = clock or DeviceClock()
        self._counted_optimizer: weakref.ref[object] | None = None
        self._tracer: StepTracer | None = None
        self._step_ended_at = time.perf_counter()
        self._step = 0
        self._first_step = FIRST_TRACEABLE_STEP
        self._has_stepped = False
        self._step_time_s: float | None = None  # of the newest step that is known to have ended
        self._tracing_s: dict[ProfilerTransition, float] = {}  # before the current step
        self.slices = TimeSlices(self._slice_tracer, self._report_slice) if self._inbox is not None else None

    def on_start(self) -> None:
        """Call before the script runs."""
        self._window.announce(FIRST_TRACEABLE_STEP)
        self._write_heartbeat("setup")
        if self.slices is not None:
            self.slices.start()

    def continue_after(self, step: int) -> None:
        """The framework goes on from a checkpoint of this step. Without effect after the first step of this attempt."""
        if self._has_stepped or step <= 0:
            return
        self._step, self._first_step = step, step + FIRST_TRACEABLE_STEP
        self._window.announce(self._first_step)

    def on_optimizer_step(self, optimizer: object, *_arguments: Any) -> None:
        """torch's hook after a step of an optimizer."""
        counting = None if self._counted_optimizer is None else self._counted_optimizer()
        if counting is None:
            self._counted_optimizer = weakref.ref(optimizer)
        elif counting is not optimizer:
            return
        now = time.perf_counter()
        # The time to the first step is set-up and compilation, not a step time.
        cpu_s = now - self._step_ended_at if self._has_stepped else None
        self._step += 1
        self._has_stepped = True
        metrics = StepMetrics(
            step=self._step,
            step_time_s=cpu_s,
            trace_start_s=self._tracing_s.get("start"),
            trace_write_s=self._tracing_s.get("write"),
        )
        self._write_metrics(self._clock.step_launched(optimizer, metrics))
        self._write_heartbeat("train")
        self._tracing_s = self._trace_next()
        if self._tracing_s:
            self._clock.restart_step(optimizer)
        self._step_ended_at = time.perf_counter()

    def on_out_of_memory(self) -> None:
        """Call if the script ends because the GPU has no memory left."""
        if self._tracer is not None:
            self._tracer.save_snapshot(self._step + 1)

    def on_finish(self) -> None:
        """Call after the script has ended."""
        if self.slices is not None:
            self.slices.stop()
        self._write_metrics(self._clock.drain())
        if self._tracer is not None:
            self._tracer.close(self._step)
        self._window.finish(self._first_step, self._step)
        self._write_heartbeat("done")
        self._reporter.flush()

    def _write_metrics(self, completed: Iterable[StepMetrics]) -> None:
        """Write the metrics of steps that have ended."""
        for metrics in completed:
            self._step_time_s = metrics.step_time_s
            self._reporter.write_metrics(metrics)

    def _trace_next(self) -> dict[ProfilerTransition, float]:
        """Begin the next step of the tracer; the duration in seconds if it started the profiler or wrote the trace."""
        if self._tracer is None:
            if self._inbox is None and not self._trace.covers(self._context.rank):
                return {}
            from muster_components.trainer.profile import StepTracer

            self._tracer = StepTracer(self._trace, self._context, self._reporter, self._inbox)
        transition, started_s = self._tracer.next_transition(self._step + 1), time.perf_counter()
        self._tracer.begin_step(self._step + 1)
        return {} if transition is None else {transition: time.perf_counter() - started_s}

    def _slice_tracer(self) -> StepTracer:
        from muster_components.trainer.profile import StepTracer

        return StepTracer(TraceConfig(), self._context, self._reporter, self._inbox, all_threads=True)

    def _report_slice(self, number: int) -> None:
        self._write_heartbeat("train" if self._reporter.has_reported_step else "setup", number)

    def _write_heartbeat(self, phase: Phase, time_slice: int | None = None) -> None:
        if not self._reporter.is_heartbeat_due(phase):
            return
        context = self._context
        self._reporter.write_heartbeat(
            RankHeartbeat(
                rank=context.rank,
                world_size=context.world_size,
                attempt=context.attempt,
                step=self._step,
                step_time_s=self._step_time_s,
                phase=phase,
                time_slice=time_slice,
            )
        )


def install_optimizer_hook(watcher: OptimizerWatcher) -> None:
    """Register the hook now if torch's optimizers are imported, else when they are."""

    def on_imported(module: Any) -> None:
        module.register_optimizer_step_post_hook(watcher.on_optimizer_step)
        if watcher.slices is not None:
            watcher.slices.watch_optimizers(module)

    when_imported(OPTIMIZER_MODULE, on_imported)
