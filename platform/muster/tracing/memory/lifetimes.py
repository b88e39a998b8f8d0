"""Which allocations were in use at which event, reconstructed from the events and the blocks of a snapshot.

An allocation is in use from its `alloc` until its `free_completed`: until then the allocator cannot give its memory to
others. torch calls this memory active. Memory that was allocated before the recording appears when it is freed, or in
the final blocks; PyTorch's page memory_viz counts in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muster.tracing.memory.snapshot import NO_STACK, Action, DeviceSnapshot, Int32
from muster.tracing.read.spans import Int64

BEFORE: Final = -1
"""The start of an allocation that existed when the recording began."""
_TOOK_SEGMENT: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GAVE_SEGMENT: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True)
class Allocations:
    """All allocations of a device: parallel columns, sizes in bytes as requested.

    Allocation k is in use after each event i with `start[k]` <= i < `end[k]`; `end` is the number of events if it was
    in use when the snapshot was taken. `stack` is that of the allocation, `free_stack` that of the request to free it.
    `unmatched` counts events and blocks that contradict each other, for example after a pause of the recording.
    """

    address: Int64
    size: Int64
    start: Int64
    end: Int64
    stack: Int32
    free_stack: Int32
    events: int
    unmatched: int

    def __len__(self) -> int:
        return len(self.size)

    @property
    def at_end(self) -> NDArray[np.bool_]:
        """Which were in use when the snapshot was taken."""
        return np.equal(self.end, self.events)

    def in_use_at(self, event: int) -> NDArray[np.bool_]:
        """Which are in use after `event`; -1 is the beginning of the recording."""
        return np.logical_and(self.start <= event, self.end > event)

    def bytes_over_events(self, chosen: NDArray[np.bool_] | None = None) -> Int64:
        """Bytes in use: at the beginning, then after each event; of the `chosen` allocations, default all."""
        if chosen is None:
            chosen = np.ones(len(self), dtype=np.bool_)
        change = np.zeros(self.events + 2, dtype=np.int64)
        np.add.at(change, self.start[chosen] + 1, self.size[chosen])
        np.subtract.at(change, self.end[chosen] + 1, self.size[chosen])
        return np.cumsum(change[:-1])


def reconstruct_allocations(snapshot: DeviceSnapshot) -> Allocations:
    """The allocations of a device's snapshot."""
    events = snapshot.events
    count = len(events)
    address: list[int] = []
    size: list[int] = []
    start: list[int] = []
    end: list[int] = []
    stack: list[int] = []
    free_stack: list[int] = []
    in_use: dict[int, int] = {}  # address -> allocation
    unmatched = 0

    def begin(at: int, where: int, how_much: int, who: int) -> int:
        address.append(where)
        size.append(how_much)
        start.append(at)
        end.append(count)
        stack.append(who)
        free_stack.append(NO_STACK)
        in_use[where] = len(size) - 1
        return len(size) - 1

    columns = (events.action.tolist(), events.address.tolist(), events.size.tolist(), events.stack.tolist())
    for at, (action, where, how_much, who) in enumerate(zip(*columns, strict=True)):
        if action == Action.ALLOC:
            if where in in_use:  # its free is not in the recording
                end[in_use[where]] = at
                unmatched += 1
            begin(at, where, how_much, who)
        elif action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            known = in_use.get(where)
            if known is None:
                known = begin(BEFORE, where, how_much, NO_STACK)
            if action == Action.FREE_REQUESTED:
                free_stack[known] = who
            else:
                end[known] = at
                del in_use[where]
    final = {block.address: block for segment in snapshot.segments for block in segment.blocks if block.is_active}
    for where, block in final.items():
        if where not in in_use:
            begin(BEFORE, where, block.requested, block.stack)
    if snapshot.segments:  # a trace without segments has no final state
        for where, known in in_use.items():
            if where not in final:
                end[known] = max(count - 1, 0)
                unmatched += 1
    return Allocations(
        address=np.array(address, dtype=np.int64),
        size=np.array(size, dtype=np.int64),
        start=np.array(start, dtype=np.int64),
        end=np.array(end, dtype=np.int64),
        stack=np.array(stack, dtype=np.int32),
        free_stack=np.array(free_stack, dtype=np.int32),
        events=count,
        unmatched=unmatched,
    )


def reserved_over_events(snapshot: DeviceSnapshot) -> Int64:
    """Bytes that the allocator holds: at the beginning, then after each event, counted back from the final segments."""
    events = snapshot.events
    change = np.where(np.isin(events.action, _TOOK_SEGMENT), events.size, 0)
    change -= np.where(np.isin(events.action, _GAVE_SEGMENT), events.size, 0)
    final = sum(segment.size for segment in snapshot.segments)
    return final - int(change.sum()) + np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(change)))
