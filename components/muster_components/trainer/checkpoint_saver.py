"""Saves checkpoints without stopping training: a copy to host memory behind the next step, then files behind that.

1. `plan_image` decides once which rank saves what; the host memory is allocated and page-locked once, in a thread.
2. A save starts copies on a stream of its own. They overlap the next forward and backward; on the GPU, the update of
   the next step waits until they are done.
3. `CheckpointWriter` writes the slot behind that. A save while the one before is still being written goes to the other
   slot only; without another slot it is postponed to the first step after that.

The threads use a process group of their own, since sharing that of the training would mix up the order of collectives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from muster_components.trainer.checkpoint_image import CheckpointImage, plan_image
from muster_components.trainer.checkpoint_memory import (
    HEADER_BYTES,
    SLOTS,
    SlotContent,
    clear_slot,
    mark_whole,
    owned_memory,
)
from muster_components.trainer.checkpoint_store import CheckpointStore
from muster_components.trainer.checkpoint_writer import CheckpointWriter
from muster_components.trainer.errors import InputError
from muster_components.trainer.host_buffer import HostBuffer, pod_memory
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
    one slot, and each save waits until the one before is written). `write_every`: steps between saves that are written
    to the volume (0: none but the last of a run; None: all for which the writer is free). `local_ranks`: ranks of this
    pod. `overlap`: copies may overlap the next step, which is not one CUDA graph."""

    memory: int | None = None
    write_every: int | None = None
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
        self._parts, self._reporter, self._state, self._options = parts, reporter, state, options
        self.group: dist.ProcessGroup = dist.new_group(backend="gloo")
        self._control: dist.ProcessGroup = dist.new_group(backend="gloo")  # the group above is the threads'
        self._is_rank0 = dist.get_rank() == 0
        self._marker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-copy")
        self._threads = max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // max(1, options.local_ranks)))
        self._writer = CheckpointWriter(store, reporter, fingerprint, self.group, self._threads)
        self._image: CheckpointImage | None = None
        self._addresses: tuple[int, ...] = ()
        self._buffer: Future[HostBuffer] | None = None
        self._slot_bytes = 0
        self._allocated = False
        self._targets: list[list[list[tuple[slice, Tensor]]]] = []
        self._slots = SLOTS
        self._copying: Future[SlotContent] | None = None
        self._copied: torch.cuda.Event | None = None
        self._slot = self._writing_slot = 0
        self.written_step: int | None = None
        """The last step that is written to the volume, or is being written."""
        self.copied_step: int | None = None
        self.postponed = False
        """Whether a save waits for the first step after which the writer is free."""
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

    @property
    def saved_step(self) -> int | None:
        """On rank 0, the last step that is whole on the volume."""
        return self._writer.saved_step

    @property
    def saved_at(self) -> float | None:
        """When that was: seconds since the epoch."""
        return self._writer.saved_at

    def restored(self, step: int) -> None:
        """This run goes on from the checkpoint of `step`."""
        self.written_step = self._writer.saved_step = step

    def may_save(self, step: int) -> bool:
        """Whether a save now would wait neither for the memory nor for the save before; else it is `postponed`."""
        was, self.postponed = self.postponed, False
        if self._buffer is None or self._options.memory == 0 or (self._allocated and self._slots > 1):
            return True
        waits = torch.tensor([int(not self._buffer.done()), int(self._slots == 1 and self._writer.busy)])
        dist.all_reduce(waits, op=dist.ReduceOp.MAX, group=self._control)
        self._allocated, self.postponed = not waits[0], bool(waits.any())
        if self.postponed and not was and self._is_rank0:
            reason = "its memory is being allocated" if waits[0] else "the one before is being written"
            message = f"checkpoint of step {step} is postponed to the first step after which it need not wait: {reason}"
            self._reporter.record_event("checkpoint_postponed", message, step=step, echo=False)
        return not self.postponed

    def save(self, step: int) -> None:
        """Start to save the state after `step`."""
        started_s = time.perf_counter()
        if self._slots == 1:
            self.wait()
        changed = self._image is None or not self._image.fixed or self._addresses != self._current_addresses()
        flags = torch.tensor([int(changed), int(self._writer.busy)])
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._control)
        if flags[0]:
            self.wait()
            self._plan()
        busy = bool(flags[1]) and not flags[0]
        writes = not busy and self._is_due(step)
        slot = (1 - (self._writing_slot if busy else self._slot)) % self._slots
        self._copy(step, slot)
        waited_s = time.perf_counter() - started_s
        if writes:
            self._write(step, slot, waited_s)
        self.waited_s.append(waited_s)
        if self._is_rank0 and not writes:
            reason = "since the one before is still being written" if busy else "until the next one that is written"
            self._reporter.record_event(
                "checkpoint_in_memory",
                f"checkpoint of step {step} is in host memory only, {reason}; training waited {waited_s:.3f} s",
                step=step,
                echo=False,
            )

    def _is_due(self, step: int) -> bool:
        """Whether the save of `step` is one of those that are written to the volume."""
        every = self._options.write_every
        return every is None or (every > 0 and step - (self.written_step or 0) >= every)

    def _write(self, step: int, slot: int, waited_s: float) -> None:
        assert self._copying is not None
        assert self._buffer is not None
        self.written_step, self._writing_slot = step, slot
        self._writer.start(step, self._copying, self._buffer, waited_s)

    def from_rank0(self, value: int) -> int:
        """The value of rank 0, which must not be negative. Every rank calls it."""
        agreed = torch.tensor([value if self._is_rank0 else 0])
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=self._control)
        return int(agreed)

    def finish(self, step: int) -> None:
        """Have the state after `step` on the volume: save it, unless that is done, and wait."""
        self.wait()
        if self.written_step != step:
            if self.copied_step != step:
                self.save(step)
            self.settle()

    def settle(self) -> None:
        """Wait for what is being written, then write the newest checkpoint that is in host memory only."""
        self.wait()
        if self.copied_step is not None and self.copied_step != self.written_step:
            self._write(self.copied_step, self._slot, 0.0)
            self.wait()

    def wait(self) -> None:
        """Wait until the current save is published or has failed."""
        if self._copying is not None:
            self._copying.result()
        self._writer.wait()

    def _plan(self) -> None:
        if self._copying is not None:
            self._copying.result()
        self.copied_step = None
        self._image = plan_image(self._state(), self.group, self._threads)
        self._addresses = self._current_addresses()
        self._targets = []
        self._copying = None
        if self._buffer is not None:
            fits = torch.tensor([int(self._image.size <= self._slot_bytes)])
            dist.all_reduce(fits, op=dist.ReduceOp.MIN, group=self._control)
            if fits:
                return
            self._buffer.result().release()
            self._buffer, self._allocated = None, False
        self._slots = self._choose_slots(self._image.size)
        self._start_allocation(self._image.size, on_gpu=any(part.source.is_cuda for part in self._image.parts))

    def _start_allocation(self, size: int, *, on_gpu: bool) -> None:
        self._slot_bytes = size
        self._buffer = self._marker.submit(self._allocate, size, self._slots, on_gpu, owned_memory(os.environ))

    def _allocate(self, size: int, slots: int, on_gpu: bool, owner: int | None) -> HostBuffer:
        started_s = time.perf_counter()
        buffer = HostBuffer(size, slots, pin=on_gpu, owner=owner)
        if self._is_rank0:
            locked = ", page-locked" if buffer.pinned else ""
            ends = "; it outlives the ranks" if buffer.outlives_rank else "; it ends with the rank"
            self._reporter.record_event(
                "checkpoint_memory",
                f"checkpoints use {slots} x {size / 1e9:.2f} GB of host memory per rank{locked}{ends}; allocated in "
                f"{time.perf_counter() - started_s:.1f} s",
                echo=False,
            )
        return buffer

    def _choose_slots(self, image_bytes: int) -> int:
        """How many slots all pods have memory for. Raises InputError on all ranks if one does not fit."""
        options, ranks = self._options, self._options.local_ranks
        needed = ranks * (image_bytes + HEADER_BYTES)
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
        clear_slot(buffer.memory, slot)
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
            clear_slot(buffer.memory, slot)
            start = buffer.start(slot)
            for offset, content in image.constant:
                buffer.memory[start + offset : start + offset + len(content)] = content
            self._targets.append([buffer.pieces(slot, part.offset, part.source) for part in image.parts])

    def _mark(
        self, step: int, slot: int, buffer: HostBuffer, image: CheckpointImage, copied: torch.cuda.Event | None
    ) -> SlotContent:
        if copied is not None:
            copied.synchronize()
        content = SlotContent(step, buffer.start(slot), image.files)
        with suppress(ValueError):  # the lineage cannot be read: the writer reports it
            mark_whole(buffer.memory, slot, replace(content, description=self._writer.describe(step)))
        return content

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
