"""Reads a trace file into a `Trace`, block by block, so that memory depends on the kept columns, not on the file."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import IO

from muster.errors import InvalidTrace
from muster.tracing.read.column_builder import ColumnBuilder, parse_id
from muster.tracing.read.damage import Damage
from muster.tracing.read.detail_columns import DetailColumns, DetailedEvent
from muster.tracing.read.events import Trace, TraceThread
from muster.tracing.read.header_fields import (
    base_time_us,
    device_name,
    distributed,
    job_name,
    pipeline_schedule,
    process_groups,
)
from muster.tracing.read.json_stream import (
    BLOCK_BYTES,
    DEFAULT_LIMITS,
    MAX_TEXT_BYTES,
    NOT_A_TRACE,
    EventCallback,
    StreamOptions,
    TraceLimits,
    stream_events,
    stream_file,
)
from muster.tracing.read.raw_events import RawEvent
from muster.tracing.trace_details import Detail


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

    stream_file(file, path, count, StreamOptions(max_bytes=max_bytes))
    if not sum(counts):
        raise InvalidTrace(f"{path}: has no events")
    return sum(counts)


def read_trace(path: Path, limits: TraceLimits = DEFAULT_LIMITS, details: AbstractSet[Detail] = frozenset()) -> Trace:
    """Read one trace, `.json` or gzipped, with these details, which take more time and memory.

    What cannot be read of a truncated or damaged file is described in `Trace.damage`. Events without a valid time are
    skipped and counted in `invalid_events`. Raises InvalidTrace (with file and byte) if nothing can be read, or the
    file is not a trace or exceeds the limits, and OSError if it cannot be opened.
    """
    columns, damage = ColumnBuilder(path, limits.events), Damage()
    if details:
        columns.details = DetailColumns(details, columns.names, columns.threads, parse_id)
    event_type = DetailedEvent if details else RawEvent
    header = stream_events(path, columns.add, StreamOptions(BLOCK_BYTES, limits.text_bytes, event_type, damage))
    if not columns.decoded_events:
        raise InvalidTrace(f"{path}: {damage.describe() or 'has no events'}")
    if not columns.rows:
        message = (
            f"{path}: not a trace: none of its {columns.decoded_events} events has a category, a time and a duration"
        )
        raise InvalidTrace(message, reason=NOT_A_TRACE)
    rank, world_size, backend = distributed(header)
    origin_us, events = columns.events()
    return Trace(
        source=str(path),
        rank=rank,
        world_size=world_size,
        backend=backend,
        device=device_name(header),
        job=job_name(header),
        origin_us=origin_us,
        decoded_events=columns.decoded_events,
        invalid_events=columns.invalid_events,
        process_groups=process_groups(header),
        names=tuple(columns.names),
        grids=tuple(f"{grid} x {block}"[:80] for grid, block in columns.grids),
        threads=tuple(
            TraceThread(pid=str(pid), tid=str(tid), name=columns.thread_names.get((pid, tid), ""))
            for pid, tid in columns.threads
        ),
        events=events,
        pipeline=pipeline_schedule(header),
        details=None if columns.details is None else columns.details.details(origin_us),
        memory=columns.memory_samples(origin_us),
        transfers=columns.transfer_calls(origin_us),
        shapes=columns.shapes.shapes(),
        with_stack=header.with_stack == 1,
        base_us=base_time_us(header),
        damage=damage if damage else None,
    )
