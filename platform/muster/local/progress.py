"""How far jobs are: rank 0's heartbeat and the newest durable checkpoint, read from run folders.

Looked at several times a minute for every running job, so a file is parsed only when it changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.beats import FIGURES, Clock, beat_of, number
from muster.cluster import Beat

_Stamp = tuple[int, int] | None  # modification time in ns and inode; None: no file


@dataclass(slots=True)
class _Known:
    beat_stamp: _Stamp = None
    latest_stamp: _Stamp = None
    beat: Beat | None = None


class Beats:
    """The newest beats, by job uid."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def read(self, run_dirs: Iterable[tuple[str, Path]], now: float) -> dict[str, Beat]:
        """Beats of these jobs (uid, run folder); what did not change keeps its identity."""
        known = {uid: self._look(self._known.get(uid) or _Known(), run_dir, Clock(now)) for uid, run_dir in run_dirs}
        self._known = known
        return {uid: entry.beat for uid, entry in known.items() if entry.beat is not None}

    def _look(self, known: _Known, run_dir: Path, clock: Clock) -> _Known:
        beat_file, latest_file = run_dir / "beats" / "rank-0.json", run_dir / "checkpoints" / "latest"
        stamps = _stamp(beat_file), _stamp(latest_file)
        if stamps != (known.beat_stamp, known.latest_stamp):
            known.beat = beat_of(read_json(beat_file), read_json(latest_file), clock, known.beat)
            known.beat_stamp, known.latest_stamp = stamps
        return known


def all_beats(run_dir: Path) -> list[dict[str, Any]]:
    """What every rank said last, in the order of ranks; files that cannot be read are left out, and figures that are no
    numbers are unknown."""
    said = [_plausible(read_json(path)) for path in (run_dir / "beats").glob("rank-*.json")]
    return sorted((beat for beat in said if isinstance(beat.get("rank"), int)), key=lambda beat: int(beat["rank"]))


def _plausible(beat: dict[str, Any]) -> dict[str, Any]:
    return {name: None if name in FIGURES and number(value) is None else value for name, value in beat.items()}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that is replaced atomically; empty when it is missing or is none. A program of a user's writes it:
    what is no plain file is not waited for, and no more is read than such an object can have."""
    from muster.tracing.endpoint import document  # it brings a server along, which who only asks the daemon needs not
    from muster.tracing.sharedfolder import SharedFolder

    return document(SharedFolder(path.parent), path.name, []) or {}


def _stamp(path: Path) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
