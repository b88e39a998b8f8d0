"""The segments of the allocator at any time of a recording: what lies in them, and the free pieces between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muster.tracing.memory.categories import ORDER
from muster.tracing.memory.snapshot import Action, DeviceSnapshot
from muster.tracing.memory.usage import DeviceUsage
from muster.tracing.read.spans import Int64

ROUNDING: Final = 512
"""The allocator rounds sizes up to a multiple of this (kMinBlockSize)."""
MAX_UNDONE: Final = 20_000_000
"""Comparisons of segments that undoing events may take."""
MAX_SEGMENTS: Final = 40
MAX_PIECES: Final = 200


@dataclass(frozen=True, slots=True)
class Piece:
    """Adjacent memory of one category in a segment; sizes are rounded up to 512 bytes."""

    offset_bytes: int
    bytes: int
    category: str


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """A segment at one time, with what lies in it. Of more than `MAX_PIECES` pieces, the largest."""

    size_bytes: int
    in_use_bytes: int
    largest_free_bytes: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class _Placed:
    """Allocations in use that lie in segments, by address: where they begin and end, and in which segment."""

    start: Int64
    end: Int64
    owner: NDArray[np.int64]
    category: NDArray[np.int8]


def largest_free(usage: DeviceUsage, event: int) -> int | None:
    """The largest free piece in a segment after an event, of any stream and pool; sizes rounded up to 512 bytes.
    None if it would take too long to reconstruct."""
    segments = segments_at(usage.device, event)
    if segments is None:
        return None
    return int(_free_pieces(segments, _placed(usage, event, segments)).max(initial=0))


def segment_maps(usage: DeviceUsage, event: int) -> tuple[SegmentMap, ...]:
    """The largest segments after an event; empty if it would take too long to reconstruct."""
    segments = segments_at(usage.device, event)
    if segments is None:
        return ()
    placed = _placed(usage, event, segments)
    order = np.argsort(segments[:, 0] - segments[:, 1], kind="stable")[:MAX_SEGMENTS]
    return tuple(_segment_map(segments[number], placed, int(number)) for number in order)


def _placed(usage: DeviceUsage, event: int, segments: Int64) -> _Placed:
    chosen = np.flatnonzero(usage.allocations.in_use_at(event))
    chosen = chosen[np.argsort(usage.allocations.address[chosen], kind="stable")]
    start, size = usage.allocations.address[chosen], usage.allocations.size[chosen]
    owner = np.searchsorted(segments[:, 0], start, side="right") - 1
    inside = np.zeros(len(start), dtype=np.bool_) if not len(segments) else start < segments[owner, 1]
    inside &= owner >= 0
    end = start + np.maximum(-(-size // ROUNDING), 1) * ROUNDING
    return _Placed(start[inside], end[inside], owner[inside], usage.category[chosen[inside]])


def _free_pieces(segments: Int64, placed: _Placed) -> Int64:
    """The sizes of the free pieces. Each begins at the lower edge of a segment or where an allocation ends, and ends
    where the next one begins or at the upper edge."""
    begins = np.concatenate((segments[:, 0], placed.end))
    ends = np.concatenate((placed.start, segments[:, 1]))
    return np.sort(ends) - np.sort(begins)


def _segment_map(segment: Int64, placed: _Placed, number: int) -> SegmentMap:
    inside = placed.owner == number
    one = _Placed(placed.start[inside], placed.end[inside], placed.owner[inside], placed.category[inside])
    pieces: list[Piece] = []
    columns = zip(one.start.tolist(), one.end.tolist(), one.category.tolist(), strict=True)
    for start, end, category in columns:
        offset, name = start - int(segment[0]), str(ORDER[category])
        last = pieces[-1] if pieces else None
        if last is not None and last.category == name and last.offset_bytes + last.bytes == offset:
            pieces[-1] = Piece(last.offset_bytes, last.bytes + end - start, name)
        else:
            pieces.append(Piece(offset, end - start, name))
    largest = sorted(pieces, key=lambda piece: (-piece.bytes, piece.offset_bytes))[:MAX_PIECES]
    return SegmentMap(
        size_bytes=int(segment[1] - segment[0]),
        in_use_bytes=int((one.end - one.start).sum()),
        largest_free_bytes=int(_free_pieces(segment.reshape(1, 2), one).max(initial=0)),
        pieces=tuple(sorted(largest, key=lambda piece: piece.offset_bytes)),
    )


def segments_at(device: DeviceSnapshot, event: int) -> Int64 | None:
    """The segments after an event as rows of first address and end, by address: the final ones, with all later events
    undone. None if that would take too long."""
    found = [(segment.address, segment.address + segment.size) for segment in device.segments]
    events = device.events
    later = np.flatnonzero(
        (np.arange(len(events)) > event)
        & (events.action >= Action.SEGMENT_ALLOC)
        & (events.action <= Action.SEGMENT_UNMAP)
    )
    if len(later) * (len(found) + len(later)) > MAX_UNDONE:
        return None
    for index in later[::-1].tolist():
        low = int(events.address[index])
        high = low + int(events.size[index])
        if events.action[index] in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            found.append((low, high))
            continue
        rest = []
        for start, end in found:
            if end <= low or high <= start:
                rest.append((start, end))
            else:
                rest += [piece for piece in ((start, low), (high, end)) if piece[0] < piece[1]]
        found = rest
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)
