"""Uploads of a run folder besides traces: metrics, heartbeats and events often, logs and what hung ranks leave seldom.

They grow while the job runs, so changed files are uploaded periodically and at the end: at most the newest
`MAX_FILE_BYTES` of each, and at intervals that keep the time for uploads small. Errors are logged and retried
later; they neither end the collector nor delay traces for long.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from muster.tracing.read.flight_recorder import FLIGHT_RECORDER, RECORDER_NAME
from muster.tracing.runs.run_folder import RANK_FILE
from muster.tracing.runs.run_store import EVENTS_FILE, MAX_FILE_BYTES
from muster.tracing.runs.trace_sources import MAX_FILES
from muster.tracing.shared_folder import SharedFolder

SYNC_INTERVAL_S = 60.0
REST_FACTOR = 50.0
"""The interval is at least this multiple of the duration of the last upload."""
MAX_RETRY_S = 600.0
"""Maximum interval after an error; an unreachable store can take long to fail."""
SYNCED_FOLDERS = {"metrics": ".jsonl", "heartbeats": ".json"}
ARTIFACT_INTERVAL_S = 600.0
ARTIFACTS = {
    "logs": re.compile(r"[a-z0-9][-a-z0-9]*-\d+\.attempt-\d+\.log"),
    "stacks": re.compile(r"rank-\d+\.attempt-\d+\.[A-Za-z0-9.-]+\.txt"),
    FLIGHT_RECORDER: RECORDER_NAME,
}
"""Files that are kept for people, by folder: uploaded less often, and always at the end."""

_FileVersion: TypeAlias = tuple[int, int, int]  # modification time in ns, bytes, inode


@dataclass(slots=True)
class RunSync:
    """Calls `upload(name, content)` for changed files, with names relative to the run folder; it may raise anything."""

    run_folder: SharedFolder
    upload: Callable[[str, bytes], None]
    log: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _next_sync_at: float = float("-inf")
    _next_artifacts_at: float = float("-inf")
    _uploaded: dict[str, _FileVersion] = field(default_factory=dict)
    _last_error: str = ""

    def sync(self, *, final: bool = False) -> int:
        """Upload changed files if the interval is over, or if `final`; returns how many were uploaded."""
        started = self.clock()
        if not final and started < self._next_sync_at:
            return 0
        uploaded = 0
        try:
            for name in synced_files(self.run_folder):
                uploaded += self._sync_file(name)
            if final or started >= self._next_artifacts_at:
                for name in artifact_files(self.run_folder):
                    uploaded += self._sync_file(name)
                self._next_artifacts_at = started + ARTIFACT_INTERVAL_S
            self._last_error = ""
        except Exception as error:  # errors of a store or a disk must not end the collector
            message = f"{type(error).__name__}: {error}"
            if message != self._last_error or final:
                retry = "" if final else ", retrying"
                self.log(f"cannot upload metrics, heartbeats, events and logs{retry}: {message}")
            self._last_error = message
        ended = self.clock()
        interval_s = max(SYNC_INTERVAL_S, REST_FACTOR * (ended - started))
        self._next_sync_at = ended + (min(interval_s, MAX_RETRY_S) if self._last_error else interval_s)
        return uploaded

    def _sync_file(self, name: str) -> bool:
        found = _read_changed(self.run_folder, name, self._uploaded.get(name))
        if found is None:
            return False
        version, content = found
        self.upload(name, content)
        self._uploaded[name] = version
        return True


def synced_files(run_folder: SharedFolder) -> list[str]:
    """The files to upload, relative to the run folder: events first, then by rank."""
    ranks = sorted((rank, folder, name) for folder in SYNCED_FOLDERS for rank, name in _rank_files(run_folder, folder))
    found = [f"{folder}/{name}" for rank, folder, name in ranks if rank < MAX_FILES]
    return [*([EVENTS_FILE] if run_folder.exists(EVENTS_FILE) else ()), *found]


def artifact_files(run_folder: SharedFolder) -> list[str]:
    """Logs, stacks, then dumps of flight recorders, relative to the run folder; of each the newest attempts, at most
    `MAX_FILES`."""
    found: list[str] = []
    for folder, pattern in ARTIFACTS.items():
        with suppress(NotADirectoryError):
            names = (name for name in run_folder.file_names(folder) if pattern.fullmatch(name))
            found += [f"{folder}/{name}" for name in sorted(names, key=_attempt)[-MAX_FILES:]]
    return found


def _attempt(name: str) -> int:
    return int(name.partition(".attempt-")[2].partition(".")[0])


def _rank_files(run: SharedFolder, folder: str) -> Iterator[tuple[int, str]]:
    with suppress(NotADirectoryError):
        for name in run.file_names(folder):
            match = RANK_FILE.fullmatch(name)
            if match is not None and name.endswith(SYNCED_FOLDERS[folder]):
                yield int(match[1]), name


def _read_changed(run: SharedFolder, name: str, previous: _FileVersion | None) -> tuple[_FileVersion, bytes] | None:
    """The complete lines within the last `MAX_FILE_BYTES` of a file; None if it is unchanged since `previous`."""
    try:
        file = run.open(name)
    except OSError:
        return None  # removed meanwhile, or a symbolic link
    with file:
        status = os.fstat(file.fileno())
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        if version == previous:
            return None
        skipped_bytes = max(0, status.st_size - MAX_FILE_BYTES)
        file.seek(skipped_bytes)
        content = file.read(MAX_FILE_BYTES)
    if name.endswith(".jsonl"):
        first = content.find(b"\n") + 1 if skipped_bytes else 0
        content = content[first : content.rfind(b"\n") + 1]
    return version, content
