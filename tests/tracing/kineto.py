"""Small traces in the format of the profiler."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Event:
    """One complete event; times in microseconds."""

    name: str
    start: float
    duration: float
    category: str = "cpu_op"
    thread: int = 1
    stream: int | None = None
    correlation: int | None = None
    args: tuple[tuple[str, object], ...] = ()

    def as_json(self) -> dict[str, Any]:
        args: dict[str, Any] = dict(self.args)
        if self.stream is not None:
            args["stream"] = self.stream
        if self.correlation is not None:
            args["correlation"] = self.correlation
        on_device = self.stream is not None
        return {
            "ph": "X",
            "cat": self.category,
            "name": self.name,
            "pid": 0 if on_device else 100,
            "tid": self.stream if on_device else self.thread,
            "ts": self.start,
            "dur": self.duration,
            "args": args,
        }


def step(number: int, start: float, duration: float) -> Event:
    return Event(f"ProfilerStep#{number}", start, duration, "user_annotation")


def kernel(name: str, start: float, duration: float, *, stream: int = 7, launch: int | None = None) -> Event:
    return Event(name, start, duration, "kernel", stream=stream, correlation=launch)


def launch(correlation: int, start: float) -> Event:
    return Event("cudaLaunchKernel", start, 1, "cuda_runtime", correlation=correlation)


def trace_text(events: Sequence[Event], *, rank: int | None = 0, world_size: int = 1, indent: int | None = 1) -> bytes:
    """A complete trace document."""
    document: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
    if rank is not None:
        document["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": world_size}
    document["traceEvents"] = [event.as_json() for event in events]
    document["traceName"] = "rank.json"
    return json.dumps(document, indent=indent).encode()


def write_trace(path: Path, events: Sequence[Event], *, rank: int | None = 0, world_size: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(trace_text(events, rank=rank, world_size=world_size))
    return path


def training_steps(count: int = 3, *, first: int = 20, compute_us: float = 600, wait_us: float = 200) -> list[Event]:
    """`count` steps of 1 ms as a CPU rank has them: compute, a collective on gloo's thread, the optimizer."""
    events = []
    for i in range(count):
        at = 1000.0 * i
        events += [
            step(first + i, at, 1000),
            Event("aten::mm", at + 50, compute_us),
            Event("gloo:all_reduce", at + compute_us, 50 + wait_us, "user_annotation", thread=2),
            Event("Optimizer.step#AdamW.step", at + 900, 80, "user_annotation"),
            Event("aten::lerp_", at + 910, 60),
        ]
    return events


@dataclass(frozen=True, slots=True)
class GpuRank:
    """What one rank of a training job on GPUs does in a step of a data-parallel job; times in milliseconds.

    `extra` are kernels that it runs besides, `slowdown` multiplies the time of its kernels, `blocked` is an annotation
    (name, ms, every how many steps) before the first kernel.
    """

    layers: int = 8
    kernel_ms: float = 5.0
    extra: int = 0
    slowdown: float = 1.0
    blocked: tuple[str, float, int] = ("data", 0.5, 1)
    compile_ms: float = 0.0


def gpu_job(
    folder: Path,
    ranks: Sequence[GpuRank],
    *,
    steps: int = 4,
    clock_us: Sequence[float] = (),
    name: str = "rank{rank}.json",
) -> Path:
    """Traces of a job in which each step ends with an all-reduce that begins when the last rank has come.

    `clock_us` is how much each rank's clock is ahead. The first step is step 10.
    """
    begin = 0.0
    events: list[list[Event]] = [[] for _ in ranks]
    for number in range(steps):
        ready = [_gpu_compute(events[i], rank, number, begin) for i, rank in enumerate(ranks)]
        done = max(ready) + 1 * 1000.0
        for i, at in enumerate(ready):
            correlation = 1000 * number + 999
            of = (("Collective name", "allreduce"), ("Process Group Name", "0"), ("In msg nelems", 1 << 22))
            kernel_name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            events[i] += [
                launch(correlation, begin + 400),
                Event(kernel_name, at, done - at, "kernel", stream=20, correlation=correlation, args=of),
                step(10 + number, begin, done - begin),
                Event("cudaDeviceSynchronize", done - 10, 10, "cuda_runtime"),
            ]
        begin = done
    for i, of_rank in enumerate(events):
        ahead = clock_us[i] if clock_us else 0.0
        shifted = [replace(event, start=1e6 + event.start + ahead) for event in of_rank]
        write_trace(folder / name.format(rank=i), shifted, rank=i, world_size=len(ranks))
    return folder


def _gpu_compute(events: list[Event], rank: GpuRank, number: int, begin: float) -> float:
    """Append one step's host and kernels; returns when its all-reduce can begin."""
    name, blocked_ms, every = rank.blocked
    host = begin
    if number % every == 0:
        events.append(Event(name, begin, blocked_ms * 1000, "user_annotation"))
        host += blocked_ms * 1000
    if rank.compile_ms:
        events.append(Event("_compile.compile_inner (dynamo_timed)", host, rank.compile_ms * 1000))
        host += rank.compile_ms * 1000
    at = host + 10
    for i in range(rank.layers + rank.extra):
        length = rank.kernel_ms * 1000 * rank.slowdown
        correlation = 1000 * number + i
        kind = "gemm" if i < rank.layers else "extra_gemm"
        events += [launch(correlation, host + i), kernel(kind, at, length, launch=correlation)]
        at += length
    return at
