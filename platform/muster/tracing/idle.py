"""Idle time of each device stream, by HTA's three causes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.tracing.events import Events, Trace

# HTA's default: a shorter gap between two kernels is launch overhead.
LAUNCH_GAP_NS = 30_000


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """Nanoseconds between consecutive work of one stream, by the cause of each gap.

    host_wait: the next work was launched only after the previous one had ended (the host was too slow).
    kernel_wait: launched in time, gap shorter than 30 µs.
    other: launched in time, longer gap; usually waiting for another stream.
    """

    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int

    @property
    def total_ns(self) -> int:
        return self.host_wait_ns + self.kernel_wait_ns + self.other_ns


def launch_times(trace: Trace, work: Events) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The launch time on the CPU of each event of `work`, in nanoseconds; the minimum of int64 if unknown."""
    launches = trace.launches
    unknown = np.full(len(work), np.iinfo(np.int64).min)
    if not len(launches):
        return unknown
    order = np.argsort(launches.correlation, kind="stable")
    ids, times = launches.correlation[order], launches.start[order]
    at = np.minimum(np.searchsorted(ids, work.correlation), len(ids) - 1)
    return np.where(ids[at] == work.correlation, times[at], unknown)


def idle_by_stream(trace: Trace, work: Events, *, launch_gap_ns: int = LAUNCH_GAP_NS) -> tuple[StreamIdle, ...]:
    """The idle time of every stream with work, ordered by stream; `work` is device work of `trace`."""
    launched = launch_times(trace, work)
    found = []
    for row in np.unique(work.thread):
        of_stream = np.flatnonzero(work.thread == row)
        of_stream = of_stream[np.argsort(work.start[of_stream], kind="stable")]
        previous_end = work.end[of_stream][:-1]
        gap = np.maximum(work.start[of_stream][1:] - previous_end, 0)
        late = launched[of_stream][1:] > previous_end
        short = ~late & (gap < launch_gap_ns)
        found.append(
            StreamIdle(
                stream=int(work.stream[of_stream[0]]),
                host_wait_ns=int(gap[late].sum()),
                kernel_wait_ns=int(gap[short].sum()),
                other_ns=int(gap[~late & ~short].sum()),
            )
        )
    return tuple(sorted(found, key=lambda idle: idle.stream))
