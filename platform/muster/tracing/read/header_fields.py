"""What the fields of a trace besides its events say; None for what they do not say, or not validly."""

from __future__ import annotations

from typing import TypeGuard

import msgspec

from muster.tracing.read.events import PipelineSchedule, ProcessGroup
from muster.tracing.read.raw_events import TraceHeader

MAX_RANK = 1 << 30


def distributed(header: TraceHeader) -> tuple[int | None, int | None, str | None]:
    """Rank, number of ranks, backend."""
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


def process_groups(header: TraceHeader) -> tuple[ProcessGroup, ...]:
    """The process groups of the rank."""
    info = header.distributedInfo if isinstance(header.distributedInfo, dict) else {}
    listed = info.get("pg_config")
    return tuple(
        ProcessGroup(str(entry.get("pg_name")), str(entry.get("pg_desc")), tuple(entry["ranks"]))
        for entry in (listed if isinstance(listed, list) else ())
        if isinstance(entry, dict)
        and isinstance(entry.get("ranks"), list)
        and all(_is_integer(rank) for rank in entry["ranks"])
    )


def job_name(header: TraceHeader) -> str | None:
    """The job's name, by Muster's entry."""
    job = header.muster.get("job") if isinstance(header.muster, dict) else None
    return job if isinstance(job, str) and job else None


def pipeline_schedule(header: TraceHeader) -> PipelineSchedule | None:
    """The pipeline's schedule, by Muster's entry."""
    found = header.muster.get("pipeline") if isinstance(header.muster, dict) else None
    try:
        return None if found is None else msgspec.convert(found, PipelineSchedule)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None


def device_name(header: TraceHeader) -> str | None:
    """The kind of the first device."""
    devices = header.deviceProperties
    if not isinstance(devices, list) or not devices or not isinstance(devices[0], dict):
        return None
    name = devices[0].get("name")
    return name if isinstance(name, str) else None


def base_time_us(header: TraceHeader) -> float:
    """Microseconds since 1970 of the file's time 0; 0 for files whose times are since 1970."""
    base = header.baseTimeNanoseconds
    return base / 1000 if _is_integer(base) and 0 <= base < 1 << 63 else 0.0
