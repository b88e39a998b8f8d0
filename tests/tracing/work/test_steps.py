"""The steps of all ranks: one definition, from the host's annotations to the end of the device's work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.tracing.kineto import Event, kernel, launch, step, write_trace

from muster.tracing.account import rank_record
from muster.tracing.analysis.trace_summary import analyse_trace
from muster.tracing.reader import read_trace
from muster.tracing.report import build
from muster.tracing.work import hta_breakdown, time_breakdown
from muster.tracing.work import steps as steps_module
from muster.tracing.work.hta_breakdown import launch_times

MS = 1000.0


def device_step(number: int, start_ms: float, *, data_ms: float, work_ms: float, total_ms: float) -> list[Event]:
    """A step of `total_ms` on the host: it loads data, launches one kernel, and waits for the rest."""
    return [
        step(number, start_ms * MS, total_ms * MS),
        Event("data", start_ms * MS, data_ms * MS, "user_annotation"),
        launch(number, (start_ms + data_ms) * MS),
        kernel("gemm", (start_ms + data_ms) * MS + 10, work_ms * MS, launch=number),
    ]


def test_a_step_includes_the_data_loader_before_its_first_kernel(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json", device_step(20, 0, data_ms=94, work_ms=76, total_ms=171))
    found = analyse_trace(read_trace(trace)).summary
    assert [(time.step, time.duration_s) for time in found.steps] == [(20, 0.171)]
    assert found.window_s == 0.171
    assert round(found.time_by_category_s["data"], 6) == 0.094


def test_a_step_ends_when_the_device_has_finished_its_work_and_the_next_begins_there(tmp_path: Path) -> None:
    """The host runs ahead: it launches step 2 while the device works on step 1."""
    events = [
        *(step(1, 0, 10 * MS), launch(1, 1 * MS), kernel("a", 2 * MS, 28 * MS, launch=1)),
        *(step(2, 10 * MS, 10 * MS), launch(2, 11 * MS), kernel("b", 30 * MS, 20 * MS, launch=2)),
    ]
    found = analyse_trace(read_trace(write_trace(tmp_path / "t.json", events))).summary
    assert [(time.step, time.duration_s) for time in found.steps] == [(1, 0.030), (2, 0.020)]
    assert [time.time_by_category_s["compute"] for time in found.steps] == [0.028, 0.020]


def test_the_first_step_begins_when_the_device_has_finished_what_was_launched_before_it(tmp_path: Path) -> None:
    """The launch of kernel 0 is not in the trace, since the profiler started after it."""
    events = [
        kernel("untraced", 0, 25 * MS, launch=0),
        *(step(1, 10 * MS, 10 * MS), launch(1, 11 * MS), kernel("a", 25 * MS, 28 * MS, launch=1)),
        *(step(2, 20 * MS, 10 * MS), launch(2, 21 * MS), kernel("b", 53 * MS, 20 * MS, launch=2)),
    ]
    found = analyse_trace(read_trace(write_trace(tmp_path / "t.json", events))).summary
    assert [(time.step, time.duration_s) for time in found.steps] == [(1, 0.028), (2, 0.020)]
    assert [time.time_by_category_s["compute"] for time in found.steps] == [0.028, 0.020]


def test_the_window_of_all_ranks_are_the_steps_that_all_have(tmp_path: Path) -> None:
    for rank, numbers in enumerate(((20, 21, 22), (21, 22, 23))):
        events = [e for n in numbers for e in device_step(n, 100 * n, data_ms=10, work_ms=20 + rank, total_ms=100)]
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    traces = [row.trace for row in build(tmp_path).traces]
    assert [round(trace.window_s, 9) for trace in traces] == [0.2, 0.2]
    assert [round(trace.time_by_category_s["compute"], 9) for trace in traces] == [0.04, 0.042]
    assert [len(trace.steps) for trace in traces] == [3, 3]


def test_the_work_of_an_analysis_does_not_grow_with_steps_times_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches are looked up, which sorts them, as often for 40 steps as for 4."""
    counts = []
    for steps in (4, 40):
        events = [e for n in range(steps) for e in device_step(n, 100 * n, data_ms=10, work_ms=20, total_ms=100)]
        trace = read_trace(write_trace(tmp_path / f"{steps}.json", events))
        calls: list[int] = []

        def counted(*given: Any, calls: list[int] = calls) -> Any:
            calls.append(1)
            return launch_times(*given)

        for module in (steps_module, time_breakdown, hta_breakdown, rank_record):
            monkeypatch.setattr(module, "launch_times", counted)
        assert len(analyse_trace(trace).summary.steps) == steps
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0
