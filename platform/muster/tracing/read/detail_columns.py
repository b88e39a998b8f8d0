"""Collects the details of a trace that are read only if they are asked for, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.tracing.read.json_stream import MAX_DURATION_US, MAX_TIME_US
from muster.tracing.read.raw_events import RawEvent, Scalar
from muster.tracing.read.spans import Int64
from muster.tracing.trace_details import Counters, Detail, FlowEnds, KernelCounters, PythonCalls, TraceDetails

ARGUMENTS = {
    Detail.SEQUENCE: {"collective_sequence": "Seq", "operator_sequence": "Sequence number"},
    Detail.EXTERNAL_ID: {"external_id": "External id"},
    Detail.WAITS: {
        "waited_stream": "wait_on_stream",
        "waited_correlation": "wait_on_cuda_event_record_corr_id",
    },
    Detail.COPIES: {"copied_bytes": "bytes"},
}
PYTHON_CALL = "python_function"
KERNEL_RANGE = "cuda_profiler_range"
BANDWIDTH = "memory bandwidth (GB/s)"
MAX_BANDWIDTH_GBPS = 1e6


class DetailedEvent(RawEvent, gc=False):
    """An event with all of its arguments."""

    args: Any = None
    id: Scalar = None


@dataclass(slots=True)
class DetailColumns:
    """Collects the details of each block. `names` and `threads` number those of the trace, `parse_id` reads an id."""

    wanted: AbstractSet[Detail]
    names: dict[str, int]
    threads: dict[tuple[Any, Any], int]
    parse_id: Callable[[Any], int]
    rows: int = 0  # of counters, stacks and flows
    arguments: dict[str, list[Int64]] = field(default_factory=dict)
    dtypes: list[int] = field(default_factory=list)
    counters: list[tuple[Any, ...]] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    flows: list[tuple[Any, ...]] = field(default_factory=list)
    bandwidth: list[float] = field(default_factory=list)
    kernel_counters: list[tuple[Any, ...]] = field(default_factory=list)
    kept: int = 0

    def add(self, events: Sequence[RawEvent], kept: Sequence[RawEvent]) -> None:
        """Add the events of a block, of which `kept` are rows of `Trace.events`; their arguments are dicts."""
        for detail, columns in ARGUMENTS.items():
            if detail in self.wanted:
                for column, key in columns.items():
                    ids = [self._argument(event, key) for event in kept]
                    self.arguments.setdefault(column, []).append(np.array(ids, dtype=np.int64))
        if Detail.DTYPE in self.wanted:
            self.dtypes += [self._dtype(event) for event in kept]
        before = len(self.counters) + len(self.calls) + len(self.flows) + len(self.kernel_counters)
        if Detail.COPIES in self.wanted:
            self.bandwidth += [_bandwidth(event) for event in kept]
        if Detail.KERNEL_COUNTERS in self.wanted:
            for row, event in enumerate(kept, self.kept):
                if event.cat == KERNEL_RANGE:
                    self.kernel_counters += [(row, self._name(name), value) for name, value in _numbers(event)]
        self.kept += len(kept)
        for event in events:
            if event.ts is None or not abs(event.ts) < MAX_TIME_US:
                continue
            if event.ph == "C" and Detail.COUNTERS in self.wanted:
                self._add_counter(event)
            elif event.ph == "X" and event.cat == PYTHON_CALL and Detail.STACKS in self.wanted:
                length = event.dur if event.dur is not None and 0 <= event.dur < MAX_DURATION_US else 0.0
                own = self._argument(event, "Python id"), self._argument(event, "Python parent id")
                self.calls.append((self._name(event.name), self._thread(event), event.ts, length, *own))
            elif event.ph in ("s", "f") and Detail.FLOWS in self.wanted:
                flow = self.parse_id(getattr(event, "id", None))
                self.flows.append((self._name(event.cat), flow, self._thread(event), event.ts, event.ph == "s"))
        self.rows += len(self.counters) + len(self.calls) + len(self.flows) + len(self.kernel_counters) - before

    def _add_counter(self, event: RawEvent) -> None:
        for series, value in _numbers(event):
            self.counters.append((self._name(event.name), self._name(series), event.ts, value))

    def _argument(self, event: RawEvent, key: str) -> int:
        arguments: Any = event.args
        return self.parse_id(arguments.get(key)) if isinstance(arguments, dict) else -1

    def _dtype(self, event: RawEvent) -> int:
        arguments: Any = event.args
        dtype = arguments.get("dtype") if isinstance(arguments, dict) else None
        return self._name(dtype) if isinstance(dtype, str) else -1

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _thread(self, event: RawEvent) -> int:
        return self.threads.setdefault((event.pid, event.tid), len(self.threads))

    def details(self, origin_us: float) -> TraceDetails:
        """All blocks together, with times since the origin."""

        def ns(us: NDArray[Any]) -> Int64:
            return np.rint((us.astype(np.float64) - origin_us) * 1000).astype(np.int64)

        tables: dict[str, Any] = {column: np.concatenate(parts) for column, parts in self.arguments.items()}
        if Detail.DTYPE in self.wanted:
            tables["dtype"] = np.array(self.dtypes, dtype=np.int32)
        if Detail.COUNTERS in self.wanted:
            name, series, time, value = _columns(self.counters, ("i4", "i4", "f8", "f8"))
            tables["counters"] = Counters(name, series, ns(time), value)
        if Detail.STACKS in self.wanted:
            name, thread, start, length, own, parent = _columns(self.calls, ("i4", "i4", "f8", "f8", "i8", "i8"))
            tables["python_calls"] = PythonCalls(name, thread, ns(start), ns(start + length), own, parent)
        if Detail.FLOWS in self.wanted:
            category, flow, thread, time, is_start = _columns(self.flows, ("i4", "i8", "i4", "f8", "?"))
            tables["flows"] = FlowEnds(category, flow, thread, ns(time), is_start)
        if Detail.COPIES in self.wanted:
            tables["bandwidth"] = np.array(self.bandwidth, dtype=np.float64)
        if Detail.KERNEL_COUNTERS in self.wanted:
            tables["kernel_counters"] = KernelCounters(*_columns(self.kernel_counters, ("i8", "i4", "f8")))
        return TraceDetails(**tables)


def _numbers(event: RawEvent) -> list[tuple[str, float]]:
    """The arguments of an event that are finite numbers."""
    arguments: Any = event.args
    values: dict[Any, Any] = arguments if isinstance(arguments, dict) else {}
    return [(str(key), number) for key, value in values.items() if math.isfinite(number := _float(value))]


def _bandwidth(event: RawEvent) -> float:
    """NaN if it is absent, negative or more than a device can have."""
    arguments: Any = event.args
    gbps = _float(arguments.get(BANDWIDTH)) if isinstance(arguments, dict) else math.nan
    return gbps if 0 <= gbps < MAX_BANDWIDTH_GBPS else math.nan


def _float(value: Any) -> float:
    """A number, NaN for other values and for integers that are too large."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _columns(rows: Sequence[tuple[Any, ...]], types: Sequence[str]) -> list[NDArray[Any]]:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(types)
    return [np.array(column, dtype=kind) for column, kind in zip(columns, types, strict=True)]
