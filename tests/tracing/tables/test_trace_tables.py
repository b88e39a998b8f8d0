"""Tables of one trace by name: equal to HolisticTraceAnalysis 0.5.0 on its sample traces with its rules."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.tracing.kineto import DATA, Event, kernel, launch, step, write_trace

from muster.errors import InvalidSpec, InvalidTrace
from muster.tracing.reader import read_trace
from muster.tracing.tables.counter_tracks import write_with_counters
from muster.tracing.trace_details import Detail
from muster.tracing.trace_tables import TABLES, TableOptions, read_table

HTA = TableOptions(hta=True)


def rows(name: str, trace: str | Path, options: TableOptions | None = None) -> list[dict[str, Any]]:
    return list(read_table(name, DATA / trace, options).rows)


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (
            "simple_add.json.gz",
            [
                ("Memcpy HtoD", 16, 4.823488, 3.580551, 0.140351, 0.750520, 5.747709, 7.730995, 11.095159),
                ("Memset", 3, 1.705265, 2.560496, 0.225352, 0.226962, 0.228571, 2.445221, 4.661871),
            ],
        ),
        (
            "negative_queue.json.gz",
            [
                ("Memcpy DtoD", 912, 146.868819, 269.532964, 0.000641, 0.236601, 3.683453, 95.100990, 865.161716),
                ("Memcpy DtoH", 24, 0.124136, 0.122813, 0.001798, 0.008286, 0.080758, 0.259122, 0.333333),
                ("Memcpy HtoD", 64, 4.892028, 6.231704, 0.006309, 0.065309, 0.130279, 11.382923, 21.165501),
                ("Memset", 200, 0.410212, 0.649649, 0.002688, 0.065599, 0.110392, 0.640026, 2.909091),
            ],
        ),
        (
            "control.json.gz",
            [
                ("Memcpy DtoD", 15, 536.362405, 383.723660, 26.438662, 37.024163, 667.385438, 890.658704, 934.013921),
                ("Memcpy DtoH", 50, 0.656950, 1.226037, 0.002273, 0.003906, 0.018322, 0.439547, 3.708333),
                ("Memcpy HtoD", 125, 5.378974, 3.077306, 0.000616, 3.537688, 5.822446, 6.829601, 11.696848),
                ("Memset", 545, 15.955759, 96.088034, 0.000929, 0.004808, 0.014706, 0.110577, 693.389474),
            ],
        ),
    ],
)
def test_memory_bandwidths_equal_htas(trace: str, expected: list[tuple[Any, ...]]) -> None:
    """get_memory_bw_summary: kind, copies, mean, standard deviation, minimum, quartiles, maximum in GB/s."""
    found = rows("memory-bandwidth", trace, HTA)
    assert [(row["kind"], row["copies"]) for row in found] == [row[:2] for row in expected]
    for row, of_hta in zip(found, expected, strict=True):
        own = [row["mean_gbps"], row["stddev_gbps"], row["min_gbps"], *row["quartiles_gbps"], row["max_gbps"]]
        assert own == pytest.approx(of_hta[2:], abs=1e-6)


def test_annotations_on_the_device_equal_htas() -> None:
    """get_gpu_user_annotation_breakdown, without those that begin in the last step, in microseconds."""
    found = rows("annotations", "ns_resolution.pt.trace.json.gz", HTA)
    assert [(row["name"], row["calls"], row["total_ns"] / 1e3) for row in found] == [
        ("DistributedDataParallel.forward", 4, 123_880),
        ("Optimizer.step#SGD.step", 3, 3334),
        ("## backward ##", 3, 81),
    ]
    assert [(row["min_ns"] / 1e3, row["max_ns"] / 1e3) for row in found] == [(30399, 32432), (1109, 1114), (26, 28)]
    assert [row["stddev_ns"] / 1e3 for row in found] == pytest.approx([976.649033, 2.516611, 1.0])


def test_annotations_of_kernels_equal_htas() -> None:
    """get_gpu_kernels_with_user_annotations: calls and microseconds by annotation."""
    found: dict[str, list[int]] = {}
    for row in rows("annotated-kernels", "ns_resolution.pt.trace.json.gz", HTA):
        total = found.setdefault(row["annotation"], [0, 0])
        total[0] += 1
        total[1] += row["duration_ns"] // 1000
    assert found == {
        "": [3315, 252_212],
        "## backward ##": [17, 55],
        "DistributedDataParallel.forward": [1517, 118_956],
        "Optimizer.step#SGD.step": [27, 3298],
    }


def test_a_kernel_belongs_to_the_innermost_annotation_on_its_own_stream(tmp_path: Path) -> None:
    marks = [
        Event(name, start, length, "gpu_user_annotation", stream=stream)
        for name, start, length, stream in (("outer", 0, 100, 7), ("inner", 20, 30, 7), ("other", 0, 100, 9))
    ]
    kernels = [kernel("a", 0, 20), kernel("b", 20, 10), kernel("c", 45, 10), kernel("d", 60, 40), kernel("e", 100, 5)]
    path = write_trace(tmp_path / "0.json", [*marks, *kernels])
    found = rows("annotated-kernels", path)
    assert [(row["name"], row["annotation"]) for row in found] == [
        ("a", "outer"), ("b", "inner"), ("c", "inner"), ("d", "outer"), ("e", ""),
    ]  # fmt: skip


def test_kernels_equal_htas() -> None:
    """get_gpu_kernel_breakdown: also waits for events of other streams; communication by name only."""
    found = {row["name"]: row for row in rows("kernels", "simple_add.json.gz", HTA)}
    assert len(found) == 19
    wait = found["Stream Wait Event"]
    assert (wait["kind"], wait["calls"], wait["total_ns"], wait["max_ns"]) == ("compute", 20, 8_000, 3_000)
    assert "Stream Wait Event" not in {row["name"] for row in rows("kernels", "simple_add.json.gz")}


@pytest.mark.parametrize("hta", [False, True])
def test_kernels_have_their_kind_by_recorded_collectives_except_by_htas_rules(tmp_path: Path, hta: bool) -> None:
    events = [kernel("hipblasLt_gemm_kernel", 0, 10), kernel("cross_device_reduce_2stage<half>", 20, 5)]
    path = write_trace(tmp_path / "0.json", events)
    expected = ["compute", "compute"] if hta else ["compute", "communication"]
    assert [row["kind"] for row in rows("kernels", path, TableOptions(hta=hta))] == expected


def test_times_by_kernel_types_equal_htas() -> None:
    """get_gpu_kernel_breakdown, its first table, in microseconds and percent."""
    found = rows("kernel-types", "negative_queue.json.gz", HTA)
    assert [(row["kinds"], row["time_ns"] / 1e3, round(row["share_pct"], 1)) for row in found] == [
        (("compute",), 138794, 44.7),
        (("communication",), 134025, 43.1),
        (("memory",), 32246, 10.4),
        (("compute", "memory"), 3171, 1.0),
        (("compute", "communication"), 1871, 0.6),
        (("communication", "memory"), 594, 0.2),
    ]


@pytest.mark.parametrize(
    ("trace", "operator", "calls"),
    [("simple_add.json.gz", "aten::conv", [6, 1, 1, 1, 1]), ("control.json.gz", "aten::linear", [10]),
     ("control.json.gz", "Optimizer.step", [5]), ("control.json.gz", "aten::", [])],
)  # fmt: skip
def test_sequences_of_kernels_equal_htas(trace: str, operator: str, calls: list[int]) -> None:
    """get_frequent_cuda_kernel_sequences, of the operators with the fewest events around them."""
    found = rows("sequences", trace, TableOptions(operator=operator, hta=True))
    assert [row["calls"] for row in found] == calls


def test_launches_by_the_driver_count_except_by_htas_rules() -> None:
    assert len(rows("launches", "nccl_self_send.json.gz", HTA)) == 0
    assert len(rows("launches", "nccl_self_send.json.gz")) == 6


def test_memory_bandwidths_at_edges_of_the_same_microsecond_nearly_equal_htas() -> None:
    """HTA sorts edges at the same time in any order, here seven of 2,560, and counts what rounding leaves of sums."""
    copies, memset = rows("memory-bandwidth", "ns_resolution.pt.trace.json.gz", HTA)
    assert copies["mean_gbps"] == pytest.approx(33.091919, rel=3e-3)
    assert copies["quartiles_gbps"] == pytest.approx((0.2, 0.8, 3.2))
    assert memset["mean_gbps"] == pytest.approx(257.814248, abs=1e-6)


@pytest.mark.parametrize(
    ("trace", "sequences", "calls", "launch_us", "start_us"),
    [("simple_add.json.gz", 10, 53, 11638020, 4226934), ("ns_resolution.pt.trace.json.gz", 64, 2320, 35934, 149324987),
     ("control.json.gz", 153, 6075, 80043, 11566133)],
)  # fmt: skip
def test_delays_from_operators_to_kernels_equal_htas(
    trace: str, sequences: int, calls: int, launch_us: int, start_us: int
) -> None:
    """get_aten_op_kernels_and_delay: rows, calls, and sums of its means weighted by calls, which it rounds to 1 ns."""
    found = rows("operator-delays", trace, HTA)
    assert (len(found), sum(row["calls"] for row in found)) == (sequences, calls)
    assert sum(row["calls"] * row["launch_delay_ns"] for row in found) == pytest.approx(launch_us * 1000)
    assert sum(row["calls"] * row["start_delay_ns"] for row in found) == pytest.approx(start_us * 1000)


def test_of_operators_that_begin_at_once_the_inner_one_launched_the_kernel() -> None:
    """HTA takes either of two that begin in the same microsecond: `aten::zero_` for `aten::fill_` in 6 calls."""
    found = rows("operator-delays", "negative_queue.json.gz", HTA)
    assert sum(row["calls"] for row in found) == 3792
    assert sum(row["calls"] * row["start_delay_ns"] for row in found) == pytest.approx(511_027_996_000, rel=1e-6)
    assert not [row for row in found if row["operator"] == "aten::zero_"]


def copy(name: str, start: float, duration: float, size: int, correlation: int) -> tuple[Event, Event]:
    args = (("bytes", size), ("memory bandwidth (GB/s)", size / duration / 1e3))
    return (
        Event("cudaMemcpyAsync", start - 5, 1, "cuda_runtime", correlation=correlation),
        Event(name, start, duration, "gpu_memcpy", stream=correlation, correlation=correlation, args=args),
    )


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """10 us at 10 GB/s, another stream's 10 us at 4 GB/s from the middle of that, and 90 us at 1 GB/s."""
    name = "Memcpy HtoD (Pinned -> Device)"
    events = [step(0, 0, 1000), *copy(name, 100, 10, 100_000, 1), *copy(name, 105, 10, 40_000, 2)]
    return write_trace(tmp_path / "0.json", [*events, *copy(name, 200, 90, 90_000, 3)])


def test_the_bandwidth_is_the_sum_of_running_copies_and_its_mean_is_over_time(copies: Path) -> None:
    (found,) = rows("memory-bandwidth", copies)
    assert (found["kind"], found["copies"], found["bytes"], found["busy_ns"]) == ("Memcpy HtoD", 3, 230_000, 105_000)
    assert found["mean_gbps"] == pytest.approx(230_000 / 105_000)
    assert (found["min_gbps"], found["max_gbps"]) == (pytest.approx(1), pytest.approx(14))
    assert found["quartiles_gbps"] == pytest.approx((1, 1, 1))
    changes = [(row["time_ns"], round(row["gbps"], 6)) for row in rows("bandwidth-changes", copies)]
    assert changes == [
        *((100_000, 10.0), (105_000, 14.0), (110_000, 4.0), (115_000, 0.0)),
        *((200_000, 1.0), (290_000, 0.0)),
    ]


def test_a_copy_without_a_recorded_bandwidth_has_its_bytes_by_its_duration(tmp_path: Path) -> None:
    plain = Event("Memset (Device)", 10, 4, "gpu_memset", stream=7, correlation=1, args=(("bytes", 8000),))
    (found,) = rows("memory-bandwidth", write_trace(tmp_path / "0.json", [step(0, 0, 50), plain]))
    assert (found["kind"], found["mean_gbps"], found["stddev_gbps"]) == ("Memset", 2.0, 0.0)


def test_a_launch_belongs_to_the_innermost_operator_of_its_own_thread(tmp_path: Path) -> None:
    events = [
        Event("my::layer", 0, 100),
        Event("aten::mm", 10, 30),
        launch(1, 20),
        kernel("gemm", 50, 5, launch=1),
        Event("aten::other", 15, 60, thread=2),  # began later, on another thread
        launch(2, 60),
        kernel("custom", 70, 5, launch=2),
    ]
    path = write_trace(tmp_path / "0.json", events)
    assert rows("operator-delays", path) == [
        {"operator": "aten::mm", "kernels": ("gemm",), "calls": 1, "launch_delay_ns": 10_000, "start_delay_ns": 30_000},
        {"operator": "my::layer", "kernels": ("custom",), "calls": 1, "launch_delay_ns": 60_000,
         "start_delay_ns": 10_000},
    ]  # fmt: skip
    assert {row["operator"] for row in rows("operator-delays", path, HTA)} == {"aten::other"}


@pytest.fixture
def measured() -> list[Event]:
    """Two kernels with counters, as CUPTI's range profiler writes them."""
    ranges = [("relu", 440, 80, 2.25), ("gemm", 160, 1200, 33.5)]
    return [
        *(Event("aten::linear", 100, 200), Event("aten::addmm", 120, 150), Event("aten::relu", 400, 100)),
        *(Event("cudaLaunchKernel", start, 10, "cuda_runtime") for start in (150, 430)),
        *(Event(name, start, 30, "cuda_profiler_range", args=(("inst", inst), ("cycles", cycles), ("unit", "x")))
          for name, start, inst, cycles in ranges),
    ]  # fmt: skip


def test_counters_of_kernels_are_with_the_operators_that_launched_them(measured: list[Event], tmp_path: Path) -> None:
    """HTA's get_cupti_counter_data_with_operators pairs the ranges and the launches by their order, too."""
    assert rows("kernel-counters", write_trace(tmp_path / "0.json", measured)) == [
        {"kernel": "gemm", "start_ns": 60_000, "operators": ("aten::linear", "aten::addmm"),
         "counters": {"inst": 1200.0, "cycles": 33.5}},
        {"kernel": "relu", "start_ns": 340_000, "operators": ("aten::relu",),
         "counters": {"inst": 80.0, "cycles": 2.25}},
    ]  # fmt: skip


def test_counters_have_no_operators_if_launches_are_missing(measured: list[Event], tmp_path: Path) -> None:
    without = [event for event in measured if event.start != 430]
    found = rows("kernel-counters", write_trace(tmp_path / "0.json", without))
    assert [(row["kernel"], row["operators"]) for row in found] == [("gemm", ()), ("relu", ())]


def test_every_table_of_a_trace_without_device_work_is_empty(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "0.json", [Event("aten::mm", 0, 10)])
    for name in TABLES:
        assert rows(name, path, TableOptions(operator="mm")) == []
    with pytest.raises(InvalidSpec, match="needs the name of an operator"):
        rows("sequences", path)


@pytest.mark.parametrize("document", ["object", "array", "gzip"])
def test_a_trace_with_counters_has_all_of_its_events_and_the_counters(
    copies: Path, tmp_path: Path, document: str
) -> None:
    text = copies.read_text()
    original = json.loads(text)["traceEvents"]
    if document == "array":
        copies.write_text(json.dumps(original))
    if document == "gzip":
        copies.with_name("0.json.gz").write_bytes(gzip.compress(copies.read_bytes()))
        copies = copies.with_name("0.json.gz")
    written = write_with_counters(copies, tmp_path / "out")
    assert written == tmp_path / "out" / "0.counters.json.gz"
    assert list(written.parent.iterdir()) == [written]
    found = json.loads(gzip.decompress(written.read_bytes()))
    events = found if document == "array" else found.pop("traceEvents")
    assert [event for event in events if event["ph"] != "C"] == original
    if document != "array":
        assert found == {key: value for key, value in json.loads(text).items() if key != "traceEvents"}
    counters = [event for event in events if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {*(f"queue length {n}" for n in (1, 2, 3)), "bandwidth Memcpy HtoD"}
    first = next(event for event in counters if event["name"] == "queue length 1")
    assert first == {"ph": "C", "name": "queue length 1", "pid": 0, "ts": 95.0, "args": {"launches": 1}}
    again = read_trace(written, details={Detail.COUNTERS})
    assert len(again.events) == len(original)


def test_a_planted_link_in_the_folder_of_the_copy_is_not_followed(copies: Path, tmp_path: Path) -> None:
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    victim.write_text("mine")
    for name in (f".0.counters.json.gz.{os.getpid()}.tmp", "0.counters.json.gz"):
        (out / name).symlink_to(victim)
    written = write_with_counters(copies, out)
    assert victim.read_text() == "mine"
    assert not written.is_symlink()
    assert len(read_trace(written, details={Detail.COUNTERS}).events)


def test_a_damaged_trace_leaves_no_copy(tmp_path: Path) -> None:
    damaged = tmp_path / "0.json"
    damaged.write_bytes((write_trace(tmp_path / "1.json", [Event("aten::mm", 0, 10)])).read_bytes()[:-20])
    with pytest.raises(InvalidTrace, match="must be a whole trace; what follows the events is damaged"):
        write_with_counters(damaged, tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))
