"""What one trace file says, as columns: the value that everything else in this package works on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from muster.tracing.spans import Int64, Spans

Int32 = NDArray[np.int32]
Mask = NDArray[np.bool_]


class EventKind(IntEnum):
    """What an event is, from its category."""

    CPU_OP = 0
    ANNOTATION = 1  # record_function and friends on the CPU: ProfilerStep#, Optimizer.step#, gloo:, FSDP::
    RUNTIME = 2  # cudaLaunchKernel and other runtime or driver calls
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6  # a stream or event wait drawn on the device's rows; no work
    DEVICE_ANNOTATION = 7  # the shadow of a CPU annotation on the device's rows; no work
    OTHER = 8


DEVICE_WORK = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)


@dataclass(frozen=True, slots=True)
class TraceThread:
    """A row of the trace: a CPU thread, or a stream of a device. `name` is what the profiler called it, if anything."""

    pid: str
    tid: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Events:
    """Complete events as parallel columns, in file order.

    `start` and `end` are nanoseconds since the trace's origin; `name`, `thread` and `collective` index the trace's
    `names` and `threads` (-1: none); `stream` and `correlation` are -1 where absent. `correlation` links a device
    event to the runtime call that launched it.
    """

    kind: NDArray[np.int8]
    name: Int32
    thread: Int32
    start: Int64
    end: Int64
    stream: Int32
    correlation: Int64
    collective: Int32

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, which: Mask | Int64) -> Events:
        return Events(**{column: getattr(self, column)[which] for column in self.__slots__})

    @property
    def spans(self) -> Spans:
        return Spans(self.start, self.end)

    @property
    def duration(self) -> Int64:
        """Nanoseconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace file.

    `rank`, `world_size` and `backend` come from distributedInfo, `job` from Muster's own entry; None where not said.
    `origin_us` is the file's time of nanosecond 0; `base_ns` what to add for Unix time (None in older traces).
    `decoded` counts all events of the file, the ones not kept included; `unusable` those that made no sense.
    """

    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    device: str | None
    job: str | None
    base_ns: int | None
    origin_us: float
    decoded_events: int
    invalid_events: int
    names: tuple[str, ...]
    threads: tuple[TraceThread, ...]
    events: Events

    def of_kind(self, *kinds: EventKind) -> Events:
        """The events of these kinds."""
        return self.events[np.isin(self.events.kind, kinds)]

    @property
    def cpu_ops(self) -> Events:
        return self.of_kind(EventKind.CPU_OP)

    @property
    def kernels(self) -> Events:
        return self.of_kind(EventKind.KERNEL)

    @property
    def memory_copies(self) -> Events:
        """Copies and sets on the device."""
        return self.of_kind(EventKind.MEMCPY, EventKind.MEMSET)

    @property
    def launches(self) -> Events:
        """Runtime calls that launched something: the CPU side of `correlation`."""
        return self.events[(self.events.kind == EventKind.RUNTIME) & (self.events.correlation >= 0)]

    @property
    def annotations(self) -> Events:
        return self.of_kind(EventKind.ANNOTATION)

    @property
    def device_work(self) -> Events:
        """What a device did: kernels, copies, sets."""
        return self.of_kind(*DEVICE_WORK)

    @property
    def on_device(self) -> bool:
        """Whether any device work was recorded; without it the trace tells about the CPU only."""
        return bool(np.isin(self.events.kind, DEVICE_WORK).any())

    def named(self, wanted: Mask, events: Events) -> Mask:
        """Events whose name is wanted: `wanted` is a mask over `names`."""
        return wanted[events.name]
