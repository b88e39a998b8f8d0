"""TorchTitan's trainer with what Muster adds, at four places: before the first step, at the end of each step, where it
logs its loss, and when it is to stop.

All ranks stop after the same step. The request is sampled just before an all-reduce after each step, among CPUs, which
carries it with the loss: with a pipeline only the ranks of the last stage know that.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.checkpoint import AsyncMode
from torchtitan.config import JobConfig
from torchtitan.train import Trainer

from muster_components.titan.steps import RunShape, StepObserver
from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import RunContext
from muster_components.trainer.reporter import Reporter
from muster_components.trainer.stop_signal import StopSignal

_NO_LOSS = -math.inf
"""In the all-reduce, which takes the largest value."""


@dataclass(frozen=True, slots=True)
class TitanAttempt:
    """What a rank of an attempt is given by Muster."""

    context: RunContext
    trace: TraceConfig
    reporter: Reporter
    stop: StopSignal


class MusterTrainer(Trainer):  # type: ignore[misc, unused-ignore]  # torchtitan need not be installed
    """Of one attempt. `stopped`: it saved a checkpoint and ended before its last step."""

    def __init__(self, job_config: JobConfig, attempt: TitanAttempt) -> None:
        self.stopped = False
        self._is_steady = False  # a step of this attempt has ended
        self._stop = attempt.stop
        # A container's working directory is gone with the pod.
        job_config.job.dump_folder = os.path.join(attempt.context.run_dir, job_config.job.dump_folder)
        super().__init__(job_config)
        self._agreement_group = None
        if dist.get_world_size() > 1:
            timeout = timedelta(seconds=job_config.comm.init_timeout_seconds)
            self._agreement_group = dist.new_group(backend="gloo", timeout=timeout)
        self._steps = StepObserver(attempt.context, attempt.trace, attempt.reporter, self._shape())
        self._step_loss: float | None = None
        self._step_ended_s: float | None = None
        self._log = self.metrics_processor.log
        self.metrics_processor.log = self._log_step

    def train(self) -> None:
        """All steps of this attempt."""
        super().train()
        self._steps.finish(done=not self.stopped)  # before TorchTitan leaves its process groups

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """One step of TorchTitan."""
        try:
            super().train_step(data_iterator)
        except torch.OutOfMemoryError:
            self._steps.out_of_memory()
            raise
        self._step_ended_s = time.perf_counter()

    def should_continue_training(self) -> bool:
        """TorchTitan asks before each step, when the one before has been saved."""
        more = bool(super().should_continue_training())
        if self._step_ended_s is None:
            self._steps.resume(self.step)
        else:
            stop, loss = self._agree()
            self._steps.end(self.step, self._step_ended_s, loss)
            if not self._is_steady:
                self._set_steady()
            if stop and more:
                self._save()
                self.stopped = True
                return False
        if more:
            self._steps.begin(self.step + 1)
        return more

    def _set_steady(self) -> None:
        """From now on a stop waits for the end of a step, and a lost rank is noticed as soon as by TorchTitan."""
        self._is_steady = True
        self._stop.first_step_done()
        if self._agreement_group is not None:
            timeout = timedelta(seconds=self.job_config.comm.train_timeout_seconds)
            dist.distributed_c10d._set_pg_timeout(timeout, self._agreement_group)

    def _agree(self) -> tuple[bool, float | None]:
        """Whether any rank is to stop, and the loss of this step, if it was logged."""
        loss, self._step_loss = self._step_loss, None
        known = loss if loss is not None and math.isfinite(loss) else _NO_LOSS
        values = torch.tensor([float(self._stop.requested), known], dtype=torch.float64)
        if self._agreement_group is not None:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self._agreement_group)
        stop, known = values.tolist()
        return stop > 0, None if known == _NO_LOSS else known

    def _save(self) -> None:
        """Save this step, unless TorchTitan has just done so, and wait until the checkpoint is complete."""
        manager = self.checkpointer
        if not manager.enable or manager.load_only:
            return
        if self.step % manager.interval:
            # Not save(last_step=True), which saves the model alone by default: the job could not go on.
            manager.interval, interval = 1, manager.interval
            manager.save(self.step)
            manager.interval = interval
        if manager.async_mode != AsyncMode.DISABLED:
            manager.maybe_wait_for_staging()
            manager._async_wait()
            dist.barrier(group=self._agreement_group)

    def _log_step(self, step: int, global_avg_loss: float, *arguments: Any, **extra: Any) -> None:
        """In place of the metrics processor's `log`. Ranks before the last stage of a pipeline have no loss."""
        if getattr(self, "pp_has_last_stage", True):
            self._step_loss = float(global_avg_loss)
        self._log(step, global_avg_loss, *arguments, **extra)

    def _shape(self) -> RunShape:
        config, world_size = self.job_config.training, dist.get_world_size()
        per_rank = config.local_batch_size * self.gradient_accumulation_steps * config.seq_len
        tokens = per_rank * world_size // self.parallel_dims.non_data_parallel_size
        processor, flops = self.metrics_processor, None
        if self.device.type == "cuda":
            flops = processor.num_flops_per_token * tokens / (processor.gpu_peak_flops * world_size)
        return RunShape(config.steps, tokens, flops)
