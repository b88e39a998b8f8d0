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

from muster.tracing.runfolder import MOST_FILES, RANK_FILE
from muster.tracing.sharedfolder import SharedFolder

EVERY_S = 60.0
REST = 50.0
"""After sending, it rests at least so many times as long as that took."""
AFTER_TROUBLE_S = 600.0
"""A store that is out of reach takes long to say so; it is tried again after so long at the latest."""
LARGEST_BYTES = 16 << 20
EVENTS = "events.jsonl"
FOLDERS = {"metrics": ".jsonl", "beats": ".json"}

_Stamp: TypeAlias = tuple[int, int, int]  # modification time in ns, bytes, inode


@dataclass(slots=True)
class Keeping:
    """Sends what changed: `send(name, content)`, under the names of the run folder. It may raise anything."""

    run: SharedFolder
    send: Callable[[str, bytes], None]
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _next_at: float = float("-inf")
    _sent: dict[str, _Stamp] = field(default_factory=dict)
    _trouble: str = ""

    def look(self, *, last: bool = False) -> int:
        """Send what changed if it is time to, or at the end (`last`); returns how many files were sent."""
        began = self.clock()
        if not last and began < self._next_at:
            return 0
        sent = 0
        try:
            for name in names(self.run):
                sent += self._one(name)
            self._trouble = ""
        except Exception as error:  # whatever a store or a disk does must not end the collector
            trouble = f"{type(error).__name__}: {error}"
            if trouble != self._trouble or last:
                self.say(f"metrics, beats and events cannot be kept, tried again later: {trouble}")
            self._trouble = trouble
        ended = self.clock()
        rest_s = max(EVERY_S, REST * (ended - began))
        self._next_at = ended + (min(rest_s, AFTER_TROUBLE_S) if self._trouble else rest_s)
        return sent

    def _one(self, name: str) -> bool:
        found = _read(self.run, name, self._sent.get(name))
        if found is None:
            return False
        stamp, content = found
        self.send(name, content)
        self._sent[name] = stamp
        return True


def names(run: SharedFolder) -> list[str]:
    """What there is to be kept, as named in the run folder: events first, then rank by rank."""
    ranks = sorted((rank, folder, name) for folder in FOLDERS for rank, name in _ranks(run, folder))
    found = [f"{folder}/{name}" for rank, folder, name in ranks if rank < MOST_FILES]
    return [*([EVENTS] if run.exists(EVENTS) else ()), *found]


def _ranks(run: SharedFolder, folder: str) -> Iterator[tuple[int, str]]:
    with suppress(NotADirectoryError):
        for name in run.names(folder):
            match = RANK_FILE.fullmatch(name)
            if match is not None and name.endswith(FOLDERS[folder]):
                yield int(match[1]), name


def _read(run: SharedFolder, name: str, before: _Stamp | None) -> tuple[_Stamp, bytes] | None:
    """The whole lines of a file that changed since `before`, the newest ones of a large one."""
    try:
        file = run.open(name)
    except OSError:
        return None  # gone meanwhile, or a link
    with file:
        about = os.fstat(file.fileno())
        stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
        if stamp == before:
            return None
        left_out = max(0, about.st_size - LARGEST_BYTES)
        file.seek(left_out)
        content = file.read(LARGEST_BYTES)
    if name.endswith(".jsonl"):
        first = content.find(b"\n") + 1 if left_out else 0
        content = content[first : content.rfind(b"\n") + 1]
    return stamp, content
