"""A device's time by HolisticTraceAnalysis's (HTA's) formulas: compute, non-compute, overlap, causes of idle time.

HTA uses the device work launched before the last profiled step (whose kernels may be cut off), with timestamps rounded
inwards to whole microseconds. `select_device_work` and `round_to_microseconds` do the same, so that the numbers can be
compared with HTA's to the microsecond. The report itself uses every step and full resolution.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from muster.tracing.read.events import DEVICE_WORK, EventKind, Events, Mask, Trace
from muster.tracing.read.spans import Int64, Spans, groups, intersect, total_ns

NS_PER_US = 1000  # nanoseconds
UNTYPED = np.int8(-1)


class HtaVersion(StrEnum):
    """HTA's versions with different types of work; the values are those of `--compat`."""

    V0_5 = "hta"
    V0_6 = "hta-0.6"


@dataclass(frozen=True, slots=True)
class _Patterns:
    """Of names, in this order; what matches none is compute. `other` has no type in HTA's results."""

    communication: re.Pattern[str]
    memory: re.Pattern[str]
    other: re.Pattern[str]


_PATTERNS = {
    HtaVersion.V0_5: _Patterns(
        re.compile(r"nccl.*Kernel"), re.compile(r"Memcpy|Memset|dma"), re.compile(r".*Memcpy|.*Sync")
    ),
    HtaVersion.V0_6: _Patterns(
        re.compile(r"nccl|hip|hccl|.*ncclKernel"),
        re.compile(r"(hip)?Memcpy|(hip)?Memset|dma"),
        re.compile(
            r".*Memcpy|.*Memset|.*dma|.*Sync|Stream Wait Event|cuda.*LaunchKernel|runFunction|job_exe|packet|pe_exe"
            r"|cpum_exe_subgraph|collective_subgraph_execution"
        ),
    ),
}


class KernelType(IntEnum):
    """HTA's types of device work that it shows."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2


@dataclass(frozen=True, slots=True)
class TemporalBreakdown:
    """Nanoseconds of one device between its first and last work; the three parts sum to `total_ns`.

    `non_compute_ns` is time in which only communication or memory work ran.
    """

    idle_ns: int
    compute_ns: int
    non_compute_ns: int
    total_ns: int


def kernel_type(name: str, version: HtaVersion = HtaVersion.V0_5) -> KernelType | None:
    """By HTA's patterns of names. None for its type OTHER: synchronisation, and copies with other names."""
    patterns = _PATTERNS[version]
    if patterns.communication.match(name):
        return KernelType.COMMUNICATION
    if patterns.memory.match(name):
        return KernelType.MEMORY
    return None if patterns.other.match(name) else KernelType.COMPUTE


def kernel_types(trace: Trace, work: Events, version: HtaVersion = HtaVersion.V0_5) -> NDArray[np.int8]:
    """The type of each event of device work by its name, `UNTYPED` for OTHER. HTA 0.5.0 counts waits for an event of
    another stream as compute, 0.6.0 as none of the types."""
    found = (kernel_type(name, version) for name in trace.names)
    by_name = np.array([UNTYPED if one is None else one for one in found], dtype=np.int8)
    return by_name[work.name] if len(work) else np.empty(0, dtype=np.int8)


def round_to_microseconds(trace: Trace) -> Trace:
    """HTA's rounding: starts up and ends down to whole microseconds; work within one microsecond takes -1 µs.

    HTA adds start and duration as the floats of the file, whose resolution is a quarter of a microsecond in traces
    written before mid-2024. This uses the same floats, else thousands of ends would round differently.
    """
    start_us = trace.origin_us + trace.events.start / NS_PER_US
    end_us = start_us + trace.events.duration / NS_PER_US
    times = []
    for us, rounded in ((end_us, np.floor), (start_us, np.ceil)):  # in place, since these are all events
        rounded(us, out=us)
        us -= trace.origin_us
        us *= NS_PER_US
        times.append(us.astype(np.int64))
    end, start = times
    return replace(trace, events=replace(trace.events, start=start, end=end))


def select_device_work(trace: Trace, *, include_last_step: bool, with_synchronisation: bool = False) -> Events:
    """Device work launched before the last profiled step begins, or with `include_last_step` before it ends.

    All device work if fewer than two steps were profiled. `with_synchronisation` adds what waits on a device, except
    with the stream -1; HTA's temporal breakdown counts it as work, its idle breakdown does not. As HTA does, this takes
    for a step also the step's annotation on a device (`gpu_user_annotation`, written by torch 2.11), which begins with
    the step's first kernel: of the last step it then includes what was launched before.
    """
    work = trace.device_work
    if with_synchronisation:
        work = trace.of_kind(*DEVICE_WORK, EventKind.SYNC)
        work = work[(work.kind != EventKind.SYNC) | (work.stream != -1)]
    steps, events = _htas_steps(trace), trace.events
    if len(np.unique(steps.name)) < 2:
        return work
    before = events.start <= steps.end.max() if include_last_step else events.start < steps.start.max()
    return work[np.isin(work.correlation, events.correlation[_on_cpu(events) & before & (events.correlation >= 0)])]


def before_last_step(trace: Trace, events: Events) -> Events:
    """Those that HTA takes for events of the CPU, without the ones from the beginning of its last step on."""
    steps = _htas_steps(trace)
    return events if len(np.unique(steps.name)) < 2 else events[events.start < steps.start.max()]


def _htas_steps(trace: Trace) -> Events:
    names = [code for code, name in enumerate(trace.names) if "ProfilerStep" in name]
    return trace.events[_on_cpu(trace.events) & np.isin(trace.events.name, names)]


def _on_cpu(events: Events) -> Mask:
    mask: Mask = ~np.isin(events.kind, (*DEVICE_WORK, EventKind.SYNC)) & (
        (events.stream < 0) | (events.correlation < 0)
    )
    return mask


def _of_type(types: NDArray[np.int8], wanted: KernelType) -> Mask:
    mask: Mask = types == wanted
    return mask


def temporal_breakdown(types: NDArray[np.int8], work: Spans) -> TemporalBreakdown:
    """Break down the time between the first start and the last end of `work`."""
    merged = _merged(work)
    if not len(merged):
        return TemporalBreakdown(0, 0, 0, 0)
    total = int(merged.end[-1] - merged.start[0])
    idle = total - _sum_ns(merged)
    compute = _sum_ns(_merged(work[_of_type(types, KernelType.COMPUTE)]))
    return TemporalBreakdown(idle_ns=idle, compute_ns=compute, non_compute_ns=total - idle - compute, total_ns=total)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Nanoseconds of communication, and those during which computation ran as well."""

    communication_ns: int
    overlapped_ns: int

    @property
    def ratio(self) -> float | None:
        """|communication and computation| / |communication|, as HTA defines it; None without communication."""
        return self.overlapped_ns / self.communication_ns if self.communication_ns else None


def overlap(communication: Spans, computation: Spans) -> Overlap:
    """The overlap of two sets; concurrent spans within a set count once."""
    return Overlap(_sum_ns(_merged(communication)), total_ns(intersect(communication, computation)))


def _merged(spans: Spans) -> Spans:
    """HTA's `merge_kernel_intervals`: as `union`, but work of -1 µs that meets no other remains, and is subtracted."""
    if not len(spans):
        return spans
    order = np.argsort(spans.start, kind="quicksort")  # pandas' order of equal starts
    start, end = spans.start[order], spans.end[order]
    reached = np.maximum.accumulate(end)
    first = np.append(True, start[1:] > reached[:-1])
    return Spans(start[first], np.maximum.reduceat(end, np.flatnonzero(first)))


def _sum_ns(spans: Spans) -> int:
    return int((spans.end - spans.start).sum())


# HTA's default: a shorter gap between two kernels is launch overhead.
LAUNCH_GAP_NS = 30_000


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """Nanoseconds between consecutive work of one stream, by the cause of each gap.

    host_wait: the next work was launched only after the previous one had ended (the host was too slow).
    kernel_wait: launched in time, gap shorter than 30 µs.
    other: launched in time, longer gap; usually waiting for another stream.
    """

    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int

    @property
    def total_ns(self) -> int:
        return self.host_wait_ns + self.kernel_wait_ns + self.other_ns


def launch_times(trace: Trace, work: Events) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The launch time on the CPU of each event of `work`, in nanoseconds; the minimum of int64 if unknown."""
    unknown = np.full(len(work), np.iinfo(np.int64).min)
    ids, times = trace.launch_order if len(work) else (unknown, unknown)
    if not len(ids):
        return unknown
    at = last_launches(trace, work)
    return np.where(ids[at] == work.correlation, times[at], unknown)


def last_launches(trace: Trace, work: Events) -> Int64:
    """For each event of `work` the position of its launch in `launch_order`, of another one if it has none. Of several
    with one id, which some profilers use again, the last before the work."""
    ids, (ordered, keys) = trace.launch_order[0], trace.launch_keys
    at = np.minimum(np.searchsorted(ids, work.correlation), len(ids) - 1)
    if len(keys):
        # By id and then time, as one number: times by their order, so that it does not overflow.
        wanted = at * (len(ordered) + 1) + np.searchsorted(ordered, work.start, side="right")
        last = np.searchsorted(keys, wanted, side="right") - 1
        at = np.where(ids[at] == work.correlation, np.maximum(at, last), at)
    return at


def idle_by_stream(trace: Trace, work: Events, *, negative_gaps: bool = False) -> tuple[StreamIdle, ...]:
    """The idle time of every stream with work, ordered by stream; `work` is device work of `trace`.

    With `negative_gaps`, work that begins before the previous work of its stream has ended reduces the idle time, as in
    HTA.
    """
    launched = launch_times(trace, work)
    found = []
    for of_stream in groups(work.thread):
        of_stream = of_stream[np.argsort(work.start[of_stream], kind="stable")]
        previous_end = work.end[of_stream][:-1]
        gap = work.start[of_stream][1:] - previous_end
        gap = gap if negative_gaps else np.maximum(gap, 0)
        late = launched[of_stream][1:] > previous_end
        short = ~late & (gap < LAUNCH_GAP_NS)
        found.append(
            StreamIdle(
                stream=int(work.stream[of_stream[0]]),
                host_wait_ns=int(gap[late].sum()),
                kernel_wait_ns=int(gap[short].sum()),
                other_ns=int(gap[~late & ~short].sum()),
            )
        )
    return tuple(sorted(found, key=lambda idle: idle.stream))
