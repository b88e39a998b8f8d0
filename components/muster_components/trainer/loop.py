"""The loop: launch steps, read them, tell about them, save, and leave when all ranks agree to.

Steps count from 1; `step 20/60` means that 20 steps have ended. A step ends for the outside when its numbers are read,
which on a GPU is one step after it was launched.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch

from muster_components.trainer import console, memory
from muster_components.trainer.beats import Beat, Metrics, Phase, Reporter
from muster_components.trainer.checkpoint import Checkpointer
from muster_components.trainer.config import Plan
from muster_components.trainer.context import RunContext
from muster_components.trainer.errors import EXIT_FAILED, EXIT_OK, DivergedError
from muster_components.trainer.flops import flops_per_token, mfu, peak_flops
from muster_components.trainer.profile import StepTracer, Switch
from muster_components.trainer.step import Launched, Stepper, StepResult
from muster_components.trainer.stopping import StopRequest
from muster_components.trainer.trace_window import TraceWindow


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop works with, made by `session`."""

    plan: Plan
    context: RunContext
    device: torch.device
    reporter: Reporter
    stepper: Stepper
    checkpointer: Checkpointer
    tracer: StepTracer
    stop: StopRequest


@dataclass(frozen=True, slots=True)
class Outcome:
    """How training ended. Losses are None when no step was left to do."""

    step: int
    first_loss: float | None
    last_loss: float | None
    exit_code: int


class Pace:
    """Time of steps: from end to end, less what was not training (saving, starting and writing a trace).

    Ends are on the GPU's own clock where there is one: the CPU reads a step late, and two at once before a checkpoint.
    """

    def __init__(self, now_s: float) -> None:
        self._mark_s = now_s
        self._recent: deque[float] = deque(maxlen=20)
        self._settled = False

    def leave_out(self, seconds: float) -> None:
        """So much of the present step was something else."""
        self._mark_s += seconds

    def step_ended(self, at_s: float) -> float:
        """Seconds of the step that ended at `at_s`."""
        step_time_s, self._mark_s = max(at_s - self._mark_s, 1e-9), at_s
        if self._settled:
            self._recent.append(step_time_s)
        # The first step compiles and warms up: it says nothing about the others.
        self._settled = True
        return step_time_s

    def usual_s(self) -> float | None:
        """Median of the last steps; None as long as there is nothing but the first."""
        return median(self._recent) if self._recent else None


class Loop:
    """One attempt at training."""

    def __init__(self, parts: Parts) -> None:
        self._plan, self._context, self._device = parts.plan, parts.context, parts.device
        self._reporter, self._stepper, self._stop = parts.reporter, parts.stepper, parts.stop
        self._checkpointer, self._tracer = parts.checkpointer, parts.tracer
        self._pace = Pace(self._stepper.now_s())
        self._peak = peak_flops(torch.cuda.get_device_name(self._device)) if self._device.type == "cuda" else None
        self._token_flops = flops_per_token(self._plan.config.model, self._plan.seq_len)
        self._late = 1 if self._device.type == "cuda" else 0
        self._ended = 0
        self._stopping = False
        self._tracing_s: dict[Switch, float] = {}  # before the step that is told next
        self._first_loss: float | None = None
        self._last: Beat | None = None

    def run(self, done: int) -> Outcome:
        """Train from after step `done` to the last step, or until told to stop."""
        self._ended = done
        self._beat("compile" if self._plan.compile else "train")
        if self._plan.compile:
            self._event("compiling", f"step {done + 1} compiles", say=False)
        window = TraceWindow(self._plan.config.trace, self._context, self._reporter)
        window.announce(done + 1, self._plan.config.steps)
        self._train(done)
        self._aside(lambda: self._tracer.close(self._ended))
        window.ended(done + 1, self._ended, self._plan.config.steps)
        self._beat("checkpoint")
        saved = self._save_last()
        stopped = self._stopping and self._ended < self._plan.config.steps
        self._beat("checkpoint" if stopped else "done")
        exit_code = self._stop.exit_code if stopped else EXIT_OK if saved else EXIT_FAILED
        return Outcome(self._ended, self._first_loss, None if self._last is None else self._last.loss, exit_code)

    def _train(self, done: int) -> None:
        """Launch the steps; read each one step late on a GPU, but before a checkpoint that holds its weights.

        All ranks read the same numbers after the same launch, so all leave after the same step.
        """
        every, steps = self._plan.checkpoint_every, self._plan.config.steps
        ahead: deque[Launched] = deque()
        for step in range(done + 1, steps + 1):
            switch = self._tracer.switches(step)
            if switch is None:
                self._tracer.begin(step)
            else:
                self._read(ahead, leave=0)
                took_s = self._aside(lambda step=step: self._tracer.begin(step))  # type: ignore[misc]
                self._tracing_s = {switch: took_s}
            ahead.append(self._stepper.launch(step, stop=self._stop.requested))
            save_now = every > 0 and step % every == 0
            self._read(ahead, leave=0 if save_now else self._late)
            if save_now:
                self._beat("checkpoint")
                self._aside(lambda step=step: self._checkpointer.save(step))  # type: ignore[misc]
            if self._stopping:
                break
        self._read(ahead, leave=0)

    def _read(self, ahead: deque[Launched], *, leave: int) -> None:
        """Read launched steps in order until `leave` are left. Raises DivergedError."""
        while len(ahead) > leave:
            result = ahead.popleft().result()
            self._ended = result.step
            self._tell(result, self._pace.step_ended(result.ended_at_s))
            if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
                self._diverged(result)
            self._stop.first_step_done()
            if result.stop and not self._stopping:
                self._stopping = True
                self._event("stopping", f"told to stop in step {result.step}; saving a checkpoint")

    def _tell(self, result: StepResult, step_time_s: float) -> None:
        """Metrics, heartbeat and, every few steps, a line on the console."""
        plan = self._plan
        usual_s = self._pace.usual_s()
        if self._first_loss is None:
            self._first_loss = result.loss
        self._reporter.metrics(
            Metrics(
                step=result.step,
                step_time_s=step_time_s,
                data_time_s=result.data_time_s,
                loss=result.loss,
                lr=result.lr,
                grad_norm=result.grad_norm,
                tokens=plan.tokens_per_step,
                tokens_per_s=plan.tokens_per_step / step_time_s,
                mfu=self._mfu(step_time_s),
                memory_bytes=memory.used_bytes(self._device),
                trace_start_s=self._tracing_s.get("start"),
                trace_write_s=self._tracing_s.get("write"),
            )
        )
        self._tracing_s = {}
        self._last = Beat(
            rank=self._context.rank,
            world_size=self._context.world_size,
            attempt=self._context.attempt,
            step=result.step,
            steps=plan.config.steps,
            loss=result.loss,
            tokens_per_s=None if usual_s is None else plan.tokens_per_step / usual_s,
            step_time_s=usual_s,
            eta_s=None if usual_s is None else usual_s * (plan.config.steps - result.step),
            mfu=None if usual_s is None else self._mfu(usual_s),
            peak_memory_bytes=memory.peak_bytes(self._device),
        )
        self._beat("train")
        self._print(result, step_time_s, usual_s)

    def _mfu(self, step_time_s: float) -> float | None:
        return mfu(self._plan.tokens_per_step / step_time_s, self._token_flops, self._peak, self._context.world_size)

    def _print(self, result: StepResult, step_time_s: float, usual_s: float | None) -> None:
        """A line every few steps, and always for the first step of an attempt and for the last one."""
        if not self._context.is_first:
            return
        steps = self._plan.config.steps
        if usual_s is None:
            console.say(console.first_line(step=result.step, steps=steps, loss=result.loss, step_time_s=step_time_s))
            return
        if result.step % self._plan.log_every and result.step != steps:
            return
        on_gpu = self._device.type == "cuda"
        console.say(
            console.progress_line(
                step=result.step,
                steps=steps,
                loss=result.loss,
                step_time_s=usual_s,
                tokens_per_s=self._plan.tokens_per_step / usual_s,
                eta_s=usual_s * (steps - result.step),
                mfu=self._mfu(usual_s),
                peak_memory_bytes=memory.peak_bytes(self._device) if on_gpu else None,
            )
        )

    def _beat(self, phase: Phase) -> None:
        """The last beat, with what is true now: phase and checkpoint."""
        beat = self._last or Beat(
            rank=self._context.rank,
            world_size=self._context.world_size,
            attempt=self._context.attempt,
            step=self._ended,
            steps=self._plan.config.steps,
        )
        self._reporter.beat(
            replace(
                beat,
                phase=phase,
                checkpoint_step=self._checkpointer.saved_step,
                checkpoint_at=self._checkpointer.saved_at,
            )
        )

    def _save_last(self) -> bool:
        """A checkpoint of the last step, whole when this returns; whether this rank knows of no failure."""
        if self._checkpointer.begun_step != self._ended:
            self._checkpointer.save(self._ended)
        self._checkpointer.finish()
        return not self._context.is_first or self._checkpointer.saved_step == self._ended

    def _diverged(self, result: StepResult) -> None:
        message = (
            f"step {result.step}: loss {result.loss}, gradient norm {result.grad_norm}: no longer finite. "
            "The last checkpoint is from before; try a lower --lr or a longer --warmup"
        )
        self._event("diverged", message, say=False)
        raise DivergedError(message)

    def _event(self, kind: str, message: str, *, say: bool = True) -> None:
        if self._context.is_first:
            self._reporter.event(kind, message, step=self._ended, say=say)

    def _aside(self, act: Callable[[], None]) -> float:
        """Do what is not training, once all launched steps are read, and keep it out of the step time; its seconds."""
        began_s = self._stepper.now_s()
        act()
        took_s = self._stepper.now_s() - began_s
        self._pace.leave_out(took_s)
        return took_s
