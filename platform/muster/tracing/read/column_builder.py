"""Collects the events of a trace as columns, block by block."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from muster.errors import InvalidTrace
from muster.tracing.read.detail_columns import DetailColumns
from muster.tracing.read.events import NO_STREAM_UNSIGNED, EventKind, Events, MemorySamples, TransferCalls
from muster.tracing.read.header_fields import MAX_RANK
from muster.tracing.read.json_stream import MAX_DURATION_US, MAX_TIME_US, TOO_LARGE
from muster.tracing.read.operator_shapes import KNOWN_OPERATORS, ShapeColumns, input_value, with_raw_inputs
from muster.tracing.read.raw_events import EventArguments, RawEvent

# torch before 1.12 writes the capitalised names.
EVENT_KINDS = {
    "cpu_op": EventKind.CPU_OP,
    "Operator": EventKind.CPU_OP,
    "user_annotation": EventKind.ANNOTATION,
    "python_function": EventKind.ANNOTATION,  # of which only garbage collections are kept
    "cuda_runtime": EventKind.RUNTIME,
    "cuda_driver": EventKind.RUNTIME,
    "Runtime": EventKind.RUNTIME,
    "kernel": EventKind.KERNEL,
    "Kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.MEMCPY,
    "Memcpy": EventKind.MEMCPY,
    "gpu_memset": EventKind.MEMSET,
    "Memset": EventKind.MEMSET,
    "cuda_sync": EventKind.SYNC,
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
}
MAX_NAME_CHARACTERS = 256 << 20
MEMORY_EVENT = "[memory]"
# The operators of torch.distributed, with record_shapes (gloo), and NCCL's records of its calls.
TRANSFER_OPERATORS = {"c10d::send": True, "c10d::recv_": False}
CALL_RECORD = "record_param_comms"
TRANSFER_RECORDS = {"send": True, "recv": False}
TRANSFER_NAMES = frozenset({*TRANSFER_OPERATORS, CALL_RECORD})
MAX_TRANSFERS = 200_000
PEER_INPUT = 2  # of the operators: tensors, process group, peer, tag
CPU_DEVICE_TYPE = 0  # c10::DeviceType
# The profiler's own span would cover all others; Python frames are most of a with_stack trace and not used.
IGNORED_CATEGORIES = frozenset({"Trace", "python_function"})
# With stacks and _ExperimentalConfig(record_python_gc_info=True); most collections are of young objects and short.
GARBAGE_COLLECTION = "Python GC"
LONG_COLLECTION_US = 100
COLUMN_TYPES: dict[str, type[np.generic]] = {
    "kind": np.int8,
    "name": np.int32,
    "thread": np.int32,
    "ts": np.float64,
    "dur": np.float64,
    "stream": np.int64,
    "correlation": np.int64,
    "collective": np.int32,
    "group": np.int32,
    "message_bytes": np.int64,
    "grid": np.int32,
}
"""The columns of a block: those of `Events` with `ts` and `dur` in microseconds instead of `start` and `end`."""
RARE = ("collective", "group", "message_bytes", "grid")
"""Columns that few events have, or only kernels."""
INPUTS_NEEDED = TRANSFER_NAMES | KNOWN_OPERATORS


@dataclass(slots=True)
class ColumnBuilder:
    """Collects the arrays of each block, and numbers names and threads."""

    path: Path
    max_events: int
    rows: int = 0
    name_characters: int = 0  # of distinct names
    names: dict[str, int] = field(default_factory=dict)
    grids: dict[tuple[Any, Any], int] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], int] = field(default_factory=dict)
    thread_names: dict[tuple[Any, Any], str] = field(default_factory=dict)
    blocks: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    decoded_events: int = 0
    invalid_events: int = 0
    details: DetailColumns | None = None
    memory: list[NDArray[np.float64]] = field(default_factory=list)
    """Rows of time in microseconds, bytes, and type of the device."""
    shapes: ShapeColumns = field(default_factory=ShapeColumns)
    transfers: list[tuple[float, float, bool, int, int, int]] = field(default_factory=list)
    """Start and duration in microseconds, whether it sends, peer, group, bytes."""
    rare: dict[str, tuple[array[int], array[int]]] = field(
        default_factory=lambda: {column: (array("q"), array("q")) for column in RARE}
    )
    """Rows and values of the columns of `RARE`."""
    _needed: bytearray = field(default_factory=bytearray)
    """Of each name, whether it is one of `INPUTS_NEEDED`."""

    def add(self, events: list[RawEvent]) -> None:
        self.decoded_events += len(events)
        kept: list[RawEvent] = []
        samples: list[tuple[float, int, int]] = []
        for event in events:
            if event.ph == "X":
                if (
                    event.ts is None
                    or event.dur is None
                    or not 0 <= event.dur < MAX_DURATION_US
                    or not abs(event.ts) < MAX_TIME_US
                ):
                    self.invalid_events += 1
                elif (event.cat and event.cat not in IGNORED_CATEGORIES) or _is_long_collection(event):
                    kept.append(event)
            elif event.ph == "M":
                if event.name == "thread_name" and isinstance(name := _arguments(event).name, str):
                    self.thread_names.setdefault((event.pid, event.tid), name)
            elif event.ph == "i":
                if event.name == MEMORY_EVENT and (sample := _memory_sample(event)) is not None:
                    samples.append(sample)
            elif event.ph == "unusable":
                self.invalid_events += 1
        if self.details is not None:
            self.details.add(events, kept)
        if samples:
            self.memory.append(np.array(samples))
        self._check_limits(kept)
        if kept:
            self.blocks.append(self._to_arrays(kept))

    def _check_limits(self, kept: list[RawEvent]) -> None:
        self.rows += len(kept)
        others = sum(map(len, self.memory)) + (0 if self.details is None else self.details.rows)
        if self.rows + others + len(self.thread_names) > self.max_events:
            raise InvalidTrace(
                f"{self.path}: must have at most {self.max_events} events (--max-trace-events)",
                reason=TOO_LARGE,
            )
        self.name_characters += sum(map(len, {event.name for event in kept} - self.names.keys()))
        if self.name_characters > MAX_NAME_CHARACTERS:
            raise InvalidTrace(
                f"{self.path}: event names must have at most {MAX_NAME_CHARACTERS} characters in total",
                reason=TOO_LARGE,
            )

    def _to_arrays(self, kept: list[RawEvent]) -> dict[str, NDArray[Any]]:
        """The columns of `COLUMN_TYPES`; those of `RARE` go into `rare`."""
        names, threads, other, first = self.names, self.threads, EventKind.OTHER, self.rows - len(kept)
        args = [event.args for event in kept] if self.details is None else [_arguments(event) for event in kept]
        columns: dict[str, list[Any]] = {
            "kind": [EVENT_KINDS.get(e.cat, other) for e in kept],
            "name": [names.setdefault(e.name, len(names)) for e in kept],
            "thread": [threads.setdefault((e.pid, e.tid), len(threads)) for e in kept],
            "ts": [e.ts for e in kept],
            "dur": [e.dur for e in kept],
            "stream": [-1 if a is None or a.stream is None else _stream_id(a.stream) for a in args],
            "correlation": [-1 if a is None or a.correlation is None else parse_id(a.correlation) for a in args],
        }
        table = {column: np.array(values, dtype=COLUMN_TYPES[column]) for column, values in columns.items()}
        self._needed.extend(name in INPUTS_NEEDED for name in islice(names, len(self._needed), None))
        for row in np.flatnonzero(np.frombuffer(self._needed, dtype=np.bool_)[table["name"]]).tolist():
            event, a = kept[row], args[row]
            if event.name in TRANSFER_NAMES and len(self.transfers) < MAX_TRANSFERS:
                self._add_transfer(event, a)
            elif event.name in KNOWN_OPERATORS and a is not None:
                self.shapes.add(first + row, event.name, bytes(a.sizes), bytes(a.types), bytes(a.inputs))
        for row, a in enumerate(args, first):
            if a is None:
                continue
            if a.grid is not None:
                self._add_rare("grid", row, self.grids.setdefault((a.grid, a.block), len(self.grids)))
            if a.collective is not None:
                self._add_rare("collective", row, names.setdefault(str(a.collective), len(names)))
            if a.group is not None:
                self._add_rare("group", row, names.setdefault(_group_key(a), len(names)))
            if a.elements_in is not None:
                self._add_rare("message_bytes", row, _message_bytes(a))
        return table

    def _add_rare(self, column: str, row: int, value: int) -> None:
        rows, values = self.rare[column]
        rows.append(row)
        values.append(value)

    def _add_transfer(self, event: RawEvent, args: EventArguments | None) -> None:
        sends, peer, group, size = TRANSFER_OPERATORS.get(event.name), -1, -1, -1
        if args is not None and event.name == CALL_RECORD:
            sends, peer = TRANSFER_RECORDS.get(str(args.collective)), parse_id(args.peer)
            group = -1 if args.group is None else self.names.setdefault(str(args.group), len(self.names))
            size = _message_bytes(args)
        elif args is not None:
            peer = parse_id(input_value(bytes(args.inputs), PEER_INPUT))
        if sends is not None and event.ts is not None and event.dur is not None:
            self.transfers.append((event.ts, event.dur, sends, min(peer, MAX_RANK), group, size))

    def transfer_calls(self, origin_us: float) -> TransferCalls | None:
        """By start; NCCL's records if there are any, since they are within the calls of the operators."""
        known = [call for call in self.transfers if call[4] >= 0] or self.transfers
        if not known:
            return None
        ts, dur, sends, peer, group, size = (np.array(column) for column in zip(*sorted(known), strict=True))
        start, end = (np.rint((us - origin_us) * 1000).astype(np.int64) for us in (ts, ts + dur))
        return TransferCalls(start, end, sends, peer.astype(np.int32), group.astype(np.int32), size)

    def memory_samples(self, origin_us: float) -> MemorySamples:
        """All samples of one kind of device."""
        rows = np.concatenate(self.memory) if self.memory else np.empty((0, 3))
        on_device = rows[:, 2] != CPU_DEVICE_TYPE
        rows = rows[on_device] if on_device.any() else rows
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return MemorySamples(np.rint((rows[:, 0] - origin_us) * 1000).astype(np.int64), rows[:, 1].astype(np.int64))

    def events(self) -> tuple[float, Events]:
        """The origin in microseconds, and all blocks as one table."""
        table: dict[str, NDArray[Any]] = {}
        for column in COLUMN_TYPES.keys() - RARE:  # each block's part is freed once the column is built
            parts = (block.pop(column) for block in self.blocks)
            table[column] = np.concatenate([np.empty(0, COLUMN_TYPES[column]), *parts])
        self.blocks.clear()
        ts, dur = table.pop("ts"), table.pop("dur")
        # Times are large floats in microseconds: subtract the origin first to keep nanosecond precision.
        origin = float(np.floor(ts.min())) if len(ts) else 0.0
        table["start"] = np.rint((ts - origin) * 1000).astype(np.int64)
        table["end"] = np.rint((ts - origin + dur) * 1000).astype(np.int64)
        del ts, dur
        for column in RARE:
            rows, values = self.rare.pop(column)
            table[column] = np.full(self.rows, -1, dtype=COLUMN_TYPES[column])
            table[column][np.frombuffer(rows, dtype=np.int64)] = np.frombuffer(values, dtype=np.int64)
        return origin, Events(**table)


def _is_long_collection(event: RawEvent) -> bool:
    return event.name == GARBAGE_COLLECTION and (event.dur or 0) >= LONG_COLLECTION_US


def _arguments(event: RawEvent) -> EventArguments:
    """The arguments of any event; those of a detailed one are a dict."""
    arguments: Any = event.args
    if isinstance(arguments, dict):
        arguments = with_raw_inputs(arguments, wanted=event.name in TRANSFER_NAMES or event.name in KNOWN_OPERATORS)
    try:
        return msgspec.convert(arguments, EventArguments, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return EventArguments()


def _memory_sample(event: RawEvent) -> tuple[float, int, int] | None:
    """Time, allocated bytes and device type; None if one of them is not valid."""
    arguments = _arguments(event)
    if event.ts is None or not abs(event.ts) < MAX_TIME_US:
        return None
    allocated, device_type = parse_id(arguments.allocated), parse_id(arguments.device_type)
    return (event.ts, allocated, device_type) if 0 <= allocated < 1 << 53 and 0 <= device_type < 1 << 31 else None


_DTYPE_BYTES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
}


def _group_key(args: EventArguments) -> str:
    """A process group's name and ranks: different groups may have the same name."""
    return f"{args.group} {args.group_ranks}" if isinstance(args.group_ranks, str) else str(args.group)


def _message_bytes(args: EventArguments) -> int:
    elements = max(parse_id(args.elements_in), parse_id(args.elements_out))
    return min(elements, 1 << 58) * _DTYPE_BYTES.get(str(args.dtype), 1) if elements >= 0 else -1


def _stream_id(value: Any) -> int:
    """Older profilers write 2**32 - 1 for "no stream", newer ones -1."""
    number = parse_id(value)
    return NO_STREAM_UNSIGNED if number == (1 << 32) - 1 else number


def parse_id(value: Any) -> int:
    """A non-negative integer id, without its highest one of 64 bits; -1 for other values, also for 2**64 - 1."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    if 0 <= number < 1 << 63:
        return number
    return number & ((1 << 63) - 1) if 0 < number < (1 << 64) - 1 else -1
