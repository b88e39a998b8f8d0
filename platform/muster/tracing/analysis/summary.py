"""What is known of a run from all its ranks: summary, labels of traces, overhead of tracing.

Between two steps a rank may start its profiler or write its trace. Step times do not include this overhead, but ranks
that finish earlier wait in the following step, so medians exclude that step.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from muster.tracing.analysis.trace_summary import TraceSummary
from muster.tracing.runs.run_folder import Float64, RankMetrics, RunFolder, finite_values
from muster.tracing.runs.trace_files import parse_trace_name

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


@dataclass(frozen=True, slots=True)
class LabelledTrace:
    """An analysed trace and its label."""

    label: str
    trace: TraceSummary


def label_traces(summaries: Sequence[TraceSummary]) -> tuple[LabelledTrace, ...]:
    """Label each trace `rank 3`; with attempt and steps, file name or path added where others have the same label."""
    folder = os.path.commonpath([Path(t.source).absolute().parent for t in summaries]) if summaries else ""
    labels = [_short_source(t.source) if t.rank is None else f"rank {t.rank}" for t in summaries]
    with_recording = [
        _recording(t.source) if t.rank is None else f"rank {t.rank} · {_recording(t.source)}" for t in summaries
    ]
    with_path = [
        f"{label} · {os.path.relpath(Path(t.source).absolute(), folder)}"
        for label, t in zip(labels, summaries, strict=True)
    ]
    for longer in (with_recording, with_path):
        counts = Counter(labels)
        labels = [long if counts[label] > 1 else label for label, long in zip(labels, longer, strict=True)]
    return tuple(LabelledTrace(label, trace) for label, trace in zip(labels, summaries, strict=True))


def _recording(source: str) -> str:
    """`attempt 0, steps 20–24`, else the file's name: what distinguishes traces of one rank."""
    name = parse_trace_name(Path(source).name)
    return (
        _short_source(source)
        if name is None
        else f"attempt {name.attempt}, steps {name.start_step}–{name.end_step - 1}"
    )


def _short_source(source: str) -> str:
    return Path(source).name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")


def in_common_steps(summaries: Sequence[TraceSummary]) -> list[TraceSummary]:
    """The same traces with one window for all: the steps that each of them has; unchanged if there are none."""
    common = set.intersection(*({step.step for step in t.steps} for t in summaries)) if summaries else set()
    return [trace.in_steps(common) for trace in summaries] if common else list(summaries)


def choose_timeline_step(summaries: Sequence[TraceSummary]) -> int | None:
    """Of the steps for which most ranks have a timeline, the one with the median slowest rank."""
    durations: dict[int, list[float]] = {}
    for trace in summaries:
        for timeline in trace.timelines:
            durations.setdefault(timeline.step, []).append(timeline.duration_s)
    if not durations:
        return None
    max_ranks = max(len(times) for times in durations.values())
    common = sorted((max(times), step) for step, times in durations.items() if len(times) == max_ranks)
    return common[(len(common) - 1) // 2][1]


@dataclass(frozen=True, slots=True)
class ProfilerOverhead:
    """The overhead before `step` on the slowest rank, `rank`: `start_s` for starting the profiler, `write_s` for
    writing the trace. On the fastest rank it was `spread_s` less. In seconds."""

    step: int
    rank: int
    start_s: float = 0.0
    write_s: float = 0.0
    spread_s: float = 0.0


def profiler_overheads(metrics: Sequence[RankMetrics]) -> tuple[ProfilerOverhead, ...]:
    """One for each step before which any rank started its profiler or wrote its trace, in order of steps."""
    totals = [np.nan_to_num(m.trace_start_s) + np.nan_to_num(m.trace_write_s) for m in metrics]
    steps = sorted({int(step) for m, total in zip(metrics, totals, strict=True) for step in m.step[total > 0]})
    return tuple(_slowest_rank([overhead for m in metrics for overhead in _overheads_at(m, step)]) for step in steps)


def _overheads_at(metrics: RankMetrics, step: int) -> list[ProfilerOverhead]:
    """The rank's overhead before this step; empty if it did not reach the step."""
    return [
        ProfilerOverhead(
            step, metrics.rank, *(float(np.nan_to_num(t[i])) for t in (metrics.trace_start_s, metrics.trace_write_s))
        )
        for i in np.flatnonzero(metrics.step == step)
    ]


def _slowest_rank(overheads: list[ProfilerOverhead]) -> ProfilerOverhead:
    ordered = sorted(overheads, key=lambda overhead: (_total_s(overhead), -overhead.rank))
    return replace(ordered[-1], spread_s=_total_s(ordered[-1]) - _total_s(ordered[0]))


def _total_s(overhead: ProfilerOverhead) -> float:
    return overhead.start_s + overhead.write_s


def steady_median(metrics: RankMetrics, values: Float64, overheads: Sequence[ProfilerOverhead]) -> float | None:
    """The median of a rank's values without the steps that follow profiler overhead; of all steps if there are no
    others; None without values."""
    affected = np.isin(metrics.step, [overhead.step for overhead in overheads])
    known = finite_values(values[~affected])
    known = known if len(known) else finite_values(values)
    return float(np.median(known)) if len(known) else None


def slow_step_cause(step: int, overheads: Sequence[ProfilerOverhead]) -> str:
    """What tracing did before this step: "trace written", "profiler started" or empty."""
    overhead = next((overhead for overhead in overheads if overhead.step == step), None)
    return "" if overhead is None else "trace written" if overhead.write_s else "profiler started"
