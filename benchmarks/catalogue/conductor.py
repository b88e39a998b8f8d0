"""Plants the faults of several cases into one training process, in turn, and traces each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, schedule

from catalogue.cases import ALL_RANKS, Case
from catalogue.planting import FAULTS, Planting, points

CALIBRATION = 10
SKIPPED = 4  # of these
SETTLING = 2  # steps of a case before its profiler starts
WARMUP = 1


class Conductor:
    """Follows the steps of a training loop: some clean ones for their time, then each case.

    A program calls `after_data`, `before_step` and `end_step` in each step and `watch`es some of its modules.
    """

    def __init__(self, cases: Sequence[Case], out: Path, device: torch.device, most_steps: int) -> None:
        self._most_steps = most_steps
        self._cases, self._out, self._device = list(cases), out, device
        self.total_steps = CALIBRATION + sum(self._steps(case) for case in self._cases)
        self._times: list[float] = []
        self._last: float | None = None
        self._step_s = 0.0
        self._case: Case | None = None
        self._left = 0  # steps of the case
        self._profiler: profile | None = None
        self._planting: Planting | None = None
        self.slow_worker: Any = None  # a shared double: what the worker of a DataLoader sleeps for a batch

    def _traced(self, case: Case) -> int:
        return min(case.steps, self._most_steps)

    def _steps(self, case: Case) -> int:
        return SETTLING + WARMUP + self._traced(case)

    @property
    def done(self) -> bool:
        """Whether all cases are recorded."""
        return bool(self._step_s) and self._case is None and not self._cases

    def watch(self, module: nn.Module, *, backward: bool = False) -> None:
        """Let faults act in the forward pass of a module, and in the backward pass of its output."""

        def forward(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._at("forward", None)
            if backward and isinstance(output, Tensor) and output.requires_grad and self._acts("backward"):
                output.register_hook(lambda _grad: self._at("backward", None))

        module.register_forward_hook(forward)

    def collate(self, batch: Any) -> Any:
        """A batch on the CPU, as the program's DataLoader gives it."""
        return self._at("data", batch)

    def before_step(self, batch: Any = None) -> Any:
        """A batch before the forward pass."""
        return self._at("step", batch)

    def end_step(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """After the update: count the step, go on to the next case."""
        self._at("update", optimizer)
        if not self._step_s:
            self._calibrate()
            return
        if self._case is None:
            return
        self._left -= 1
        if self._profiler is not None:
            self._profiler.step()
        if self._left == self._steps(self._case) - SETTLING:
            self._start_profiler(self._case)
        elif self._left == 0:
            self._finish(self._case)

    def _calibrate(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        now = time.monotonic()
        if self._last is not None:
            self._times.append(now - self._last)
        self._last = now
        if len(self._times) == CALIBRATION - 1:
            found = torch.tensor([statistics.median(self._times[SKIPPED:])], device=self._device)
            dist.all_reduce(found, op=dist.ReduceOp.MIN)
            self._step_s = float(found.item())
            self._begin()

    def _begin(self) -> None:
        """Start the next case on all ranks."""
        dist.barrier()
        if not self._cases:
            return
        self._case = case = self._cases.pop(0)
        self._left = self._steps(case)
        faulty = case.rank in (dist.get_rank(), ALL_RANKS)
        self._planting = Planting(case.fault, case.share, self._step_s, self._device) if faulty else None
        if self.slow_worker is not None:
            slow = faulty and case.fault == "slow-worker"
            self.slow_worker.value = (1 + case.share) * self._step_s if slow else 0.0
        if self._planting is not None:
            self._planting.begin()
        dist.barrier()

    def _start_profiler(self, case: Case) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._profiler = profile(
            activities=activities,
            record_shapes=case.number % 3 == 0,
            with_stack=case.stacks,
            experimental_config=_ExperimentalConfig(record_python_gc_info=True) if case.stacks else None,
            schedule=schedule(wait=0, warmup=WARMUP, active=self._traced(case)),
            on_trace_ready=self._export,
        )
        self._profiler.start()

    def _export(self, done: profile) -> None:
        assert self._case is not None
        folder = self._out / f"{self._case.name}.partial"
        folder.mkdir(parents=True, exist_ok=True)
        done.export_chrome_trace(str(folder / f"rank-{dist.get_rank()}.json"))

    def _finish(self, case: Case) -> None:
        assert self._profiler is not None
        self._profiler.stop()
        self._profiler = None
        if self._planting is not None:
            self._planting.end()
            self._planting = None
        dist.barrier()
        if dist.get_rank() == 0:
            partial = self._out / f"{case.name}.partial"
            case.write(partial, self._step_s)
            partial.rename(self._out / case.name)
            print(f"{time.strftime('%X')} {case.name} ({self._step_s * 1e3:.1f} ms)", flush=True)
        self._case = None
        self._begin()

    def _acts(self, point: str) -> bool:
        return self._planting is not None and point in points(self._planting.fault)

    def _at(self, point: str, value: Any) -> Any:
        if not self._acts(point):
            return None if point == "backward" else value
        assert self._planting is not None
        changed = FAULTS[self._planting.fault][point](self._planting, value)
        return value if changed is None and point != "backward" else changed
