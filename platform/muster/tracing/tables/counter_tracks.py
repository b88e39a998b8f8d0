"""Writes a copy of a trace with counters for trace viewers: lengths of launch queues, bandwidth of copies.

HolisticTraceAnalysis 0.5.0: `generate_trace_with_counters`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from muster.errors import InvalidTrace
from muster.tracing.memory_bandwidth import bandwidth_changes
from muster.tracing.read.archives import open_trace
from muster.tracing.read.events import Trace
from muster.tracing.read.json_stream import locate_events, unpack
from muster.tracing.reader import read_trace
from muster.tracing.shared_folder import SharedFolder
from muster.tracing.tables.device_tables import queue_changes
from muster.tracing.trace_details import Detail

BLOCK_BYTES = 1 << 20
COUNTERS_PER_WRITE = 10_000
SUFFIX = ".counters.json.gz"


def write_with_counters(path: Path, folder: Path) -> Path:
    """Write the trace with counters into `folder`, gzipped, and return the file; its text is otherwise unchanged.

    The file is complete or absent. Raises InvalidTrace as `read_trace`, and OSError.
    """
    trace = read_trace(path, details={Detail.COPIES})
    if trace.damage is not None:
        raise InvalidTrace(f"{path}: must be a whole trace; {trace.damage.describe()}")
    target = folder / (path.name.removesuffix(".gz").removesuffix(".json") + SUFFIX)
    folder.mkdir(parents=True, exist_ok=True)
    with SharedFolder(folder).new_file(target.name, owner="counters") as new:
        with open_trace(path) as file, gzip.GzipFile(filename="", mode="wb", fileobj=new.file, compresslevel=6) as out:
            _copy(unpack(file), locate_events(path), trace, out)
        new.publish()
    return target


def _copy(source: IO[bytes], begin: int, trace: Trace, out: gzip.GzipFile) -> None:
    """Copy the text, with the counters as the first events of the array that begins at `begin`."""
    while begin:
        block = source.read(min(begin, BLOCK_BYTES))
        if not block:
            return  # the file became shorter meanwhile
        out.write(block)
        begin -= len(block)
    separator = b"\n"
    events: list[bytes] = []
    for event in counter_events(trace):
        events.append(event)
        if len(events) == COUNTERS_PER_WRITE:
            out.write(separator + b",\n".join(events))
            separator, events = b",\n", []
    if events:
        out.write(separator + b",\n".join(events))
        separator = b",\n"
    if separator == b",\n":
        out.write(b",")  # a trace that can be read has events
    while block := source.read(BLOCK_BYTES):
        out.write(block)


def counter_events(trace: Trace) -> Iterator[bytes]:
    """Counters (phase `C`) as JSON: `queue length STREAM` and `bandwidth KIND` in the rows of the device. The trace was
    read with `Detail.COPIES`."""
    for queue in queue_changes(trace, trace.device_work):
        name, pid = f"queue length {queue.stream}", _process(trace, queue.thread)
        for time, length in zip(queue.time.tolist(), queue.length.tolist(), strict=True):
            yield _counter(trace, name, pid, time, f'{{"launches": {length}}}')
    for bandwidth in bandwidth_changes(trace, trace.device_work):
        name, pid = f"bandwidth {bandwidth.kind}", _process(trace, bandwidth.thread)
        for time, gbps in zip(bandwidth.time.tolist(), bandwidth.gbps.tolist(), strict=True):
            yield _counter(trace, name, pid, time, f'{{"GB/s": {gbps:.6g}}}')


def _process(trace: Trace, thread: int) -> str:
    pid = trace.threads[thread].pid
    return pid if pid.isdecimal() else json.dumps(pid)


def _counter(trace: Trace, name: str, pid: str, time_ns: int, args: str) -> bytes:
    """The time is exact: a float of microseconds since 1970 has a resolution of 0.25 us."""
    us, ns = divmod(int(trace.origin_us) * 1000 + time_ns, 1000)
    return f'{{"ph": "C", "name": {json.dumps(name)}, "pid": {pid}, "ts": {us}.{ns:03d}, "args": {args}}}'.encode()
