"""A compromised trainer, with the user id of the collector of its pod, that replaces files in the run folder.

`collect_while_swapping` runs the collector in this process and, before a given line is executed for the first time,
replaces a file or a folder. So every window between two system calls is tested.
"""

from __future__ import annotations

import gzip
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from tests.tracing.kineto import trace_text, training_steps

from muster.tracing import shared_folder
from muster.tracing.collect import spool_collector
from muster.tracing.collect.spool_collector import CollectorOptions
from muster.tracing.collector import CollectorState, run_collector
from muster.tracing.runs import run_store, trace_files

SECRET = b"AWS_SECRET_ACCESS_KEY"
NAME = "rank-0.attempt-0.steps-20-25.json"
TRACE = trace_text(training_steps(3))
HEARTBEAT = b'{"step": 1}'
LEAK = TRACE.replace(b"aten::mm", SECRET)
"""A valid trace outside of the run folder, which the collector must not read."""
Line = tuple[str, int]


class AttackedRun:
    """A run folder with a trace in its spool and a heartbeat, a store, and files outside of both."""

    def __init__(self, folder: Path) -> None:
        self.run_dir, self.store, self.outside = folder / "run", folder / "store", folder / "outside"
        self.traces = self.run_dir / "traces"
        self.write(self.traces / "spool" / NAME, TRACE)
        self.write(self.run_dir / "heartbeats/rank-0.json", HEARTBEAT)
        self.store.mkdir()
        for name in (f"claimed/trainer-0/{NAME}", f"spool/{NAME}", f"{NAME}.gz", "rank-0.json"):
            self.write(self.outside / name, LEAK)
        (self.outside / f"{NAME}.gz").write_bytes(gzip.compress(LEAK))
        self.before = dict(self.files(self.outside))

    @staticmethod
    def write(path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    @staticmethod
    def files(folder: Path) -> Iterator[tuple[str, bytes]]:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(folder)), path.read_bytes()

    def leaked(self) -> list[str]:
        """Files of the run folder and the store with content from outside."""
        folders = (self.run_dir, self.store)
        found = [
            (name, text)
            for folder in folders
            for name, text in self.files(folder)
            if (folder / name).stat().st_nlink == 1  # the trainer's own hard link is not a copy
        ]
        return [name for name, text in found if SECRET in (gzip.decompress(text) if name.endswith(".gz") else text)]

    def changed_outside(self) -> list[str]:
        after = dict(self.files(self.outside))
        return sorted(name for name in {*after, *self.before} if after.get(name) != self.before.get(name))


# ---- replacements


def trace_for_a_link(attacked: AttackedRun) -> None:
    for path in _copies(attacked):
        _replace(path, lambda new: new.symlink_to(attacked.outside / "spool" / NAME))


def trace_for_a_pipe(attacked: AttackedRun) -> None:
    for path in _copies(attacked):
        _replace(path, os.mkfifo)


def trace_for_a_hard_link(attacked: AttackedRun) -> None:
    for path in _copies(attacked):
        _replace(path, lambda new: new.hardlink_to(attacked.outside / "spool" / NAME))


def claims_for_a_link(attacked: AttackedRun) -> None:
    _folder_for_a_link(attacked.traces / "claimed/trainer-0", attacked.outside / "claimed/trainer-0")


def spool_for_a_link(attacked: AttackedRun) -> None:
    _folder_for_a_link(attacked.traces / "spool", attacked.outside / "spool")


def traces_for_a_link(attacked: AttackedRun) -> None:
    _folder_for_a_link(attacked.traces, attacked.outside)


def results_for_links(attacked: AttackedRun) -> None:
    """Replace compressed trace, manifest and temporary files by links to a file outside."""
    for path in attacked.traces.iterdir():
        if path.is_file():
            _replace(path, lambda new: new.symlink_to(attacked.outside / f"{NAME}.gz"))


def heartbeats_for_links(attacked: AttackedRun) -> None:
    _folder_for_a_link(attacked.run_dir / "heartbeats", attacked.outside)


SWAPS = (trace_for_a_link, trace_for_a_pipe, trace_for_a_hard_link, claims_for_a_link, spool_for_a_link,
         traces_for_a_link, results_for_links, heartbeats_for_links)  # fmt: skip


def _copies(attacked: AttackedRun) -> list[Path]:
    places = (attacked.traces / "spool" / NAME, attacked.traces / "claimed/trainer-0" / NAME)
    return [path for path in places if os.path.lexists(path)]


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    new = path.with_name(".swapped")
    make(new)
    new.rename(path)


def _folder_for_a_link(path: Path, target: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}-before"))
        path.symlink_to(target)


# ---- times


def watched() -> set[str | None]:
    modules: list[ModuleType] = [spool_collector, run_store, trace_files, shared_folder]
    return {module.__file__ for module in modules}


def collect_while_swapping(
    attacked: AttackedRun, swap: Callable[[AttackedRun], None] | None, at: Line | None
) -> list[Line]:
    """Collect all traces, and call `swap` when this line is first reached; returns the executed lines."""
    seen: dict[Line, None] = {}
    files = watched()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and line not in seen:
            seen[line] = None
            if swap is not None and line == at:
                swap(attacked)
        return trace

    options = CollectorOptions(attacked.run_dir, "trainer", 0, store=str(attacked.store), sync_metrics=True)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run_collector(CollectorState(options), threading.Event(), follow=False, poll_s=0.0)
    finally:
        sys.settrace(before)
    return list(seen)
