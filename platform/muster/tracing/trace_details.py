"""What `read_trace` reads of a trace only if it is asked for: more arguments of events, counters, stacks and flows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from muster.tracing.read.spans import Int64

Int32 = NDArray[np.int32]


class Detail(StrEnum):
    """What can be asked for, by the fields of `TraceDetails` that it fills."""

    SEQUENCE = "sequence"  # collective_sequence, operator_sequence
    DTYPE = "dtype"
    EXTERNAL_ID = "external_id"
    WAITS = "waits"  # waited_stream, waited_correlation
    COUNTERS = "counters"
    STACKS = "stacks"
    FLOWS = "flows"
    COPIES = "copies"  # copied_bytes, bandwidth
    KERNEL_COUNTERS = "kernel_counters"


@dataclass(frozen=True, slots=True)
class Counters:
    """Values of counters (phase `C`), in file order: `name` and `series` index the trace's names; `time` in nanoseconds
    since its origin."""

    name: Int32
    series: Int32
    time: Int64
    value: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Calls of Python functions (`with_stack`), in file order: `name` and `thread` index the trace's names and threads;
    nanoseconds since its origin; `id` and the `parent`'s id are torch's (-1: none)."""

    name: Int32
    thread: Int32
    start: Int64
    end: Int64
    id: Int64
    parent: Int64


@dataclass(frozen=True, slots=True)
class FlowEnds:
    """The ends of flows, in file order: from launches to kernels (`ac2g`), from forward to backward (`fwdbwd`).

    `category` and `thread` index the trace's names and threads. The two ends of a flow have the same category and `id`;
    `is_start` tells them apart.
    """

    category: Int32
    id: Int64
    thread: Int32
    time: Int64
    is_start: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """Values of hardware counters of CUPTI's range profiler, one for each range and counter, in file order: `event` is
    the range's position in the trace's events, `name` the counter's in its names."""

    event: Int64
    name: Int32
    value: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TraceDetails:
    """Columns parallel to `Trace.events` (-1: the event has none), and further tables; None: not asked for.

    `collective_sequence`: the number of a collective in its process group; `operator_sequence`: autograd's number, the
    same for forward and backward; `dtype`: of a collective's elements, a position in the trace's names; `external_id`:
    the operator that a device event belongs to. Of a wait for an event of another stream (`cuda_sync`): that stream,
    and the correlation of the call that recorded the event. Of a copy or memset: its bytes, and its bandwidth in GB/s
    as recorded (NaN: none).
    """

    collective_sequence: Int64 | None = None
    operator_sequence: Int64 | None = None
    dtype: Int32 | None = None
    external_id: Int64 | None = None
    waited_stream: Int64 | None = None
    waited_correlation: Int64 | None = None
    counters: Counters | None = None
    python_calls: PythonCalls | None = None
    flows: FlowEnds | None = None
    copied_bytes: Int64 | None = None
    bandwidth: NDArray[np.float64] | None = None
    kernel_counters: KernelCounters | None = None
