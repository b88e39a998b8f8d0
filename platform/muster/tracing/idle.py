"""Why each stream of a device stood still, by HTA's three reasons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.tracing.events import Events, Trace

# HTA's default: a gap shorter than this between two kernels is the price of starting the next one.
LAUNCH_GAP_NS = 30_000


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """Nanoseconds between the pieces of work of one stream, by the reason for each gap.

    host_wait: the next piece was launched only after the previous one had ended, so the host was too slow.
    kernel_wait: launched in time, and the gap is shorter than 30 us.
    other: launched in time, longer gap: usually waiting for another stream.
    """

    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int

    @property
    def total_ns(self) -> int:
        return self.host_wait_ns + self.kernel_wait_ns + self.other_ns


def launch_times(trace: Trace, work: Events) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """When each piece of work was launched on the CPU, in nanoseconds; before everything (int64's least) if unknown."""
    launches = trace.launches
    never = np.full(len(work), np.iinfo(np.int64).min)
    if not len(launches):
        return never
    order = np.argsort(launches.correlation, kind="stable")
    ids, times = launches.correlation[order], launches.start[order]
    at = np.minimum(np.searchsorted(ids, work.correlation), len(ids) - 1)
    return np.where(ids[at] == work.correlation, times[at], never)


def idle_by_stream(trace: Trace, work: Events, *, launch_gap_ns: int = LAUNCH_GAP_NS) -> tuple[StreamIdle, ...]:
    """Reasons of idleness for every stream with work, by stream; `work` is device work of `trace`."""
    launched = launch_times(trace, work)
    found = []
    for row in np.unique(work.thread):
        here = np.flatnonzero(work.thread == row)
        here = here[np.argsort(work.start[here], kind="stable")]
        previous_end = work.end[here][:-1]
        gap = np.maximum(work.start[here][1:] - previous_end, 0)
        host = launched[here][1:] > previous_end
        near = ~host & (gap < launch_gap_ns)
        found.append(
            StreamIdle(
                stream=int(work.stream[here[0]]),
                host_wait_ns=int(gap[host].sum()),
                kernel_wait_ns=int(gap[near].sum()),
                other_ns=int(gap[~host & ~near].sum()),
            )
        )
    return tuple(sorted(found, key=lambda idle: idle.stream))
