"""The loss of a program that reports none, from what it logs for TensorBoard, or for W&B offline.

Files are searched for in the run folder and in the working folder. A file counts only if the rank, or a process that it
has started, writes it: of TensorBoard the name has the process id, of W&B the run's log. So other programs of the host
and earlier attempts do not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from muster_components.launch.event_files import EventFile, Scalar

FIRST_SEARCH_S: Final = 5.0
MAX_SEARCH_S: Final = 60.0
"""The pause between two searches doubles up to this."""
_MAX_DEPTH, _MAX_ENTRIES, _MAX_FOLDER_ENTRIES, _MAX_PARENTS = 5, 5_000, 1_000, 8
_MAX_FILES, _MAX_TAGS = 20, 1_000
_SKIPPED = frozenset({"checkpoints", "compile-cache", "node_modules", "site-packages", "submission", "traces"})
_TENSORBOARD = re.compile(r"events\.out\.tfevents\.\d+\..+?\.(?P<pid>\d+)(\.\d+)?(\.v2)?")
_WANDB = re.compile(r"run-[\w-]+\.wandb")
_WANDB_PROCESS = re.compile(rb"MainThread:(\d+) ")
_NAMES: Final = ("train/loss", "loss", "train_loss", "training_loss", "loss/train", "train/train_loss", "lm loss")
"""The first of these that is logged is the loss, in any case of letters."""
_OTHER_LOSSES = re.compile(r"(^|[/_. -])(eval|val|valid|validation|dev|test)([/_. -]|$)")


def loss_tag(tags: Sequence[str]) -> str | None:
    """The tag of the training loss: a usual name, else the first one with `loss` that is not of an evaluation."""
    by_name = {tag.lower(): tag for tag in reversed(tags)}
    known = next((by_name[name] for name in _NAMES if name in by_name), None)
    others = (tag for name, tag in by_name.items() if "loss" in name and not _OTHER_LOSSES.search(name))
    return known if known is not None else min(others, key=tags.index, default=None)


class LoggedLosses:
    """The newest loss that a process logs; nothing is read before it is asked for."""

    def __init__(self, folders: Sequence[Path], process: int) -> None:
        self._folders = folders
        self._process = process
        self._files: dict[Path, EventFile] = {}
        self._tags: dict[str, None] = {}  # in order
        self._next_search = float("-inf")
        self._pause_s = FIRST_SEARCH_S

    def newest(self, now: float) -> Scalar | None:
        """The loss with the newest step that was logged since the last call; `now` in monotonic seconds."""
        if now >= self._next_search:
            self._next_search, self._pause_s = now + self._pause_s, min(2 * self._pause_s, MAX_SEARCH_S)
            self._search()
        scalars = [scalar for file in self._files.values() for scalar in file.read()]
        self._tags.update((scalar.tag, None) for scalar in scalars if len(self._tags) < _MAX_TAGS)
        tag = loss_tag(list(self._tags))
        losses = [scalar for scalar in scalars if scalar.tag == tag]
        return max(losses, key=lambda loss: loss.step, default=None)

    def _search(self) -> None:
        for path in _files(self._folders):
            if path not in self._files and len(self._files) < _MAX_FILES and _descends(_writer(path), self._process):
                self._files[path] = EventFile(path)


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    """Files of TensorBoard and W&B below the folders, nearest first; links are not followed."""
    seen = 0
    queue = [(folder, 0) for folder in folders]
    while queue:
        folder, depth = queue.pop(0)
        try:
            with os.scandir(folder) as listed:
                for entry in islice(listed, _MAX_FOLDER_ENTRIES):
                    seen += 1
                    if seen > _MAX_ENTRIES:
                        return
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _MAX_DEPTH and not entry.name.startswith(".") and entry.name not in _SKIPPED:
                            queue.append((folder / entry.name, depth + 1))
                    elif _TENSORBOARD.fullmatch(entry.name) or _WANDB.fullmatch(entry.name):
                        yield folder / entry.name
        except OSError:
            continue


def _writer(path: Path) -> int:
    """The process that writes the file; 0 if unknown."""
    if match := _TENSORBOARD.fullmatch(path.name):
        return int(match["pid"])
    try:
        handle = os.open(path.parent / "logs" / "debug.log", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as log:
            found = _WANDB_PROCESS.search(log.read(1024))
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _descends(process: int, ancestor: int) -> bool:
    """Whether the process is the ancestor, or was started by it or by one of those that it started."""
    for _ in range(_MAX_PARENTS):
        if process == ancestor:
            return True
        try:
            # The name, in parentheses, may contain spaces and parentheses.
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False
