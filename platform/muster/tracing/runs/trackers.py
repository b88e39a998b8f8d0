"""Files of experiment trackers that a job has written into its run folder: TensorBoard, MLflow, offline W&B runs.

They are found by name and not read. A job may write whatever it likes there: symbolic links are not followed, and the
search is bounded.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OWN_FOLDERS = frozenset(
    ("capture", "checkpoints", "compilation", "compile-cache", "heartbeats", "logs", "memory", "metrics", "report")
) | {"launches", "reports", "stacks", "submission", "traces"}
_MAX_DEPTH = 6
_MAX_ENTRIES = 20_000
_MAX_FOUND = 20


@dataclass(frozen=True, slots=True)
class TrackerFiles:
    """What one tool has written: its name, the absolute folder, and the command that shows it."""

    tool: str
    folder: str
    command: str

    @property
    def url(self) -> str:
        return Path(self.folder).as_uri()


def find_trackers(run_dir: Path) -> tuple[TrackerFiles, ...]:
    """Files of trackers below a run folder, at most 20, by path; those of TensorBoard once per folder."""
    entries = sorted(_entries(run_dir), key=lambda entry: entry.path)
    found = [tracker for entry in entries if (tracker := _recognise(entry)) is not None]
    return tuple(dict.fromkeys(found))[:_MAX_FOUND]


def _entries(run_dir: Path) -> Iterator[os.DirEntry[str]]:
    """Files and folders of the job, without Muster's own and without what a tracker has in its folder."""
    folders, seen = [(str(run_dir.absolute()), 0)], 0
    while folders:
        folder, depth = folders.pop()
        try:
            with os.scandir(folder) as listed:
                for entry in listed:
                    seen += 1
                    if seen > _MAX_ENTRIES:
                        return
                    yield entry
                    is_own = depth == 0 and entry.name in _OWN_FOLDERS
                    if depth < _MAX_DEPTH and not is_own and entry.is_dir(follow_symlinks=False):
                        folders.append((entry.path, depth + 1))
        except OSError:
            continue


def _recognise(entry: os.DirEntry[str]) -> TrackerFiles | None:
    if not entry.path.isprintable() or entry.is_symlink():
        return None
    path = shlex.quote(entry.path)
    if entry.name.startswith("events.out.tfevents."):
        folder = str(Path(entry.path).parent)
        return TrackerFiles("TensorBoard", folder, f"tensorboard --logdir {shlex.quote(folder)}")
    if entry.name == "mlruns" and entry.is_dir(follow_symlinks=False):
        return TrackerFiles("MLflow", entry.path, f"mlflow ui --backend-store-uri {path}")
    if entry.name.startswith("offline-run-") and Path(entry.path).parent.name == "wandb":
        return TrackerFiles("Weights & Biases", entry.path, f"wandb sync {path}")
    return None
