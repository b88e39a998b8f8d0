"""Tells the rest of Muster which checkpoint a program of any kind has written, in `checkpoint.json` of the run folder.

A thread of the launcher of pod 0 searches `MUSTER_CHECKPOINT_DIR` (default: the run folder), at least 5 s apart and so
seldom that it takes less than a thousandth of a core. Muster's own trainer reports its checkpoints itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from muster_components.launch.checkpoints.formats import FoundCheckpoint
from muster_components.launch.checkpoints.search import OWN_FOLDERS, CheckpointSearch
from muster_components.launch.rank_layout import RankLayout

RECORD = "checkpoint.json"
MIN_INTERVAL_S = 5.0
MAX_INTERVAL_S = 300.0
CPU_SHARE = 0.001
"""Of one core."""
IO_SHARE = 0.05
"""Of the time: a search of a slow volume mostly waits."""
LAST_SEARCH_LIMIT_S = 5.0
_OWN_TRAINER = "muster_components.trainer"


class CheckpointWatcher:
    """Searches from `start` to `stop`."""

    def __init__(self, run_dir: Path, checkpoint_dir: Path, layout: RankLayout, log: Callable[[str], None]) -> None:
        is_run_dir = checkpoint_dir == run_dir
        skip = OWN_FOLDERS if is_run_dir else frozenset()
        self._record = run_dir / RECORD
        self._checkpoint_dir = checkpoint_dir
        self._attempt = layout.attempt
        self._log = log
        self._search = CheckpointSearch(checkpoint_dir, layout.world_size, skip=skip)
        self._written: FoundCheckpoint | None = None
        self._has_complained = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Begin to search, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Search once more after all ranks have ended, for what they saved last; waits for at most 5 s."""
        self._stopping.set()
        self._thread.join(LAST_SEARCH_LIMIT_S)

    def _run(self) -> None:
        interval_s = 0.0
        while not self._stopping.wait(interval_s):
            interval_s = self._search_once()
        self._search_once(ended=True)

    def _search_once(self, *, ended: bool = False) -> float:
        """Search, and record a newer checkpoint; returns the seconds until the next search."""
        cpu_s, wall_s = time.thread_time(), time.monotonic()
        result = self._search.run(ended=ended)
        if not result.complete and result.readable and not self._has_complained:
            self._has_complained = True
            self._log(f"{self._checkpoint_dir} has too many files to search all; set checkpointDir to the job's own")
        if result.newest is not None and result.newest != self._written:
            with contextlib.suppress(OSError):
                self._write(result.newest)
                self._written = result.newest
        cpu_s, wall_s = time.thread_time() - cpu_s, time.monotonic() - wall_s
        return min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, cpu_s / CPU_SHARE, wall_s / IO_SHARE))

    def _write(self, found: FoundCheckpoint) -> None:
        fields = asdict(found) | {"path": str(self._checkpoint_dir / found.path), "attempt": self._attempt}
        temporary = self._record.with_name(f".{RECORD}.{secrets.token_hex(8)}.tmp")
        try:
            temporary.write_text(json.dumps(fields) + "\n")
            os.replace(temporary, self._record)
        finally:
            temporary.unlink(missing_ok=True)


def find_watcher(
    layout: RankLayout, command: Sequence[str], environ: Mapping[str, str], log: Callable[[str], None]
) -> CheckpointWatcher | None:
    """The watcher of this pod; None outside a job, in other pods than the first one, and for Muster's trainer."""
    run_dir = environ.get("MUSTER_RUN_DIR", "")
    if not run_dir or layout.replica != 0 or list(command[1:3]) == ["-m", _OWN_TRAINER]:
        return None
    return CheckpointWatcher(Path(run_dir), Path(run_dir, environ.get("MUSTER_CHECKPOINT_DIR", "")), layout, log)
