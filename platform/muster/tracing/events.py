"""The events of one trace file as columns (NumPy arrays), the input of the analysis."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from muster.tracing.spans import Int64, Spans

Int32 = NDArray[np.int32]
Mask = NDArray[np.bool_]


class EventKind(IntEnum):
    """The kind of an event, from its category."""

    CPU_OP = 0
    ANNOTATION = 1  # record_function on the CPU: ProfilerStep#, Optimizer.step#, gloo:, FSDP::
    RUNTIME = 2  # cudaLaunchKernel and other runtime or driver calls
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6  # a stream or event wait shown on the device's rows; no work
    DEVICE_ANNOTATION = 7  # a CPU annotation shown on the device's rows; no work
    OTHER = 8


DEVICE_WORK = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)


@dataclass(frozen=True, slots=True)
class TraceThread:
    """A row of the trace: a CPU thread or a device stream. `name` is empty if the trace has none."""

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

    `rank`, `world_size` and `backend` come from distributedInfo, `job` from Muster's entry; None if missing.
    `origin_us` is the file's time of nanosecond 0. `decoded_events` counts all events of the file, including those
    not kept; `invalid_events` those without a valid time.
    """

    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    device: str | None
    job: str | None
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
    def kernels(self) -> Events:
        return self.of_kind(EventKind.KERNEL)

    @property
    def launches(self) -> Events:
        """Runtime calls that launched device work: the CPU side of `correlation`."""
        return self.events[(self.events.kind == EventKind.RUNTIME) & (self.events.correlation >= 0)]

    @property
    def annotations(self) -> Events:
        return self.of_kind(EventKind.ANNOTATION)

    @property
    def device_work(self) -> Events:
        """Kernels, memcpy and memset."""
        return self.of_kind(*DEVICE_WORK)

    @property
    def on_device(self) -> bool:
        """Whether the trace has device work."""
        return bool(np.isin(self.events.kind, DEVICE_WORK).any())
