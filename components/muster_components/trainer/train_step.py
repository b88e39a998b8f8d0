"""One optimizer step over the global batch, and what is known of it afterwards.

The loss that counts is the mean over the tokens of the global batch, whatever the number of ranks, micro-steps and
padded places: each rank sums its losses and divides by the tokens of all. Gradients come out as the mean over ranks
(FSDP2 and DDP both divide by the world size), so the loss is multiplied by it first.

Loss, stop flag and gradient norm travel in one all-reduce. Reading them makes the CPU wait for the GPU; so on a GPU a
step is read after the next one has been launched, and the queue never runs dry.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from muster_components.trainer.config import TrainPlan
from muster_components.trainer.context import RunContext
from muster_components.trainer.data import Samples
from muster_components.trainer.optim import learning_rate, set_learning_rate
from muster_components.trainer.parallelize import ParallelModel
from muster_components.trainer.shuffle import sample_indices


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step as all ranks agree on it. `loss` is the mean in nats a token; `stop`: some rank was told to stop."""

    step: int
    loss: float
    grad_norm: float
    stop_requested: bool
    lr: float
    data_time_s: float
    ended_at_s: float
    """When its numbers were there, in seconds since some moment: on the GPU's own clock where there is one."""


class StepHandle:
    """A step whose kernels are queued; `result` waits for them."""

    def __init__(
        self, step: int, report: Tensor, lr: float, data_time_s: float, origin: torch.cuda.Event | None
    ) -> None:
        """`report`: loss, stop flag, gradient norm; `origin`: where the GPU's clock starts, None on a CPU."""
        self._step = step
        self._lr = lr
        self._data_time_s = data_time_s
        self._origin = origin
        self._report = report
        if origin is not None:
            self._report = torch.empty_like(report, device="cpu", pin_memory=True).copy_(report, non_blocking=True)
            self._end = _timing_event()

    def result(self) -> StepResult:
        """The numbers, once they are there."""
        if self._origin is None:
            ended_at_s = time.perf_counter()
        else:
            self._end.synchronize()
            ended_at_s = self._origin.elapsed_time(self._end) / 1000
        loss, stop, grad_norm = self._report.tolist()
        return StepResult(self._step, loss, grad_norm, stop > 0, self._lr, self._data_time_s, ended_at_s)


class TrainStep:
    """Runs steps of one plan on this rank."""

    def __init__(
        self,
        plan: TrainPlan,
        context: RunContext,
        parallel: ParallelModel,
        optimizer: torch.optim.Optimizer,
        samples: Samples,
    ) -> None:
        self._plan = plan
        self._context = context
        self._parallel = parallel
        self._optimizer = optimizer
        self._samples = samples
        self._stop_values = torch.tensor([0.0, 1.0], device=parallel.device)
        self._origin = _timing_event() if parallel.device.type == "cuda" else None

    def launch(self, step: int, *, stop: bool) -> StepHandle:
        """Step `step` (from 1): forward and backward over this rank's places, then the optimizer."""
        plan, parallel = self._plan, self._parallel
        lr = learning_rate(step, peak=plan.lr, warmup=plan.warmup, steps=plan.config.steps)
        set_learning_rate(self._optimizer, lr)
        scale = self._context.world_size / plan.tokens_per_step
        loss_sum = torch.zeros((), device=parallel.device)
        data_time_s = 0.0
        for micro_step in range(plan.gradient_accumulation_steps):
            began = time.perf_counter()
            with record_function("data"):
                token_BL, target_BL = self._batch(step, micro_step)
            data_time_s += time.perf_counter() - began
            with parallel.gradient_sync_context(last_micro_batch=micro_step == plan.gradient_accumulation_steps - 1):
                with record_function("forward"), parallel.forward_context():
                    loss = parallel.module(token_BL, target_BL)
                with record_function("backward"):
                    (loss * scale).backward()
            loss_sum += loss.detach()
        with record_function("clip"):
            grad_norm = self._clip()
        with record_function("optimizer"):
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        with record_function("report"):
            report = torch.stack((loss_sum / plan.tokens_per_step, self._stop_values[int(stop)]))
            dist.all_reduce(report)
            report = torch.cat((report, grad_norm.reshape(1).float()))
            return StepHandle(step, report, lr, data_time_s, self._origin)

    def now_s(self) -> float:
        """Now, on the clock of `StepResult.ended_at_s`; waits for what is queued."""
        if self._origin is None:
            return time.perf_counter()
        now = _timing_event()
        now.synchronize()
        return float(self._origin.elapsed_time(now)) / 1000

    def _batch(self, step: int, micro_step: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of this rank's places, on the device; each rank in turn takes micro_batch places."""
        plan = self._plan
        first = (micro_step * self._context.world_size + self._context.rank) * plan.micro_batch
        chosen = sample_indices(
            seed=plan.config.seed,
            step=step - 1,
            positions=range(first, first + plan.micro_batch),
            global_batch=plan.global_batch,
            samples=len(self._samples),
        )
        rows = torch.from_numpy(self._samples.read(chosen))
        if self._parallel.device.type == "cuda":
            rows = rows.pin_memory().to(self._parallel.device, non_blocking=True)
        return rows[:, :-1].clamp(min=0), rows[:, 1:].contiguous()

    def _clip(self) -> Tensor:
        """Scale the gradients down to the largest norm allowed; the norm before that, over all ranks."""
        norm = torch.nn.utils.clip_grad_norm_(self._parallel.model.parameters(), self._plan.config.optim.clip)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def _timing_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
