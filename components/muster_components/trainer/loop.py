"""The training loop: launch steps, read and report their results, save checkpoints, stop with all ranks.

Steps count from 1; `step 20/60` means that 20 steps have ended. A step is reported when its results are read, which on
a GPU is one step after its launch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.profiler import record_function

from muster_components.trainer import device
from muster_components.trainer.checkpoint import Checkpointer
from muster_components.trainer.checkpoint_interval import FailureHistory, SaveSchedule, read_history
from muster_components.trainer.compilation.monitor import CompileMonitor
from muster_components.trainer.context import RunContext
from muster_components.trainer.device import set_group_timeouts
from muster_components.trainer.errors import EXIT_FAILED, EXIT_OK, DivergedError, TrainerError
from muster_components.trainer.plan import TrainPlan
from muster_components.trainer.profile import StepTracer
from muster_components.trainer.progress import Progress, StepTimer
from muster_components.trainer.rank_failures import raise_on_all_ranks
from muster_components.trainer.reporter import Reporter, TraceWindow
from muster_components.trainer.stop_signal import StopSignal
from muster_components.trainer.train_step import StepHandle, StepResult, TrainStep


@dataclass(frozen=True, slots=True)
class TrainState:
    """The objects that the loop uses, created by `session`."""

    plan: TrainPlan
    context: RunContext
    reporter: Reporter
    progress: Progress
    stepper: TrainStep
    checkpointer: Checkpointer
    tracer: StepTracer
    stop: StopSignal
    compilation: CompileMonitor | None
    """None: nothing is compiled."""
    read_lag: int
    """How many steps are launched ahead of the one whose results are read: 1 keeps the queue of a GPU filled."""

    @property
    def saves(self) -> bool:
        return self.plan.config.checkpoint.keep > 0


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The end of training. Losses are None if no step was left."""

    step: int
    first_loss: float | None
    last_loss: float | None
    exit_code: int


class TrainLoop:
    """One attempt at training."""

    def __init__(self, state: TrainState, completed_step: int) -> None:
        """`completed_step`: the step before the first one of this attempt."""
        self._state = state
        self._completed_step = completed_step
        self._timer = StepTimer(state.stepper.now_s())
        self._stopping = False
        self._steady = False  # the first step has ended
        self._schedule = self._save_schedule(completed_step)

    def run(self) -> TrainResult:
        """Train to the last step, or until a stop is requested."""
        completed_step = self._completed_step
        state, progress, config = self._state, self._state.progress, self._state.plan.config
        progress.last_step = completed_step
        progress.write_heartbeat("compile" if state.plan.compile else "setup")  # "train" says that a step is done
        if state.plan.compile:
            progress.record_event("compiling", f"step {completed_step + 1} compiles", echo=False)
        window = TraceWindow(config.trace, state.context, state.reporter)
        window.announce(completed_step + 1, config.steps)
        self._train(completed_step)
        set_group_timeouts(device.LONG_TIMEOUT, except_for=state.checkpointer.saver.group)
        self._untimed(lambda: state.tracer.close(progress.last_step))
        window.finish(completed_step + 1, progress.last_step, config.steps)
        saved = self._save_last()
        stopped = self._stopping and progress.last_step < config.steps
        if not stopped:
            progress.write_heartbeat("done")
        elif state.saves:
            progress.write_heartbeat("checkpoint")
        exit_code = state.stop.exit_code if stopped else EXIT_OK if saved else EXIT_FAILED
        return TrainResult(progress.last_step, progress.first_loss, progress.last_loss, exit_code)

    def _train(self, completed_step: int) -> None:
        """Launch the steps; on a GPU, read each result one step late, but before a checkpoint that includes it.

        All ranks read the same results after the same launch, so all stop after the same step.
        """
        state = self._state
        saver, steps = state.checkpointer.saver, state.plan.config.steps
        pending: deque[StepHandle] = deque()
        for step in range(completed_step + 1, steps + 1):
            transition = state.tracer.next_transition(step)
            if transition is None:
                state.tracer.begin_step(step)
            else:
                self._read(pending, leave=0)
                took_s = self._untimed(lambda step=step: state.tracer.begin_step(step))  # type: ignore[misc]
                state.progress.tracing_s = {transition: took_s}
            try:
                pending.append(state.stepper.launch(step))
            except torch.OutOfMemoryError:
                state.tracer.save_snapshot(step)
                raise
            except TrainerError:  # of the data, on this rank alone
                state.checkpointer.saver.wait()
                raise
            save_now = (self._schedule.is_due(step) or saver.postponed) and saver.may_save(step)
            self._read(pending, leave=0 if save_now else state.read_lag)
            if save_now:
                state.progress.write_heartbeat("checkpoint")
                with record_function("checkpoint"):
                    self._untimed(partial(saver.save, step))
                state.progress.checkpoint_wait_s = saver.waited_s[-1]
                self._schedule.saved(step, saver.waited_s[-1], self._timer.median_s())
            if self._stopping:
                break
        self._read(pending, leave=0)

    def _save_schedule(self, completed_step: int) -> SaveSchedule:
        state = self._state
        context, every = state.context, state.plan.checkpoint_every if state.saves else 0
        return SaveSchedule(
            every,
            completed_step,
            context.world_size,
            read_history(context.events_path, context.attempt) if every is None else FailureHistory(),
            agree=state.checkpointer.saver.from_rank0,
            report=lambda text: state.progress.record_event("checkpoint_interval", text),
        )

    def _read(self, pending: deque[StepHandle], *, leave: int) -> None:
        """Read launched steps in order until `leave` are left. Raises DivergedError, and for data that a rank could
        not read as `raise_on_all_ranks`."""
        state = self._state
        while len(pending) > leave:
            result = pending.popleft().result()
            if result.data_failed:
                state.checkpointer.saver.settle()  # as in _raise_diverged
                raise_on_all_ranks(state.stepper.data_error)
            step_time_s = self._timer.step_ended(result.ended_at_s)
            state.progress.report_step(result, step_time_s, self._timer.median_s())
            self._schedule.step_ended(result.step, step_time_s, self._timer.median_s())
            if (compilation := state.compilation) is not None and compilation.compiled():
                self._untimed(lambda step=result.step: compilation.after_step(step))  # type: ignore[misc]
            if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
                self._raise_diverged(result)
            if not self._steady:
                self._steady = True
                state.stop.first_step_done()
                set_group_timeouts(device.STEADY_TIMEOUT, except_for=state.checkpointer.saver.group)
                if state.saves:
                    self._untimed(state.checkpointer.saver.prepare)
            if result.stop_requested and not self._stopping:
                self._stopping = True
                then = "saving a checkpoint" if state.saves else "nothing is saved, since --keep is 0"
                state.progress.record_event("stopping", f"stop requested in step {result.step}; {then}")

    def _save_last(self) -> bool:
        """Save the last step, if any is saved, and wait for it; False if rank 0 failed to save it."""
        state, last_step = self._state, self._state.progress.last_step
        if not state.saves:
            return True
        state.progress.write_heartbeat("checkpoint")
        state.checkpointer.saver.finish(last_step)
        return not state.context.is_rank0 or state.checkpointer.saver.saved_step == last_step

    def _raise_diverged(self, result: StepResult) -> None:
        message = (
            f"step {result.step}: loss {result.loss}, gradient norm {result.grad_norm}: must be finite. "
            f"{'The last checkpoint is of an earlier step; try' if self._state.saves else 'Try'} a lower --lr or a "
            "longer --warmup"
        )
        self._state.progress.record_event("diverged", message, echo=False)
        # The process group is destroyed next, in which an earlier step may still be saved.
        self._state.checkpointer.saver.settle()
        raise DivergedError(message)

    def _untimed(self, action: Callable[[], None]) -> float:
        """Run `action` between steps without counting it as step time; returns its seconds."""
        started_s = self._state.stepper.now_s()
        action()
        ended_s = self._state.stepper.now_s()
        self._timer.exclude(started_s, ended_s)
        return ended_s - started_s
