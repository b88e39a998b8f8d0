"""Checkpoints that are complete or absent, with the digest of each file, whatever the engine writes into them.

The folder is that of Muster's trainer (`muster_components.trainer.checkpoint_store`): a checkpoint gets its name once
every rank has written its files, a damaged one is skipped for the one before, and an attempt that was superseded saves
nothing. As `$MUSTER_RUN_DIR/checkpoints`, Muster counts lost work from its newest checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster_components.trainer.checkpoint_manifest import FileDigest, read_digests, verify_files, with_digests
from muster_components.trainer.checkpoint_store import CheckpointStore, read_description
from muster_components.trainer.errors import InputError, TrainerError

_THREADS = 4


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint whose files are as they were written. `path`: the folder with the engine's files."""

    step: int
    path: Path


class VerifiedCheckpoints:
    """The checkpoints of one run. Every rank makes one and calls the same methods in the same order; ranks agree by
    `torch.distributed` if it is initialized, and the folder is on a volume that all of them share."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 2,
        attempt: int | None = None,
        warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        """`keep`: how many are kept, at least 1. `attempt`: a number that rises with each restart (default: the job's,
        or 0 outside a job). `warn` gets a line, on rank 0, for each checkpoint that is skipped or not saved. Raises
        InputError."""
        if keep < 1:
            raise InputError(f"keep must be at least 1; got {keep}")
        number = int(os.environ.get("MUSTER_ATTEMPT") or 0) if attempt is None else attempt
        self._store = CheckpointStore(Path(folder).absolute(), number, keep, os.environ.get("MUSTER_JOB_UID", ""))
        self._warn = warn

    @contextmanager
    def saving(self, step: int) -> Iterator[Path]:
        """A new folder into which every rank writes its files; at the end of the block it becomes the checkpoint of
        `step`. Raises TrainerError on all ranks if it cannot be written; if the block of one rank raises, on the others
        too, and there is no checkpoint."""
        folder = Path(self._on_rank0(lambda: str(self._begin(step))))
        try:
            yield folder
        except Exception as error:
            self._discard(step, _from_all_ranks(f"{type(error).__name__}: {error}"))
            raise
        failures = _from_all_ranks(None)
        if any(failures):
            raise TrainerError(self._discard(step, failures))
        self._on_rank0(lambda: self._publish(step))

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint whose files have the size and SHA-256 with which they were saved; None if there is no
        checkpoint. Rank 0 reads every file. Raises TrainerError on all ranks if there are some and all are damaged."""
        found = self._on_rank0(self._find)
        return None if found is None else Checkpoint(found[0], Path(found[1]))

    def _begin(self, step: int) -> Path:
        folder = self._store.begin(step)
        if folder is None:
            raise TrainerError(f"{self._store.folder} belongs to a newer attempt: step {step} is not saved")
        return folder

    def _discard(self, step: int, failures: list[str | None]) -> str:
        rank, reason = next((rank, reason) for rank, reason in enumerate(failures) if reason is not None)
        self._on_rank0(lambda: self._store.discard(step))
        return f"checkpoint of step {step} is not saved: rank {rank}: {reason}"

    def _publish(self, step: int) -> None:
        files = _digests(self._store.temporary_folder(step))
        if not self._store.publish(step, with_digests({"step": step, **self._store.origin()}, files), time.time()):
            raise TrainerError(f"{self._store.folder} belongs to a newer attempt: step {step} is not saved")

    def _find(self) -> tuple[int, str] | None:
        candidates = self._store.candidates()
        for candidate in candidates:
            try:
                files = read_digests(read_description(candidate.path))
                if files is None:
                    raise ValueError("it has no digests")
                verify_files(candidate.path, files)
            except (OSError, ValueError) as error:
                self._warn(f"checkpoint {candidate.path} is skipped: {error}")
            else:
                return candidate.step, str(candidate.path)
        if candidates:
            raise TrainerError(f"none of the {len(candidates)} checkpoints in {self._store.folder} can be read")
        return None

    def _on_rank0(self, action: Callable[[], Any]) -> Any:
        """What it returns on rank 0, on all ranks. Raises TrainerError with its error on all ranks."""
        outcome: list[Any] = [None, None]
        dist = _distributed()
        if dist is None or dist.get_rank() == 0:
            try:
                outcome = [action(), None]
            except (OSError, ValueError, TrainerError) as error:
                outcome = [None, str(error)]
        if dist is not None:
            dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise TrainerError(outcome[1])
        return outcome[0]


def _distributed() -> Any:
    """torch.distributed if the engine has initialized it, else None."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def _from_all_ranks(value: str | None) -> list[str | None]:
    dist = _distributed()
    if dist is None:
        return [value]
    values: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _digests(folder: Path) -> list[FileDigest]:
    """Those of all files, which are synced. Raises ValueError without any, or for a link."""
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    if not paths:
        raise ValueError(f"nothing was written to {folder}")
    if links := [path for path in paths if path.is_symlink() or not path.is_file()]:
        raise ValueError(f"a checkpoint must have regular files only; got {links[0]}")
    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="digest") as pool:
        return list(pool.map(lambda path: _digest(folder, path), paths))


def _digest(folder: Path, path: Path) -> FileDigest:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        size = os.fstat(stream.fileno()).st_size
        return FileDigest(path.relative_to(folder).as_posix(), size, hashlib.file_digest(stream, "sha256").hexdigest())
