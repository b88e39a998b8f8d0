"""Small traces in the format of the profiler."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
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

    def as_json(self) -> dict[str, Any]:
        args: dict[str, Any] = {}
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
