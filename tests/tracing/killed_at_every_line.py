"""Kills the collector (SIGKILL) after each line that it executes, and checks that it loses and duplicates no trace and
no memory snapshot.

In every second run the collector of another pod finishes the work, so that the first one's manifest is also checked.

It is a separate process, because it forks: `python -m tests.tracing.killed_at_every_line FOLDER`. Prints the number of
lines.
"""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from tests.tracing.kineto import trace_text, training_steps

from muster.tracing import manifest_updates, run_store, shared_folder, spool_collector, trace_files
from muster.tracing.shared_folder import SharedFolder
from muster.tracing.trace_files import read_manifest

WATCHED = {module.__file__ for module in (spool_collector, manifest_updates, trace_files, shared_folder, run_store)}
GOOD = "rank-0.attempt-0.steps-20-25.json"
BAD = "rank-1.attempt-0.steps-20-25.json"
SNAPSHOT = "rank-0.attempt-0.steps-30-31.pickle"
PICKLE = b"\x80\x04" + bytes(range(256)) * 8  # not read by the collector


def collect_all(run_dir: Path, pod: int = 0) -> None:
    """Collect all traces in the spool as the collector's process does."""
    options = spool_collector.CollectorOptions(run_dir, "trainer", pod, store=str(run_dir / "store"))
    with trace_files.collector_lock(options.run_folder, options.owner):
        collector = spool_collector.start_collector(options, time.time())
        while collector.collect_finished(time.time(), respect_backoff=False):
            pass


def killed_after(lines: int, run_dir: Path) -> bool:
    """Collect in a child that is killed at its `lines`-th line in the watched files; False if it ended before."""
    child = os.fork()
    if child == 0:
        left = lines

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in WATCHED:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        collect_all(run_dir)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def fresh(run_dir: Path, good: bytes, bad: bytes) -> None:
    shutil.rmtree(run_dir, ignore_errors=True)
    spool = run_dir / "traces" / "spool"
    spool.mkdir(parents=True)
    (spool / GOOD).write_bytes(good)
    (spool / BAD).write_bytes(bad)
    (spool / SNAPSHOT).write_bytes(PICKLE)


def check_nothing_is_lost(run_dir: Path, good: bytes, bad: bytes) -> None:
    """After the kill, each trace exists somewhere, and files with final names are complete."""
    traces = run_dir / "traces"
    packed, snapshot = traces / f"{GOOD}.gz", traces / "memory" / f"{SNAPSHOT}.gz"
    claimed = traces / "claimed" / "trainer-0"
    for name, stored in ((GOOD, packed), (SNAPSHOT, snapshot)):
        assert (traces / "spool" / name).exists() or (claimed / name).exists() or stored.exists()
    for folder in (traces / "spool", claimed):
        assert not (folder / BAD).exists() or (folder / BAD).read_bytes() == bad
    if not (traces / "spool" / BAD).exists() and not (claimed / BAD).exists():
        assert (traces / "corrupt" / BAD).read_bytes() == bad
    for content, path in ((good, packed), (PICKLE, snapshot)):
        for one in (path, run_dir / "store" / "traces" / path.relative_to(traces)):
            assert not one.exists() or gzip.decompress(one.read_bytes()) == content
    if (traces / "manifest-trainer-0.json").exists():
        for entry in read_manifest(SharedFolder(run_dir), "manifest-trainer-0.json").entries:
            assert entry.status == "corrupt" or (traces / entry.file).exists()


def check_all_is_collected_once(run_dir: Path, good: bytes, bad: bytes) -> None:
    """At the end: one entry per trace in all manifests, the right content, no claims, no leftovers."""
    traces, store = run_dir / "traces", run_dir / "store" / "traces"
    entries = [entry for found in trace_files.read_manifests(SharedFolder(run_dir)) for entry in found.traces]
    assert sorted((e.file, e.status) for e in entries) == [(f"corrupt/{BAD}", "corrupt"), (f"{GOOD}.gz", "ok")], entries
    snapshots = [entry for found in trace_files.read_manifests(SharedFolder(run_dir)) for entry in found.snapshots]
    snapshot = f"memory/{SNAPSHOT}.gz"
    assert [(e.file, e.status) for e in snapshots] == [(snapshot, "ok")], snapshots
    assert (traces / "corrupt" / BAD).read_bytes() == bad
    assert gzip.decompress((traces / f"{GOOD}.gz").read_bytes()) == good
    assert gzip.decompress((traces / snapshot).read_bytes()) == PICKLE
    summary = f"summaries/{GOOD.removesuffix('.json')}.parquet"
    for name in (f"{GOOD}.gz", summary, snapshot):
        assert (store / name).read_bytes() == (traces / name).read_bytes()
    names = [path.name for path in traces.glob("manifest-*.json")]
    for name in names:
        assert (store / name).read_bytes() == (traces / name).read_bytes()
    found = (path.relative_to(traces) for path in traces.rglob("*") if path.is_file())
    left = sorted(str(path) for path in found if path.suffix != ".lock")
    assert left == sorted([f"corrupt/{BAD}", *names, f"{GOOD}.gz", summary, snapshot]), left


def main(folder: Path) -> int:
    good = trace_text(training_steps(5))
    bad = good[: len(good) // 2]
    run_dir = folder / "run"
    lines = 0
    while True:
        fresh(run_dir, good, bad)
        killed = killed_after(lines, run_dir)
        try:
            check_nothing_is_lost(run_dir, good, bad)
            collect_all(run_dir, pod=lines % 2)
            check_all_is_collected_once(run_dir, good, bad)
        except AssertionError as error:
            raise AssertionError(f"killed at line {lines}: {error}") from error
        if not killed:
            print(lines)
            return 0
        lines += 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
