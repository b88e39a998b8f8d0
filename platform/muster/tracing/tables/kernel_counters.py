"""Hardware counters of kernels (CUPTI's range profiler) by the operators that launched them.

HolisticTraceAnalysis (HTA) 0.5.0: `get_cupti_counter_data_with_operators`. torch writes them with
`_ExperimentalConfig(profiler_metrics=[...], profiler_measure_per_kernel=True)`: ranges without a correlation, one for
each kernel, in the order of the launches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from muster.tracing.read.events import EventKind, Trace
from muster.tracing.read.spans import groups
from muster.tracing.tables.operator_delays import enclosing_operators, operator_events

KERNEL_LAUNCH = re.compile(r"cu(da)?Launch(Cooperative)?Kernel")


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A kernel with its counters by name. `operators` are around its launch, outermost first; empty if the trace does
    not have as many launches of kernels as ranges."""

    kernel: str
    start_ns: int
    operators: tuple[str, ...]
    counters: dict[str, float]


def kernel_counters(trace: Trace) -> tuple[MeasuredKernel, ...]:
    """By time. The trace was read with `Detail.KERNEL_COUNTERS`; empty if it has no such ranges."""
    found = None if trace.details is None else trace.details.kernel_counters
    if found is None:
        raise ValueError("read_trace(path, details={Detail.KERNEL_COUNTERS}) reads the counters of kernels")
    ranges = groups(found.event)
    ranges.sort(key=lambda rows: int(trace.events.start[found.event[rows[0]]]))
    stacks = _operators_of_launches(trace)
    if len(stacks) != len(ranges):
        stacks = [()] * len(ranges)
    measured = []
    for rows, stack in zip(ranges, stacks, strict=True):
        event = int(found.event[rows[0]])
        counters = {trace.names[found.name[row]]: float(found.value[row]) for row in rows.tolist()}
        name = trace.names[trace.events.name[event]]
        measured.append(MeasuredKernel(name, int(trace.events.start[event]), stack, counters))
    return tuple(measured)


def _operators_of_launches(trace: Trace) -> list[tuple[str, ...]]:
    """The operators around each launch of a kernel, by time."""
    launching = np.array([KERNEL_LAUNCH.match(name) is not None for name in trace.names], dtype=bool)
    calls = trace.of_kind(EventKind.RUNTIME)
    calls = calls[launching[calls.name]]
    calls = calls[np.argsort(calls.start, kind="stable")]
    operators = operator_events(trace)
    innermost, around = enclosing_operators(operators, calls)
    stacks = []
    for operator in innermost.tolist():
        stack = []
        while operator >= 0:
            stack.append(trace.names[operators.name[operator]])
            operator = int(around[operator])
        stacks.append(tuple(reversed(stack)))
    return stacks
