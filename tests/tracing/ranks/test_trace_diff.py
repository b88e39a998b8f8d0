"""What changed between two sets of traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tracing.kineto import Event, kernel, launch, step, write_trace

from muster.errors import InvalidTrace
from muster.tracing.account.rank_record import RankRecord
from muster.tracing.analysis.rank_records import read_rank_records
from muster.tracing.analysis.trace_summary import AnalysedTrace, summarise_trace_file
from muster.tracing.ranks.trace_diff import diff_work


def record(path: Path, events: list[Event], rank: int = 0, world_size: int = 1) -> RankRecord:
    (found,) = summarise_trace_file(write_trace(path, events, rank=rank, world_size=world_size))
    assert isinstance(found, AnalysedTrace)
    assert found.record is not None
    return found.record


def gpu_steps(count: int, kernels: list[tuple[str, float]]) -> list[Event]:
    """Steps of 10 ms with these kernels (name, microseconds), one after the other."""
    events = []
    for number in range(count):
        at = 10_000.0 * number
        events.append(step(number, at, 10_000))
        for index, (name, duration) in enumerate(kernels):
            identifier = 100 * number + index + 1
            begin = at + 10 + 1000.0 * index
            events += [launch(identifier, begin - 5), kernel(name, begin, duration, launch=identifier)]
    return events


def test_a_slower_kernel_is_named_first_with_its_time_per_step(tmp_path: Path) -> None:
    before = record(tmp_path / "a.json", gpu_steps(2, [("gemm", 500), ("softmax", 300)]))
    after = record(tmp_path / "b.json", gpu_steps(4, [("gemm", 500), ("softmax", 390), ("softmax", 10)]))
    first, second = diff_work([before], [after])
    assert (first.kind, first.name, first.a_calls, first.b_calls) == ("kernel", "softmax", 1, 2)
    assert (first.a_ms, first.b_ms, first.change_ms) == pytest.approx((0.3, 0.4, 0.1))
    assert second.name == "gemm"
    assert second.change_ms == pytest.approx(0)
    assert first.describe() == "kernel softmax: +0.1 ms a step (0.3 -> 0.4 ms, 1 -> 2 calls)"


def test_kernels_of_one_side_only_count_as_zero_on_the_other(tmp_path: Path) -> None:
    before = record(tmp_path / "a.json", gpu_steps(2, [("old", 700)]))
    after = record(tmp_path / "b.json", gpu_steps(2, [("new", 200)]))
    assert [(one.name, one.a_ms, one.b_ms) for one in diff_work([before], [after])] == [
        ("old", pytest.approx(0.7), 0.0),
        ("new", 0.0, pytest.approx(0.2)),
    ]


def test_collectives_are_named_and_times_are_means_over_ranks(tmp_path: Path) -> None:
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)"
    before = [record(tmp_path / f"a{rank}.json", gpu_steps(2, [(name, 100)]), rank, 2) for rank in range(2)]
    after = [record(tmp_path / f"b{rank}.json", gpu_steps(2, [(name, 200 + 100 * rank)]), rank, 2) for rank in range(2)]
    (change,) = diff_work(before, after)
    assert change.kind == "collective"
    assert (change.a_calls, change.b_calls, change.a_ms, change.b_ms) == pytest.approx((1, 1, 0.1, 0.25))


def test_without_a_device_operators_are_compared_by_their_own_time(tmp_path: Path) -> None:
    def events(duration: float) -> list[Event]:
        return [
            step(1, 0, 1000),
            Event("aten::mm", 10, duration),
            step(2, 1000, 1000),
            Event("aten::mm", 1010, duration),
        ]

    (change,) = diff_work([record(tmp_path / "a.json", events(100))], [record(tmp_path / "b.json", events(150))])
    assert (change.kind, change.name, change.a_calls, change.b_calls) == ("operator", "aten::mm", 1, 1)
    assert (change.a_ms, change.b_ms) == pytest.approx((0.1, 0.15))
    assert change.describe() == "operator aten::mm: +0.05 ms a step (0.1 -> 0.15 ms, 1 calls)"


def test_ranks_are_read_from_a_folder_or_one_trace_and_a_side_without_traces_is_refused(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / "run" / f"{rank}.json", gpu_steps(2, [("gemm", 500)]), rank=rank, world_size=2)
    assert [one.rank for one in read_rank_records([tmp_path / "run"])] == [0, 1]
    assert [one.rank for one in read_rank_records([tmp_path / "run" / "1.json"])] == [1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidTrace, match="empty: must have a readable trace"):
        read_rank_records([tmp_path / "empty"])
