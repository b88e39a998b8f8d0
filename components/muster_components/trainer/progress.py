"""What a rank reports of its steps: their times, metrics, heartbeats and lines on the console."""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import torch

from muster_components.trainer.checkpoint import Checkpointer
from muster_components.trainer.context import RunContext
from muster_components.trainer.models.recipes import mfu, peak_flops
from muster_components.trainer.plan import TrainPlan
from muster_components.trainer.profile import ProfilerTransition
from muster_components.trainer.reporter import (
    Phase,
    RankHeartbeat,
    Reporter,
    StepMetrics,
    first_step_line,
    print_line,
    progress_line,
)
from muster_components.trainer.train_step import StepResult


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
        return median(self._recent) if self._recent else None


@dataclass(slots=True, kw_only=True)
class Progress:
    """Reports the steps of one attempt of this rank."""

    plan: TrainPlan
    context: RunContext
    device: torch.device
    reporter: Reporter
    checkpointer: Checkpointer
    stage: int | None
    """This rank's place in the pipeline; None without one."""
    tokens_per_step: int | None
    """None: samples are not made of tokens, such as images."""
    flops_per_step: int | None
    """Forward and backward FLOPs of a global batch; None if unknown."""
    last_step: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    tracing_s: dict[ProfilerTransition, float] = field(default_factory=dict)
    """What starting the profiler, or writing a trace, took before the next step to report."""
    checkpoint_wait_s: float | None = None
    """How long training waited for a save before the next step to report."""
    _heartbeat: RankHeartbeat | None = None
    _first: tuple[int, float] | None = None
    """The first step of this attempt, and when it was reported."""
    _peak_flops: float | None = field(init=False)

    def __post_init__(self) -> None:
        on_gpu = self.device.type == "cuda"
        self._peak_flops = peak_flops(torch.cuda.get_device_name(self.device)) if on_gpu else None

    def report_step(self, result: StepResult, step_time_s: float, median_s: float | None) -> None:
        """Metrics, heartbeat and, every few steps, a line on the console. `median_s`: of the last steps, None before
        the second one."""
        steps = self.plan.config.steps
        self.last_step, self.last_loss = result.step, result.loss
        if self.first_loss is None:
            self.first_loss = result.loss
        tracing_s, self.tracing_s = self.tracing_s, {}
        checkpoint_wait_s, self.checkpoint_wait_s = self.checkpoint_wait_s, None
        self.reporter.write_metrics(
            StepMetrics(
                step=result.step,
                step_time_s=step_time_s,
                data_time_s=result.data_time_s,
                loss=result.loss,
                lr=result.lr,
                grad_norm=result.grad_norm,
                tokens=self.tokens_per_step,
                tokens_per_s=self._tokens_per_s(step_time_s),
                mfu=self._mfu(step_time_s),
                memory_bytes=_used_bytes(self.device),
                trace_start_s=tracing_s.get("start"),
                trace_write_s=tracing_s.get("write"),
                checkpoint_wait_s=checkpoint_wait_s,
            )
        )
        self._heartbeat = RankHeartbeat(
            rank=self.context.rank,
            world_size=self.context.world_size,
            attempt=self.context.attempt,
            step=result.step,
            steps=steps,
            loss=result.loss,
            tokens_per_s=None if median_s is None else self._tokens_per_s(median_s),
            step_time_s=median_s,
            eta_s=None if median_s is None else median_s * (steps - result.step),
            mfu=None if median_s is None else self._mfu(median_s),
            peak_memory_bytes=_peak_bytes(self.device),
        )
        self.write_heartbeat("train")
        self._print(result, step_time_s, median_s)

    def write_heartbeat(self, phase: Phase) -> None:
        """Write the last heartbeat with the current phase and checkpoint."""
        heartbeat = self._heartbeat or RankHeartbeat(
            rank=self.context.rank,
            world_size=self.context.world_size,
            attempt=self.context.attempt,
            step=self.last_step,
            steps=self.plan.config.steps,
        )
        self.reporter.write_heartbeat(
            replace(
                heartbeat,
                phase=phase,
                checkpoint_step=self.checkpointer.saver.saved_step,
                checkpoint_at=self.checkpointer.saver.saved_at,
                stage=self.stage,
            )
        )

    def record_event(self, kind: str, message: str, *, echo: bool = True) -> None:
        """An event of the whole run, which rank 0 writes."""
        if self.context.is_rank0:
            self.reporter.record_event(kind, message, step=self.last_step, echo=echo)

    def _tokens_per_s(self, step_time_s: float) -> float | None:
        return None if self.tokens_per_step is None else self.tokens_per_step / step_time_s

    def _speed(self, step_time_s: float) -> str:
        tokens_per_s = self._tokens_per_s(step_time_s)
        if tokens_per_s is not None:
            return f"{tokens_per_s:,.0f} tok/s"
        return f"{self.plan.global_batch / step_time_s:,.1f} samples/s"

    def _mfu(self, step_time_s: float) -> float | None:
        return mfu(self.flops_per_step, step_time_s, self._peak_flops, self.context.world_size)

    def _print(self, result: StepResult, step_time_s: float, median_s: float | None) -> None:
        """A line every few steps, and always for the first step of an attempt and for the last one."""
        if not self.context.is_rank0:
            return
        steps, now_s = self.plan.config.steps, time.monotonic()
        first_step, first_s = self._first = self._first or (result.step, now_s)
        if median_s is None:
            print_line(first_step_line(step=result.step, steps=steps, loss=result.loss, step_time_s=step_time_s))
            return
        if result.step % self.plan.log_every and result.step != steps:
            return
        print_line(
            progress_line(
                step=result.step,
                steps=steps,
                loss=result.loss,
                step_time_s=median_s,
                speed=self._speed(median_s),
                run_speed=self._speed((now_s - first_s) / (result.step - first_step)) if now_s > first_s else "",
                eta_s=median_s * (steps - result.step),
                mfu=self._mfu(median_s),
                peak_memory_bytes=_peak_bytes(self.device) if self.device.type == "cuda" else None,
            )
        )


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
