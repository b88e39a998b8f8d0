"""Equal results to HolisticTraceAnalysis with its defaults, on its own sample traces, to the microsecond."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from tests.tracing.kineto import DATA, Event, kernel, launch, step, write_trace

from muster.tracing.analysis.trace_summary import HtaMetrics, hta_measures
from muster.tracing.read.events import Trace
from muster.tracing.read.spans import coverage
from muster.tracing.reader import read_trace
from muster.tracing.work.hta_breakdown import (
    HtaVersion,
    KernelType,
    StreamIdle,
    idle_by_stream,
    kernel_type,
    kernel_types,
    round_to_microseconds,
    select_device_work,
)

COMPUTE, COMMUNICATION, MEMORY = KernelType


@cache
def sample(name: str) -> Trace:
    return read_trace(DATA / name)


@pytest.mark.parametrize(
    ("name", "idle", "compute", "non_compute", "total", "overlap"),
    [
        ("ns_resolution.pt.trace.json.gz", 10113, 372150, 2371, 384634, None),
        ("negative_queue.json.gz", 705853, 143836, 166865, 1016554, 1.37),
        ("control.json.gz", 62119, 234760, 86525, 383404, 47.03),
        ("simple_add.json.gz", 16414376, 10676, 39287, 16464339, None),  # HTA counts waits of streams as work
    ],
)
def test_temporal_breakdown_and_overlap_equal_htas(
    name: str, idle: int, compute: int, non_compute: int, total: int, overlap: float | None
) -> None:
    found = hta_measures(sample(name)).v0_5
    assert found == HtaMetrics(idle, compute, non_compute, total, overlap)


def test_causes_of_idle_time_and_launches_equal_htas() -> None:
    trace = round_to_microseconds(sample("ns_resolution.pt.trace.json.gz"))
    work = select_device_work(trace, include_last_step=False)
    assert idle_by_stream(trace, work) == (StreamIdle(7, host_wait_ns=1_709_000, kernel_wait_ns=8_404_000, other_ns=0),)
    assert len(work) == 4876


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "negative_queue.json.gz",
            [
                (7, 0, 17159, 691231),
                (25, 628598, 85, 0),
                (27, 792592, 1000, 7135),
                (84, 62901, 12, 665192),
                (285, 0, 0, 675305),
                (363, 0, 75, 673182),
            ],
        ),
        (
            "control.json.gz",
            [(7, 102154, 14226, 32183), (20, 346996, 621, 7470), (21, 237710, 71, 0), (22, 271786, 1253, 0)],
        ),
        ("simple_add.json.gz", [(7, 15976739, 91, 0), (20, 13582776, 8, 0)]),
    ],
)
def test_causes_of_idle_time_on_several_streams_equal_htas(name: str, expected: list[tuple[int, ...]]) -> None:
    found = [
        (idle.stream, idle.host_wait_ns // 1000, idle.kernel_wait_ns // 1000, idle.other_ns // 1000)
        for idle in hta_measures(sample(name)).stream_idle
    ]
    assert found == expected


def test_time_by_kernel_type_and_their_overlaps_equal_htas() -> None:
    trace = round_to_microseconds(sample("negative_queue.json.gz"))
    work = select_device_work(trace, include_last_step=False)
    compute, communication, memory = (1 << t for t in KernelType)
    types = kernel_types(trace, work)
    covered = coverage([work.spans[types == t] for t in KernelType])
    assert {state: covered.total(covered.active == state) // 1000 for state in covered.active.tolist() if state} == {
        compute: 138794,
        communication: 134025,
        memory: 32246,
        compute | memory: 3171,
        compute | communication: 1871,
        communication | memory: 594,
    }


@pytest.mark.parametrize(
    ("name", "in_0_5", "in_0_6"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", COMMUNICATION, COMMUNICATION),
        (
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            COMMUNICATION,
            COMMUNICATION,
        ),
        ("void ncclKernel_AllGather(int)", COMPUTE, COMMUNICATION),
        ("hipblasLt_gemm_kernel", COMPUTE, COMMUNICATION),
        ("Memcpy HtoD (Pageable -> Device)", MEMORY, MEMORY),
        ("Memset (Device)", MEMORY, MEMORY),
        ("CopyHostToDevice", COMPUTE, COMPUTE),
        ("void at::native::vectorized_elementwise_kernel<4>", COMPUTE, COMPUTE),
        ("Context Sync", None, None),
        ("Stream Wait Event", COMPUTE, None),
    ],
)
def test_kernels_are_typed_by_their_names_as_in_each_version(
    name: str, in_0_5: KernelType | None, in_0_6: KernelType | None
) -> None:
    """Expected types: `get_kernel_type` of HTA 0.5.0 and 0.6.1."""
    assert (kernel_type(name), kernel_type(name, HtaVersion.V0_6)) == (in_0_5, in_0_6)


def test_hta_0_6_does_not_count_waits_for_events_as_compute() -> None:
    """Expected numbers: HTA 0.6.0 and 0.6.1 on this trace."""
    expected = HtaMetrics(16414376, 10670, 39293, 16464339, None)
    assert hta_measures(sample("simple_add.json.gz")).v0_6 == expected


def synchronised(stream: int) -> list[Event]:
    """Three steps, in each a kernel, and the wait of the host for the device after it."""
    events = []
    for n in range(3):
        at = 10_000 + 1000 * n
        c = 10 * n + 1
        wait = Event("Context Sync", at + 400, 200, "cuda_sync", 0, stream, c + 1)
        host = Event("cudaDeviceSynchronize", at + 150, 450, "cuda_runtime", 1, None, c + 1)
        events += [step(n, at, 990), launch(c, at + 100), kernel("hipblasLt_gemm", at + 200, 300, launch=c), host, wait]
    return events


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (-1, HtaMetrics(700, 600, 0, 1300, None)),
        (2**32 - 1, HtaMetrics(600, 600, 200, 1400, None)),
    ],
)
def test_waits_for_a_whole_device_count_only_with_the_stream_of_older_profilers(
    tmp_path: Path, stream: int, expected: HtaMetrics
) -> None:
    """Since 2023 the profiler writes -1. Expected numbers: HTA 0.5.0 on this trace."""
    trace = read_trace(write_trace(tmp_path / "t.json", synchronised(stream)))
    assert hta_measures(trace).v0_5 == expected


def test_full_resolution_includes_work_that_rounding_drops() -> None:
    """With starts rounded up and ends rounded down, 6.5 ms of idle time become 10.1 ms."""
    exact = sample("ns_resolution.pt.trace.json.gz")
    idle_us = [
        sum(idle.total_ns for idle in idle_by_stream(trace, select_device_work(trace, include_last_step=False))) // 1000
        for trace in (exact, round_to_microseconds(exact))
    ]
    assert idle_us == [6452, 10113]


def annotated_on_the_device() -> list[Event]:
    """Three steps as torch 2.11 writes them: each annotation also on the device, from its first kernel on."""
    events = []
    for n in range(3):
        at = 10_000 + 1000 * n
        events += [step(n, at, 990), Event(f"ProfilerStep#{n}", at + 407, 573, "gpu_user_annotation", 7)]
        for i in range(4):
            name, stream = ("ncclDevKernel_AllReduce", 20) if i == 3 else ("gemm", 7)
            c = 10 * n + i + 1
            start = at + 400 + 150 * i + (0 if i else 7)
            events += [launch(c, at + 100 + 20 * i), kernel(name, start, 130, stream=stream, launch=c)]
    return events


def overlapping_on_two_streams() -> list[Event]:
    """Kernels that begin before the previous one of their stream has ended."""
    events = []
    for n in range(3):
        at = 10_000 + 1000 * n
        events.append(step(n, at, 990))
        for i, (start, length) in enumerate([(300, 200), (450, 100), (600, 50), (700, 10)]):
            c = 10 * n + i + 1
            events += [launch(c, at + 10 + i), kernel("gemm", at + start, length, launch=c)]
            d = c + 1000
            events += [launch(d, at + 20 + i), kernel("copy", at + start + 30, length, stream=9, launch=d)]
    return events


def within_one_microsecond() -> list[Event]:
    """Kernels that begin and end within a microsecond: alone, beside others, and as communication."""
    events = []
    for n in range(3):
        at = 10_000 + 1000 * n
        events.append(step(n, at, 990))
        names = ["gemm", "tiny", "tiny", "ncclDevKernel_AllReduce", "tiny", "ncclDevKernel_AllReduce"]
        places = [(300, 100), (350.2, 0.6), (500.3, 0.5), (600.25, 0.5), (700, 100), (780, 60)]
        for i, (name, (start, length)) in enumerate(zip(names, places, strict=True)):
            c = 10 * n + i + 1
            events += [
                launch(c, at + 10 + i),
                kernel(name, at + start, length, stream=20 if "nccl" in name else 7, launch=c),
            ]
    return events


def test_work_within_one_microsecond_is_subtracted_as_in_hta(tmp_path: Path) -> None:
    """Expected numbers: HTA 0.5.0 on this trace."""
    trace = read_trace(write_trace(tmp_path / "t.json", within_one_microsecond()))
    assert hta_measures(trace).v0_5 == HtaMetrics(1064, 398, 78, 1540, 33.9)


def test_steps_annotated_on_the_device_count_as_in_hta(tmp_path: Path) -> None:
    """Expected numbers: HTA 0.5.0 on this trace."""
    trace = read_trace(write_trace(tmp_path / "t.json", annotated_on_the_device()))
    assert hta_measures(trace).v0_5 == HtaMetrics(1013, 1170, 390, 2573, 0.0)


def test_gaps_of_overlapping_kernels_are_negative_as_in_hta_only_on_request(tmp_path: Path) -> None:
    """Expected numbers: HTA 0.5.0 on this trace."""
    trace = read_trace(write_trace(tmp_path / "t.json", overlapping_on_two_streams()))
    work = select_device_work(trace, include_last_step=False)
    assert hta_measures(trace).stream_idle == tuple(StreamIdle(stream, 590_000, -100_000, 200_000) for stream in (7, 9))
    assert idle_by_stream(trace, work) == tuple(StreamIdle(stream, 590_000, 0, 200_000) for stream in (7, 9))
