"""Writes the traces of all ranks as one, in the Trace Event Format that Perfetto and chrome://tracing open.

First each trace is analysed on its own, which says when its collectives ran and how far its clock is ahead. Then the
traces are copied one after the other, block by block, so that memory does not depend on their size.

Traces of one job have the same ids: of GPUs and streams, of flows, and on several hosts of processes. So processes get
numbers of their own, `RANK_PROCESSES` for each rank, and ids of flows another range for each rank.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import BufferedWriter
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from muster.errors import InvalidTrace
from muster.tracing.analysis.trace_summary import AnalysedTrace, summarise_trace_files
from muster.tracing.merge.collective_links import RankArrows, RankClock, link_collectives
from muster.tracing.read.damage import Damage
from muster.tracing.read.json_stream import (
    BLOCK_BYTES,
    DEFAULT_LIMITS,
    MAX_DURATION_US,
    MAX_TIME_US,
    StreamOptions,
    TraceLimits,
    stream_events,
)
from muster.tracing.read.raw_events import RawEvent
from muster.tracing.shared_folder import SharedFolder

RANK_PROCESSES = 1000
MAX_THREADS = 100_000
_FLOW_IDS = 1 << 32  # of each rank; an id is below 2**53, so that JavaScript reads it exactly
_MAX_RANKS = 1 << 20
_COLLECTIVES = frozenset({"kernel", "Kernel", "user_annotation"})
_FLOWS = frozenset({"s", "t", "f"})
_WITH_IDS = _FLOWS | {"b", "n", "e"}
_COPIED = _WITH_IDS | {"X", "B", "E", "i", "I", "C"}

Progress = Callable[[str, int, int], None]
"""What is done, how many of how many."""


class CopiedEvent(RawEvent, gc=False, omit_defaults=True):
    """An event with all that viewers show."""

    args: Any = None
    id: Any = None
    bp: Any = None
    s: Any = None
    cname: Any = None


@dataclass(frozen=True, slots=True)
class MergedTrace:
    """`clocks`: of each rank what was subtracted from its times, None where they are as recorded, because the rank has
    no step or collective in common with the first one. `links`: collectives whose ranks are joined by arrows.
    `skipped`: traces that cannot be read, with the reason. `left_out`: events without a valid time or kind."""

    file: str
    ranks: tuple[int, ...]
    events: int
    links: int
    clocks: tuple[RankClock, ...]
    skipped: tuple[str, ...]
    left_out: int


@dataclass(slots=True)
class _Processes:
    """The processes and threads of a rank's trace, numbered."""

    rank: int
    first: int
    numbers: dict[Any, int] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], int] = field(default_factory=dict)
    names: dict[Any, str] = field(default_factory=dict)
    thread_names: dict[tuple[Any, Any], str] = field(default_factory=dict)

    def place(self, pid: Any, tid: Any) -> tuple[int, int]:
        """The numbers of a process and thread, which may be texts in a trace."""
        process = self.numbers.get(pid)
        if process is None:
            process = self.numbers[pid] = self.first + len(self.numbers)
        thread = self.threads.get((pid, tid))
        if thread is None:
            thread = tid if isinstance(tid, int) and 0 <= tid < 1 << 31 else len(self.threads) + (1 << 30)
            self.threads[pid, tid] = thread
        if len(self.numbers) > RANK_PROCESSES or len(self.threads) > MAX_THREADS:
            raise InvalidTrace(
                f"the trace of rank {self.rank} must have at most {RANK_PROCESSES} processes and {MAX_THREADS} threads"
            )
        return process, thread

    @property
    def has_capacity(self) -> bool:
        """For the names of further threads."""
        return len(self.thread_names) < MAX_THREADS

    def read_metadata(self, event: CopiedEvent) -> None:
        """Keep the names of processes and threads; a label, such as `GPU 0`, says more than a name."""
        args = event.args if isinstance(event.args, dict) else {}
        if event.name == "process_labels" and isinstance(label := args.get("labels"), str):
            self.names[event.pid] = label
        elif event.name == "process_name" and isinstance(name := args.get("name"), str):
            self.names.setdefault(event.pid, name)
        elif event.name == "thread_name" and isinstance(name := args.get("name"), str) and self.has_capacity:
            self.thread_names[event.pid, event.tid] = name

    def metadata(self) -> Iterator[dict[str, Any]]:
        """Names and order of the processes that have events: those of the host before its GPUs, by rank."""
        for pid, process in self.numbers.items():
            name = self.names.get(pid) or str(pid)
            order = self.first + (0 if name == "CPU" else 1 + process - self.first)
            yield _metadata("process_name", process, 0, {"name": f"rank {self.rank} {name}".strip()})
            yield _metadata("process_sort_index", process, 0, {"sort_index": order})
        for (pid, tid), thread in self.threads.items():
            name = self.thread_names.get((pid, tid), "" if thread == tid else str(tid))
            if name:
                yield _metadata("thread_name", self.numbers[pid], thread, {"name": name})


def _metadata(name: str, process: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": args}


def merge_traces(
    files: Sequence[Path],
    out: Path,
    *,
    workers: int = 1,
    limits: TraceLimits = DEFAULT_LIMITS,
    progress: Progress = lambda what, done, of: None,
) -> MergedTrace:
    """Write the traces as one file, gzipped if its name ends with `.gz`. It is complete or absent.

    Raises InvalidTrace if no trace can be read, two are of one rank or they are of different runs, and OSError.
    """
    if out.parent.resolve() in {file.parent.resolve() for file in files}:
        raise InvalidTrace(f"{out}: must be in another folder than the traces: it would be read as one of them")
    progress("analysed", 0, len(files))
    found = summarise_trace_files(files, workers=workers, limits=limits)
    progress("analysed", len(files), len(files))
    skipped = tuple(f"{one.source}: {one.reason}" for one in found if not isinstance(one, AnalysedTrace))
    traces = sorted((one for one in found if isinstance(one, AnalysedTrace)), key=_rank)
    if not traces:
        raise InvalidTrace(f"no trace can be read: {'; '.join(skipped[:3])}")
    for one, other in pairwise(traces):
        if _rank(one) == _rank(other):
            both = f"{one.summary.source} and {other.summary.source}"
            raise InvalidTrace(f"rank {_rank(one)} must have one trace; got {both}")
    if _rank(traces[-1]) >= _MAX_RANKS:
        raise InvalidTrace(f"{traces[-1].summary.source}: its rank must be below {_MAX_RANKS}")
    clocks, links = link_collectives([one.record for one in traces if one.record is not None])
    by_rank = {clock.rank: clock for clock in clocks}
    copied = left_out = linked = 0
    with _written(out) as file:
        for place, one in enumerate(traces):
            progress("written", place, len(traces))
            rank = _rank(one)
            shift_ns = by_rank[rank].offset_ns if rank in by_rank else None
            copy = _Copy(file, rank, (shift_ns or 0.0) / 1000, links.get(rank), is_first=place == 0)
            options = StreamOptions(BLOCK_BYTES, limits.text_bytes, CopiedEvent, Damage())
            stream_events(Path(one.summary.source), copy.add, options)
            copy.end()
            copied, left_out, linked = copied + copy.copied, left_out + copy.left_out, linked + copy.linked
        progress("written", len(traces), len(traces))
    ranks = tuple(map(_rank, traces))
    return MergedTrace(
        file=str(out),
        ranks=ranks,
        events=copied,
        links=linked,
        clocks=tuple(by_rank.get(rank, RankClock(rank, None, None)) for rank in ranks),
        skipped=skipped,
        left_out=left_out,
    )


def _rank(trace: AnalysedTrace) -> int:
    return trace.summary.rank or 0


@contextmanager
def _written(out: Path) -> Iterator[IO[bytes]]:
    """A file that has its name once the block has ended."""
    with SharedFolder(out.parent).new_file(out.name, owner="merge") as new:
        with ExitStack() as stack:
            file = new.file
            if out.suffix == ".gz":
                file = cast(BufferedWriter, stack.enter_context(gzip.open(file, "wb", compresslevel=4)))
            file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
            yield file
            file.write(b"\n]}\n")
        new.publish()


class _Copy:
    """Copies the events of one rank, with its times shifted, and an arrow at each collective that is linked."""

    def __init__(
        self, file: IO[bytes], rank: int, shift_us: float, links: RankArrows | None, *, is_first: bool
    ) -> None:
        self.file, self.rank, self.shift_us, self.links = file, rank, shift_us, links
        self.is_first = is_first
        self.processes = _Processes(rank, rank * RANK_PROCESSES + 1)  # 0 is the idle process of Linux
        self.copied = self.left_out = self.linked = 0
        self.encoder = msgspec.json.Encoder()

    def add(self, events: list[RawEvent]) -> None:
        """Write the events of a block."""
        found: list[Any] = []
        for event in events:
            assert isinstance(event, CopiedEvent)
            if event.ph == "M":
                self.processes.read_metadata(event)
            elif not _is_valid(event):
                self.left_out += 1
            else:
                found += self._copy(event)
        self._write(found)

    def end(self) -> None:
        """Write the names of processes and threads."""
        self._write(list(self.processes.metadata()))

    def _copy(self, event: CopiedEvent) -> list[Any]:
        ts, dur = event.ts, event.dur
        assert ts is not None
        event.pid, event.tid = self.processes.place(event.pid, event.tid)
        event.ts = round(ts - self.shift_us, 3)
        if event.ph in _WITH_IDS:
            event.id = self.rank * _FLOW_IDS + _id(event.id)
        self.copied += 1
        if self.links is not None and event.cat in _COLLECTIVES and dur is not None:
            found = self.links.take(ts, dur)
            self.linked += sum(link.phase == "s" for link in found)
            # Behind the event, so that it is the innermost one of its thread at this time.
            return [event, *(link.event(event.pid, event.tid, event.ts) for link in found)]
        return [event]

    def _write(self, found: list[Any]) -> None:
        if found:
            text = self.encoder.encode(found)[1:-1]
            self.file.write(text if self.is_first else b",\n" + text)
            self.is_first = False


def _is_valid(event: CopiedEvent) -> bool:
    """Whether the event has a kind and a time that viewers accept."""
    if event.ph not in _COPIED or event.ts is None or not abs(event.ts) < MAX_TIME_US:
        return False
    if event.ph == "X" and (event.dur is None or not 0 <= event.dur < MAX_DURATION_US):
        return False
    return event.ph not in _WITH_IDS or event.id is not None


def _id(value: Any) -> int:
    """An id, which may be a text such as "0x1f", as one of the range of a rank."""
    if isinstance(value, int):
        return value % _FLOW_IDS
    return zlib.crc32(str(value).encode())
