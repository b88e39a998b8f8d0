"""Summarises each trace into a few kilobytes, so that the summaries of many ranks fit in memory."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.errors import InvalidTrace
from muster.tracing.account.rank_record import RankRecord, rank_record
from muster.tracing.efficiency.operator_efficiency import Efficiency, efficiency
from muster.tracing.read.events import Trace
from muster.tracing.read.json_stream import DEFAULT_LIMITS, TraceLimits
from muster.tracing.read.processes import split_processes
from muster.tracing.read.spans import Int64, Spans, spans_from_pairs
from muster.tracing.reader import read_trace
from muster.tracing.work.compiled_regions import CompiledRegion, compiled_regions
from muster.tracing.work.hta_breakdown import (
    HtaVersion,
    KernelType,
    StreamIdle,
    idle_by_stream,
    kernel_types,
    overlap,
    round_to_microseconds,
    select_device_work,
    temporal_breakdown,
)
from muster.tracing.work.memory_curve import MemoryCurve, memory_curve
from muster.tracing.work.operator_stats import OperatorStats, kernels_by_time, operators_by_self_time
from muster.tracing.work.recordings import Recording, recording
from muster.tracing.work.step_marks import WHOLE_TRACE
from muster.tracing.work.steps import StepTable, step_table
from muster.tracing.work.time_breakdown import (
    ExposedCollective,
    StepTime,
    category_spans,
    communication_events,
    exposed_collectives,
    step_times,
)
from muster.tracing.work.timelines import StepTimeline, step_timelines
from muster.tracing.work.work_kinds import TimeCategory

MAX_OPERATORS = 30
RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
"""Of a program without torch.distributed, or whose trace does not say its rank."""


@dataclass(frozen=True, slots=True)
class HtaMetrics:
    """HolisticTraceAnalysis's numbers of this trace with its defaults: whole microseconds, without the last step."""

    idle_us: int
    compute_us: int
    non_compute_us: int
    kernel_us: int
    overlap_percent: float | None


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The analysis of one trace. Times in seconds; `time_by_category_s` sums to `window_s`.

    The window are the steps, or the whole trace if nothing divides it into steps; `in_steps` selects steps.
    `memory` is known if the profiler recorded it.
    `operators` are the top 30 CPU operators by self time, `kernels` the top 30 of device work by duration (empty on the
    CPU); `operators_s` and `kernels_s` are the times of all of them, including those not listed.
    `hta` are the numbers of HolisticTraceAnalysis 0.5.0, `hta_0_6` those of 0.6.0.
    `compiled_regions` are those of the graphs among the operators.
    """

    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    device: str | None
    job: str | None
    events: int
    invalid_events: int
    on_device: bool
    window_s: float
    time_by_category_s: dict[str, float]
    communication_s: float
    overlapped_s: float
    collectives: tuple[ExposedCollective, ...]
    steps: tuple[StepTime, ...]
    operators: tuple[OperatorStats, ...]
    operators_s: float
    kernels: tuple[OperatorStats, ...]
    kernels_s: float
    stream_idle: tuple[StreamIdle, ...]
    timelines: tuple[StepTimeline, ...]
    hta: HtaMetrics | None
    hta_0_6: HtaMetrics | None
    hta_stream_idle: tuple[StreamIdle, ...]
    compiled_regions: dict[str, CompiledRegion]
    memory: MemoryCurve | None = None
    efficiency: Efficiency | None = None
    """None unless the trace has shapes of operators (`record_shapes`)."""
    with_stack: bool = False
    recording: Recording = Recording()

    @property
    def overlap_ratio(self) -> float | None:
        """The fraction of communication overlapped by computation; None without communication."""
        return self.overlapped_s / self.communication_s if self.communication_s > 0 else None

    @property
    def step_s(self) -> dict[int, float]:
        return {step.step: step.duration_s for step in self.steps}

    def share(self, category: TimeCategory) -> float:
        """The fraction of the window spent in a kind of work, 0 to 1."""
        return self.time_by_category_s[category.name.lower()] / self.window_s if self.window_s > 0 else 0.0

    def in_steps(self, numbers: AbstractSet[int]) -> TraceSummary:
        """The same with the window reduced to these steps; `collectives`, `operators` and `kernels` stay."""
        return self._with_window([step for step in self.steps if step.step in numbers])

    def _with_window(self, times: Sequence[StepTime]) -> TraceSummary:
        return replace(
            self,
            window_s=sum(time.duration_s for time in times),
            time_by_category_s={
                kind.name.lower(): sum(time.time_by_category_s[kind.name.lower()] for time in times)
                for kind in TimeCategory
            },
            communication_s=sum(time.communication_s for time in times),
            overlapped_s=sum(time.overlapped_s for time in times),
        )


@dataclass(frozen=True, slots=True)
class AnalysedTrace:
    """One trace: its summary, and what the comparison with other ranks needs (None without rank or steps)."""

    summary: TraceSummary
    record: RankRecord | None


@dataclass(frozen=True, slots=True)
class UnreadableTrace:
    """A file that could not be analysed, and the reason; `is_trace` is False for other JSON files."""

    source: str
    reason: str
    is_trace: bool = True


def analyse_trace(trace: Trace, *, critical_path: bool = False) -> AnalysedTrace:
    """Analyse one trace over all profiled steps, including the last one; `critical_path`: also prepare that."""
    steps = step_table(trace)
    work = steps.work
    lanes = category_spans(trace, steps)
    divided = len(steps) > 0 and not steps.source.endswith(WHOLE_TRACE)
    times = step_times(lanes, *_windows(trace, steps, divided=divided))
    operators, kernels = operators_by_self_time(trace), kernels_by_time(trace, work)
    hta = hta_measures(trace) if len(work) else HtaMeasures()
    summary = TraceSummary(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        backend=trace.backend,
        device=trace.device if len(work) else None,
        job=trace.job,
        events=trace.decoded_events,
        invalid_events=trace.invalid_events,
        on_device=len(work) > 0,
        window_s=0.0,
        time_by_category_s={},
        communication_s=0.0,
        overlapped_s=0.0,
        collectives=exposed_collectives(trace, communication_events(trace, work), lanes.exposed)[:MAX_OPERATORS],
        steps=times if divided else (),
        operators=operators[:MAX_OPERATORS],
        operators_s=sum(op.total_ns for op in operators) / 1e9,
        kernels=kernels[:MAX_OPERATORS],
        kernels_s=sum(op.total_ns for op in kernels) / 1e9,
        stream_idle=idle_by_stream(trace, work),
        timelines=step_timelines(lanes, steps) if divided else (),
        hta=hta.v0_5,
        hta_0_6=hta.v0_6,
        hta_stream_idle=hta.stream_idle,
        compiled_regions=compiled_regions(trace),
        memory=memory_curve(trace.memory, steps) if trace.memory is not None and divided else None,
        efficiency=efficiency(trace, steps),
        with_stack=trace.with_stack,
        recording=recording(trace, steps),
    )
    return AnalysedTrace(
        summary._with_window(times), rank_record(trace, steps, lanes, operators, critical_path=critical_path)
    )


def _windows(trace: Trace, steps: StepTable, *, divided: bool) -> tuple[Int64, Spans]:
    """The steps, or without any one window: from a device's first to its last work, else all events."""
    if divided:
        return steps.numbers, steps.windows
    spans = steps.work.spans if len(steps.work) else trace.events.spans
    whole = [(int(spans.start.min()), int(spans.end.max()))] if len(spans) else []
    return np.zeros(len(whole), dtype=np.int64), spans_from_pairs(whole)


class HtaMeasures(NamedTuple):
    """By HTA's rules, for comparison: temporal breakdown and overlap of 0.5.0 and of 0.6.0, and each stream's idle
    time."""

    v0_5: HtaMetrics | None = None
    v0_6: HtaMetrics | None = None
    stream_idle: tuple[StreamIdle, ...] = ()


def hta_measures(trace: Trace) -> HtaMeasures:
    """Of a trace with device work."""
    rounded = round_to_microseconds(trace)
    idle = idle_by_stream(rounded, select_device_work(rounded, include_last_step=False), negative_gaps=True)
    work = select_device_work(rounded, include_last_step=False, with_synchronisation=True)
    types, types_0_6 = (kernel_types(rounded, work, version) for version in HtaVersion)
    found = _hta_metrics(types, work.spans)
    return HtaMeasures(found, found if np.array_equal(types, types_0_6) else _hta_metrics(types_0_6, work.spans), idle)


def _hta_metrics(types: NDArray[np.int8], work: Spans) -> HtaMetrics:
    parts = temporal_breakdown(types, work)
    both = overlap(work[types == KernelType.COMMUNICATION], work[types == KernelType.COMPUTE])
    return HtaMetrics(
        idle_us=parts.idle_ns // 1000,
        compute_us=parts.compute_ns // 1000,
        non_compute_us=parts.non_compute_ns // 1000,
        kernel_us=parts.total_ns // 1000,
        overlap_percent=None if both.ratio is None else round(100 * both.ratio, 2),
    )


def summarise_trace_file(
    path: Path, limits: TraceLimits = DEFAULT_LIMITS, critical_path: bool = False
) -> tuple[AnalysedTrace | UnreadableTrace, ...]:
    """Read and analyse one file: its trace, or one for each rank that is merged into it. Returns an UnreadableTrace
    instead of raising, so that other traces are analysed."""
    try:
        traces = split_processes(read_trace(path, limits))
        if len(traces) == 1 and traces[0].rank is None and (named := RANK_IN_NAME.search(path.name)):
            traces = (replace(traces[0], rank=int(named[1])),)
        return tuple(analyse_trace(trace, critical_path=critical_path) for trace in traces)
    except InvalidTrace as error:
        reason = str(error).removeprefix(f"{path}: ")
        return (UnreadableTrace(str(path), reason, is_trace=error.reason != "NotATrace"),)
    except OSError as error:
        return (UnreadableTrace(str(path), str(error)),)


def summarise_trace_files(
    paths: Sequence[Path], *, workers: int = 1, limits: TraceLimits = DEFAULT_LIMITS, critical_path: bool = False
) -> tuple[AnalysedTrace | UnreadableTrace, ...]:
    """Read and analyse files, in their order, with `workers` processes. Raises InvalidTrace if a process is killed."""
    if workers <= 1 or len(paths) <= 1:
        return tuple(one for path in paths for one in summarise_trace_file(path, limits, critical_path))
    # Not "fork": the caller may have threads.
    with ProcessPoolExecutor(
        min(workers, len(paths)), mp_context=get_context("spawn"), initializer=exit_with_parent
    ) as pool:
        try:
            found = pool.map(summarise_trace_file, paths, repeat(limits), repeat(critical_path))
            return tuple(one for of_file in found for one in of_file)
        except BrokenProcessPool as error:
            raise InvalidTrace(
                f"{paths[0].parent}: a process that read traces was killed, possibly out of memory; give fewer traces"
            ) from error


def exit_with_parent() -> None:
    """End this worker when its parent is killed; else it would wait for work forever."""
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
