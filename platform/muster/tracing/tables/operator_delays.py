"""From an operator to its kernels: the delays until the first launch and until the device begins, and the operators
around a launch.

HolisticTraceAnalysis (HTA) 0.5.0: `get_aten_op_kernels_and_delay`, which knows only operators whose name begins with
`aten::` and takes the innermost one on any thread; here it is the innermost operator on the launching thread.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from muster.tracing.read.events import EventKind, Events, Trace, build_call_tree
from muster.tracing.read.spans import Int64, groups
from muster.tracing.tables.device_tables import launches_of
from muster.tracing.work.work_kinds import nested_events


@dataclass(frozen=True, slots=True)
class OperatorDelay:
    """The calls of an operator that launched these kernels, in the order of their launches.

    Means over the calls, in nanoseconds: `launch_delay_ns` from the start of the operator to that of its first launch,
    `start_delay_ns` from there to the start of the first kernel.
    """

    operator: str
    kernels: tuple[str, ...]
    calls: int
    launch_delay_ns: float
    start_delay_ns: float


def operator_delays(trace: Trace, work: Events, *, hta: bool = False) -> tuple[OperatorDelay, ...]:
    """By operator and kernels, the most calls first. Kernels that were launched outside of operators are left out."""
    calls, found = launches_of(trace, work[work.kind == EventKind.KERNEL])
    kernels = work[work.kind == EventKind.KERNEL][found]
    operators = operator_events(trace)
    if hta:
        aten = np.array([name.startswith("aten::") for name in trace.names], dtype=bool)
        operators = operators[aten[operators.name]]
    innermost, _ = enclosing_operators(operators, calls, any_thread=hta)
    sums: defaultdict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(lambda: [0, 0, 0])
    for same in groups(innermost):
        operator = int(innermost[same[0]])
        if operator < 0:
            continue
        same = same[np.lexsort((kernels.start[same], calls.start[same]))]
        first = same[0]
        total = sums[int(operators.name[operator]), tuple(kernels.name[same].tolist())]
        total[0] += 1
        total[1] += int(calls.start[first] - operators.start[operator])
        total[2] += int(kernels.start[first] - calls.start[first])
    names = trace.names
    rows = [
        OperatorDelay(names[operator], tuple(names[code] for code in codes), count, launch / count, start / count)
        for (operator, codes), (count, launch, start) in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.calls, row.operator, row.kernels)))


def operator_events(trace: Trace) -> Events:
    """Operators of the CPU that nest within a thread."""
    nested = nested_events(trace)
    return nested[nested.kind == EventKind.CPU_OP]


def enclosing_operators(operators: Events, calls: Events, *, any_thread: bool = False) -> tuple[Int64, Int64]:
    """The innermost operator around each call, as a position in `operators` (-1: none), and the operator around each
    operator. With `any_thread`, operators of other threads count too; the one that began last is taken."""
    innermost = np.full(len(calls), -1, dtype=np.int64)
    around = np.full(len(operators), -1, dtype=np.int64)
    for of_thread in groups(operators.thread):
        tree = build_call_tree(operators.spans[of_thread])
        rows = of_thread[tree.order]
        around[rows] = np.where(tree.parent >= 0, rows[tree.parent], -1)
        selected = (
            np.arange(len(calls)) if any_thread else np.flatnonzero(calls.thread == operators.thread[of_thread[0]])
        )
        if not len(rows) or not len(selected):
            continue
        at = np.searchsorted(tree.segments.start, calls.start[selected], side="right") - 1
        inner = np.where(at >= 0, tree.innermost[np.maximum(at, 0)], -1)
        ends = operators.end[rows]
        while (short := (inner >= 0) & (ends[inner] < calls.end[selected])).any():
            inner[short] = tree.parent[inner[short]]
        of_call = np.where(inner >= 0, rows[inner], -1)
        before = innermost[selected]
        later = (of_call >= 0) & ((before < 0) | (operators.start[of_call] > operators.start[before]))
        innermost[selected] = np.where(later, of_call, before)
    return innermost, around
