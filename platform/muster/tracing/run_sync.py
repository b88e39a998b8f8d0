"""What a report needs besides traces, kept in the store too: metrics, beats and events of the run folder.

They grow while the job runs, so they are sent again now and then, and once more at the end; only what changed, never
more of a file than its newest `LARGEST_BYTES`, and so seldom that sending takes a small part of the time. Trouble is
said and tried again later: it neither ends the collector nor keeps a trace waiting for long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from muster.tracing.run_folder import MAX_FILES, RANK_FILE
from muster.tracing.shared_folder import SharedFolder

SYNC_INTERVAL_S = 60.0
REST_FACTOR = 50.0
"""After sending, it rests at least so many times as long as that took."""
MAX_RETRY_S = 600.0
"""A store that is out of reach takes long to say so; it is tried again after so long at the latest."""
MAX_FILE_BYTES = 16 << 20
EVENTS_FILE = "events.jsonl"
SYNCED_FOLDERS = {"metrics": ".jsonl", "heartbeats": ".json"}

_FileVersion: TypeAlias = tuple[int, int, int]  # modification time in ns, bytes, inode


@dataclass(slots=True)
class RunSync:
    """Sends what changed: `send(name, content)`, under the names of the run folder. It may raise anything."""

    run_folder: SharedFolder
    upload: Callable[[str, bytes], None]
    log: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _next_sync_at: float = float("-inf")
    _uploaded: dict[str, _FileVersion] = field(default_factory=dict)
    _last_error: str = ""

    def sync(self, *, final: bool = False) -> int:
        """Send what changed if it is time to, or at the end (`last`); returns how many files were sent."""
        began = self.clock()
        if not final and began < self._next_sync_at:
            return 0
        sent = 0
        try:
            for name in synced_files(self.run_folder):
                sent += self._sync_file(name)
            self._last_error = ""
        except Exception as error:  # whatever a store or a disk does must not end the collector
            trouble = f"{type(error).__name__}: {error}"
            if trouble != self._last_error or final:
                self.log(f"metrics, beats and events cannot be kept, tried again later: {trouble}")
            self._last_error = trouble
        ended = self.clock()
        rest_s = max(SYNC_INTERVAL_S, REST_FACTOR * (ended - began))
        self._next_sync_at = ended + (min(rest_s, MAX_RETRY_S) if self._last_error else rest_s)
        return sent

    def _sync_file(self, name: str) -> bool:
        found = _read_changed(self.run_folder, name, self._uploaded.get(name))
        if found is None:
            return False
        stamp, content = found
        self.upload(name, content)
        self._uploaded[name] = stamp
        return True


def synced_files(run_folder: SharedFolder) -> list[str]:
    """What there is to be kept, as named in the run folder: events first, then rank by rank."""
    ranks = sorted((rank, folder, name) for folder in SYNCED_FOLDERS for rank, name in _rank_files(run_folder, folder))
    found = [f"{folder}/{name}" for rank, folder, name in ranks if rank < MAX_FILES]
    return [*([EVENTS_FILE] if run_folder.exists(EVENTS_FILE) else ()), *found]


def _rank_files(run: SharedFolder, folder: str) -> Iterator[tuple[int, str]]:
    with suppress(NotADirectoryError):
        for name in run.file_names(folder):
            match = RANK_FILE.fullmatch(name)
            if match is not None and name.endswith(SYNCED_FOLDERS[folder]):
                yield int(match[1]), name


def _read_changed(run: SharedFolder, name: str, previous: _FileVersion | None) -> tuple[_FileVersion, bytes] | None:
    """The whole lines of a file that changed since `before`, the newest ones of a large one."""
    try:
        file = run.open(name)
    except OSError:
        return None  # gone meanwhile, or a link
    with file:
        about = os.fstat(file.fileno())
        stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
        if stamp == previous:
            return None
        left_out = max(0, about.st_size - MAX_FILE_BYTES)
        file.seek(left_out)
        content = file.read(MAX_FILE_BYTES)
    if name.endswith(".jsonl"):
        first = content.find(b"\n") + 1 if left_out else 0
        content = content[first : content.rfind(b"\n") + 1]
    return stamp, content
