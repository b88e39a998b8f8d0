"""A device's time by HolisticTraceAnalysis's (HTA's) formulas: compute, non-compute, idle.

HTA uses the device work launched before the last profiled step (whose kernels may be cut off), with timestamps rounded
inwards to whole microseconds. `select_device_work` and `round_to_microseconds` do the same, so that the numbers can be
compared with HTA's to the microsecond. The report itself uses every step and full resolution.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from muster.tracing.events import DEVICE_WORK, EventKind, Events, Mask, Trace
from muster.tracing.spans import Coverage, Spans, coverage, total_ns, union
from muster.tracing.steps import profiled_steps

COMMUNICATION_KERNEL = re.compile(r"(^nccl.*)|(^hip)|(^hccl)|(.*ncclKernel.*)")
MEMORY_KERNEL = re.compile(r"^(hip)?Memcpy|^(hip)?Memset|^dma")
NS_PER_US = 1000  # nanoseconds


class KernelType(IntEnum):
    """HTA's types of device work; the value is the bit in `type_coverage`."""

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


def kernel_type(name: str) -> KernelType:
    """By HTA's name patterns; work that is neither communication nor memory is compute."""
    if COMMUNICATION_KERNEL.match(name):
        return KernelType.COMMUNICATION
    return KernelType.MEMORY if MEMORY_KERNEL.match(name) else KernelType.COMPUTE


def kernel_types(trace: Trace, work: Events) -> NDArray[np.int8]:
    """The type of each event of device work; memcpy and memset are memory work regardless of their name."""
    by_name = np.array([kernel_type(name) for name in trace.names], dtype=np.int8)
    types = by_name[work.name] if len(work) else np.empty(0, dtype=np.int8)
    return np.where(work.kind == EventKind.KERNEL, types, np.int8(KernelType.MEMORY)).astype(np.int8)


def round_to_microseconds(trace: Trace) -> Trace:
    """HTA's rounding: starts up and ends down to whole microseconds; shorter work becomes empty.

    HTA adds start and duration as the floats of the file, whose resolution is a quarter of a microsecond in traces
    written before mid-2024. This uses the same floats, else thousands of ends would round differently.
    """
    ts_us = trace.origin_us + trace.events.start / NS_PER_US
    end_us = np.floor(ts_us + trace.events.duration / NS_PER_US)
    start = ((np.ceil(ts_us) - trace.origin_us) * NS_PER_US).astype(np.int64)
    end = np.maximum(((end_us - trace.origin_us) * NS_PER_US).astype(np.int64), start)
    return replace(trace, events=replace(trace.events, start=start, end=end))


def select_device_work(trace: Trace, *, include_last_step: bool) -> Events:
    """Device work launched before the last profiled step begins, or with `include_last_step` before it ends.

    All device work if fewer than two steps were profiled.
    """
    work = trace.device_work
    steps = profiled_steps(trace)
    if len({step.number for step in steps}) < 2:
        return work
    on_cpu = trace.events[~np.isin(trace.events.kind, (*DEVICE_WORK, EventKind.SYNC, EventKind.DEVICE_ANNOTATION))]
    before = on_cpu.start <= steps[-1].end if include_last_step else on_cpu.start < steps[-1].start
    return work[np.isin(work.correlation, on_cpu.correlation[before & (on_cpu.correlation >= 0)])]


def type_coverage(types: NDArray[np.int8], work: Spans) -> Coverage:
    """The coverage of time by types of work; bit k is KernelType k."""
    return coverage([work[_of_type(types, t)] for t in KernelType])


def _of_type(types: NDArray[np.int8], wanted: KernelType) -> Mask:
    mask: Mask = types == wanted
    return mask


def temporal_breakdown(types: NDArray[np.int8], work: Spans) -> TemporalBreakdown:
    """Break down the time between the first start and the last end of `work`."""
    merged = union(work)
    if not len(merged):
        return TemporalBreakdown(0, 0, 0, 0)
    total = int(merged.end[-1] - merged.start[0])
    idle = total - total_ns(merged)
    compute = total_ns(work[_of_type(types, KernelType.COMPUTE)])
    return TemporalBreakdown(idle_ns=idle, compute_ns=compute, non_compute_ns=total - idle - compute, total_ns=total)
