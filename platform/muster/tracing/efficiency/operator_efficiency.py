"""The time that operators of each shape take, beside what they compute and move.

Device work belongs to the innermost operator around its launch whose cost is known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.tracing.efficiency.device_limits import DeviceLimits, Precision, device_limits
from muster.tracing.efficiency.operator_cost import (
    MATH_ATTENTION,
    OperatorCost,
    OperatorKind,
    dtype_name,
    operator_cost,
)
from muster.tracing.read.events import EventKind, Events, Trace, build_call_tree
from muster.tracing.read.spans import Int64, groups, union
from muster.tracing.tables.device_tables import launches_of
from muster.tracing.work.hta_breakdown import KernelType
from muster.tracing.work.steps import NO_STEP, StepTable
from muster.tracing.work.work_kinds import device_work_types, is_nested, matching_names

MAX_ROWS = 60
_TENSOR_CORES = re.compile(r"tf32|tensorop|s1688|s16816|wgmma|nvjet|hmma", re.IGNORECASE)
_NARROW_ALIGNMENT = re.compile(r"align[12](?!\d)")


@dataclass(frozen=True, slots=True)
class OperatorEfficiency:
    """All calls of an operator with one shape. `flops` and `bytes` are of one call, `time_ns` is the sum of their work
    (of the operators' own time on the CPU), `kernel` the one that took most of it."""

    operator: str
    kind: OperatorKind
    sizes: str
    dtype: str
    aligned: tuple[int, ...]
    calls: int
    time_ns: int
    flops: float
    bytes: float
    kernel: str = ""

    @property
    def flop_s(self) -> float:
        return self.flops * self.calls * 1e9 / self.time_ns if self.time_ns else 0.0

    @property
    def bytes_s(self) -> float:
        return self.bytes * self.calls * 1e9 / self.time_ns if self.time_ns else 0.0

    @property
    def precision(self) -> Precision | None:
        """How it computes; None for other types, such as float64."""
        if self.dtype == "float32":
            return Precision.TF32 if _TENSOR_CORES.search(self.kernel) else Precision.FLOAT32
        if self.dtype.startswith("float8"):
            return Precision.FLOAT8
        return Precision.BFLOAT16 if self.dtype in ("bfloat16", "float16") else None

    @property
    def narrow(self) -> bool:
        """Whether its kernel reads one or two numbers at a time, for a size that does not divide by more."""
        return self.kind is OperatorKind.MATRIX_PRODUCT and _NARROW_ALIGNMENT.search(self.kernel) is not None


@dataclass(frozen=True, slots=True)
class Bound:
    """What limits an operator at its best (`compute` or `memory`), and the share of that limit that it reaches."""

    by: str
    reached: float


@dataclass(frozen=True, slots=True)
class Efficiency:
    """One or more traces: operators by shape, the longest first, at most 60; `compute_ns` is the time of all computing
    kernels (of all operators on the CPU), `covered_ns` that of those whose cost is known. `math_attention_ns` is
    that of attention as separate matrix products. Times are sums over `steps` steps (of all ranks)."""

    device: str | None
    operators: tuple[OperatorEfficiency, ...]
    compute_ns: int
    covered_ns: int
    math_attention_ns: int
    steps: int
    flops: float
    """Operations of the matrix products, convolutions and attention of all these steps."""

    @property
    def limits(self) -> DeviceLimits | None:
        return device_limits(self.device)


def bound(row: OperatorEfficiency, limits: DeviceLimits | None) -> Bound | None:
    """None if the limit is not known."""
    if limits is None or not row.time_ns:
        return None
    computing = 0.0
    if row.flops:
        if row.precision is None or row.precision not in limits.flop_s:
            return None
        computing = row.flop_s / limits.flop_s[row.precision]
    moving = row.bytes_s / limits.bytes_s
    return Bound("compute", computing) if computing > moving else Bound("memory", moving)


@dataclass(frozen=True, slots=True)
class _Work:
    """Pieces of work: nanoseconds, name, and the position of the operator in the trace's shapes (-1: none)."""

    ns: Int64
    name: Int64
    operator: Int64


def efficiency(trace: Trace, steps: StepTable) -> Efficiency | None:
    """Of a trace; None if it has no shapes of operators."""
    shapes = trace.shapes
    if shapes is None:
        return None
    on_device = len(steps.work) > 0
    work = _device_work(trace, steps) if on_device else _host_work(trace, steps)
    costs = [operator_cost(shape) for shape in shapes.shapes]
    known = np.flatnonzero(work.operator >= 0)
    shape_of = shapes.shape[work.operator[known]]
    rows = []
    for same in groups(shape_of):
        cost = costs[shape_of[same[0]]]
        if cost is not None:
            rows.append(_row(trace, shapes.shapes[shape_of[same[0]]].operator, cost, work, known[same]))
    rows = _merged(rows)
    return Efficiency(
        device=trace.device if on_device else None,
        operators=tuple(rows[:MAX_ROWS]),
        compute_ns=int(work.ns.sum()),
        covered_ns=sum(row.time_ns for row in rows),
        math_attention_ns=_math_attention_ns(trace, steps),
        steps=max(len(steps), 1),
        flops=sum(row.flops * row.calls for row in rows),
    )


def merge_efficiencies(found: Sequence[Efficiency]) -> Efficiency | None:
    """All ranks together; None without any, or of different devices."""
    if not found or len({one.device for one in found}) > 1:
        return None
    rows = _merged([row for one in found for row in one.operators])
    return Efficiency(
        device=found[0].device,
        operators=tuple(rows[:MAX_ROWS]),
        compute_ns=sum(one.compute_ns for one in found),
        covered_ns=sum(one.covered_ns for one in found),
        math_attention_ns=sum(one.math_attention_ns for one in found),
        steps=sum(one.steps for one in found),
        flops=sum(one.flops for one in found),
    )


def _device_work(trace: Trace, steps: StepTable) -> _Work:
    work = _computing(trace, steps)
    calls, found = launches_of(trace, work)
    operator = np.full(len(work), -1, dtype=np.int64)
    operator[found] = _innermost(trace, calls)
    return _Work(work.duration, work.name.astype(np.int64), operator)


def _computing(trace: Trace, steps: StepTable) -> Events:
    work = steps.work[steps.work_step != NO_STEP] if len(steps) else steps.work
    return work[device_work_types(trace, work) == KernelType.COMPUTE]


def _innermost(trace: Trace, calls: Events) -> Int64:
    """Of each call the innermost operator with a shape on its thread, as a position in the trace's shapes; -1: none."""
    assert trace.shapes is not None
    operators = trace.events[trace.shapes.event]
    found = np.full(len(calls), -1, dtype=np.int64)
    for of_thread in groups(operators.thread):
        here = np.flatnonzero(calls.thread == operators.thread[of_thread[0]])
        tree = build_call_tree(operators[of_thread])
        if not len(here) or not len(tree.segments):
            continue
        at = np.searchsorted(tree.segments.start, calls.start[here], side="right") - 1
        innermost = np.where(at >= 0, tree.innermost[np.maximum(at, 0)], -1)
        inside = (innermost >= 0) & (calls.start[here] < tree.segments.end[np.maximum(at, 0)])
        found[here[inside]] = of_thread[tree.order[innermost[inside]]]
    return found


def _host_work(trace: Trace, steps: StepTable) -> _Work:
    """The own time of operators, in steps if there are any."""
    nested = np.flatnonzero(is_nested(trace) & (trace.events.kind == EventKind.CPU_OP))
    events = trace.events[nested]
    ns = np.zeros(len(events), dtype=np.int64)
    for of_thread in groups(events.thread):
        tree = build_call_tree(events[of_thread])
        ns[of_thread[tree.order]] = tree.self_time()
    keep = steps.step_of(events.start) >= 0 if len(steps) else np.ones(len(events), dtype=bool)
    assert trace.shapes is not None
    position = np.full(len(trace.events), -1, dtype=np.int64)
    position[trace.shapes.event] = np.arange(len(trace.shapes.event))
    return _Work(ns[keep], events.name[keep].astype(np.int64), position[nested[keep]])


def _row(trace: Trace, operator: str, cost: OperatorCost, work: _Work, which: Int64) -> OperatorEfficiency:
    names, code = np.unique(work.name[which], return_inverse=True)
    longest = names[np.bincount(code, weights=work.ns[which]).argmax()]
    return OperatorEfficiency(
        operator=operator,
        kind=cost.kind,
        sizes=cost.sizes,
        dtype=dtype_name(cost.dtype),
        aligned=cost.aligned,
        calls=len(np.unique(work.operator[which])),
        time_ns=int(work.ns[which].sum()),
        flops=float(cost.flops),
        bytes=float(cost.bytes),
        kernel=trace.names[longest],
    )


def _merged(rows: Sequence[OperatorEfficiency]) -> list[OperatorEfficiency]:
    """Calls of one operator with the same sizes and type together, the longest first."""
    same: defaultdict[tuple[str, str, str, float], list[OperatorEfficiency]] = defaultdict(list)
    for row in rows:
        same[row.operator, row.sizes, row.dtype, row.bytes].append(row)
    merged = [
        replace(
            max(of_one, key=lambda row: (row.time_ns, row.kernel)),
            calls=sum(row.calls for row in of_one),
            time_ns=sum(row.time_ns for row in of_one),
        )
        for of_one in same.values()
    ]
    return sorted(merged, key=lambda row: (-row.time_ns, row.operator, row.sizes, row.dtype))


def _math_attention_ns(trace: Trace, steps: StepTable) -> int:
    """The work launched within attention that runs as separate operators; on the CPU its time."""
    marks = matching_names(trace, re.compile(re.escape(MATH_ATTENTION) + "$"))
    around = trace.events[(trace.events.kind == EventKind.CPU_OP) & marks[trace.events.name]]
    if not len(around):
        return 0
    if not len(steps.work):
        around = around[steps.step_of(around.start) >= 0] if len(steps) else around
        spans = union(around.spans)
        return int((spans.end - spans.start).sum())
    work = _computing(trace, steps)
    calls, found = launches_of(trace, work)
    total = 0
    for of_thread in groups(around.thread):
        spans = union(around.spans[of_thread])
        at = np.searchsorted(spans.start, calls.start, side="right") - 1
        inside = (
            (calls.thread == around.thread[of_thread[0]]) & (at >= 0) & (calls.start < spans.end[np.maximum(at, 0)])
        )
        total += int(work.duration[found[inside]].sum())
    return total
