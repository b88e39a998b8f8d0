"""The critical path of jobs whose slowest chain is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Muster, muster
from tests.tracing.kineto import DATA, Event, GpuRank, gpu_job, kernel, launch, step, training_steps, write_trace
from tests.tracing.run_folders import page_of, text_of

from muster.tracing.analysis.trace_summary import AnalysedTrace, summarise_trace_file
from muster.tracing.ranks.critical_path import CriticalPath, critical_path
from muster.tracing.ranks.rank_comparison import compare_ranks
from muster.tracing.report import build

__all__ = ["muster"]  # a fixture
MS = 1000.0


def path_of(folder: Path) -> CriticalPath:
    path = build(folder, with_critical_path=True).critical_path
    assert path is not None
    return path


def parts(path: CriticalPath) -> dict[tuple[str, str, int | None], float]:
    return {(part.kind, part.name, part.rank): round(part.ms, 3) for part in path.parts}


def test_the_path_of_a_step_goes_through_the_rank_that_the_others_wait_for(tmp_path: Path) -> None:
    """Rank 2 runs four kernels more: 60 ms of kernels, 0.5 ms of data before them, 1 ms of transfer."""
    folder = gpu_job(tmp_path, [GpuRank(), GpuRank(), GpuRank(extra=4), GpuRank()])
    path = path_of(folder)
    assert parts(path) == {
        ("kernel", "gemm", 2): 40.0,
        ("kernel", "extra_gemm", 2): 20.0,
        ("collective", "allreduce", 0): 1.0,
        ("host", "data", 2): 0.5,
        ("launch", "from the call to the kernel", 2): 0.01,
    }
    assert path.step_ms == pytest.approx(61.51)


def test_clocks_that_differ_do_not_change_the_path(tmp_path: Path) -> None:
    ranks = [GpuRank(), GpuRank(extra=4)]
    apart = path_of(gpu_job(tmp_path / "apart", ranks, clock_us=[0.0, 70_000.0]))
    assert parts(apart) == parts(path_of(gpu_job(tmp_path / "same", ranks)))


def two_phases(folder: Path, work_ms: Sequence[tuple[float, float]]) -> Path:
    """Ranks with two collectives in each step, and this many milliseconds of work before each."""
    begin, events = 0.0, [list[Event]() for _ in work_ms]
    for number in range(4):
        ready = [begin] * len(work_ms)
        for phase in range(2):
            first = 100 * number + 10 * phase
            entered = [at + work_ms[i][phase] * MS for i, at in enumerate(ready)]
            done = max(entered) + 2 * MS
            for i, at in enumerate(ready):
                of = (("Collective name", f"phase_{phase}"), ("Process Group Name", "0"))
                events[i] += [
                    *(launch(first, begin), launch(first + 1, begin + 1)),
                    kernel(f"work_{phase}", at, entered[i] - at, launch=first),
                    Event("ncclDevKernel", entered[i], done - entered[i], "kernel", 1, 20, first + 1, of),
                ]
            ready = [done] * len(work_ms)
        for i, end in enumerate(ready):
            events[i].append(step(number, begin, end - begin))
        begin = ready[0]
    for i, of_rank in enumerate(events):
        write_trace(folder / f"{i}.json", of_rank, rank=i, world_size=len(work_ms))
    return folder


def test_the_path_changes_the_rank_at_each_collective(tmp_path: Path) -> None:
    path = path_of(two_phases(tmp_path, [(30, 5), (10, 40)]))
    assert parts(path) == {
        ("kernel", "work_1", 1): 40.0,
        ("kernel", "work_0", 0): 30.0,
        ("collective", "phase_0", 1): 2.0,
        ("collective", "phase_1", 0): 2.0,
    }
    assert path.step_ms == pytest.approx(74.0)


def test_collectives_of_two_groups_in_opposite_order_do_not_lead_in_a_circle(tmp_path: Path) -> None:
    """Rank 0 enters X and then Y, rank 1 Y and then X: each would wait for the other."""
    for rank, order in enumerate(("XY", "YX")):
        events: list[Event] = []
        for number in range(3):
            begin = number * 100 * MS
            events.append(step(number, begin, 40 * MS))
            for at, group in enumerate(order):
                of = (("Collective name", group), ("Process Group Name", group))
                which = 10 * number + at
                events += [
                    launch(which, begin + at),
                    Event("ncclDevKernel", begin + (1 + 20 * at) * MS, 19 * MS, "kernel", 1, 20, which, of),
                ]
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    path = path_of(tmp_path)
    assert {"X", "Y"} <= {part.name for part in path.parts}


def test_of_two_streams_the_one_that_ended_last_is_on_the_path(tmp_path: Path) -> None:
    """Stream 7 computes 10 ms, stream 8 copies 15 ms; a kernel that was launched early waits for both."""
    events: list[Event] = []
    for number in range(3):
        at, first = number * 40 * MS, 10 * number
        events += [
            step(number, at, 30 * MS),
            *(launch(first + i, at + i) for i in range(3)),
            kernel("short", at + 10, 10 * MS, launch=first),
            Event("Memcpy HtoD (Pinned -> Device)", at + 10, 15 * MS, "gpu_memcpy", 1, 8, first + 1),
            kernel("after", at + 15.02 * MS, 10 * MS, launch=first + 2),
            Event("cudaDeviceSynchronize", at + 3, 25.1 * MS, "cuda_runtime"),
        ]
    write_trace(tmp_path / "0.json", events)
    path = path_of(tmp_path)
    assert parts(path) == {
        ("copy", "Memcpy HtoD (Pinned -> Device)", 0): 15.0,
        ("kernel", "after", 0): 10.0,
        ("host", "", 0): 4.898,  # after the synchronisation, and before the launch of the copy
        ("gap", "between kernels", 0): 0.093,  # before the last kernel, and until the synchronisation returned
        ("launch", "from the call to the kernel", 0): 0.009,
    }
    assert path.step_ms == pytest.approx(30.0)


def test_on_the_cpu_the_path_goes_through_the_operators_of_the_late_rank(tmp_path: Path) -> None:
    for rank, compute_us in enumerate((300, 800)):
        events = training_steps(compute_us=compute_us, wait_us=850 - compute_us)
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    found = {(part.kind, part.name, part.rank): part.ms for part in path_of(tmp_path).parts}
    assert max(found, key=lambda key: found[key]) == ("operator", "aten::mm", 1)


@pytest.mark.parametrize("name", ["control", "negative_queue", "ns_resolution.pt.trace"])
def test_the_parts_sum_to_the_time_of_the_steps_in_recorded_traces(name: str, tmp_path: Path) -> None:
    report = build(DATA / f"{name}.json.gz", tmp_path, with_critical_path=True)
    path = report.critical_path
    assert path is not None
    assert sum(part.ms for part in path.parts) == pytest.approx(path.step_ms)
    steps = report.traces[0].trace.steps
    assert path.step_ms == pytest.approx(1e3 * sum(s.duration_s for s in steps) / len(steps))
    assert all(part.ms > 0 for part in path.parts)


def test_on_one_stream_the_path_is_that_of_holistic_trace_analysis() -> None:
    """HTA 0.5.0, critical_path_analysis(rank, "ProfilerStep", instance_id) for 1 to 3, in whole microseconds rounded
    inwards: kernels and the delays between them."""
    (analysed,) = summarise_trace_file(DATA / "ns_resolution.pt.trace.json.gz", critical_path=True)
    assert isinstance(analysed, AnalysedTrace)
    assert analysed.record is not None
    ranks = compare_ranks([analysed.record])
    assert ranks is not None
    totals, kinds = [], set()
    for number in (102, 103, 104):
        path = critical_path(replace(ranks, steps=(number,)))
        assert path is not None
        totals.append(path.step_ms)
        kinds |= {part.kind for part in path.parts}
    assert totals == pytest.approx([93.692 + 2.043, 93.524 + 2.045, 93.671 + 1.991], abs=0.003)
    assert kinds <= {"kernel", "copy", "gap", "other"}


def test_the_path_is_in_json_terminal_and_page_if_it_was_asked_for(tmp_path: Path, muster: Muster) -> None:
    folder = gpu_job(tmp_path, [GpuRank(), GpuRank(blocked=("data", 30, 1))])
    plain = json.loads(muster("trace", "analyze", str(folder), "--json").out)
    assert plain["critical_path"] is None
    found = json.loads(muster("trace", "analyze", str(folder), "--json", "--critical-path").out)["critical_path"]
    assert sum(part["ms"] for part in found["parts"]) == pytest.approx(found["step_ms"])
    assert found["parts"][1] == {"kind": "host", "name": "data", "rank": 1, "ms": 30.0}
    assert "30.0 ms (42.2%): host in 'data', rank 1" in muster("trace", "analyze", str(folder), "--critical-path").out
    report = build(folder, with_critical_path=True)
    assert "Critical path: 71.0 ms a step" in text_of(report)
    assert "host in &#39;data&#39;, rank 1" in page_of(report)
