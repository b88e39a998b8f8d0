"""Tables of device work: equal to HolisticTraceAnalysis 0.5.0 on its sample traces, with its rounding and steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.tracing.kineto import DATA, Event, kernel, launch, step, write_trace

from muster.tracing.read.events import Events, Trace
from muster.tracing.reader import read_trace
from muster.tracing.tables.device_tables import (
    annotation_table,
    kernel_sequences,
    kernel_table,
    launch_table,
    queue_changes,
    queue_lengths,
)
from muster.tracing.trace_tables import TABLES, TableOptions
from muster.tracing.work.hta_breakdown import round_to_microseconds, select_device_work


@cache
def sample(name: str) -> tuple[Trace, Events]:
    """A trace and its device work as HTA uses them."""
    trace = round_to_microseconds(read_trace(DATA / name))
    return trace, select_device_work(trace, include_last_step=False)


def test_launches_equal_htas() -> None:
    """get_cuda_kernel_launch_stats: count, means, median and largest delay in microseconds."""
    for name, count, call, work, delay, median, largest in (
        ("control.json.gz", 7875, 14.609524, 52.564698, 2014.605333, 614, 11527),
        ("ns_resolution.pt.trace.json.gz", 4876, 39.394586, 76.809065, 66048.567884, 76013, 90938),
    ):
        table = launch_table(*sample(name))
        assert len(table) == count
        means = [column.mean() / 1e3 for column in (table.call_ns, table.work_ns, table.delay_ns)]
        assert means == pytest.approx([call, work, delay], abs=1e-6)
        assert [float(np.median(table.delay_ns)), int(table.delay_ns.max())] == [1000 * median, 1000 * largest]


def test_queue_lengths_equal_htas() -> None:
    """get_queue_length_summary, and get_time_spent_blocked_on_full_queue with 100. The order at equal times is that of
    HTA's sort, so the mean of stream 7 differs by 0.1%."""
    first, *others = queue_lengths(*sample("control.json.gz"), full=100)
    assert [first.stream, first.changes, first.minimum, first.maximum, first.full_ns] == [7, 14940, 0, 287, 41_580_000]
    assert list(first.quartiles) == [1, 17, 43]
    assert first.mean == pytest.approx(35.432396, rel=1e-3)
    found = [(row.stream, row.changes, row.mean, row.stddev, row.maximum) for row in others]
    expected = [(20, 470, 2.576596, 2.664920, 10), (21, 100, 0.76, 0.668482, 2), (22, 240, 10.591667, 6.503293, 22)]
    for row, of_hta in zip(found, expected, strict=True):
        assert list(row) == pytest.approx(list(of_hta), abs=1e-6)


def test_the_length_of_a_queue_is_negative_only_as_htas(tmp_path: Path) -> None:
    """HTA 0.5.0 sums launches and starts of kernels in order of time; the clock of this device is behind."""
    events = [launch(1, 10), kernel("k", 9, 5, launch=1), launch(2, 20), kernel("k", 30, 5, launch=2)]
    trace = read_trace(write_trace(tmp_path / "0.json", events))
    (clamped,), (of_hta,) = (queue_changes(trace, trace.device_work, hta=hta) for hta in (False, True))
    assert (clamped.length.tolist(), of_hta.length.tolist()) == ([0, 0, 1, 0], [-1, 0, 1, 0])
    (row,), (row_of_hta,) = (queue_lengths(trace, trace.device_work, hta=hta) for hta in (False, True))
    assert (row.minimum, row.mean, row_of_hta.minimum, row_of_hta.mean) == (0, 0.25, -1, 0.0)
    for hta, least in ((False, 0), (True, -1)):
        options = TableOptions(hta=hta)
        for name, column in (("queue-changes", "length"), ("queue-lengths", "minimum")):
            rows = TABLES[name].build(trace, trace.device_work, options)
            assert min(found[column] for found in rows) == least


def test_kernels_have_the_spread_of_their_durations(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "0.json", [kernel("gemm", 0, 10), kernel("gemm", 20, 14), kernel("nccl_x", 40, 5)])
    trace = read_trace(path)
    gemm, other = kernel_table(trace, trace.device_work)
    assert (gemm.kind, gemm.calls, gemm.total_ns, gemm.min_ns, gemm.max_ns) == ("compute", 2, 24_000, 10_000, 14_000)
    assert gemm.mean_ns == 12_000
    assert gemm.stddev_ns == pytest.approx(2_000 * 2**0.5)
    assert (other.kind, other.stddev_ns) == ("communication", None)


def operator_calls(tmp_path: Path) -> Trace:
    """`attention` three times, the last one with another kernel; inside each an operator of the same name."""
    events = [step(0, 0, 1000)]
    for i in range(3):
        at, first = 100.0 * i, 10 * i
        names = ("q", "k", "v" if i < 2 else "other")
        events += [Event("attention", at, 50), Event("attention_inner", at + 1, 40)]
        for j, name in enumerate(names):
            events += [launch(first + j, at + 2 + j), kernel(name, at + 60 + 10 * j, 8, launch=first + j)]
    return read_trace(write_trace(tmp_path / "0.json", events))


def test_sequences_of_kernels_are_counted_by_the_outermost_operator(tmp_path: Path) -> None:
    trace = operator_calls(tmp_path)
    most, other = kernel_sequences(trace, trace.device_work, "attention")
    assert (most.operator, most.kernels, most.calls) == ("attention", ("q", "k", "v"), 2)
    assert (most.kernels_ns, most.operator_ns) == (48_000, 100_000)
    assert (other.kernels, other.calls) == (("q", "k", "other"), 1)


def test_operators_with_few_kernels_have_no_sequences(tmp_path: Path) -> None:
    trace = operator_calls(tmp_path)
    assert kernel_sequences(trace, trace.device_work, "attention", min_kernels=4) == ()
    assert kernel_sequences(trace, trace.device_work, "unknown") == ()


def test_a_trace_without_device_work_has_empty_tables(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "0.json", [Event("aten::mm", 0, 10)]))
    assert kernel_table(trace, trace.device_work) == ()
    assert queue_lengths(trace, trace.device_work) == ()
    assert annotation_table(trace) == ()
    assert len(launch_table(trace, trace.device_work)) == 0
