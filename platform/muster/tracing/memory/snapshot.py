"""A memory snapshot of torch as columns: events, segments and blocks of each device, and the stacks that they share.

The format is documented at `torch.cuda.memory._snapshot`. Fields that a version of torch does not write are optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from muster.errors import InvalidTrace
from muster.tracing.read.spans import Int64

Int32: TypeAlias = NDArray[np.int32]

NO_STACK: Final = 0
"""The stack without frames: torch recorded none, or did not record yet."""
MAX_SIZE: Final = 1 << 50
MAX_DEVICES: Final = 1024
MAX_LINE: Final = (1 << 31) - 1
MAX_TEXT: Final = 500
"""Characters of a frame's file and function that are kept; names of C++ templates may be long."""


class Action(IntEnum):
    """What the allocator did."""

    OTHER = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    SEGMENT_ALLOC = 4
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    SEGMENT_UNMAP = 7
    OOM = 8


_ACTIONS: Final = {action.name.lower(): int(action) for action in Action if action is not Action.OTHER}


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a stack; the line is 0 where torch knows none, as for most frames of C++."""

    file: str
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class AllocatorEvents:
    """What the allocator of a device did, in order: parallel columns. Sizes in bytes as requested, not rounded.

    `time_us` is 0 where the version of torch records no times; `device_free` is set for OOM only.
    """

    action: NDArray[np.int8]
    address: Int64
    size: Int64
    time_us: Int64
    stack: Int32
    device_free: Int64

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """A piece of a segment when the snapshot was taken. `state`: `active_allocated`, `active_pending_free` (freed, but
    another stream may still use it; torch's documentation calls it `active_awaiting_free`) or `inactive`."""

    address: int
    size: int
    requested: int
    state: str
    stack: int

    @property
    def is_active(self) -> bool:
        return self.state != "inactive"


@dataclass(frozen=True, slots=True)
class MemorySegment:
    """Memory that the allocator got from CUDA. `pool` is (0, 0) unless a CUDA graph or a MemPool owns it."""

    address: int
    size: int
    stream: int
    pool: tuple[int, int]
    is_expandable: bool
    blocks: tuple[MemoryBlock, ...]


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """The events and the final segments of one device."""

    device: int
    events: AllocatorEvents
    segments: tuple[MemorySegment, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor whose category the training program knows, by the address and bytes of its storage."""

    category: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """A snapshot. `stacks` are tuples of indices into `frames`, innermost first; `expandable_segments` is None where
    torch does not say; `tensors` are known only for snapshots that Muster's trainer wrote."""

    devices: tuple[DeviceSnapshot, ...]
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    expandable_segments: bool | None
    tensors: tuple[Tensor, ...]


def decode_snapshot(raw: Any, max_events: int) -> MemorySnapshot:
    """Decode the value of a snapshot's pickle: a dict, or a list of segments as `torch.cuda.memory_snapshot` returns.

    Raises InvalidTrace if it is none, or has more than `max_events` events or blocks.
    """
    if isinstance(raw, list):
        raw = {"segments": raw, "device_traces": []}
    if not isinstance(raw, dict) or not isinstance(raw.get("segments"), list):
        raise InvalidTrace("not a memory snapshot: must be a dict with the key 'segments' (a list)")
    traces = raw.get("device_traces", [])
    try:
        _check_counts(raw["segments"], traces, max_events)
        stacks = _Stacks()
        segments: dict[int, list[MemorySegment]] = {}
        for entry in raw["segments"]:
            segments.setdefault(_number(entry, "device", 0), []).append(_segment(entry, stacks))
        devices = []
        for device in sorted({*segments, *(i for i, trace in enumerate(traces) if trace)}):
            events = _events(traces[device] if 0 <= device < len(traces) else [], stacks)
            of_device = sorted(segments.get(device, ()), key=lambda segment: segment.address)
            devices.append(DeviceSnapshot(device, events, tuple(of_device)))
        return MemorySnapshot(
            devices=tuple(devices),
            frames=tuple(stacks.frames),
            stacks=tuple(stacks.stacks),
            expandable_segments=_expandable_segments(raw.get("allocator_settings")),
            tensors=_tensors(raw.get("muster")),
        )
    except InvalidTrace as error:
        raise InvalidTrace(f"not a memory snapshot: {error}") from None
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise InvalidTrace(f"not a memory snapshot of a known format: {type(error).__name__}: {error}") from error


def _check_counts(segments: Sequence[Any], traces: Any, max_events: int) -> None:
    """The same list may be in the snapshot many times, so entries are counted before they are decoded."""
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise InvalidTrace("'device_traces' must be a list of lists")
    if len(traces) > MAX_DEVICES:
        raise InvalidTrace(f"must have at most {MAX_DEVICES} devices; got {len(traces)}")
    events = sum(map(len, traces))
    blocks = len(segments) + sum(len(segment["blocks"]) for segment in segments)
    for count, what in ((events, "events"), (blocks, "segments and blocks")):
        if count > max_events:
            raise InvalidTrace(f"must have at most {max_events:,} {what}; got {count:,}")


class _Stacks:
    """Numbers stacks and frames. torch writes a stack once for all events that share it, so each list is decoded once;
    the lists stay alive as long as the snapshot, which makes their ids unique."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.stacks: list[tuple[int, ...]] = [()]
        self._frame_of_dict: dict[int, int] = {}
        self._frame_of_content: dict[Frame, int] = {}
        self._stack_of_list: dict[int, int] = {}
        self._stack_of_content: dict[tuple[int, ...], int] = {(): NO_STACK}

    def number(self, frames: Any) -> int:
        """The number of a stack, given as torch's list of frames."""
        if not frames:
            return NO_STACK
        known = self._stack_of_list.get(id(frames))
        if known is None:
            if not isinstance(frames, list):
                raise InvalidTrace("'frames' must be a list")
            seen = [self._frame_of_dict.get(id(frame)) for frame in frames]
            content = tuple(map(self._frame, frames)) if None in seen else tuple(cast(list[int], seen))
            known = self._stack_of_content.setdefault(content, len(self.stacks))
            if known == len(self.stacks):
                self.stacks.append(content)
            self._stack_of_list[id(frames)] = known
        return known

    def _frame(self, entry: Any) -> int:
        known = self._frame_of_dict.get(id(entry))
        if known is None:
            file, line, name = entry["filename"], entry.get("line", 0), entry["name"]
            if not isinstance(file, str) or not isinstance(name, str) or type(line) is not int:
                raise InvalidTrace("'filename' and 'name' of a frame must be strings, 'line' an integer")
            # Frames of torch's own native code have the line 2^64 - 1.
            frame = Frame(file[-MAX_TEXT:], line if 0 < line <= MAX_LINE else 0, name[:MAX_TEXT])
            known = self._frame_of_content.setdefault(frame, len(self.frames))
            if known == len(self.frames):
                self.frames.append(frame)
            self._frame_of_dict[id(entry)] = known
        return known


def _number(entry: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = entry.get(key, default)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise InvalidTrace(f"{key!r} must be an integer of 64 bits; got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A value in an error; a container may be large or nested too deeply to print."""
    return str(value)[:60] if type(value) is int else f"a {type(value).__name__}"


def _size(entry: Mapping[str, Any], key: str, default: int | None = None) -> int:
    size = _number(entry, key, default)
    if not 0 <= size <= MAX_SIZE:
        raise InvalidTrace(f"{key!r} must be from 0 to 2^50 bytes; got {size}")
    return size


def _column(entries: Sequence[Mapping[str, Any]], key: str) -> Int64:
    """One field of all entries, 0 where it is missing."""
    values = [entry.get(key, 0) for entry in entries]
    if not set(map(type, values)) <= {int}:
        wrong = next(value for value in values if type(value) is not int)
        raise InvalidTrace(f"{key!r} of an event must be an integer; got {_shown(wrong)}")
    return np.array(values, dtype=np.int64)


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry[key]
    if not isinstance(value, str):
        raise InvalidTrace(f"{key!r} must be a string; got {_shown(value)}")
    return value[:60]


def _events(entries: Sequence[Any], stacks: _Stacks) -> AllocatorEvents:
    if not set(map(type, entries)) <= {dict}:
        raise InvalidTrace("an event must be a dict")
    size = _column(entries, "size")
    if len(size) and not (size.min() >= 0 and size.max() <= MAX_SIZE and float(size.sum(dtype=np.float64)) < 2**62):
        raise InvalidTrace("'size' of events must be from 0 to 2^50 bytes")
    return AllocatorEvents(
        action=np.array([_ACTIONS.get(entry["action"], 0) for entry in entries], dtype=np.int8),
        address=_column(entries, "addr"),
        size=size,
        time_us=_column(entries, "time_us"),
        stack=np.array([stacks.number(entry.get("frames")) for entry in entries], dtype=np.int32),
        device_free=_column(entries, "device_free"),
    )


def _segment(entry: Mapping[str, Any], stacks: _Stacks) -> MemorySegment:
    pool = entry.get("segment_pool_id", (0, 0))
    if not (isinstance(pool, list | tuple) and len(pool) == 2 and all(type(part) is int for part in pool)):
        raise InvalidTrace("'segment_pool_id' must be two integers")
    address = _number(entry, "address")
    blocks, at = [], address
    for block in entry["blocks"]:
        size = _size(block, "size")
        blocks.append(_block(block, _number(block, "address", at), size, stacks))
        at += size
    return MemorySegment(
        address=address,
        size=_size(entry, "total_size"),
        stream=_number(entry, "stream", 0),
        pool=(pool[0], pool[1]),
        is_expandable=entry.get("is_expandable", False) is True,
        blocks=tuple(blocks),
    )


def _block(entry: Mapping[str, Any], address: int, size: int, stacks: _Stacks) -> MemoryBlock:
    """A block; before torch 2.0, requested size and frames were in its `history`."""
    history = entry.get("history")
    of = history[0] if history else {}
    return MemoryBlock(
        address=address,
        size=size,
        requested=_size(entry, "requested_size", of.get("real_size", size)),
        state=_text(entry, "state"),
        stack=stacks.number(entry.get("frames", of.get("frames"))),
    )


def _expandable_segments(settings: Any) -> bool | None:
    """The setting `expandable_segments` of PYTORCH_CUDA_ALLOC_CONF."""
    value = settings.get("expandable_segments") if isinstance(settings, dict) else None
    return value if isinstance(value, bool) else None


def _tensors(entry: Any) -> tuple[Tensor, ...]:
    """What Muster's trainer adds to a snapshot: the addresses of parameters and of the optimizer's state."""
    if not isinstance(entry, dict) or not isinstance(entry.get("tensors"), list):
        return ()
    return tuple(
        Tensor(_text(one, "category"), _number(one, "address"), _size(one, "bytes")) for one in entry["tensors"]
    )
