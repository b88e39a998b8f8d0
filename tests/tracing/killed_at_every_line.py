"""Kills the collector (SIGKILL) after each line that changes its files, and checks that it loses and duplicates no
trace and no memory snapshot.

After each kill, another collector of the same pod finishes the work, and in a second run that of another pod, so that
the first one's manifest is also checked.

It is a separate process, because it forks: `python -m tests.tracing.killed_at_every_line FOLDER`. Prints the number of
lines that the collector executes, and of those that change its files.
"""

from __future__ import annotations

import gc
import gzip
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.tracing.collector_in_child import collect, is_killed
from tests.tracing.kineto import trace_text, training_steps

from muster.tracing import shared_folder
from muster.tracing.collect import manifest_updates, spool_collector
from muster.tracing.runs import run_store, trace_files
from muster.tracing.runs.trace_files import read_manifest
from muster.tracing.shared_folder import SharedFolder

WATCHED = {module.__file__ for module in (spool_collector, manifest_updates, trace_files, shared_folder, run_store)}
GOOD = "rank-0.attempt-0.steps-20-25.json"
BAD = "rank-1.attempt-0.steps-20-25.json"
SNAPSHOT = "rank-0.attempt-0.steps-30-31.pickle"
PICKLE = b"\x80\x04" + bytes(range(256)) * 8  # not read by the collector


def collect_all(run_dir: Path, pod: int = 0) -> None:
    """Collect all traces into a store within the run folder."""
    collect(run_dir, str(run_dir / "store"), pod)


def collect_in_child(run_dir: Path, at_line: Callable[[int], None]) -> bool:
    """Collect in a child that calls `at_line` with the number of each line in the watched files before it executes it,
    and at its end; whether it was killed."""

    def body() -> None:
        lines = 0

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal lines
            if frame.f_code.co_filename not in WATCHED:
                return None
            if event == "line":
                at_line(lines)
                lines += 1
            return trace

        gc.disable()  # else finalizers may execute lines at other times in another child
        sys.settrace(trace)
        collect_all(run_dir)
        sys.settrace(None)
        at_line(lines)

    return is_killed(body)


def lines_after_changes(run_dir: Path, report: Path) -> tuple[list[int], int]:
    """The numbers of the lines before which a file has changed since the line before, and the number of all lines.

    A kill at another line leaves the same files as one at the last of these lines before it.
    """
    before: dict[str, tuple[int, bytes]] | None = None

    def note(line: int) -> None:
        nonlocal before
        now = {
            str(path): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
            for path in run_dir.rglob("*")
        }
        with report.open("a") as file:
            file.write(f"{line} {int(now != before)}\n")
        before = now

    assert not collect_in_child(run_dir, note)
    noted = [line.split() for line in report.read_text().splitlines()]
    report.unlink()
    return [int(line) for line, changed in noted if changed == "1"], len(noted) - 1


def killed_at(line: int, run_dir: Path) -> bool:
    """Collect in a child that is killed before this line; False if it ended before."""

    def kill(current: int) -> None:
        if current == line:
            os.kill(os.getpid(), signal.SIGKILL)

    return collect_in_child(run_dir, kill)


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
    fresh(run_dir, good, bad)
    after_changes, executed = lines_after_changes(run_dir, folder / "lines")
    for line in after_changes:
        for pod in (0, 1):
            fresh(run_dir, good, bad)
            assert killed_at(line, run_dir), f"not killed at line {line} of {executed}"
            try:
                check_nothing_is_lost(run_dir, good, bad)
                collect_all(run_dir, pod)
                check_all_is_collected_once(run_dir, good, bad)
            except AssertionError as error:
                raise AssertionError(f"killed at line {line}, finished by pod {pod}: {error}") from error
    fresh(run_dir, good, bad)
    assert lines_after_changes(run_dir, folder / "lines") == (after_changes, executed), "not the same lines again"
    print(executed, len(after_changes))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
