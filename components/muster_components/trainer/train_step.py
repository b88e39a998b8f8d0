"""One optimizer step over the global batch, and its results; AdamW and its learning rate.

One all-reduce carries loss and flags. Reading results makes the CPU wait for the GPU, so on a GPU the results of a
step are read after the next step has been launched, which keeps the GPU's queue filled. The flag that asks to stop is
sampled as late as possible: the GPU reads it from host memory when it reaches the all-reduce.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from muster_components.trainer.cuda_graph import GraphedStep
from muster_components.trainer.forward_backward import BatchReader, ForwardBackward, seed_generators
from muster_components.trainer.models.interface import Batch
from muster_components.trainer.parallel.gradients import clip_gradients, local
from muster_components.trainer.parallel.sharding import ParallelModel
from muster_components.trainer.plan import TrainPlan

POLL_S: Final = 1e-4
"""Between two looks at a GPU that has not ended a step. A blocking wait would delay the handlers of signals, which
Python runs between its own instructions only."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of a step, equal on all ranks. `loss` is the mean in nats per token."""

    step: int
    loss: float
    grad_norm: float
    stop_requested: bool
    data_failed: bool
    """A rank could not read its data: the step is not valid (`TrainStep.data_error`)."""
    lr: float
    data_time_s: float
    ended_at_s: float
    """End of the step in seconds since an arbitrary time, by the GPU's clock if there is a GPU."""


class StepHandle:
    """A launched step; `result` waits for its end."""

    def __init__(
        self,
        step: int,
        report: Tensor,
        lr: float,
        data_time_s: float,
        origin: torch.cuda.Event | None,
        sample_stop: Callable[[], bool],
    ) -> None:
        """`report`: loss, stop flag, data flag, gradient norm; `origin`: time 0 of the GPU's clock, None on a CPU;
        `sample_stop`: whether this rank alone decides to stop, and does, called while waiting."""
        self._step = step
        self._lr = lr
        self._data_time_s = data_time_s
        self._origin = origin
        self._sample_stop = sample_stop
        self._report = report
        if origin is not None:
            self._report = torch.empty_like(report, device="cpu", pin_memory=True).copy_(report, non_blocking=True)
            self._end = _timing_event()

    def result(self) -> StepResult:
        """Wait for the end of the step; returns its results."""
        if self._origin is None:
            ended_at_s = time.perf_counter()
        else:
            while not self._end.query():  # type: ignore[no-untyped-call]
                self._sample_stop()
                time.sleep(POLL_S)
            ended_at_s = self._origin.elapsed_time(self._end) / 1000
        loss, stop, failed, grad_norm = self._report.tolist()
        stops = stop > 0 or self._sample_stop()
        return StepResult(self._step, loss, grad_norm, stops, failed > 0, self._lr, self._data_time_s, ended_at_s)


class TrainStep:
    """Runs steps of one plan on this rank."""

    def __init__(
        self,
        plan: TrainPlan,
        parallel: ParallelModel,
        optimizers: Sequence[torch.optim.Optimizer],
        reader: BatchReader,
        forward_backward: ForwardBackward,
        weight_per_step: float,
        stop_requested: Callable[[], bool],
    ) -> None:
        """`optimizers`: one for each part; `weight_per_step`: what the summed loss of a global batch is divided by;
        `stop_requested`: whether this rank was asked to stop."""
        self._plan = plan
        self._parallel = parallel
        self._optimizers = optimizers
        self._reader = reader
        self._forward_backward = forward_backward
        self._weight_per_step = weight_per_step
        self.data_error: Exception | None = None
        """Why this rank could not read its data."""
        self._stop_requested = stop_requested
        on_gpu = parallel.device.type == "cuda"
        self._flags = torch.zeros(2, device=parallel.device)  # a stop is requested, data could not be read
        self._stop_flag = torch.zeros(1, pin_memory=on_gpu)
        self._origin = _timing_event() if on_gpu else None
        graphed = on_gpu and plan.graphs_steps(parallel.parameter_count)
        self._run = GraphedStep(self._compute) if graphed else self._compute

    @property
    def stage(self) -> int | None:
        """This rank's place in the pipeline; None without one."""
        mesh = self._parallel.mesh
        return mesh.pp_rank if mesh.shape.pp > 1 else None

    def launch(self, step: int) -> StepHandle:
        """Launch `step` (from 1): forward and backward of this rank's part of the global batch, then the optimizer."""
        lr = learning_rate(step, peak=self._plan.lr, warmup=self._plan.warmup, steps=self._plan.config.steps)
        for optimizer in self._optimizers:
            set_learning_rate(optimizer, lr)
        seed_generators(self._plan.config.seed, step, self._parallel.mesh.data_rank)
        started_s = time.perf_counter()
        with record_function("data"):
            batches = self._read(step)
        data_time_s = time.perf_counter() - started_s
        self._flags[1].fill_(float(self.data_error is not None))
        return StepHandle(step, self._run(batches), lr, data_time_s, self._origin, self._sample_stop)

    def _sample_stop(self) -> bool:
        """Whether this rank, without others to agree with, is to stop. With others, the next all-reduce that begins
        tells them."""
        if self._plan.mesh.world_size == 1:
            return self._stop_requested()
        self._stop_flag.fill_(float(self._stop_requested()))
        return False

    def _read(self, step: int) -> Sequence[Batch]:
        """This rank's batches. If it cannot read them, `data_error` is set, and it takes part in this step and those
        after it with other batches, since the other ranks wait for it until the results of this step tell them."""
        if self.data_error is None:
            try:
                return self._reader.read(step)
            except Exception as error:
                if self._plan.mesh.world_size == 1 or isinstance(error, torch.OutOfMemoryError):
                    raise
                self.data_error = error
        with contextlib.suppress(Exception):  # of the same cause
            return self._reader.example()
        raise self.data_error

    def _compute(self, batches: Sequence[Batch]) -> Tensor:
        """Loss, flags and gradient norm after an optimizer step. Does not wait for the GPU."""
        loss_sum = self._forward_backward.run(batches)
        with record_function("clip"):
            mesh = self._parallel.mesh
            grad_norm = clip_gradients(
                self._parallel.parameters(),
                self._plan.config.optim.clip,
                mesh.dimension("pp").get_group() if mesh.shape.pp > 1 else None,
                self._parallel.uncounted,
            )
        with record_function("optimizer"):
            for optimizer in self._optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            for part in self._parallel.parts:
                part.publish_weights()
        with record_function("report"):
            # Ranks that split a sample have the same loss: one of them reports it.
            reports = self._parallel.mesh.tp_rank == 0
            loss_mean = loss_sum / self._weight_per_step if reports else torch.zeros_like(loss_sum)
            if self._plan.mesh.world_size > 1:
                self._sample_stop()
                self._flags[:1].copy_(self._stop_flag, non_blocking=True)
            report = torch.cat((loss_mean.reshape(1), self._flags))
            if self._plan.mesh.world_size > 1:
                dist.all_reduce(report)
            return torch.cat((report, grad_norm.reshape(1).float()))

    def now_s(self) -> float:
        """The time by the clock of `StepResult.ended_at_s`; waits for all launched work."""
        if self._origin is None:
            return time.perf_counter()
        now = _timing_event()
        now.synchronize()
        return float(self._origin.elapsed_time(now)) / 1000


def _timing_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


class ShardedAdamW(torch.optim.AdamW):
    """AdamW that computes with this rank's shards instead of DTensors.

    It computes each element by itself, so no placement matters. PyTorch finds a sharding for all DTensors of one call,
    which takes seconds to a minute for the first one with hundreds of parameters (docs/reference/performance.md). State
    and checkpoints keep DTensors.
    """

    def _init_group(self, group: Any, *lists: list[Tensor]) -> Any:
        has_complex = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        for tensors in lists:
            tensors[:] = [local(tensor) for tensor in tensors]
        return has_complex


def adamw(model: nn.Module, plan: TrainPlan) -> torch.optim.AdamW:
    """Fused AdamW over the model's parameters, with weight decay for matrices but not for vectors and scalars.

    On CPUs, torch's fused kernel makes one pass over memory instead of ten.
    """
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": plan.config.optim.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    on_gpu = next(model.parameters()).is_cuda
    # A tensor, and counts of steps on the device, since CUDA graphs cannot read numbers of the host.
    lr = torch.tensor(plan.lr, device="cuda") if on_gpu else plan.lr
    return ShardedAdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True, capturable=on_gpu)


def learning_rate(step: int, *, peak: float, warmup: int, steps: int) -> float:
    """The rate of `step` (from 1): linear up to `peak` at step `warmup`, then a cosine down to peak/10 at `steps`."""
    if step <= warmup:
        return peak * step / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress))))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` in all groups from the next step on."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
