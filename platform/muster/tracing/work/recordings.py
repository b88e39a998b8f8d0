"""What was recorded of a process: when, which process, how its steps are known, and what its trace does not have."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from muster.tracing.read.events import DEVICE_WORK, EventKind, Trace
from muster.tracing.work.steps import StepTable
from muster.tracing.work.work_kinds import matching_names

LAUNCH = re.compile(r"(cu|cuda|hip)\w*Launch")
NO_CPU_EVENTS = (
    "it has no events of the CPU, so why the device idles and where steps begin cannot be known;"
    " record with ProfilerActivity.CPU too"
)


@dataclass(frozen=True, slots=True)
class Recording:
    """Of one trace. `process` is the id of the process (empty: unknown), `begin_us` and `end_us` are the times of its
    first and last event in microseconds since 1970, as far as the file says. `steps_from`: how the steps are known if
    not by the profiler's annotations. `lost`: what could not be read, and why;
    `truncated` if the file ends before the trace does. `without`: what was not recorded;
    `launches` are the launches of a trace without any device work.
    """

    process: str = ""
    begin_us: float = 0.0
    end_us: float = 0.0
    steps_from: str = ""
    lost: str = ""
    truncated: bool = False
    without: str = ""
    launches: int = 0


def recording(trace: Trace, steps: StepTable) -> Recording:
    """What is known of the recording of a trace."""
    events = trace.events
    on_device = np.isin(events.kind, DEVICE_WORK)
    on_host = np.isin(events.kind, (EventKind.CPU_OP, EventKind.ANNOTATION, EventKind.RUNTIME))
    launches, without = 0, ""
    if not on_device.any():
        launches = int((matching_names(trace, LAUNCH)[events.name] & (events.kind == EventKind.RUNTIME)).sum())
        if launches and not (trace.damage is not None and trace.damage.end):
            without = (
                f"it launched {launches:,} kernels and has none: another tool, such as Nsight, DCGM's profiling or a "
                "second profiler, holds CUPTI"
            )
    elif not on_host.any():
        without = NO_CPU_EVENTS
    rows = np.bincount(events.thread[events.kind == EventKind.CPU_OP], minlength=len(trace.threads))
    pids = {thread.pid for thread, count in zip(trace.threads, rows.tolist(), strict=True) if count}
    origin_us = trace.base_us + trace.origin_us
    used = on_host if on_host.any() else on_device
    begin, end = (events.start[used].min(), events.end[used].max()) if used.any() else (0, 0)
    return Recording(
        process=pids.pop() if len(pids) == 1 else "",
        begin_us=origin_us + float(begin) / 1000,
        end_us=origin_us + float(end) / 1000,
        steps_from=steps.source,
        truncated=trace.damage is not None and bool(trace.damage.end),
        lost="" if trace.damage is None else trace.damage.describe(),
        without=without,
        launches=launches,
    )
