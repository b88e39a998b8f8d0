"""Writes checkpoints from host memory to the volume behind training: files and digests by several threads, published
by rank 0 when all ranks have written. On a full disk the checkpoint is removed, the failure reported, and the previous
one kept."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed as dist

from muster_components.trainer.checkpoint_manifest import METADATA, FileDigest, with_digests
from muster_components.trainer.checkpoint_memory import SlotContent, write_files
from muster_components.trainer.checkpoint_store import CheckpointStore
from muster_components.trainer.host_buffer import HostBuffer
from muster_components.trainer.reporter import Reporter

_NICENESS = 10
"""Of the threads that write: they use all cores of the host, and training, which launches work from one, goes first."""


class CheckpointWriter:
    """Writes one checkpoint at a time, in a thread. Every rank calls `start` in the same order."""

    def __init__(
        self,
        store: CheckpointStore,
        reporter: Reporter,
        fingerprint: Mapping[str, object],
        group: dist.ProcessGroup,
        threads: int,
    ) -> None:
        """`group`: used by this thread alone while it writes; `threads`: that write the files of this rank."""
        self._store, self._reporter, self._fingerprint = store, reporter, dict(fingerprint)
        self._group, self._threads = group, threads
        self._is_rank0 = dist.get_rank() == 0
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self.saved_step: int | None = None
        self.saved_at: float | None = None

    @property
    def busy(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def start(self, step: int, copying: Future[SlotContent], buffer: Future[HostBuffer], waited_s: float) -> None:
        """Write the slot once it is whole. `waited_s`: how long training waited for it."""
        self._writing = self._pool.submit(self._write, step, copying, buffer, waited_s)

    def describe(self, step: int) -> dict[str, object]:
        """On rank 0, the content of `muster.json` without digests. Raises ValueError as `CheckpointStore.lineage`."""
        return {"step": step, **self._store.origin(), **self._fingerprint} if self._is_rank0 else {}

    def wait(self) -> None:
        """Wait until the checkpoint is published or has failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, step: int, copying: Future[SlotContent], buffer: Future[HostBuffer], waited_s: float) -> None:
        """Storage errors do not stop training."""
        try:
            content = copying.result()
            if not self._broadcast_success(self._begin(step)):
                return
            outcomes: list[Any] = [None] * dist.get_world_size()
            outcome = self._write_files(step, content, buffer.result().memory)
            dist.all_gather_object(outcomes, outcome, group=self._group)
            if not self._is_rank0:
                return
            failed = next(((rank, one) for rank, one in enumerate(outcomes) if isinstance(one, str)), None)
            if failed is not None:
                raise OSError(f"rank {failed[0]}: {failed[1]}")
            files = sorted((file for of_rank in outcomes for file in of_rank), key=lambda file: file.name == METADATA)
            self._publish(step, files, waited_s)
        except Exception as error:
            if self._is_rank0:
                self._store.discard(step)
                self._record_failure(step, error)

    def _write_files(self, step: int, content: SlotContent, memory: memoryview) -> tuple[FileDigest, ...] | str:
        try:
            return write_files(self._store.temporary_folder(step), memory, content, self._threads, _NICENESS)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _begin(self, step: int) -> bool:
        """Create the folder on rank 0; False if that failed, or the folder belongs to another attempt or run."""
        if not self._is_rank0:
            return True
        try:
            if self._store.begin(step) is not None:
                return True
            self._record_refusal(step)
        except (OSError, ValueError) as error:
            self._record_failure(step, error)
        return False

    def _broadcast_success(self, success: bool) -> bool:
        succeeded = [success]
        dist.broadcast_object_list(succeeded, src=0, group=self._group)
        return succeeded[0]

    def _publish(self, step: int, files: Sequence[FileDigest], waited_s: float) -> None:
        at = time.time()
        if self._store.publish(step, with_digests(self.describe(step), files), at):
            self.saved_step, self.saved_at = step, at
            message = f"checkpoint of step {step} saved; training waited {waited_s:.3f} s"
            self._reporter.record_event("checkpoint_saved", message, step=step, echo=False)
        else:
            self._record_refusal(step)

    def _record_refusal(self, step: int) -> None:
        message = f"checkpoint of step {step} is not saved: a newer attempt, or a run that began anew, owns the folder"
        self._reporter.record_event("checkpoint_refused", message, step=step)

    def _record_failure(self, step: int, error: BaseException) -> None:
        free = _free_bytes(self._store.folder)
        space = "" if free is None else f" ({free / 1e6:,.0f} MB free)"
        self._reporter.record_event(
            "checkpoint_failed",
            f"checkpoint of step {step} failed: {error}{space}; training continues, the previous checkpoint is kept",
            step=step,
        )


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
