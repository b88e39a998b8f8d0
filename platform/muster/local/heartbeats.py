"""How far jobs are: rank 0's heartbeat and the newest durable checkpoint, read from run folders.

Looked at several times a minute for every running job, so a file is parsed only when it changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.cluster import Heartbeat
from muster.heartbeat import NUMERIC_FIELDS, ClockReading, finite_number, parse_heartbeat

_FileStamp = tuple[int, int] | None  # modification time in ns and inode; None: no file


@dataclass(slots=True)
class _CachedHeartbeat:
    heartbeat_stamp: _FileStamp = None
    checkpoint_stamp: _FileStamp = None
    heartbeat: Heartbeat | None = None


class HeartbeatReader:
    """The newest beats, by job uid."""

    def __init__(self) -> None:
        self._known: dict[str, _CachedHeartbeat] = {}

    def read(self, run_dirs: Iterable[tuple[str, Path]], now: float) -> dict[str, Heartbeat]:
        """Beats of these jobs (uid, run folder); what did not change keeps its identity."""
        known = {
            uid: self._refresh(self._known.get(uid) or _CachedHeartbeat(), run_dir, ClockReading(now))
            for uid, run_dir in run_dirs
        }
        self._known = known
        return {uid: entry.heartbeat for uid, entry in known.items() if entry.heartbeat is not None}

    def _refresh(self, known: _CachedHeartbeat, run_dir: Path, clock: ClockReading) -> _CachedHeartbeat:
        beat_file, latest_file = run_dir / "heartbeats" / "rank-0.json", run_dir / "checkpoints" / "latest"
        stamps = _file_stamp(beat_file), _file_stamp(latest_file)
        if stamps != (known.heartbeat_stamp, known.checkpoint_stamp):
            known.heartbeat = parse_heartbeat(read_json(beat_file), read_json(latest_file), clock, known.heartbeat)
            known.heartbeat_stamp, known.checkpoint_stamp = stamps
        return known


def rank_heartbeats(run_dir: Path) -> list[dict[str, Any]]:
    """What every rank said last, in the order of ranks; files that cannot be read are left out, and figures that are no
    numbers are unknown."""
    output = [_drop_invalid_numbers(read_json(path)) for path in (run_dir / "heartbeats").glob("rank-*.json")]
    return sorted((beat for beat in output if isinstance(beat.get("rank"), int)), key=lambda beat: int(beat["rank"]))


def _drop_invalid_numbers(beat: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if name in NUMERIC_FIELDS and finite_number(value) is None else value for name, value in beat.items()
    }


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that is replaced atomically; empty when it is missing or is none. A program of a user's writes it:
    what is no plain file is not waited for, and no more is read than such an object can have."""
    from muster.tracing.heartbeat_server import read_json_object
    from muster.tracing.shared_folder import SharedFolder

    return read_json_object(SharedFolder(path.parent), path.name, []) or {}


def _file_stamp(path: Path) -> _FileStamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
