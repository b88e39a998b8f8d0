"""One cell of the table of `backends.py`: a model with a backend, measured in this process."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.backend_rows.runners import KEPT_LOSSES, OURS, Runner, runner
from benchmarks.backend_rows.workloads import TINY, WORKLOADS, Workload

from muster_components.trainer.context import run_context
from muster_components.trainer.device import choose_device, init_distributed, select_kernels
from muster_components.trainer.models.recipes import mfu, peak_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much to measure: `iterations` after `warmup`, fewer if the cell would take more than `limit_s`."""

    iterations: int
    warmup: int
    limit_s: float | None


def measure_cell(model: str, backend: str, amount: Amount, *, tiny: bool) -> dict[str, Any]:
    """The cell as JSON values; milliseconds, GiB, MFU from 0 to 1 (None on a CPU)."""
    started_s = time.monotonic()
    workload = (TINY if tiny else WORKLOADS)[model]()
    device = choose_device(run_context({}, None), os.environ)
    with _environment(backend, device):
        # The backends draw different random numbers, so losses are compared without dropout.
        losses = _losses_without_dropout(workload, backend, device) if workload.dropout else None
        trained = runner(workload, backend, device, dropout=workload.dropout)
        times_ms, cold_s = _time_steps(trained, amount, device, started_s)
        losses = losses or trained.losses()
    mean_ms = fmean(times_ms)
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return {
        "model": model,
        "backend": backend,
        "samples": workload.samples,
        "flops": workload.flops,
        "flops_by": workload.flops_by,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "iterations": len(times_ms),
        "mean_ms": mean_ms,
        "stdev_ms": stdev(times_ms) if len(times_ms) > 1 else 0.0,
        "median_ms": median(times_ms),
        "mfu": mfu(workload.flops, mean_ms / 1000, peak, 1),
        "peak_gib": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        "first_step_s": cold_s,
        "losses": losses,
        "losses_without_dropout": workload.dropout > 0,
    }


@contextlib.contextmanager
def _environment(backend: str, device: torch.device) -> Iterator[None]:
    """For the trainer's step, what the trainer sets up before; for the other backends torch as it is."""
    if backend != OURS:
        yield
        return
    init_distributed(device, 1, launched=False)
    try:
        with select_kernels(device, "bf16", deterministic=False):
            yield
    finally:
        dist.destroy_process_group()


def _losses_without_dropout(workload: Workload, backend: str, device: torch.device) -> list[float]:
    """Those of the first steps; frees what they used."""
    trained = runner(workload, backend, device, dropout=0.0)
    for number in range(1, KEPT_LOSSES + 1):
        trained.step(number)
    losses = trained.losses()
    del trained
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return losses


def _time_steps(trained: Runner, amount: Amount, device: torch.device, started_s: float) -> tuple[list[float], float]:
    """Milliseconds of each timed step, from end to end, and the seconds of the first step."""
    first_s = time.monotonic()
    trained.step(1)
    _wait(device)
    cold_s = time.monotonic() - first_s
    for number in range(2, amount.warmup // 2 + 1):
        trained.step(number)
    _wait(device)
    middle_s = time.monotonic()
    for number in range(max(2, amount.warmup // 2 + 1), amount.warmup + 1):
        trained.step(number)
    _wait(device)
    now_s = time.monotonic()
    step_s = (now_s - middle_s) / (amount.warmup - amount.warmup // 2)
    iterations = amount.iterations
    if amount.limit_s is not None:
        left_s = amount.limit_s - (now_s - started_s)
        iterations = max(MIN_ITERATIONS, min(iterations, int(left_s / step_s)))
    ends = [_mark(device)]
    for number in range(amount.warmup + 1, amount.warmup + iterations + 1):
        trained.step(number)
        ends.append(_mark(device))
    _wait(device)
    return [_between_ms(start, end) for start, end in itertools.pairwise(ends)], cold_s


MIN_ITERATIONS = 10
"""Also of a cell without time left."""


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _mark(device: torch.device) -> Any:
    """The present point of the device's queue, or of time on a CPU."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _between_ms(start: Any, end: Any) -> float:
    return 1000 * (end - start) if isinstance(start, float) else float(start.elapsed_time(end))
