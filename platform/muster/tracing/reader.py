"""Reads a trace file into a `Trace`, block by block, so that memory depends on the kept columns, not on the file."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeGuard

import msgspec
import numpy as np
from numpy.typing import NDArray

from muster.errors import InvalidTrace
from muster.tracing.read.detail_columns import DetailColumns, DetailedEvent
from muster.tracing.read.events import (
    NO_STREAM_UNSIGNED,
    EventKind,
    Events,
    Int32,
    MemorySamples,
    PipelineSchedule,
    ProcessGroup,
    Trace,
    TraceThread,
    TransferCalls,
)
from muster.tracing.read.json_stream import (
    DEFAULT_LIMITS,
    MAX_DURATION_US,
    MAX_TEXT_BYTES,
    MAX_TIME_US,
    NOT_A_TRACE,
    TOO_LARGE,
    EventArguments,
    EventCallback,
    RawEvent,
    TraceHeader,
    TraceLimits,
    stream_events,
    stream_file,
)
from muster.tracing.read.operator_shapes import KNOWN_OPERATORS, ShapeColumns, input_value, with_raw_inputs
from muster.tracing.trace_details import Detail

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
MAX_RANK = 1 << 30
MAX_TRANSFERS = 200_000
PEER_INPUT = 2  # of the operators: tensors, process group, peer, tag
CPU_DEVICE_TYPE = 0  # c10::DeviceType
# The profiler's own span would cover all others; Python frames are most of a with_stack trace and not used.
IGNORED_CATEGORIES = frozenset({"Trace", "python_function"})
# With stacks and _ExperimentalConfig(record_python_gc_info=True); most collections are of young objects and short.
GARBAGE_COLLECTION = "Python GC"
LONG_COLLECTION_US = 100


def validate_trace(
    file: IO[bytes], path: Path, max_bytes: int = MAX_TEXT_BYTES, on_events: EventCallback | None = None
) -> int:
    """Decode the complete file without keeping it; returns the number of events. `on_events` gets those of each block.

    Raises InvalidTrace as `stream_file` does, or if the trace has no events.
    """
    counts: list[int] = []

    def count(events: list[RawEvent]) -> None:
        counts.append(len(events))
        if on_events is not None:
            on_events(events)

    stream_file(file, path, count, max_bytes=max_bytes)
    if not sum(counts):
        raise InvalidTrace(f"{path}: has no events")
    return sum(counts)


def read_trace(path: Path, limits: TraceLimits = DEFAULT_LIMITS, details: AbstractSet[Detail] = frozenset()) -> Trace:
    """Read one trace, `.json` or gzipped, with these details, which take more time and memory.

    Raises InvalidTrace (with file and byte) if it is truncated, damaged, not a trace or exceeds the limits, and OSError
    if it cannot be opened. Events without a valid time are skipped and counted in `invalid_events`.
    """
    columns = _ColumnBuilder(path, limits.events)
    if details:
        columns.details = DetailColumns(details, columns.names, columns.threads, _parse_id)
    event_type = DetailedEvent if details else RawEvent
    header = stream_events(path, columns.add, max_bytes=limits.text_bytes, event_type=event_type)
    if not columns.decoded_events:
        raise InvalidTrace(f"{path}: has no events")
    if not columns.rows:
        message = (
            f"{path}: not a trace: none of its {columns.decoded_events} events has a category, a time and a duration"
        )
        raise InvalidTrace(message, reason=NOT_A_TRACE)
    rank, world_size, backend = _distributed(header)
    origin_us, events = columns.events()
    return Trace(
        source=str(path),
        rank=rank,
        world_size=world_size,
        backend=backend,
        device=_device(header),
        job=_job(header),
        origin_us=origin_us,
        decoded_events=columns.decoded_events,
        invalid_events=columns.invalid_events,
        process_groups=_process_groups(header),
        names=tuple(columns.names),
        grids=tuple(f"{grid} x {block}"[:80] for grid, block in columns.grids),
        threads=tuple(
            TraceThread(pid=str(pid), tid=str(tid), name=columns.thread_names.get((pid, tid), ""))
            for pid, tid in columns.threads
        ),
        events=events,
        pipeline=_pipeline(header),
        details=None if columns.details is None else columns.details.details(origin_us),
        memory=columns.memory_samples(origin_us),
        transfers=columns.transfer_calls(origin_us),
        shapes=columns.shapes.shapes(),
        with_stack=header.with_stack == 1,
    )


@dataclass(slots=True)
class _ColumnBuilder:
    """Collects the arrays of each block, and numbers names and threads."""

    path: Path
    max_events: int
    rows: int = 0
    name_characters: int = 0  # of distinct names
    names: dict[str, int] = field(default_factory=dict)
    grids: dict[tuple[Any, Any], int] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], int] = field(default_factory=dict)
    thread_names: dict[tuple[Any, Any], str] = field(default_factory=dict)
    blocks: list[tuple[Any, ...]] = field(default_factory=list)
    decoded_events: int = 0
    invalid_events: int = 0
    details: DetailColumns | None = None
    memory: list[NDArray[np.float64]] = field(default_factory=list)
    """Rows of time in microseconds, bytes, and type of the device."""
    shapes: ShapeColumns = field(default_factory=ShapeColumns)
    transfers: list[tuple[float, float, bool, int, int, int]] = field(default_factory=list)
    """Start and duration in microseconds, whether it sends, peer, group, bytes."""

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

    def _to_arrays(self, kept: list[RawEvent]) -> tuple[Any, ...]:
        names, threads, other = self.names, self.threads, EventKind.OTHER
        args = [event.args for event in kept] if self.details is None else [_arguments(event) for event in kept]
        for row, (event, a) in enumerate(zip(kept, args, strict=True), self.rows - len(kept)):
            if event.name in TRANSFER_NAMES and len(self.transfers) < MAX_TRANSFERS:
                self._add_transfer(event, a)
            elif event.name in KNOWN_OPERATORS and a is not None:
                self.shapes.add(row, event.name, (bytes(a.sizes), bytes(a.types), bytes(a.inputs)))
        return (
            np.array([EVENT_KINDS.get(e.cat, other) for e in kept], dtype=np.int8),
            np.array([names.setdefault(e.name, len(names)) for e in kept], dtype=np.int32),
            np.array([threads.setdefault((e.pid, e.tid), len(threads)) for e in kept], dtype=np.int32),
            np.array([e.ts for e in kept], dtype=np.float64),
            np.array([e.dur for e in kept], dtype=np.float64),
            _stream_ids([-1 if a is None or a.stream is None else _parse_id(a.stream) for a in args]),
            np.array(
                [-1 if a is None or a.correlation is None else _parse_id(a.correlation) for a in args], dtype=np.int64
            ),
            np.array(
                [
                    -1 if a is None or a.collective is None else names.setdefault(str(a.collective), len(names))
                    for a in args
                ],
                dtype=np.int32,
            ),
            np.array(
                [-1 if a is None or a.group is None else names.setdefault(_group_key(a), len(names)) for a in args],
                dtype=np.int32,
            ),
            np.array([-1 if a is None or a.elements_in is None else _message_bytes(a) for a in args], dtype=np.int64),
            np.array(
                [
                    -1 if a is None or a.grid is None else self.grids.setdefault((a.grid, a.block), len(self.grids))
                    for a in args
                ],
                dtype=np.int32,
            ),
        )

    def _add_transfer(self, event: RawEvent, args: EventArguments | None) -> None:
        sends, peer, group, size = TRANSFER_OPERATORS.get(event.name), -1, -1, -1
        if args is not None and event.name == CALL_RECORD:
            sends, peer = TRANSFER_RECORDS.get(str(args.collective)), _parse_id(args.peer)
            group = -1 if args.group is None else self.names.setdefault(str(args.group), len(self.names))
            size = _message_bytes(args)
        elif args is not None:
            peer = _parse_id(input_value(bytes(args.inputs), PEER_INPUT))
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
        if not self.blocks:
            empty = [np.empty(0, dtype=t) for t in ("i1", "i4", "i4", "i8", "i8", "i4", "i8", "i4", "i4", "i8", "i4")]
            return 0.0, Events(*empty)
        parts = [list(column) for column in zip(*self.blocks, strict=True)]
        self.blocks.clear()  # so that the blocks of a column can be freed once it is built
        columns: list[NDArray[Any]] = []
        while parts:
            columns.append(np.concatenate(parts.pop(0)))
        kind, name, thread, ts, dur, stream, correlation, collective, group, message_bytes, grid = columns
        # Times are large floats in microseconds: subtract the origin first to keep nanosecond precision.
        origin = float(np.floor(ts.min()))
        start = np.rint((ts - origin) * 1000).astype(np.int64)
        end = np.rint((ts - origin + dur) * 1000).astype(np.int64)
        return origin, Events(
            kind, name, thread, start, end, stream, correlation, collective, group, message_bytes, grid
        )


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
    allocated, device_type = _parse_id(arguments.allocated), _parse_id(arguments.device_type)
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
    elements = max(_parse_id(args.elements_in), _parse_id(args.elements_out))
    return min(elements, 1 << 58) * _DTYPE_BYTES.get(str(args.dtype), 1) if elements >= 0 else -1


def _stream_ids(values: list[int]) -> Int32:
    """Stream ids; older profilers write 2**32 - 1 for "no stream", newer ones -1."""
    array = np.array(values, dtype=np.int64)
    return np.where(array < 0, -1, np.where(array >= 1 << 31, NO_STREAM_UNSIGNED, array)).astype(np.int32)


def _parse_id(value: Any) -> int:
    """A non-negative integer id; -1 for other values."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if 0 <= number < 1 << 63 else -1


def _distributed(header: TraceHeader) -> tuple[int | None, int | None, str | None]:
    info = header.distributedInfo if isinstance(header.distributedInfo, dict) else {}
    rank, world, backend = info.get("rank"), info.get("world_size"), info.get("backend")
    return (
        rank if _is_integer(rank) and 0 <= rank <= MAX_RANK else None,
        world if _is_integer(world) and 0 < world <= MAX_RANK else None,
        backend if isinstance(backend, str) and backend != "none" else None,  # of a process without a process group
    )


def _is_integer(value: object) -> TypeGuard[int]:
    """Also false for True and False, which are integers in Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def _process_groups(header: TraceHeader) -> tuple[ProcessGroup, ...]:
    info = header.distributedInfo if isinstance(header.distributedInfo, dict) else {}
    listed = info.get("pg_config")
    return tuple(
        ProcessGroup(str(entry.get("pg_name")), str(entry.get("pg_desc")), tuple(entry["ranks"]))
        for entry in (listed if isinstance(listed, list) else ())
        if isinstance(entry, dict)
        and isinstance(entry.get("ranks"), list)
        and all(_is_integer(rank) for rank in entry["ranks"])
    )


def _job(header: TraceHeader) -> str | None:
    job = header.muster.get("job") if isinstance(header.muster, dict) else None
    return job if isinstance(job, str) and job else None


def _pipeline(header: TraceHeader) -> PipelineSchedule | None:
    found = header.muster.get("pipeline") if isinstance(header.muster, dict) else None
    try:
        return None if found is None else msgspec.convert(found, PipelineSchedule)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None


def _device(header: TraceHeader) -> str | None:
    devices = header.deviceProperties
    if not isinstance(devices, list) or not devices or not isinstance(devices[0], dict):
        return None
    name = devices[0].get("name")
    return name if isinstance(name, str) else None
