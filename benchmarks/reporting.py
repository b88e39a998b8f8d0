"""What reporting costs in a step of 100 ms: muster.report, muster.should_stop, and the heartbeat and metrics of an
instrumented rank that reads the reports. Microseconds of the training thread, by the clock, which includes what other
programs on the machine take, and of CPU time; and of CPU time of the process, with the thread that writes.

    python benchmarks/reporting.py
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, quantiles

from muster_components.trainer.context import run_context
from muster_components.trainer.reporter import RankHeartbeat, Reporter, StepMetrics
from muster_components.trainer.reports import ReportReader

STEPS, STEP_S = 300, 0.1


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of each call by the clock and of CPU time, by part; and of the process in a step."""

    clock_us: dict[str, list[float]]
    thread_us: dict[str, list[float]]
    process_us: float


def measured(parts: Mapping[str, Callable[[int], object]]) -> Times:
    """The sleep that stands for a step is followed by an empty call, which takes what waking up costs."""
    clock_us: dict[str, list[float]] = {name: [] for name in parts}
    thread_us: dict[str, list[float]] = {name: [] for name in parts}
    process_began_s = time.process_time()
    for step in range(1, STEPS + 1):
        time.sleep(STEP_S)
        for name, action in parts.items():
            thread_began_s, began_s = time.thread_time(), time.perf_counter()
            action(step)
            clock_us[name].append((time.perf_counter() - began_s) * 1e6)
            thread_us[name].append((time.thread_time() - thread_began_s) * 1e6)
    return Times(clock_us, thread_us, (time.process_time() - process_began_s) / STEPS * 1e6)


def main() -> int:
    """Print a row for each part, and the share of all in a step."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reports" / "rank-0.attempt-0.jsonl"
        os.environ.update(MUSTER_RUN_DIR=folder, MUSTER_REPORT_FILE=str(file), MUSTER_JOB="benchmark")
        import muster

        reporter = Reporter(run_context(os.environ), reports=ReportReader(file))

        def heartbeat(step: int) -> None:
            reporter.write_metrics(StepMetrics(step=step, step_time_s=STEP_S))
            if reporter.is_heartbeat_due("train"):  # as the optimizer's hook
                reporter.write_heartbeat(RankHeartbeat(rank=0, world_size=1, attempt=0, step=step, step_time_s=STEP_S))

        empty: dict[str, Callable[[int], object]] = {"empty": lambda step: None}
        parts: dict[str, Callable[[int], object]] = {
            "report": lambda step: muster.report(step=step, steps=STEPS, loss=1.0, tokens=4096),
            "should_stop": lambda step: muster.should_stop(),
            "heartbeat": heartbeat,
        }
        for action in parts.values():
            action(0)
        nothing = dict.fromkeys((f"empty {number}" for number in range(1, 5)), empty["empty"])
        idle = measured(nothing)
        times = measured(empty | parts)
    for name in times.clock_us:
        clock, thread = times.clock_us[name], times.thread_us[name]
        p99 = quantiles(clock, n=100)[98]
        print(
            f"{name:12} clock: mean {mean(clock):7.1f} us, median {median(clock):7.1f} us, p99 {p99:7.1f} us; ", end=""
        )
        print(f"CPU time: mean {mean(thread):7.1f} us")
    empty_us = mean(times.thread_us["empty"])
    sums = {
        "clock": sum(mean(times.clock_us[name]) for name in parts),
        "CPU, thread": sum(mean(times.thread_us[name]) - empty_us for name in parts),
        "CPU, process": times.process_us - idle.process_us,
    }
    for name, total_us in sums.items():
        print(f"{name:12} {total_us:7.1f} us of a step of {STEP_S * 1000:.0f} ms: {total_us / STEP_S / 1e4:.4f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
