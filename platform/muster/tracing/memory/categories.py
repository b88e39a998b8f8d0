"""What an allocation is for: parameter, gradient, optimizer state, activation, input, communication, temporary.

Muster's trainer writes the addresses of parameters and of the optimizer's state into its snapshots. Everything else is
derived from where memory is allocated and freed: what the forward pass allocates and the backward pass frees is an
activation, what the backward pass allocates and the optimizer's zero_grad frees is a gradient.
docs/concepts/memory.md has the rules in the order in which they apply.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muster.tracing.memory.known_sizes import recognise_by_size
from muster.tracing.memory.lifetimes import BEFORE, Allocations
from muster.tracing.memory.snapshot import NO_STACK, Action, DeviceSnapshot, Frame, MemorySnapshot


class Category(StrEnum):
    """What memory is used for, in the order of reports."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    INPUT = "input"
    COMMUNICATION = "communication"
    TEMPORARY = "temporary"
    UNKNOWN = "unknown"


ORDER: Final = tuple(Category)


class Origin(IntFlag):
    """What the frames of a stack say about the code that ran."""

    NONE = 0
    BACKWARD = 1
    OPTIMIZER = 2
    ACCUMULATE = 4
    RECOMPUTE = 8
    COMMUNICATION = 16
    GATHER = 32
    MODULE = 64
    INITIALISE = 128
    COPY = 256
    NATIVE = 512
    CHECKPOINTED = 1024


_COPY_FUNCTIONS: Final = frozenset(
    {"batch_to_device", "send_to_device", "to_device", "move_to_device", "_prepare_input", "_prepare_inputs"}
)
_AUTOGRAD: Final = {"_engine_run_backward", "backward", "grad", "_make_grads"}
_COMMUNICATION_NAME: Final = re.compile(r"gather|reduce|unshard|broadcast|all_to_all")


def frame_origin(frame: Frame) -> Origin:
    """What one frame says."""
    file, name = frame.file, frame.name
    if "::" in name or "(" in name:
        return _native_origin(name)
    found = Origin.NONE
    if "torch/autograd/" in file and name in _AUTOGRAD:
        found |= Origin.BACKWARD
    if "torch/optim/" in file and name != "zero_grad":
        found |= Origin.OPTIMIZER
    if file.endswith("torch/utils/checkpoint.py"):
        found |= Origin.RECOMPUTE
    if name == "without_checkpoint":  # of Muster's trainer; compiled code has no frame of torch/utils/checkpoint.py
        found |= Origin.CHECKPOINTED
    if "torch/distributed/" in file and _COMMUNICATION_NAME.search(name):
        found |= Origin.COMMUNICATION
        if "gather" in name or "unshard" in name:
            found |= Origin.GATHER
    if "torch/nn/modules/" in file and name in ("__init__", "_apply", "reset_parameters", "to_empty"):
        found |= Origin.INITIALISE
    if name == "forward" or (file.endswith("torch/nn/modules/module.py") and name.endswith("_call_impl")):
        found |= Origin.MODULE
    if "torch/utils/data/" in file or name in _COPY_FUNCTIONS:
        found |= Origin.COPY
    return found


def _native_origin(name: str) -> Origin:
    found = Origin.NATIVE
    if "torch::autograd::Engine::" in name:
        found |= Origin.BACKWARD
    if "AccumulateGrad" in name:
        found |= Origin.ACCUMULATE
    if "c10d::" in name:
        found |= Origin.COMMUNICATION
    if "THPVariable_to(" in name or "THPVariable_cuda(" in name:
        found |= Origin.COPY
    return found


@dataclass(frozen=True, slots=True)
class Origins:
    """The origin of each stack. Without frames of C++, autograd's thread has no frames at all."""

    of_stack: NDArray[np.int32]
    has_native: bool

    def phase(self, stack: int) -> Origin:
        """The origin of an event's stack; an event without frames is autograd's, if only Python is recorded."""
        if stack == NO_STACK and not self.has_native and len(self.of_stack) > 1:
            return Origin.BACKWARD
        return Origin(int(self.of_stack[stack]))


def stack_origins(snapshot: MemorySnapshot) -> Origins:
    """The origins of all stacks of a snapshot."""
    of_frame = [int(frame_origin(frame)) for frame in snapshot.frames]
    of_stack = []
    for stack in snapshot.stacks:
        found = 0
        for frame in stack:
            found |= of_frame[frame]
        of_stack.append(found)
    array = np.array(of_stack, dtype=np.int32)
    return Origins(array, bool((array & Origin.NATIVE).any()))


def categorise(
    snapshot: MemorySnapshot, device: DeviceSnapshot, allocations: Allocations, origins: Origins
) -> NDArray[np.int8]:
    """The category of each allocation of a device, as its index in `ORDER`."""
    backward = _backward_over_events(device, origins)
    # The number of events of the backward pass before each event tells whether one lies between two events.
    before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(backward)))
    ends_in_backward = bool(len(backward)) and bool(backward[-1])
    columns = zip(
        allocations.start.tolist(),
        allocations.end.tolist(),
        allocations.stack.tolist(),
        allocations.free_stack.tolist(),
        strict=True,
    )
    index = {category: number for number, category in enumerate(ORDER)}
    found = np.zeros(len(allocations), dtype=np.int8)
    for number, (start, end, stack, free_stack) in enumerate(columns):
        is_freed = end < allocations.events
        if not is_freed:
            freed_in_backward = False
        elif free_stack == NO_STACK and (origins.has_native or len(origins.of_stack) == 1):
            freed_in_backward = bool(backward[end])
        else:
            freed_in_backward = bool(origins.phase(free_stack) & Origin.BACKWARD)
        lifetime = _Lifetime(
            is_freed=is_freed,
            freed_in_backward=freed_in_backward,
            spans_backward=bool(before[min(end, len(backward))] > before[max(start, 0)]),
            ends_in_backward=ends_in_backward,
        )
        if start == BEFORE and stack == NO_STACK:
            category = _before_recording(lifetime, free_stack, snapshot)
        else:
            category = _category(origins.phase(stack), lifetime)
        found[number] = index[category]
    _apply_known_tensors(found, snapshot, allocations, index)
    unknown = np.flatnonzero((found == index[Category.UNKNOWN]) & (allocations.stack == NO_STACK))
    of = {category: found == index[category] for category in (Category.GRADIENT, Category.PARAMETER)}
    parameters, states = recognise_by_size(allocations, of[Category.GRADIENT], of[Category.PARAMETER], unknown)
    found[parameters], found[states] = index[Category.PARAMETER], index[Category.OPTIMIZER_STATE]
    return found


@dataclass(frozen=True, slots=True)
class _Lifetime:
    is_freed: bool
    freed_in_backward: bool
    spans_backward: bool
    ends_in_backward: bool


def _category(origin: Origin, life: _Lifetime) -> Category:
    """The rules for memory with a stack; docs/concepts/memory.md lists them in this order."""
    if origin & Origin.OPTIMIZER:
        return Category.TEMPORARY if life.is_freed else Category.OPTIMIZER_STATE
    if origin & Origin.BACKWARD:
        if origin & Origin.RECOMPUTE:
            return Category.ACTIVATION
        if origin & Origin.GATHER or (origin & Origin.COMMUNICATION and life.freed_in_backward):
            return Category.COMMUNICATION
        if life.freed_in_backward:
            return Category.TEMPORARY
        is_temporary = life.ends_in_backward and not life.is_freed and not origin & Origin.ACCUMULATE
        return Category.TEMPORARY if is_temporary else Category.GRADIENT
    if origin & Origin.COMMUNICATION:
        return Category.COMMUNICATION
    if origin & Origin.INITIALISE and not origin & Origin.MODULE:
        return Category.PARAMETER
    if origin & Origin.COPY and not origin & Origin.MODULE:
        return Category.INPUT
    if life.freed_in_backward:
        return Category.ACTIVATION
    if origin & Origin.MODULE and (life.spans_backward or not life.is_freed):
        return Category.ACTIVATION
    return Category.TEMPORARY if life.is_freed else Category.UNKNOWN


def _before_recording(life: _Lifetime, free_stack: int, snapshot: MemorySnapshot) -> Category:
    if life.freed_in_backward:
        return Category.ACTIVATION
    names = {snapshot.frames[frame].name for frame in snapshot.stacks[free_stack]}
    return Category.GRADIENT if "zero_grad" in names else Category.UNKNOWN


def _backward_over_events(device: DeviceSnapshot, origins: Origins) -> NDArray[np.bool_]:
    """For each event whether the newest allocation up to it was made in the backward pass."""
    events = device.events
    of_stack = (origins.of_stack & Origin.BACKWARD) != 0
    if not origins.has_native and len(of_stack) > 1:
        of_stack[NO_STACK] = True
    newest = np.maximum.accumulate(np.where(events.action == Action.ALLOC, np.arange(len(events)), -1))
    return np.where(newest >= 0, of_stack[events.stack[np.maximum(newest, 0)]], False) if len(events) else of_stack[:0]


def _apply_known_tensors(
    found: NDArray[np.int8], snapshot: MemorySnapshot, allocations: Allocations, index: dict[Category, int]
) -> None:
    """Set the categories that the training program wrote into the snapshot, of memory that is in use at its end."""
    at_end = np.flatnonzero(allocations.at_end)
    order = at_end[np.argsort(allocations.address[at_end], kind="stable")]
    addresses = allocations.address[order]
    for tensor in snapshot.tensors:
        place = int(np.searchsorted(addresses, tensor.address, side="right")) - 1
        if place < 0 or tensor.category not in index:
            continue
        owner = order[place]
        if tensor.address < allocations.address[owner] + max(int(allocations.size[owner]), 1):
            found[owner] = index[Category(tensor.category)]
