"""Saves checkpoints without stopping training: a copy to host memory behind the next step, then files behind that.

1. `plan_image` decides once which rank saves what; the host memory is allocated and page-locked once, in a thread.
2. A save starts copies on a stream of its own. They overlap the next forward and backward; on the GPU, the update of
   the next step waits until they are done.
3. A thread writes the files of the slot and their digests with several threads, and rank 0 publishes the checkpoint. A
   save while the one before is still being written goes to the other slot only.

The threads use a process group of their own, since sharing that of the training would mix up the order of collectives.
On a full disk the checkpoint is removed, the failure reported, and the previous one kept.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from muster_components.trainer.checkpoint_image import CheckpointImage, plan_image
from muster_components.trainer.checkpoint_manifest import FileDigest, with_digests
from muster_components.trainer.checkpoint_memory import (
    SLOTS,
    SlotContent,
    write_files,
)
from muster_components.trainer.checkpoint_store import CheckpointStore
from muster_components.trainer.errors import InputError
from muster_components.trainer.host_buffer import HostBuffer, pod_memory
from muster_components.trainer.metadata_unpickler import METADATA
from muster_components.trainer.parallel.float8 import without_float8
from muster_components.trainer.parallel.gradients import local
from muster_components.trainer.rank_failures import raise_on_all_ranks
from muster_components.trainer.reporter import Reporter

_MAX_THREADS: Final = 8
_ARCHIVE_BYTES: Final = 2048  # of a tensor, without its data
_SLACK_BYTES: Final = 16 << 20
AUTO_SHARE: Final = 0.5
"""Of the free memory of a pod: what a second slot may leave the first one and itself without being asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOptions:
    """How to save. `memory`: bytes of host memory for the ranks of this pod together (None: two slots if they fit, 0:
    one slot, so that each save is written to the volume). `local_ranks`: ranks of this pod. `overlap`: copies may
    overlap the next step, which is not one CUDA graph."""

    memory: int | None = None
    local_ranks: int = 1
    overlap: bool = True


class CheckpointSaver:
    """Saves the state that `state` returns. Every rank calls every method in the same order."""

    def __init__(
        self,
        store: CheckpointStore,
        parts: Sequence[tuple[nn.Module, torch.optim.Optimizer]],
        reporter: Reporter,
        fingerprint: Mapping[str, object],
        state: Callable[[], dict[str, Any]],
        options: SaveOptions,
    ) -> None:
        """`fingerprint`: what a run must match to resume; `state`: the state dict, of the tensors that are trained."""
        self._store, self._parts, self._reporter = store, parts, reporter
        self._fingerprint, self._state, self._options = dict(fingerprint), state, options
        self.group: dist.ProcessGroup = dist.new_group(backend="gloo")
        self._control: dist.ProcessGroup = dist.new_group(backend="gloo")  # the group above is the threads'
        self._is_rank0 = dist.get_rank() == 0
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._marker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-copy")
        self._threads = max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // max(1, options.local_ranks)))
        self._image: CheckpointImage | None = None
        self._addresses: tuple[int, ...] = ()
        self._buffer: Future[HostBuffer] | None = None
        self._targets: list[list[list[tuple[slice, Tensor]]]] = []
        self._slots = SLOTS
        self._copying: Future[SlotContent] | None = None
        self._copied: torch.cuda.Event | None = None
        self._writing: Future[None] | None = None
        self._slot = self._writing_slot = 0
        self.written_step: int | None = None
        """The last step that is written to the volume, or is being written."""
        self.copied_step: int | None = None
        self.saved_step: int | None = None
        self.saved_at: float | None = None
        self.waited_s: list[float] = []
        """How long training waited in each save."""
        for _, optimizer in parts:
            optimizer.register_step_pre_hook(self._wait_for_copies)

    def reserve(self) -> None:
        """Begin to allocate the memory that the state will probably need with AdamW, while the first step compiles.
        Raises InputError as `prepare`."""
        parameters = [parameter for module, _ in self._parts for parameter in module.parameters()]
        if dist.get_world_size() > 1 and not all(isinstance(parameter, DTensor) for parameter in parameters):
            return  # replicated: which rank saves what is not known yet
        weights = sum(local(without_float8(one)).numel() * one.element_size() for one in parameters)
        estimate = 3 * weights + 3 * len(parameters) * _ARCHIVE_BYTES + _SLACK_BYTES
        self._slots = self._choose_slots(estimate)
        self._start_allocation(estimate, on_gpu=any(one.is_cuda for one in parameters))

    def prepare(self) -> None:
        """Plan the checkpoints and begin to allocate their memory, so that the first save need not. Call it once the
        optimizer has its state. Raises InputError if the pod has not enough memory."""
        if self._image is None:
            self._plan()

    def save(self, step: int) -> None:
        """Start to save the state after `step`."""
        started_s = time.perf_counter()
        if self._slots == 1 and self._image is not None:
            self.wait()
        changed = self._image is None or not self._image.fixed or self._addresses != self._current_addresses()
        busy = self._writing is not None and not self._writing.done()
        flags = torch.tensor([int(changed), int(busy)])
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._control)
        if flags[0]:
            self.wait()
            self._plan()
        writes = not (flags[1] and not flags[0])
        if self._slots == 1:
            self.wait()
            writes = True
        slot = (1 - self._slot if writes else 1 - self._writing_slot) % self._slots
        self._copy(step, slot)
        waited_s = time.perf_counter() - started_s
        assert self._copying is not None
        if writes:
            self.written_step, self._writing_slot = step, slot
            self._writing = self._writer.submit(self._write, step, self._copying, waited_s)
        self.waited_s.append(waited_s)
        if self._is_rank0 and not writes:
            self._reporter.record_event(
                "checkpoint_in_memory",
                f"checkpoint of step {step} is in host memory only, since the one before is still being written; "
                f"training waited {waited_s:.3f} s",
                step=step,
                echo=False,
            )

    def finish(self, step: int) -> None:
        """Have the state after `step` on the volume: save it, unless that is done, and wait."""
        self.wait()
        if self.written_step != step:
            self.save(step)
        self.wait()

    def settle(self) -> None:
        """Wait for what is being written, then write the newest checkpoint that is in host memory only."""
        self.wait()
        if self._copying is not None and self.copied_step != self.written_step:
            self.written_step = self.copied_step
            self._writing = self._writer.submit(self._write, self.copied_step or 0, self._copying, 0.0)
            self.wait()

    def wait(self) -> None:
        """Wait until the current save is published or has failed."""
        if self._copying is not None:
            self._copying.result()
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _plan(self) -> None:
        if self._copying is not None:
            self._copying.result()
        self._image = plan_image(self._state(), self.group, self._threads)
        self._addresses = self._current_addresses()
        self._targets = []
        self._copying = None
        if self._buffer is not None:
            fits = torch.tensor([int(self._image.size <= self._buffer.result().slot_bytes)])
            dist.all_reduce(fits, op=dist.ReduceOp.MIN, group=self._control)
            if fits:
                return
            self._buffer.result().release()
            self._buffer = None
        self._slots = self._choose_slots(self._image.size)
        self._start_allocation(self._image.size, on_gpu=any(part.source.is_cuda for part in self._image.parts))

    def _start_allocation(self, size: int, *, on_gpu: bool) -> None:
        self._buffer = self._marker.submit(self._allocate, size, self._slots, on_gpu)

    def _allocate(self, size: int, slots: int, on_gpu: bool) -> HostBuffer:
        started_s = time.perf_counter()
        buffer = HostBuffer(size, slots, pin=on_gpu)
        if self._is_rank0:
            locked = ", page-locked" if buffer.pinned else ""
            self._reporter.record_event(
                "checkpoint_memory",
                f"checkpoints use {slots} x {size / 1e9:.2f} GB of host memory per rank{locked}; allocated in "
                f"{time.perf_counter() - started_s:.1f} s",
                echo=False,
            )
        return buffer

    def _choose_slots(self, image_bytes: int) -> int:
        """How many slots all pods have memory for. Raises InputError on all ranks if one does not fit."""
        options, ranks = self._options, self._options.local_ranks
        needed = ranks * image_bytes
        memory = pod_memory()
        limit = options.memory if options.memory else None
        failure = None
        if limit is not None and needed > limit:
            failure = InputError(
                f"--checkpoint_memory must be at least {needed / 1e9:.2f} GB, for the state of the {ranks} ranks of a "
                f"pod; got {limit / 1e9:.2f} GB"
            )
        elif memory is not None and needed > memory.free:
            failure = InputError(
                f"checkpoints need {needed / 1e9:.2f} GB of host memory for the {ranks} ranks of a pod; of its "
                f"{memory.limit / 1e9:.2f} GB, {memory.free / 1e9:.2f} GB are free; request more, or use --keep 0"
            )
        raise_on_all_ranks(failure)
        most = limit if limit is not None else memory.free * AUTO_SHARE if memory is not None else 0.0
        fits = SLOTS if options.memory != 0 and SLOTS * needed <= most else 1
        agreed = torch.tensor([fits])
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN, group=self._control)
        return int(agreed)

    def _copy(self, step: int, slot: int) -> None:
        """Start to copy the state into a slot, and have a thread say when it is whole."""
        assert self._image is not None
        assert self._buffer is not None
        if self._copying is not None:
            self._copying.result()
        buffer = self._buffer.result()
        if not self._targets:
            self._fill(buffer, self._image)
        parts, targets = self._image.parts, self._targets[slot]
        if buffer.pinned:
            self._copied = self._start_copies([part.source for part in parts], targets)
        else:
            for part, pieces in zip(parts, targets, strict=True):
                copy_to(part.source, pieces)
        self._slot, self.copied_step = slot, step
        self._copying = self._marker.submit(self._mark, step, slot, buffer, self._image, self._copied)

    def _start_copies(
        self, sources: Sequence[Tensor], targets: Sequence[list[tuple[slice, Tensor]]]
    ) -> torch.cuda.Event:
        current = torch.cuda.current_stream()
        trained = {local(parameter).data_ptr() for module, _ in self._parts for parameter in module.parameters()}
        state = {tensor.data_ptr() for tensor in self._optimizer_tensors()}
        # What is neither may change in forward, such as the statistics of a normalization.
        kept = [source if source.data_ptr() in trained | state else source.clone() for source in sources]
        stream = _copy_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for source, pieces in zip(kept, targets, strict=True):
                copy_to(source, pieces)
                if source.is_cuda:
                    source.record_stream(stream)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(stream)
        if not self._options.overlap:
            current.wait_event(copied)
        return copied

    def _wait_for_copies(self, *_arguments: Any) -> None:
        """Before an update: on the GPU, wait for the copies."""
        if self._copied is not None and self._options.overlap:
            torch.cuda.current_stream().wait_event(self._copied)
            self._copied = None

    def _fill(self, buffer: HostBuffer, image: CheckpointImage) -> None:
        """Write what is the same in each save."""
        for slot in range(buffer.slots):
            start = buffer.start(slot)
            for offset, content in image.constant:
                buffer.memory[start + offset : start + offset + len(content)] = content
            self._targets.append([buffer.pieces(slot, part.offset, part.source) for part in image.parts])

    def _mark(
        self, step: int, slot: int, buffer: HostBuffer, image: CheckpointImage, copied: torch.cuda.Event | None
    ) -> SlotContent:
        if copied is not None:
            copied.synchronize()
        return SlotContent(step, buffer.start(slot), image.files)

    def _write(self, step: int, copying: Future[SlotContent], waited_s: float) -> None:
        """Write this rank's files, and publish the checkpoint on rank 0 when all have; storage errors do not stop
        training."""
        try:
            content = copying.result()
            if not self._broadcast_success(self._begin(step)):
                return
            outcomes: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(outcomes, self._write_files(step, content), group=self.group)
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

    def _write_files(self, step: int, content: SlotContent) -> tuple[FileDigest, ...] | str:
        assert self._buffer is not None
        try:
            return write_files(self._store.temporary_folder(step), self._buffer.result().memory, content, self._threads)
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
        dist.broadcast_object_list(succeeded, src=0, group=self.group)
        return succeeded[0]

    def _publish(self, step: int, files: Sequence[FileDigest], waited_s: float) -> None:
        at = time.time()
        description = {"step": step, **self._store.origin(), **self._fingerprint}
        if self._store.publish(step, with_digests(description, files), at):
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

    def _optimizer_tensors(self) -> list[Tensor]:
        states = (state for _, optimizer in self._parts for state in optimizer.state.values())
        return [local(value) for state in states for value in state.values() if isinstance(value, Tensor)]

    def _current_addresses(self) -> tuple[int, ...]:
        """Where the state is: if it moves, the image is planned anew."""
        models = [
            local(without_float8(tensor))
            for module, _ in self._parts
            for tensors in (module.parameters(), module.buffers())
            for tensor in tensors
        ]
        return tuple(tensor.data_ptr() for tensor in (*models, *self._optimizer_tensors()))


def copy_to(source: Tensor, pieces: Sequence[tuple[slice, Tensor]]) -> None:
    """Copy a tensor to its memory; on a GPU, start to."""
    flat = source.reshape(-1)
    for elements, target in pieces:
        target.copy_(flat[elements], non_blocking=True)


_streams: list[torch.cuda.Stream] = []


def _copy_stream() -> torch.cuda.Stream:
    if not _streams:
        _streams.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
    return _streams[0]


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
