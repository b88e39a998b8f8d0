"""Memory snapshots in torch's format, from a model of the CUDA caching allocator, without a GPU.

The allocator follows c10/cuda/CUDACachingAllocator.cpp: sizes are rounded up to 512 bytes; requests up to 1 MiB come
from segments of 2 MiB, those below 10 MiB from segments of 20 MiB, larger ones from segments rounded up to 2 MiB; the
smallest free block that fits is split; free neighbours are merged; if CUDA has no memory, free segments are returned.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

Stack = list[dict[str, Any]]


def python_frame(file: str, line: int, name: str) -> dict[str, Any]:
    """A frame of Python."""
    return {"filename": file, "line": line, "name": name}


def native_frame(name: str) -> dict[str, Any]:
    """A frame of C++; torch has no lines for them unless symbolised otherwise."""
    return {"filename": "??", "line": 0, "name": name}


_DISPATCH = [native_frame("torch::unwind::unwind()"), native_frame("at::_ops::empty_memory_format::redispatch()")]
_MAIN = [python_frame("/home/user/train.py", 90, "main"), native_frame("__libc_start_main_impl")]
_CALL = [python_frame("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 1780, "_call_impl")]
_ENGINE = [
    native_frame("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"),
    native_frame("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"),
]
_OPTIM = "/opt/venv/lib/python3.11/site-packages/torch/optim"
PARAMETER = [
    *_DISPATCH,
    python_frame("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 106, "__init__"),
    python_frame("/home/user/model.py", 12, "__init__"),
    *_MAIN,
]
INPUT = [
    *_DISPATCH,
    native_frame("torch::autograd::THPVariable_to(_object*, _object*, _object*)"),
    python_frame("/home/user/train.py", 41, "next_batch"),
    *_MAIN,
]
FORWARD = [*_DISPATCH, python_frame("/home/user/model.py", 42, "forward"), *_CALL, *_MAIN]
SCRATCH = [*_DISPATCH, python_frame("/home/user/model.py", 48, "forward"), *_CALL, *_MAIN]
BACKWARD = [*_DISPATCH, native_frame("torch::autograd::generated::MmBackward0::apply(tensors)"), *_ENGINE]
RECOMPUTE = [
    *_DISPATCH,
    python_frame("/home/user/model.py", 42, "forward"),
    *_CALL,
    python_frame("/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py", 1150, "recompute_fn"),
    *_ENGINE,
]
INIT_STATE = [*_DISPATCH, python_frame(f"{_OPTIM}/adamw.py", 140, "_init_group"), *_MAIN]
STEP = [*_DISPATCH, python_frame(f"{_OPTIM}/adamw.py", 480, "_multi_tensor_adamw"), *_MAIN]
ZERO_GRAD = [python_frame(f"{_OPTIM}/optimizer.py", 1030, "zero_grad"), *_MAIN]
LEAK = [*_DISPATCH, python_frame("/home/user/train.py", 77, "log"), *_MAIN]


class OutOfDeviceMemory(Exception):
    """The modelled device has no memory left."""


@dataclass(slots=True)
class _Block:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: Stack = field(default_factory=list)


@dataclass(slots=True)
class _Segment:
    address: int
    size: int
    is_large: bool
    stream: int
    blocks: list[_Block]


class ModelAllocator:
    """Allocates as torch's caching allocator and records its history, as `_record_memory_history()` does."""

    def __init__(self, capacity: int = 80 * GIB, *, recording: bool = True, native: bool = True) -> None:
        """`native`: record frames of C++ as well, as `stacks="all"`."""
        self.capacity = capacity
        self.recording = recording
        self._native = native
        self._segments: list[_Segment] = []
        self._events: list[dict[str, Any]] = []
        self._shown: dict[int, Stack] = {}
        self._next_address = 0x7F00_0000_0000
        self._now_us = 1_700_000_000_000_000
        self.after_events: list[tuple[int, int]] = []
        """Bytes in use (as requested) and reserved after each recorded event."""

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    def wait(self, microseconds: int) -> None:
        """Let time pass."""
        self._now_us += microseconds

    def alloc(self, size: int, stack: Stack, stream: int = 0) -> int:
        """The address of a new allocation. Raises OutOfDeviceMemory."""
        rounded = max(-(-size // 512), 1) * 512
        is_large = rounded > MIB
        fitting = [
            (block.size, block.address, segment, block)
            for segment in self._segments
            if segment.is_large == is_large and segment.stream == stream
            for block in segment.blocks
            if block.state == "inactive" and block.size >= rounded
        ]
        if fitting:
            _, _, segment, block = min(fitting, key=lambda one: one[:2])
        else:
            segment = self._grow(size, rounded, is_large, stack, stream)
            block = segment.blocks[0]
        if block.size - rounded >= 512 if not is_large else block.size - rounded > MIB:
            at = segment.blocks.index(block)
            segment.blocks.insert(at + 1, _Block(block.address + rounded, block.size - rounded))
            block.size = rounded
        block.requested, block.state, block.frames = size, "active_allocated", self._frames(stack)
        self._record("alloc", block.address, size, stack, stream)
        return block.address

    def free(self, address: int, stack: Stack, *, in_use_by_other_stream: bool = False) -> None:
        """Free an allocation; if another stream uses it, it only becomes free with `complete`."""
        segment, block = self._find(address)
        self._record("free_requested", address, block.requested, stack, segment.stream)
        block.state = "active_pending_free"
        if not in_use_by_other_stream:
            self.complete(address, stack)

    def complete(self, address: int, stack: Stack) -> None:
        """Make a freed allocation free for reuse."""
        segment, block = self._find(address)
        requested, block.state, block.requested, block.frames = block.requested, "inactive", 0, []
        self._record("free_completed", address, requested, stack, segment.stream)
        merged: list[_Block] = []
        for one in segment.blocks:
            if merged and merged[-1].state == one.state == "inactive":
                merged[-1].size += one.size
            else:
                merged.append(one)
        segment.blocks = merged

    def empty_cache(self, stack: Stack = ZERO_GRAD) -> None:
        """Return free segments to CUDA."""
        for segment in list(self._segments):
            if all(block.state == "inactive" for block in segment.blocks):
                self._segments.remove(segment)
                self._record("segment_free", segment.address, segment.size, stack, segment.stream)

    def snapshot(self) -> dict[str, Any]:
        """What `torch.cuda.memory._snapshot()` returns."""
        return {
            "segments": [self._segment_dict(segment) for segment in self._segments],
            "device_traces": [[dict(event) for event in self._events]],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": [],
        }

    def _grow(self, size: int, rounded: int, is_large: bool, stack: Stack, stream: int) -> _Segment:
        wanted = 2 * MIB if not is_large else 20 * MIB if rounded < 10 * MIB else -(-rounded // (2 * MIB)) * 2 * MIB
        if self.reserved + wanted > self.capacity:
            self.empty_cache(stack)
        if self.reserved + wanted > self.capacity:
            self._record("oom", 0, size, stack, stream, device_free=self.capacity - self.reserved)
            raise OutOfDeviceMemory
        segment = _Segment(self._next_address, wanted, is_large, stream, [_Block(self._next_address, wanted)])
        self._next_address += wanted + 2 * MIB
        self._segments.append(segment)
        self._record("segment_alloc", segment.address, wanted, stack, stream)
        return segment

    def _find(self, address: int) -> tuple[_Segment, _Block]:
        return next((s, b) for s in self._segments for b in s.blocks if b.address == address and b.state != "inactive")

    def _record(
        self, action: str, address: int, size: int, stack: Stack, stream: int, device_free: int | None = None
    ) -> None:
        self._now_us += 10
        if not self.recording:
            return
        in_use = sum(b.requested for segment in self._segments for b in segment.blocks if b.state != "inactive")
        self.after_events.append((in_use, self.reserved))
        where = {"addr": address} if device_free is None else {"device_free": device_free}
        event = {"action": action, **where, "size": size, "stream": stream, "time_us": self._now_us}
        self._events.append(event | {"compile_context": "N/A", "user_metadata": "", "frames": self._frames(stack)})

    def _frames(self, stack: Stack) -> Stack:
        """The frames that are recorded, as the same list for the same stack."""
        if not self.recording:
            return []
        kept = stack if self._native else [frame for frame in stack if frame["line"]]
        if not self._native and any("Engine" in frame["name"] for frame in stack):
            kept = []  # autograd's thread has no frames of Python
        return self._shown.setdefault(id(stack), kept)

    def _segment_dict(self, segment: _Segment) -> dict[str, Any]:
        active = [block for block in segment.blocks if block.state != "inactive"]
        return {
            "device": 0,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": sum(b.size for b in active if b.state == "active_allocated"),
            "active_size": sum(b.size for b in active),
            "requested_size": sum(b.requested for b in active),
            "stream": segment.stream,
            "segment_type": "large" if segment.is_large else "small",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested or block.size,
                    "state": block.state,
                    "frames": block.frames,
                }
                for block in segment.blocks
            ],
        }


@dataclass(frozen=True, slots=True)
class Training:
    """Sizes of a modelled training; one layer of each size in `layers`. Bytes."""

    layers: Sequence[int] = (64 * MIB, 64 * MIB)
    activation: int = 96 * MIB
    scratch: int = 32 * MIB
    batch: int = MIB // 2
    recompute: bool = False
    leak: int = 0


def train(allocator: ModelAllocator, steps: int, training: Training, record_from_step: int = 0) -> ModelAllocator:
    """Run AdamW steps: forward with saved activations, backward, optimizer, zero_grad. From `record_from_step` on the
    history is recorded; step 0 includes the parameters."""
    allocator.recording = record_from_step == 0
    for size in training.layers:
        allocator.alloc(size, PARAMETER)
    states: list[int] = []
    for step in range(steps):
        allocator.recording = step >= record_from_step
        allocator.wait(1000)
        batch = allocator.alloc(training.batch, INPUT)
        saved = []
        for _ in training.layers:
            temporary = allocator.alloc(training.scratch, SCRATCH)
            activation = allocator.alloc(training.activation, FORWARD)
            allocator.free(temporary, SCRATCH)
            if training.recompute:
                allocator.free(activation, FORWARD)
            else:
                saved.append(activation)
        gradients = []
        for size in reversed(training.layers):
            if training.recompute:
                saved.append(allocator.alloc(training.activation, RECOMPUTE))
            incoming = allocator.alloc(training.scratch, BACKWARD)
            gradients.append(allocator.alloc(size, BACKWARD))
            allocator.free(saved.pop(), BACKWARD)
            allocator.free(incoming, BACKWARD)
        allocator.wait(1000)
        if not states:
            states = [allocator.alloc(size, INIT_STATE) for size in training.layers for _ in range(2)]
        temporary = allocator.alloc(training.scratch, STEP)
        allocator.free(temporary, STEP)
        for gradient in gradients:
            allocator.free(gradient, ZERO_GRAD)
        allocator.free(batch, INPUT)
        if training.leak:
            allocator.alloc(training.leak, LEAK)
    allocator.recording = True
    return allocator


def write_snapshot(path: Path, snapshot: Any) -> Path:
    """Write a snapshot as `torch.cuda.memory._dump_snapshot` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(snapshot))
    return path
