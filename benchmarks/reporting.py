"""What reporting costs in a step of 100 ms: muster.report, muster.should_stop, and the heartbeat and metrics of an
instrumented rank that reads the reports. Of the training thread in microseconds of the clock, and of the process, with
the thread that writes, in CPU time.

    python benchmarks/reporting.py
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, median, quantiles

from muster_components.trainer.context import run_context
from muster_components.trainer.reporter import RankHeartbeat, Reporter, StepMetrics
from muster_components.trainer.reports import ReportReader

STEPS, STEP_S = 300, 0.1


def measured(parts: Mapping[str, Callable[[int], object]]) -> tuple[dict[str, list[float]], float]:
    """Microseconds of each call of each part, and of CPU time of the process per step. The sleep that stands for a step
    is followed by an empty call, which takes what waking up costs."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    began_cpu_s = time.process_time()
    for step in range(1, STEPS + 1):
        time.sleep(STEP_S)
        for name, action in parts.items():
            began = time.perf_counter()
            action(step)
            times[name].append((time.perf_counter() - began) * 1e6)
    return times, (time.process_time() - began_cpu_s) / STEPS * 1e6


def main() -> int:
    """Print a row for each part, and the share of all in a step."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reports" / "rank-0.attempt-0.jsonl"
        os.environ.update(MUSTER_RUN_DIR=folder, MUSTER_REPORT_FILE=str(file), MUSTER_JOB="benchmark")
        import muster

        reporter = Reporter(run_context(os.environ), reports=ReportReader(file))

        def heartbeat(step: int) -> None:
            reporter.write_metrics(StepMetrics(step=step, step_time_s=STEP_S))
            reporter.write_heartbeat(RankHeartbeat(rank=0, world_size=1, attempt=0, step=step, step_time_s=STEP_S))

        empty: dict[str, Callable[[int], object]] = {"empty": lambda step: None}
        parts: dict[str, Callable[[int], object]] = {
            "report": lambda step: muster.report(step=step, steps=STEPS, loss=1.0, tokens=4096),
            "should_stop": lambda step: muster.should_stop(),
            "heartbeat": heartbeat,
        }
        for action in parts.values():
            action(0)
        _, idle_cpu_us = measured(empty)
        times, cpu_us = measured(empty | parts)
    for name, each in times.items():
        p99 = quantiles(each, n=100)[98]
        print(f"{name:12} mean {mean(each):7.1f} us   median {median(each):7.1f} us   p99 {p99:7.1f} us")
    total_us = sum(mean(times[name]) for name in parts)
    print(f"clock        {total_us:7.1f} us of a step of {STEP_S * 1000:.0f} ms: {total_us / STEP_S / 1e4:.4f} %")
    cpu_us -= idle_cpu_us
    print(f"CPU time     {cpu_us:7.1f} us of a step of {STEP_S * 1000:.0f} ms: {cpu_us / STEP_S / 1e4:.4f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
