"""Operators and kernels by time."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from muster.tracing.read.events import EventKind, Events, Int32, Trace, build_call_tree
from muster.tracing.read.spans import Int64, groups
from muster.tracing.work.work_kinds import COMPILED_GRAPH, FRAME_NAME, is_nested

COMPILED_PREFIX = "compiled "
"""Of names of compiled graphs by source line (`compiled_regions`)."""


@dataclass(frozen=True, slots=True)
class OperatorStats:
    """All calls of one name. `total_ns` and `mean_ns` are self time, without callees."""

    name: str
    calls: int
    total_ns: int

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.calls if self.calls else 0.0


def operators_by_self_time(trace: Trace) -> tuple[OperatorStats, ...]:
    """CPU operators, longest self time first.

    Annotations and torch's operators around Python code are part of the call tree but not listed, except compiled
    graphs: their self time is Python.
    """
    return _by_name(trace, *operator_calls(trace))


def operator_calls(trace: Trace) -> tuple[Int32, Int64]:
    """The name and the self time, in nanoseconds, of each call of a listed operator."""
    events, nested = trace.events, np.flatnonzero(is_nested(trace))
    self_ns = np.zeros(len(nested), dtype=np.int64)
    for of_thread in groups(events.thread[nested]):
        tree = build_call_tree(events.spans[nested[of_thread]])
        self_ns[of_thread[tree.order]] = tree.self_time()
    kinds, names = events.kind[nested], events.name[nested]
    compiled = np.array([COMPILED_GRAPH.match(name) is not None for name in trace.names], dtype=bool)
    frames = np.array([FRAME_NAME.match(name) is not None for name in trace.names], dtype=bool)
    ops = ((kinds == EventKind.CPU_OP) & ~frames[names]) | compiled[names]
    return names[ops], self_ns[ops]


def kernels_by_time(trace: Trace, work: Events) -> tuple[OperatorStats, ...]:
    """Device work, longest total first; kernels do not nest, so their time is their duration."""
    return _by_name(trace, work.name, work.duration)


def _by_name(trace: Trace, names: Int32, ns: Int64) -> tuple[OperatorStats, ...]:
    calls = np.bincount(names, minlength=len(trace.names))
    totals = np.zeros(len(trace.names), dtype=np.int64)
    np.add.at(totals, names, ns)
    found = [OperatorStats(trace.names[i], int(calls[i]), int(totals[i])) for i in np.flatnonzero(calls)]
    return tuple(sorted(found, key=lambda op: (-op.total_ns, op.name)))


def merge_operators(lists: list[tuple[OperatorStats, ...]]) -> tuple[OperatorStats, ...]:
    """Sum calls and times by name over several traces, longest first."""
    sums: dict[str, tuple[int, int]] = {}
    for operators in lists:
        for op in operators:
            calls, total = sums.get(op.name, (0, 0))
            sums[op.name] = (calls + op.calls, total + op.total_ns)
    found = [OperatorStats(name, calls, total) for name, (calls, total) in sums.items()]
    return tuple(sorted(found, key=lambda op: (-op.total_ns, op.name)))


_BRACKETS = re.compile(r"<[^<>]*>|\([^()]*\)|\{[^{}]*\}")
_WORDS = re.compile(r"[A-Za-z_]\w{3,}")
# Words in template arguments that do not identify a kernel.
_FILLER_WORDS = """
anonymous array Array bool c10 char const constexpr cuda cute cutlass decltype detail double
elementwise float gpu_kernel_impl gpu_kernel_impl_nocast half Half BFloat16 int lambda long native
namespace operator opmath_type short signed std struct TensorIterator TensorIteratorBase TensorInfo
TrivialOffsetCalculator OffsetCalculator type unsigned void Kernel kernel AUnaryFunctor
BUnaryFunctor BinaryFunctor OpaqueType ReduceOp multi_tensor_apply_kernel TensorListMetadata
FusedOptimizerTensorListMetadata true false templates float2 float4 binary_internal func_wrapper_t
GenericPackedTensorAccessor CatArrInputTensorMetadata nullptr DepthwiseArgs
"""
_FILLERS = frozenset(_FILLER_WORDS.split())


def short_name(name: str, max_length: int = 64) -> str:
    """A kernel's name without return type and arguments, with the first distinctive word of its template arguments.

    >>> short_name("void at::native::elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float*)")
    'elementwise_kernel<CUDAFunctor_add>'
    """
    if name.startswith(COMPILED_PREFIX):
        return _truncate(name, max_length)
    if name.startswith("enumerate(DataLoader)#"):
        return "DataLoader"
    if graph := COMPILED_GRAPH.match(name):
        return f"compiled graph {graph[1][:8]}"
    if name.startswith(("Memcpy", "Memset")) or ("<" not in name and "(" not in name):
        return _truncate(name, max_length)
    plain = name.replace("(anonymous namespace)::", "").replace("->", " to ")
    bare = plain
    while (shorter := _BRACKETS.sub("", bare)) != bare:
        bare = shorter
    words = bare.split()
    if not words:
        return _truncate(name, max_length)
    base = words[-1].rsplit("::", 1)[-1] or words[-1]
    base = words[-1] if base in _FILLERS else base
    distinctive = next((w for w in _WORDS.findall(_template_arguments(plain)) if w not in _FILLERS and w != base), "")
    return _truncate(f"{_truncate(base, max_length // 2)}<{distinctive}>" if distinctive else base, max_length)


def _template_arguments(name: str) -> str:
    """The text between the first `<` and its `>`."""
    opening = name.find("<")
    if opening < 0:
        return ""
    depth = 0
    for i in range(opening, len(name)):
        depth += {"<": 1, ">": -1}.get(name[i], 0)
        if depth == 0:
            return name[opening + 1 : i]
    return ""


def _truncate(name: str, max_length: int) -> str:
    return (
        name
        if len(name) <= max_length
        else name[: max_length // 2 - 1] + "…" + name[len(name) - (max_length - max_length // 2) :]
    )
