"""The tables of one trace by name, as `muster trace table` shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from muster.errors import InvalidSpec
from muster.tracing.memory_bandwidth import bandwidth_changes, bandwidth_table
from muster.tracing.read.events import EventKind, Events, Trace
from muster.tracing.reader import read_trace
from muster.tracing.tables.device_tables import (
    FULL_QUEUE,
    annotated_kernels,
    annotation_table,
    kernel_sequences,
    kernel_table,
    kernel_type_table,
    launch_table,
    queue_changes,
    queue_lengths,
)
from muster.tracing.tables.kernel_counters import kernel_counters
from muster.tracing.tables.operator_delays import operator_delays
from muster.tracing.trace_details import Detail
from muster.tracing.work.hta_breakdown import round_to_microseconds, select_device_work

Row = dict[str, Any]
GPU_WORK = "work of a GPU (kernels, copies, memsets)"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What some tables need: the `operator` of sequences (part of its name), the length `full` of a queue; and whether
    to compute by HolisticTraceAnalysis's rules."""

    operator: str = ""
    full: int = FULL_QUEUE
    hta: bool = False


@dataclass(frozen=True, slots=True)
class TraceTable:
    """A table: what it shows, its rows of a trace and its device work, what a trace with such work and without rows
    lacks, and what has to be read for it."""

    title: str
    build: Callable[[Trace, Events, TableOptions], Sequence[Row]]
    lacks: str
    details: AbstractSet[Detail] = frozenset()
    of_device_work: bool = True


def _kernels(trace: Trace, work: Events, options: TableOptions) -> Sequence[Row]:
    return _rows(kernel_table(trace, _htas_work(trace) if options.hta else work, hta=options.hta))


def _kernel_types(trace: Trace, work: Events, options: TableOptions) -> Sequence[Row]:
    return _rows(kernel_type_table(trace, _htas_work(trace) if options.hta else work, hta=options.hta))


def _htas_work(trace: Trace) -> Events:
    """With synchronisation, which HTA counts in these tables."""
    return select_device_work(trace, include_last_step=False, with_synchronisation=True)


def _launches(trace: Trace, work: Events, options: TableOptions) -> Sequence[Row]:
    table = launch_table(_htas_launches(trace, HTAS_MEASURED | HTAS_COPIES) if options.hta else trace, work)
    columns = [column.tolist() for column in (table.correlation, table.call_ns, table.work_ns, table.delay_ns)]
    names = ("correlation", "call_ns", "work_ns", "delay_ns")
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _queue_lengths(trace: Trace, work: Events, options: TableOptions) -> Sequence[Row]:
    launched = _htas_launches(trace) if options.hta else trace
    return _rows(queue_lengths(launched, work, full=options.full, hta=options.hta))


def _queue_changes(trace: Trace, work: Events, options: TableOptions) -> Sequence[Row]:
    launched = _htas_launches(trace) if options.hta else trace
    return [
        {"stream": changes.stream, "time_ns": time, "length": length}
        for changes in queue_changes(launched, work, hta=options.hta)
        for time, length in zip(changes.time.tolist(), changes.length.tolist(), strict=True)
    ]


def _bandwidth_changes(trace: Trace, work: Events, options: TableOptions) -> Sequence[Row]:
    return [
        {"kind": changes.kind, "time_ns": time, "gbps": gbps}
        for changes in bandwidth_changes(trace, work, by_change=options.hta)
        for time, gbps in zip(changes.time.tolist(), changes.gbps.tolist(), strict=True)
    ]


def _sequences(trace: Trace, work: Events, options: TableOptions) -> Sequence[Row]:
    if not options.operator:
        raise InvalidSpec(
            "sequences needs the name of an operator, or a part of it", field="--operator", reason="Usage"
        )
    work = _htas_work(trace) if options.hta else work
    return _rows(kernel_sequences(trace, work, options.operator, hta=options.hta))


def _operator_delays(trace: Trace, work: Events, options: TableOptions) -> Sequence[Row]:
    calls = _htas_launches(trace, HTAS_LAUNCHES) if options.hta else trace
    return _rows(operator_delays(calls, work, hta=options.hta))


TABLES = {
    "kernels": TraceTable("kernels, copies and memsets by name", _kernels, GPU_WORK),
    "kernel-types": TraceTable("time by the kinds of work that run at once", _kernel_types, GPU_WORK),
    "annotations": TraceTable(
        "annotations on the device by name",
        lambda trace, _, options: _rows(annotation_table(trace, hta=options.hta)),
        "annotations on the device",
    ),
    "annotated-kernels": TraceTable(
        "kernels with the innermost annotation on their stream",
        lambda trace, work, options: _rows(annotated_kernels(trace, work, hta=options.hta)),
        GPU_WORK,
    ),
    "launches": TraceTable(
        "each launch: its call, its work, the delay between them", _launches, "launches of its GPU work"
    ),
    "queue-lengths": TraceTable("work launched and not begun, by stream", _queue_lengths, "launches of its GPU work"),
    "queue-changes": TraceTable("the same after each change", _queue_changes, "launches of its GPU work"),
    "sequences": TraceTable(
        "kernels that calls of --operator launch, by frequency", _sequences, "such calls that launch kernels"
    ),
    "operator-delays": TraceTable(
        "from an operator to its first launch and kernel", _operator_delays, "operators that launch kernels"
    ),
    "memory-bandwidth": TraceTable(
        "bandwidth of copies and memsets by kind",
        lambda trace, work, options: _rows(bandwidth_table(trace, work, by_change=options.hta)),
        "copies or memsets with a bandwidth",
        frozenset({Detail.COPIES}),
    ),
    "bandwidth-changes": TraceTable(
        "the same after each change",
        _bandwidth_changes,
        "copies or memsets with a bandwidth",
        frozenset({Detail.COPIES}),
    ),
    "kernel-counters": TraceTable(
        "hardware counters of kernels (CUPTI), by operator",
        lambda trace, _, __: _rows(kernel_counters(trace)),
        "hardware counters of kernels (profiler_metrics of torch's profiler)",
        frozenset({Detail.KERNEL_COUNTERS}),
        of_device_work=False,
    ),
}


@dataclass(frozen=True, slots=True)
class TableOfTrace:
    """The rows of one trace; `rank` is None if the trace does not say it. `lacks`: what a trace without rows lacks;
    `lost`: what could not be read of a damaged one."""

    rank: int | None
    rows: Sequence[Row]
    lacks: str = ""
    lost: str = ""


def read_table(name: str, path: Path, options: TableOptions | None = None) -> TableOfTrace:
    """A table of `TABLES` of a trace. Raises InvalidTrace as `read_trace`, and InvalidSpec if an option is missing."""
    options = options or TableOptions()
    table = TABLES[name]
    trace = read_trace(path, details=table.details)
    if options.hta:
        trace = round_to_microseconds(trace)
    work = select_device_work(trace, include_last_step=False) if options.hta else trace.device_work
    rows = table.build(trace, work, options)
    lacks = GPU_WORK if table.of_device_work and not len(trace.device_work) else table.lacks
    lost = "" if trace.damage is None else trace.damage.describe()
    return TableOfTrace(trace.rank, rows, "" if rows else lacks, lost)


# The calls that HTA takes for launches: neither cooperative ones nor graphs; in `launches` only those of the runtime.
HTAS_MEASURED = frozenset({"cudaLaunchKernel", "cudaLaunchKernelExC"})
HTAS_LAUNCHES = HTAS_MEASURED | {"cuLaunchKernel", "hipLaunchKernel"}
HTAS_COPIES = frozenset({"cudaMemcpyAsync", "cudaMemsetAsync"})


def _htas_launches(trace: Trace, wanted: AbstractSet[str] = HTAS_LAUNCHES | HTAS_COPIES) -> Trace:
    known = np.array([name in wanted for name in trace.names], dtype=bool)
    others = (trace.events.kind == EventKind.RUNTIME) & ~known[trace.events.name]
    return replace(trace, events=trace.events[~others], details=None)


def _rows(rows: Sequence[Any]) -> Sequence[Row]:
    return [asdict(row) for row in rows]
