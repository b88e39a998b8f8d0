"""The memory during the traced steps, from `[memory]` events of the profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tracing.kineto import step, trace_text
from tests.tracing.run_folders import Page, page_of

from muster.tracing.read.events import MemorySamples
from muster.tracing.read.json_stream import TraceLimits
from muster.tracing.reader import read_trace
from muster.tracing.report import build
from muster.tracing.trace_details import Detail
from muster.tracing.work.memory_curve import MEMORY_SLOTS

GIB = 2**30
CPU, CUDA = 0, 1


def sample(at_us: Any, allocated: Any, device_type: Any = CUDA) -> dict[str, Any]:
    """As torch 2.13 writes it."""
    args = {"Total Reserved": 0, "Total Allocated": allocated, "Bytes": 1, "Device Id": 0, "Device Type": device_type}
    kind = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1}
    return {**kind, "ts": at_us, "args": args}


def traced(path: Path, *samples: dict[str, Any], rank: int = 0, world_size: int = 1) -> Path:
    """A trace of the steps 20 and 21, each of 1 ms, from 1 s on."""
    steps = [step(20, 1e6, 1000), step(21, 1e6 + 1000, 1000)]
    document = json.loads(trace_text(steps, rank=rank, world_size=world_size))
    document["traceEvents"] += samples
    path.write_text(json.dumps(document))
    return path


def test_each_part_of_the_traced_steps_has_the_largest_value_that_was_held_in_it(tmp_path: Path) -> None:
    """A peak of 5 µs, half of a part, is not lost; before the first sample, its value is assumed."""
    held = [sample(1e6 + 100, GIB), sample(1e6 + 502, 3 * GIB), sample(1e6 + 507, 2 * GIB), sample(1e6 + 2500, 9 * GIB)]
    (row,) = build(traced(tmp_path / "a.json", *held)).traces
    assert row.trace.memory is not None
    assert row.trace.memory.duration_s == pytest.approx(0.002)
    assert row.trace.memory.bytes == (*[GIB] * 50, 3 * GIB, *[2 * GIB] * (MEMORY_SLOTS - 51))


def test_samples_before_the_first_step_say_what_is_held_when_it_begins(tmp_path: Path) -> None:
    (row,) = build(traced(tmp_path / "a.json", sample(1e6 - 5, 7 * GIB), sample(1e6 + 1000, GIB))).traces
    assert row.trace.memory is not None
    assert row.trace.memory.bytes == (*[7 * GIB] * 101, *[GIB] * 99)


def test_samples_of_the_device_are_used_if_there_are_any(tmp_path: Path) -> None:
    cpu, cuda = sample(1e6 + 20, 5, CPU), sample(1e6 + 10, 4, CUDA)
    for samples, held in (([cpu, cuda], 4), ([cpu], 5)):
        memory = read_trace(traced(tmp_path / "a.json", *samples)).memory
        assert memory is not None
        assert memory.allocated.tolist() == [held]


def test_samples_are_ordered_by_time_from_the_origin_of_the_trace(tmp_path: Path) -> None:
    memory = read_trace(
        traced(tmp_path / "a.json", sample(1e6 + 2.5, 2), sample(1e6 + 1, 1), sample(1e6 + 2.5, 3))
    ).memory
    assert memory is not None
    assert isinstance(memory, MemorySamples)
    assert memory.time.tolist() == [1000, 2500, 2500]
    assert memory.allocated.tolist() == [1, 2, 3]


def test_samples_are_read_together_with_details_of_events(tmp_path: Path) -> None:
    trace = read_trace(traced(tmp_path / "a.json", sample(1e6 + 1, 8)), details={Detail.COUNTERS})
    assert trace.memory is not None
    assert trace.memory.allocated.tolist() == [8]


@pytest.mark.parametrize(
    "invalid",
    [sample(None, 1), sample(1e300, 1), sample(1e6, -1), sample(1e6, "x"), sample(1e6, 1e300), sample(1e6, 1, None),
     sample(1e6, [1]), {**sample(1e6, 1), "args": None}, {**sample(1e6, 1), "name": "other"}],
)  # fmt: skip
def test_what_is_no_sample_is_left_out(tmp_path: Path, invalid: dict[str, Any]) -> None:
    memory = read_trace(traced(tmp_path / "a.json", invalid, sample(1e6 + 1, 8))).memory
    assert memory is not None
    assert memory.allocated.tolist() == [8]


def test_samples_count_for_the_limit_of_events(tmp_path: Path) -> None:
    path = traced(tmp_path / "a.json", *[sample(1e6 + i, i) for i in range(100)])
    assert len(np.unique(read_trace(path, TraceLimits(events=102)).memory.time)) == 100  # type: ignore[union-attr]
    report = build([path, traced(tmp_path / "b.json")], limits=TraceLimits(events=101))
    assert [(skipped.file, "at most 101 events" in skipped.reason) for skipped in report.skipped] == [("a.json", True)]


def test_a_trace_without_samples_or_steps_has_no_curve(tmp_path: Path) -> None:
    without_samples, late = traced(tmp_path / "a.json"), traced(tmp_path / "b.json", sample(1e6 + 2001, GIB))
    without_steps = traced(tmp_path / "c.json", sample(1e6, GIB))
    without_steps.write_text(without_steps.read_text().replace("ProfilerStep#", "step "))
    for path in (without_samples, late, without_steps):
        report = build(path)
        assert report.traces[0].trace.memory is None
        assert "Memory during the traced steps" not in Page(page_of(report)).texts


@pytest.mark.parametrize(("ranks", "shown"), [(2, [0, 1]), (6, [0, 3, 5])])
def test_the_page_shows_the_memory_of_few_ranks_with_their_peaks(tmp_path: Path, ranks: int, shown: list[int]) -> None:
    for rank in range(ranks):
        samples = [sample(1e6, GIB), sample(1e6 + 700, (2 + rank) * GIB)]
        traced(tmp_path / f"{rank}.json", *samples, rank=rank, world_size=ranks)
    text = page_of(build(tmp_path))
    assert [f"rank {rank}, up to {2 + rank}.00 GiB" in text for rank in range(ranks)] == [
        r in shown for r in range(ranks)
    ]
    assert "Memory during the traced steps" in Page(text).texts
    curves = [f"rank {rank}: {2 + rank}.00 GiB" for rank in shown]
    assert "\n".join([" ms", *curves]) in text
    assert ("of 6 traces" in text) == (ranks == 6)
