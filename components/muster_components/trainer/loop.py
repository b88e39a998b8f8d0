"""The training loop: launch steps, read and report their results, save checkpoints, stop with all ranks.

Steps count from 1; `step 20/60` means that 20 steps have ended. A step is reported when its results are read, which on
a GPU is one step after its launch.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import FrameType

import torch

from muster_components.trainer.checkpoint import Checkpointer
from muster_components.trainer.compilation.monitor import CompileMonitor
from muster_components.trainer.context import RunContext
from muster_components.trainer.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
    DivergedError,
    TrainerError,
)
from muster_components.trainer.models.recipes import mfu, peak_flops
from muster_components.trainer.plan import TrainPlan
from muster_components.trainer.profile import ProfilerTransition, StepTracer
from muster_components.trainer.rank_failures import raise_on_all_ranks
from muster_components.trainer.reporter import (
    Phase,
    RankHeartbeat,
    Reporter,
    StepMetrics,
    TraceWindow,
    first_step_line,
    print_line,
    progress_line,
)
from muster_components.trainer.train_step import StepHandle, StepResult, TrainStep


class StopSignal:
    """Records the signal that requests this rank to stop: in the same step as all other ranks, with a checkpoint.

    A rank that ended on its own would leave the others waiting in a collective. So the handler only sets a flag, and
    the step's all-reduce sends it to all ranks: that step is the last. Before the first step of an attempt has ended
    there is nothing to save, and compilation may take longer than the grace period, so the process ends at once. A
    second SIGINT (Ctrl-C) also ends it at once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._can_checkpoint = False

    def install(self) -> None:
        """Handle SIGTERM and SIGINT from now on (main thread only)."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def first_step_done(self) -> None:
        """From now on, training stops at the end of a step instead of at once."""
        self._can_checkpoint = True

    @property
    def requested(self) -> bool:
        """Whether a signal was received."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """128 + signal; that of SIGTERM for a rank that received no signal itself."""
        return EXIT_INTERRUPTED if self.signal == signal.SIGINT else EXIT_STOPPED

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        second_interrupt = number == signal.SIGINT and self.signal == signal.SIGINT
        self.signal = number
        if second_interrupt or not self._can_checkpoint:
            if not second_interrupt:
                os.write(sys.stderr.fileno(), b"stopped by a signal before the first step: nothing to save\n")
            os._exit(128 + number)


@dataclass(frozen=True, slots=True)
class TrainState:
    """The objects that the loop uses, created by `session`."""

    plan: TrainPlan
    context: RunContext
    device: torch.device
    reporter: Reporter
    stepper: TrainStep
    checkpointer: Checkpointer
    tracer: StepTracer
    stop: StopSignal
    compilation: CompileMonitor | None
    """None: nothing is compiled."""
    tokens_per_step: int | None
    """None: samples are not made of tokens, such as images."""
    flops_per_step: int | None
    """Forward and backward FLOPs of a global batch; None if unknown."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The end of training. Losses are None if no step was left."""

    step: int
    first_loss: float | None
    last_loss: float | None
    exit_code: int


class StepTimer:
    """Step times, from end to end, without saving checkpoints, starting the profiler and writing traces.

    On a GPU, ends are device times, since the CPU reads results a step late, and two at once before a checkpoint.
    """

    def __init__(self, now_s: float) -> None:
        self._step_start_s = now_s
        self._excluded: list[tuple[float, float]] = []  # start and end, not all within reported steps yet
        self._recent: deque[float] = deque(maxlen=20)
        self._warmed_up = False

    def exclude(self, start_s: float, end_s: float) -> None:
        """Exclude this time from the steps that it is part of: those that are not reported yet."""
        self._excluded.append((start_s, end_s))

    def step_ended(self, at_s: float) -> float:
        """Seconds of the step that ended at `at_s`."""
        start_s, self._step_start_s = self._step_start_s, at_s
        excluded_s = sum(max(0.0, min(end, at_s) - max(start, start_s)) for start, end in self._excluded)
        self._excluded = [(start, end) for start, end in self._excluded if end > at_s]
        step_time_s = max(at_s - start_s - excluded_s, 1e-9)
        if self._warmed_up:
            self._recent.append(step_time_s)
        # The first step includes compilation and warm-up.
        self._warmed_up = True
        return step_time_s

    def median_s(self) -> float | None:
        """Median of the last 20 steps; None before the second step."""
        return median(self._recent) if self._recent else None


class TrainLoop:
    """One attempt at training."""

    def __init__(self, state: TrainState) -> None:
        self._plan, self._context, self._device = state.plan, state.context, state.device
        self._reporter, self._stepper, self._stop = state.reporter, state.stepper, state.stop
        self._checkpointer, self._tracer = state.checkpointer, state.tracer
        self._compilation = state.compilation
        self._timer = StepTimer(self._stepper.now_s())
        self._peak_flops = peak_flops(torch.cuda.get_device_name(self._device)) if self._device.type == "cuda" else None
        self._tokens_per_step, self._flops_per_step = state.tokens_per_step, state.flops_per_step
        self._read_lag = 1 if self._device.type == "cuda" else 0
        self._saves = state.plan.config.checkpoint.keep > 0
        self._last_step = 0
        self._stopping = False
        self._tracing_s: dict[ProfilerTransition, float] = {}  # before the next step to report
        self._first_loss: float | None = None
        self._last_heartbeat: RankHeartbeat | None = None

    def run(self, completed_step: int) -> TrainResult:
        """Train from the step after `completed_step` to the last step, or until a stop is requested."""
        self._last_step = completed_step
        self._write_heartbeat("compile" if self._plan.compile else "train")
        if self._plan.compile:
            self._record_event("compiling", f"step {completed_step + 1} compiles", echo=False)
        window = TraceWindow(self._plan.config.trace, self._context, self._reporter)
        window.announce(completed_step + 1, self._plan.config.steps)
        self._train(completed_step)
        self._untimed(lambda: self._tracer.close(self._last_step))
        window.finish(completed_step + 1, self._last_step, self._plan.config.steps)
        saved = self._save_last()
        stopped = self._stopping and self._last_step < self._plan.config.steps
        if not stopped:
            self._write_heartbeat("done")
        elif self._saves:
            self._write_heartbeat("checkpoint")
        exit_code = self._stop.exit_code if stopped else EXIT_OK if saved else EXIT_FAILED
        return TrainResult(
            self._last_step,
            self._first_loss,
            None if self._last_heartbeat is None else self._last_heartbeat.loss,
            exit_code,
        )

    def _train(self, completed_step: int) -> None:
        """Launch the steps; on a GPU, read each result one step late, but before a checkpoint that includes it.

        All ranks read the same results after the same launch, so all stop after the same step.
        """
        every, steps = self._plan.checkpoint_every if self._saves else 0, self._plan.config.steps
        pending: deque[StepHandle] = deque()
        for step in range(completed_step + 1, steps + 1):
            transition = self._tracer.next_transition(step)
            if transition is None:
                self._tracer.begin_step(step)
            else:
                self._read(pending, leave=0)
                took_s = self._untimed(lambda step=step: self._tracer.begin_step(step))  # type: ignore[misc]
                self._tracing_s = {transition: took_s}
            try:
                pending.append(self._stepper.launch(step, stop=self._stop.requested))
            except torch.OutOfMemoryError:
                self._tracer.save_snapshot(step)
                raise
            except TrainerError:  # of the data, on this rank alone
                self._checkpointer.wait()
                raise
            save_now = every > 0 and step % every == 0
            self._read(pending, leave=0 if save_now else self._read_lag)
            if save_now:
                self._write_heartbeat("checkpoint")
                self._untimed(lambda step=step: self._checkpointer.save(step))  # type: ignore[misc]
            if self._stopping:
                break
        self._read(pending, leave=0)

    def _read(self, pending: deque[StepHandle], *, leave: int) -> None:
        """Read launched steps in order until `leave` are left. Raises DivergedError, and for data that a rank could
        not read as `raise_on_all_ranks`."""
        while len(pending) > leave:
            result = pending.popleft().result()
            if result.data_failed:
                self._checkpointer.wait()  # as in _raise_diverged
                raise_on_all_ranks(self._stepper.data_error)
            self._last_step = result.step
            self._report_step(result, self._timer.step_ended(result.ended_at_s))
            if (compilation := self._compilation) is not None and compilation.compiled():
                self._untimed(lambda step=result.step: compilation.after_step(step))  # type: ignore[misc]
            if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
                self._raise_diverged(result)
            self._stop.first_step_done()
            if result.stop_requested and not self._stopping:
                self._stopping = True
                then = "saving a checkpoint" if self._saves else "nothing is saved, since --keep is 0"
                self._record_event("stopping", f"stop requested in step {result.step}; {then}")

    def _report_step(self, result: StepResult, step_time_s: float) -> None:
        """Metrics, heartbeat and, every few steps, a line on the console."""
        plan = self._plan
        median_s = self._timer.median_s()
        if self._first_loss is None:
            self._first_loss = result.loss
        self._reporter.write_metrics(
            StepMetrics(
                step=result.step,
                step_time_s=step_time_s,
                data_time_s=result.data_time_s,
                loss=result.loss,
                lr=result.lr,
                grad_norm=result.grad_norm,
                tokens=self._tokens_per_step,
                tokens_per_s=self._tokens_per_s(step_time_s),
                mfu=self._mfu(step_time_s),
                memory_bytes=_used_bytes(self._device),
                trace_start_s=self._tracing_s.get("start"),
                trace_write_s=self._tracing_s.get("write"),
            )
        )
        self._tracing_s = {}
        self._last_heartbeat = RankHeartbeat(
            rank=self._context.rank,
            world_size=self._context.world_size,
            attempt=self._context.attempt,
            step=result.step,
            steps=plan.config.steps,
            loss=result.loss,
            tokens_per_s=None if median_s is None else self._tokens_per_s(median_s),
            step_time_s=median_s,
            eta_s=None if median_s is None else median_s * (plan.config.steps - result.step),
            mfu=None if median_s is None else self._mfu(median_s),
            peak_memory_bytes=_peak_bytes(self._device),
        )
        self._write_heartbeat("train")
        self._print_progress(result, step_time_s, median_s)

    def _tokens_per_s(self, step_time_s: float) -> float | None:
        return None if self._tokens_per_step is None else self._tokens_per_step / step_time_s

    def _speed(self, step_time_s: float) -> str:
        tokens_per_s = self._tokens_per_s(step_time_s)
        if tokens_per_s is not None:
            return f"{tokens_per_s:,.0f} tok/s"
        return f"{self._plan.global_batch / step_time_s:,.1f} samples/s"

    def _mfu(self, step_time_s: float) -> float | None:
        return mfu(self._flops_per_step, step_time_s, self._peak_flops, self._context.world_size)

    def _print_progress(self, result: StepResult, step_time_s: float, median_s: float | None) -> None:
        """A line every few steps, and always for the first step of an attempt and for the last one."""
        if not self._context.is_rank0:
            return
        steps = self._plan.config.steps
        if median_s is None:
            print_line(first_step_line(step=result.step, steps=steps, loss=result.loss, step_time_s=step_time_s))
            return
        if result.step % self._plan.log_every and result.step != steps:
            return
        on_gpu = self._device.type == "cuda"
        print_line(
            progress_line(
                step=result.step,
                steps=steps,
                loss=result.loss,
                step_time_s=median_s,
                speed=self._speed(median_s),
                eta_s=median_s * (steps - result.step),
                mfu=self._mfu(median_s),
                peak_memory_bytes=_peak_bytes(self._device) if on_gpu else None,
            )
        )

    def _write_heartbeat(self, phase: Phase) -> None:
        """Write the last heartbeat with the current phase and checkpoint."""
        heartbeat = self._last_heartbeat or RankHeartbeat(
            rank=self._context.rank,
            world_size=self._context.world_size,
            attempt=self._context.attempt,
            step=self._last_step,
            steps=self._plan.config.steps,
        )
        self._reporter.write_heartbeat(
            replace(
                heartbeat,
                phase=phase,
                checkpoint_step=self._checkpointer.saved_step,
                checkpoint_at=self._checkpointer.saved_at,
                stage=self._stepper.stage,
            )
        )

    def _save_last(self) -> bool:
        """Save the last step, if any is saved, and wait for it; False if rank 0 failed to save it."""
        if not self._saves:
            return True
        self._write_heartbeat("checkpoint")
        if self._checkpointer.started_step != self._last_step:
            self._checkpointer.save(self._last_step)
        self._checkpointer.wait()
        return not self._context.is_rank0 or self._checkpointer.saved_step == self._last_step

    def _raise_diverged(self, result: StepResult) -> None:
        message = (
            f"step {result.step}: loss {result.loss}, gradient norm {result.grad_norm}: must be finite. "
            f"{'The last checkpoint is of an earlier step; try' if self._saves else 'Try'} a lower --lr or a longer "
            "--warmup"
        )
        self._record_event("diverged", message, echo=False)
        self._checkpointer.wait()  # the process group is destroyed next, in which an earlier step may still be saved
        raise DivergedError(message)

    def _record_event(self, kind: str, message: str, *, echo: bool = True) -> None:
        if self._context.is_rank0:
            self._reporter.record_event(kind, message, step=self._last_step, echo=echo)

    def _untimed(self, action: Callable[[], None]) -> float:
        """Run `action` between steps without counting it as step time; returns its seconds."""
        started_s = self._stepper.now_s()
        action()
        ended_s = self._stepper.now_s()
        self._timer.exclude(started_s, ended_s)
        return ended_s - started_s


def _used_bytes(device: torch.device) -> int | None:
    """Memory of this process in use: of the CUDA allocator on GPUs, else resident memory; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _peak_bytes(device: torch.device) -> int:
    """Peak of `_used_bytes`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
