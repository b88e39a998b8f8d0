"""Writes when the launcher of a pod started its ranks, saw the first one fail, and ended, into the run folder: a job's
account of its time needs it (docs/tasks/goodput.md). A launcher that is killed leaves no end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from muster_components.launch.rank_layout import RankLayout
from muster_components.trainer.regular_files import append_line, encode_line


def record_launch(
    layout: RankLayout, environ: Mapping[str, str], kind: Literal["start", "failure", "end"], at: float | None = None
) -> None:
    """Append a line, at a Unix time (default: now). On a full disk it is lost, and that time is unknown. Only pod 0,
    which has rank 0, writes."""
    run_dir = environ.get("MUSTER_RUN_DIR", "")
    if not run_dir or layout.replica != 0:
        return
    path = Path(run_dir) / "launches" / f"{layout.role}-0.jsonl"
    with suppress(OSError):
        os.makedirs(path.parent, exist_ok=True)
        append_line(
            path, encode_line({"attempt": layout.attempt, "at": time.time() if at is None else at, "kind": kind})
        )
