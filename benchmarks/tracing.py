"""How fast traces are read and analysed, and in how much memory.

    python benchmarks/tracing.py --json
    python benchmarks/tracing.py --copies 8 --ranks 8        # one 8 times as long, and 8 ranks at once

Input are the sample traces of tests/tracing/data, or the files given. Each measurement runs in a process of its own,
so that its peak memory is its own; times are medians. `events` counts all events of a file, also those not kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).resolve().parent.parent / "tests" / "tracing" / "data"
LARGEST = SAMPLES / "control.json.gz"


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement: what, over how many events and bytes of JSON, in how many seconds, in how much memory.

    `cpu_s` counts the time of this process and its workers only, for busy machines.
    """

    what: str
    events: int
    json_mb: float
    seconds: float
    cpu_s: float
    events_per_s: float
    peak_rss_mib: float


def read_one(path: Path) -> int:
    """Read into columns."""
    from muster.tracing.reader import read_trace

    return read_trace(path).decoded_events


def analyse_one(path: Path) -> int:
    """Read and analyse."""
    from muster.tracing.analysis.trace_summary import AnalysedTrace, summarise_trace_file

    (found,) = summarise_trace_file(path)
    if not isinstance(found, AnalysedTrace):
        raise SystemExit(f"{path}: {found.reason}")
    return found.summary.events


def report_all(folder: Path) -> int:
    """The whole report of a folder: read, analyse, draw, write."""
    from muster.tracing.report import build

    with tempfile.TemporaryDirectory() as out:
        return sum(row.trace.events for row in build(folder, out).traces)


def measure(what: str, work: Callable[[Path], int], path: Path, json_bytes: int, runs: int) -> Figures:
    """Median of `runs` runs, each in a fresh process."""
    found = [in_process(_timed, work, path) for _ in range(runs)]
    events = found[0][0]
    seconds = statistics.median(f[1] for f in found)
    return Figures(
        what=what,
        events=events,
        json_mb=round(json_bytes / 1e6, 1),
        seconds=round(seconds, 3),
        cpu_s=round(statistics.median(f[2] for f in found), 3),
        events_per_s=round(events / seconds),
        peak_rss_mib=round(max(f[3] for f in found), 1),
    )


def in_process(work: Callable[..., Any], *args: object) -> Any:
    """The result of `work` in a process of its own.

    Also what only prepares a measurement: a new process counts its parent's peak as its own.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, args, sender))
    process.start()
    sender.close()
    answer = receiver.recv()
    process.join()
    return answer


def _answer(work: Callable[..., Any], args: tuple[object, ...], sender: Connection) -> None:
    sender.send(work(*args))


def _timed(work: Callable[[Path], int], path: Path) -> tuple[int, float, float, float]:
    import muster.tracing.report  # noqa: F401 - imports are not what is measured

    began, cpu = time.perf_counter(), _cpu_s()
    events = work(path)
    seconds = time.perf_counter() - began
    peak_kib = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return events, seconds, _cpu_s() - cpu, peak_kib / 1024


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def unpacked_bytes(path: Path) -> int:
    """The bytes of JSON in a file."""
    raw = path.read_bytes()
    return len(gzip.decompress(raw)) if raw[:2] == b"\x1f\x8b" else len(raw)


def lengthened(source: Path, copies: int, target: Path) -> int:
    """The same trace with its events repeated, each copy later in time; returns the bytes of JSON."""
    text = gzip.decompress(source.read_bytes())
    begin = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    end = text.rindex(b"]")
    events = text[begin:end]
    moved = [_later(events, i * 10_000_000) for i in range(copies)]
    long = text[:begin] + b",".join(moved) + text[end:]
    target.write_bytes(gzip.compress(long, 1))
    return len(long)


def _later(events: bytes, shift_us: int) -> bytes:
    return re.sub(rb'"ts": (\d+)', lambda match: b'"ts": %d' % (int(match[1]) + shift_us), events)


def ranks_of(source: Path, ranks: int, folder: Path) -> int:
    """The same trace once for each rank; returns the bytes of JSON."""
    text = gzip.decompress(source.read_bytes())
    for rank in range(ranks):
        mine = re.sub(rb'"rank": \d+', b'"rank": %d' % rank, text, count=1)
        (folder / f"rank-{rank}.json.gz").write_bytes(gzip.compress(mine, 1))
    return len(text) * ranks


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="traces; default: the largest sample")
    parser.add_argument("--copies", type=int, default=8, help="length of the long trace, in copies of the sample")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the report")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true", dest="as_json")
    args = parser.parse_args(argv)
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for path in args.files or [LARGEST]:
            json_bytes = in_process(unpacked_bytes, path)
            found.append(measure(f"read {path.name}", read_one, path, json_bytes, args.runs))
            found.append(measure(f"read and analyse {path.name}", analyse_one, path, json_bytes, args.runs))
        if not args.files:
            long = scratch / "long.json.gz"
            json_bytes = in_process(lengthened, LARGEST, args.copies, long)
            found.append(
                measure(f"read and analyse, {args.copies} times as long", analyse_one, long, json_bytes, args.runs)
            )
            folder = scratch / "ranks"
            folder.mkdir()
            json_bytes = in_process(ranks_of, LARGEST, args.ranks, folder)
            found.append(measure(f"report of {args.ranks} ranks", report_all, folder, json_bytes, args.runs))
    if args.as_json:
        print(json.dumps({"cores": os.cpu_count(), "figures": [asdict(f) for f in found]}, indent=1))
        return 0
    for f in found:
        print(
            f"{f.what:<40} {f.json_mb:8.1f} MB {f.events:>9,} events {f.seconds:7.2f} s (CPU {f.cpu_s:.2f} s) "
            f"{f.events_per_s:>9,} events/s  peak {f.peak_rss_mib:6.0f} MiB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
