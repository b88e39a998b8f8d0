"""The summary of a run: job, steps, loss, speed, memory, devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muster.tracing.analysis import TraceSummary
from muster.tracing.profiler_overhead import ProfilerOverhead, steady_median
from muster.tracing.run_folder import RankMetrics, RunFolder, finite_values

_RUN_FOLDER_NAME = re.compile(r"default-(.+)-[0-9a-f]{8}")
_GENERIC_NAMES = frozenset(
    {"traces", "trace", "profile", "profiler", "profiles", "logs", "log", "out", "output", "tmp"}
)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Key values of a job; None if unknown.

    `first_loss` and `last_loss` are those of the first and the last step. `step_time_s`, `tokens_per_s` and `mfu` are
    medians over all steps except those after the profiler was started or a trace was written. `attempts` is 1 for a
    job that was never restarted.
    """

    name: str
    folder: str
    world_size: int | None
    attempts: int
    steps: int | None
    first_loss: float | None
    last_loss: float | None
    step_time_s: float | None
    tokens_per_s: float | None
    mfu: float | None
    peak_memory_bytes: float | None
    device: str | None
    backend: str | None


def summarise_run(
    folder: RunFolder, traces: Sequence[TraceSummary], overheads: Sequence[ProfilerOverhead], *, name: str | None
) -> RunSummary:
    """Summarise metrics and heartbeats; values that they do not have come from the traces."""
    reference = next((m for m in folder.metrics if np.isfinite(m.loss).any()), None) or next(iter(folder.metrics), None)
    loss = finite_values(reference.loss) if reference is not None else np.empty(0)
    memory = [h.peak_memory_bytes for h in folder.heartbeats if h.peak_memory_bytes]
    attempts = [h.attempt for h in folder.heartbeats] + [e.attempt for e in folder.events]
    attempts += [w.attempt for w in folder.windows]
    return RunSummary(
        name=name or next((t.job for t in traces if t.job), None) or _name_of_folder(folder.path.resolve()),
        folder=str(folder.path.absolute()),
        world_size=_world_size(folder, traces),
        attempts=max(attempts, default=0) + 1,
        steps=_steps(folder, reference),
        first_loss=float(loss[0]) if len(loss) else None,
        last_loss=float(loss[-1]) if len(loss) else None,
        step_time_s=None if reference is None else steady_median(reference, reference.step_time_s, overheads),
        tokens_per_s=None if reference is None else steady_median(reference, reference.tokens_per_s, overheads),
        mfu=None if reference is None else steady_median(reference, reference.mfu, overheads),
        peak_memory_bytes=max(memory, default=0) or None,
        device=_device(traces),
        backend=_backend(traces),
    )


def _world_size(folder: RunFolder, traces: Sequence[TraceSummary]) -> int | None:
    """None for traces of different jobs."""
    reported = [h.world_size for h in folder.heartbeats if h.world_size]
    known = reported or list({t.world_size for t in traces if t.world_size})
    if known:
        return max(known) if reported or len(known) == 1 else None
    return len(folder.metrics) or None


def _steps(folder: RunFolder, reference: RankMetrics | None) -> int | None:
    if reference is not None and len(reference):
        return len(reference)
    return max((h.step for h in folder.heartbeats if h.step is not None), default=None)


def _name_of_folder(folder: Path) -> str:
    """The job's name from the name of a run folder, else the folder's name, with the parent's if it is generic."""
    if job := _RUN_FOLDER_NAME.fullmatch(folder.name):
        return job[1]
    return (
        f"{folder.parent.name}/{folder.name}" if folder.name in _GENERIC_NAMES and folder.parent.name else folder.name
    )


def _device(traces: Sequence[TraceSummary]) -> str | None:
    named = sorted({t.device for t in traces if t.device})
    if len(named) > 2:
        return f"{named[0]} and {len(named) - 1} other kinds"
    return " and ".join(named) or ("CPU" if traces and not any(t.on_device for t in traces) else None)


def _backend(traces: Sequence[TraceSummary]) -> str | None:
    """The backend of the device in use: of `cpu:gloo,cuda:nccl`, nccl if any trace has device work."""
    known = {t.backend for t in traces if t.backend}
    if len(known) != 1:
        return None
    backend = known.pop()
    device = "cuda" if any(t.on_device for t in traces) else "cpu"
    parts = dict(part.split(":", 1) for part in backend.split(",") if ":" in part)
    return parts.get(device, backend)
