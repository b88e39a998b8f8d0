"""How far jobs are: rank 0's heartbeat and the newest durable checkpoint, read from run folders.

Looked at several times a minute for every running job, so a file is parsed only when it changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def read(self, run_dirs: Iterable[tuple[str, Path]]) -> dict[str, Beat]:
        """Beats of these jobs (uid, run folder); what did not change keeps its identity."""
        known = {uid: self._look(self._known.get(uid) or _Known(), run_dir) for uid, run_dir in run_dirs}
        self._known = known
        return {uid: entry.beat for uid, entry in known.items() if entry.beat is not None}

    def _look(self, known: _Known, run_dir: Path) -> _Known:
        beat_file, latest_file = run_dir / "beats" / "rank-0.json", run_dir / "checkpoints" / "latest"
        stamps = _stamp(beat_file), _stamp(latest_file)
        if stamps != (known.beat_stamp, known.latest_stamp):
            known.beat = _beat(read_json(beat_file), read_json(latest_file), known.beat)
            known.beat_stamp, known.latest_stamp = stamps
        return known


def _beat(said: dict[str, Any], latest: dict[str, Any], before: Beat | None) -> Beat | None:
    """`latest` is the durable checkpoint; the heartbeat's own word counts where a script keeps no such file."""
    at, step = _number(said.get("at")), _number(said.get("step"))
    checkpoint_step = _number(latest.get("step", said.get("checkpoint_step")))
    checkpoint_at = _number(latest.get("at", said.get("checkpoint_at")))
    if at is None and checkpoint_at is None:
        return None
    at = at if at is not None else checkpoint_at or 0.0
    step = int(step if step is not None else checkpoint_step or 0)
    beat = Beat(
        at=at,
        step=step,
        step_at=before.step_at if before is not None and before.step == step else at,
        checkpoint_step=None if checkpoint_step is None else int(checkpoint_step),
        checkpoint_at=checkpoint_at,
    )
    return before if beat == before else beat


def all_beats(run_dir: Path) -> list[dict[str, Any]]:
    """What every rank said last, in the order of ranks; files that cannot be read are left out."""
    said = [read_json(path) for path in (run_dir / "beats").glob("rank-*.json")]
    return sorted((beat for beat in said if isinstance(beat.get("rank"), int)), key=lambda beat: int(beat["rank"]))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that is replaced atomically; empty when it is missing or is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _stamp(path: Path) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
