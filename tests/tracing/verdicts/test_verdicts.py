"""Verdicts name the rank and the cause of lost time; runs without a fault have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Muster, muster
from tests.tracing.kineto import Event, GpuRank, gpu_job, kernel, launch, step, write_trace

from muster.tracing.report import build
from muster.tracing.verdicts import Cause

__all__ = ["muster"]  # a fixture

CLEAN = GpuRank()


def test_a_clean_run_has_no_verdict(tmp_path: Path) -> None:
    assert build(gpu_job(tmp_path, [CLEAN] * 4)).verdicts == ()


@pytest.mark.parametrize(
    ("fault", "cause", "cost_ms"),
    [
        (GpuRank(blocked=("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 30, 1)), "data-loading", 30),
        (GpuRank(blocked=("data", 30.5, 1)), "data-loading", 30),
        (GpuRank(blocked=("checkpoint", 60, 2)), "checkpoint", 30),
        (GpuRank(blocked=("evaluate", 20, 1)), "host-blocked", 20),
        (GpuRank(extra=4), "extra-kernels", 20),
        (GpuRank(slowdown=1.3), "slow-device", 12),
        (GpuRank(compile_ms=100), "recompilation", 100),
    ],
)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_fault_of_one_rank_is_found_with_its_cause_and_cost(
    tmp_path: Path, fault: GpuRank, cause: str, cost_ms: float, rank: int
) -> None:
    ranks = [CLEAN] * 4
    ranks[rank] = fault
    report = build(gpu_job(tmp_path, ranks))
    first = report.verdicts[0]
    assert (first.ranks, first.cause) == ((rank,), cause)
    assert first.cost_ms == pytest.approx(cost_ms, rel=0.05)
    assert {verdict.ranks for verdict in report.verdicts} == {(rank,)}
    assert report.findings[0].startswith(f"Rank {rank}: ")


@pytest.mark.parametrize(
    ("annotation", "cause"),
    [
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", "data-loading"),
        ("load_batch", "data-loading"),
        ("DataLoader wait", "data-loading"),
        ("get_batch", "data-loading"),
        ("train_loader", "data-loading"),
        ("[pl][profile]save_checkpoint", "checkpoint"),
        ("[pl][profile][Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end", "checkpoint"),
        ("ckpt", "checkpoint"),
        ("tokenize", "host-blocked"),
        ("evaluate", "host-blocked"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_annotations_of_other_trainers_are_known_by_their_words(
    tmp_path: Path, annotation: str, cause: str, ranks: int
) -> None:
    """On one rank, and on all."""
    blocked = GpuRank(blocked=(annotation, 20, 1))
    job = [blocked] * ranks + [CLEAN] * (2 - ranks)
    found = [(verdict.ranks, verdict.cause) for verdict in build(gpu_job(tmp_path, job)).verdicts]
    assert found == [((0,) if ranks == 1 else (), cause)]


@pytest.mark.parametrize(
    "annotation", ["forward", "FullyShardedDataParallel._pre_forward", "[pl][profile]run_training_batch"]
)
def test_a_host_that_is_slow_on_all_ranks_in_a_phase_of_training_is_not_blocked(
    tmp_path: Path, annotation: str
) -> None:
    assert build(gpu_job(tmp_path, [GpuRank(blocked=(annotation, 10, 1))] * 2)).verdicts == ()


def test_a_device_that_is_a_little_slower_is_named_if_the_others_wait_for_it(tmp_path: Path) -> None:
    report = build(gpu_job(tmp_path, [CLEAN, CLEAN, GpuRank(slowdown=1.075), CLEAN]))
    assert [(verdict.ranks, verdict.cause) for verdict in report.verdicts] == [((2,), Cause.SLOW_DEVICE)]


def test_waits_at_the_same_time_in_several_collectives_count_once(tmp_path: Path) -> None:
    """Two groups reduce at once, on two streams; rank 1 is 6 ms late for both."""
    for rank in range(2):
        events = []
        for number in range(4):
            at, first, late = number * 100_000.0, 10 * number, 6_000.0 * rank
            events += [
                *(step(number, at, 91_000), *(launch(first + i, at + i) for i in range(3))),
                kernel("gemm", at + 10, 80_000 + late, launch=first),
            ]
            for i, group in enumerate("01"):
                of = (("Collective name", "allreduce"), ("Process Group Name", group))
                begin = at + 80_010 + late
                events.append(
                    Event("ncclDevKernel", begin, at + 90_000 - begin, "kernel", 1, 20 + i, first + 1 + i, of)
                )
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    (verdict,) = build(tmp_path).verdicts
    assert (verdict.ranks, verdict.cause) == ((1,), Cause.SLOW_DEVICE)
    assert verdict.cost_ms == pytest.approx(6)


def test_clocks_of_hosts_are_compared_by_the_ends_of_collectives(tmp_path: Path) -> None:
    ahead = [0.0, 250_000.0, -90_000.0]
    ranks = [CLEAN, CLEAN, GpuRank(slowdown=1.075)]
    report = build(gpu_job(tmp_path, ranks, clock_us=ahead))
    assert [clock.offset_ns / 1e3 for clock in report.clocks] == pytest.approx(ahead, abs=1)
    assert [verdict.ranks for verdict in report.verdicts] == [(2,)]


def test_the_offset_of_a_clock_has_a_bound_of_its_error(tmp_path: Path) -> None:
    """Rank 1's clock is 250 ms ahead, and its collectives end up to 50 µs before or after those of rank 0."""
    for rank in range(2):
        events = []
        for number in range(4):
            at, calls = number * 100_000.0 + 250_000.0 * rank, 11 * number
            events += [step(number, at, 90_000), launch(calls, at + 1), kernel("gemm", at + 10, 1_000, launch=calls)]
            for i in range(10):
                end = at + 5_000 * (i + 1) + (10.0 * i - 50.0) * rank
                of = (("Collective name", "allreduce"), ("Process Group Name", "0"))
                events += [
                    launch(calls + 1 + i, at + 2 + i),
                    Event("ncclDevKernel_AllReduce", end - 500, 500, "kernel", 1, 20, calls + 1 + i, of),
                ]
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    first, second = build(tmp_path).clocks
    assert (first.offset_ns, first.error_ns) == (0, 0)
    assert second.error_ns is not None
    assert 0 < abs(second.offset_ns - 250e6) <= second.error_ns < 60e3


def pipeline(folder: Path, work_ms: list[float]) -> Path:
    """Two stages in which each waits for the other: the one that waits least is not to blame."""
    for rank, ms in enumerate(work_ms):
        events = []
        for number in range(4):
            at = number * 200_000.0
            calls = 2 * number
            send = (("Collective name", "send" if rank == 0 else "recv"), ("Process Group Name", "1"))
            events += [
                *(step(number, at, 200_000), launch(calls, at + 10), launch(calls + 1, at + 20)),
                kernel("gemm", at + 30, ms * 1000, launch=calls),
                Event(
                    "ncclDevKernel_SendRecv()",
                    at + 30 + ms * 1000,
                    199_000 - ms * 1000,
                    "kernel",
                    1,
                    20,
                    calls + 1,
                    send,
                ),
            ]
        path = write_trace(folder / f"{rank}.json", events, rank=rank, world_size=2)
        document = json.loads(path.read_text())
        document["distributedInfo"]["pg_config"] = [{"pg_name": "1", "pg_desc": "mesh_pp", "ranks": [0, 1]}]
        path.write_text(json.dumps(document))
    return folder


def test_the_stage_of_a_pipeline_with_more_work_is_named(tmp_path: Path) -> None:
    (verdict,) = build(pipeline(tmp_path, [150, 50])).verdicts
    assert (verdict.ranks, verdict.stage, verdict.cause) == ((0,), 0, Cause.STAGE_IMBALANCE)
    assert verdict.cost_ms == pytest.approx(50)


def test_balanced_stages_that_wait_for_each_other_have_no_verdict(tmp_path: Path) -> None:
    report = build(pipeline(tmp_path, [120, 100]))
    assert report.verdicts == ()
    assert not any("waits least" in sentence for sentence in report.findings)


@pytest.mark.parametrize("annotation", ["Forward 0", "PP:1F0", "train_step"])
def test_on_the_cpu_a_stage_that_waits_for_a_slow_loader_of_another_is_not_blamed(
    tmp_path: Path, annotation: str
) -> None:
    """gloo's receive begins within an operator and ends long after it, so the two do not nest."""
    for rank in range(2):
        events = []
        for number in range(4):
            at = number * 100_000.0
            events.append(step(number, at, 90_000))
            if rank == 0:
                events += [
                    Event("data", at, 50_000, "user_annotation"),
                    Event(annotation, at + 50_000, 15_000, "user_annotation"),
                    Event("aten::mm", at + 50_000, 15_000),
                    Event("gloo:send", at + 65_000, 15_000, "user_annotation"),
                ]
            else:
                events += [
                    Event("data", at, 1_000, "user_annotation"),
                    Event(annotation, at + 1_300, 68_800 + 15_000, "user_annotation"),
                    Event("c10d::recv_", at + 1_400, 200),
                    Event("gloo:recv", at + 1_500, 68_600, "user_annotation"),
                    Event("aten::mm", at + 70_100, 15_000),
                ]
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    report = build(tmp_path)
    assert [(verdict.ranks, verdict.cause) for verdict in report.verdicts] == [((0,), Cause.DATA_LOADING)]
    kinds = report.traces[1].trace.time_by_category_s
    assert [kinds["compute"], kinds["communication"]] == pytest.approx([0.06, 4 * 0.0687])


def test_exposed_all_gathers_name_the_blocks_of_fsdp(tmp_path: Path) -> None:
    """layers.0 is gathered for 30 ms before anything computes, layers.1 for 10 ms, the root while it computes."""
    for rank in range(2):
        events = []
        for number in range(4):
            at, calls = number * 100_000.0, 10 * number
            events.append(step(number, at, 90_000))
            gathers = (("", 0, 1_000), (" (layers.0)", 1_000, 30_000), (" (layers.1)", 31_000, 10_000))
            for i, (block, begin, us) in enumerate(gathers):
                of = (("Collective name", "_allgather_base"), ("Process Group Name", "0"))
                events += [
                    Event(f"FSDP::all_gather{block}", at + 10 * i, 8, "user_annotation"),
                    launch(calls + i, at + 10 * i + 2),
                    Event("ncclDevKernel_AllGather", at + begin, us, "kernel", 1, 20, calls + i, of),
                ]
            events += [
                *(launch(calls + 5, at + 50), launch(calls + 6, at + 51)),
                kernel("embedding", at, 1_000, launch=calls + 5),
                kernel("gemm", at + 41_000, 40_000, launch=calls + 6),
            ]
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    (verdict,) = build(tmp_path).verdicts
    assert (verdict.cause, verdict.ranks) == (Cause.EXPOSED_ALL_GATHER, ())
    assert verdict.cost_ms == pytest.approx(40)
    assert verdict.evidence.endswith("most in layers.0 (30.0 ms) and layers.1 (10.0 ms)")


@pytest.mark.parametrize(
    ("collective", "cause"),
    [
        ("allreduce", "exposed-all-reduce"),
        ("_reduce_scatter_base", "exposed-reduce-scatter"),
        ("all_to_all", "exposed-communication"),
    ],
)
@pytest.mark.parametrize(("exposed_ms", "found"), [(20, False), (30, True)])
def test_collectives_that_run_alone_for_a_quarter_of_a_step_are_named_by_their_kind(
    tmp_path: Path, collective: str, cause: str, exposed_ms: int, found: bool
) -> None:
    """On two ranks, in steps of 100 ms, after the computation."""
    of = (("Collective name", collective), ("Process Group Name", "0"))
    for rank in range(2):
        events = []
        for number in range(4):
            at, calls = number * 100_000.0, 2 * number
            begin = at + 99_000 - 1000.0 * exposed_ms
            events += [
                *(step(number, at, 100_000), launch(calls, at + 1), launch(calls + 1, at + 2)),
                kernel("gemm", at + 10, begin - at - 10, launch=calls),
                Event("ncclDevKernel", begin, 1000.0 * exposed_ms, "kernel", 1, 20, calls + 1, of),
            ]
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    verdicts = build(tmp_path).verdicts
    assert [(str(verdict.cause), verdict.ranks) for verdict in verdicts] == ([(cause, ())] if found else [])
    assert [verdict.cost_ms for verdict in verdicts] == pytest.approx([30] if found else [])


@pytest.mark.parametrize(("ms", "found"), [(0.5, False), (3.0, True)])
def test_a_rank_whose_allocator_delays_its_work_is_named(tmp_path: Path, ms: float, found: bool) -> None:
    """cudaFree and cudaMalloc take 2 x `ms` of steps of about 50 ms while the device has nothing to do."""
    folder = gpu_job(tmp_path, [CLEAN, GpuRank(blocked=("forward", 2 * ms, 1))])
    path = folder / "rank1.json"
    document = json.loads(path.read_text())
    for one in [e for e in document["traceEvents"] if e["name"] == "forward"]:
        for i, name in enumerate(("cudaFree", "cudaMalloc")):
            call = Event(name, one["ts"] + i * ms * 1000, ms * 1000, "cuda_runtime")
            document["traceEvents"].append(call.as_json())
    path.write_text(json.dumps(document))
    verdicts = build(folder).verdicts
    assert [(v.cause, v.ranks) for v in verdicts] == ([(Cause.ALLOCATOR_RETRIES, (1,))] if found else [])
    assert [verdict.cost_ms for verdict in verdicts] == pytest.approx([5.5] if found else [])


def small_kernels(folder: Path, kernel_us: int, gap_us: int, sleep_us: tuple[int, int] = (0, 0)) -> Path:
    """Two ranks with 100 kernels in a step, launched one by one by Python without annotations, and an all-reduce that
    begins when both have come; each rank sleeps in the middle of the step."""
    of = (("Collective name", "allreduce"), ("Process Group Name", "0"))
    for rank in range(2):
        events, at = [], 0.0
        for number in range(4):
            begin, calls = at, 1000 * number
            for i in range(100):
                events += [launch(calls + i, at), kernel("small", at + 5, kernel_us, launch=calls + i)]
                at += kernel_us + gap_us + (sleep_us[rank] if i == 50 else 0)
            end = at + max(sleep_us) - sleep_us[rank] + 100
            events += [
                launch(calls + 100, at),
                Event("ncclDevKernel_AllReduce", at + 5, end - at - 5, "kernel", 1, 20, calls + 100, of),
                step(number, begin, end - begin),
            ]
            at = end
        write_trace(folder / f"{rank}.json", events, rank=rank, world_size=2)
    return folder


@pytest.mark.parametrize(("kernel_us", "gap_us", "found"), [(10, 20, True), (10, 2, False), (30, 60, False)])
def test_devices_that_idle_between_small_kernels_are_launch_bound(
    tmp_path: Path, kernel_us: int, gap_us: int, found: bool
) -> None:
    verdicts = build(small_kernels(tmp_path, kernel_us, gap_us)).verdicts
    assert [(v.cause, v.ranks) for v in verdicts] == ([(Cause.LAUNCH_BOUND, ())] if found else [])


def test_a_rank_with_small_kernels_that_sleeps_is_blocked_and_the_job_is_not_launch_bound(tmp_path: Path) -> None:
    """Its device is idle for most of the step, the other one waits in the all-reduce."""
    verdicts = build(small_kernels(tmp_path, 10, 2, sleep_us=(0, 8000))).verdicts
    assert [(v.cause, v.ranks) for v in verdicts] == [(Cause.HOST_BLOCKED, (1,))]


@pytest.mark.parametrize(("elements", "causes"), [(4 << 20, [Cause.SLOW_NETWORK]), (100 << 20, [])])
def test_a_low_bus_bandwidth_has_a_verdict_from_a_tenth_of_a_step(
    tmp_path: Path, elements: int, causes: list[Cause]
) -> None:
    """All-reduces of 15 ms in steps of 90 ms, with 1.1 and 28 GB/s."""
    of = (("Collective name", "allreduce"), ("Process Group Name", "0"), ("dtype", "Float"))
    size = (("In msg nelems", elements), ("Out msg nelems", elements))
    for rank in range(2):
        events = []
        for number in range(4):
            at, calls = number * 100_000.0, 2 * number
            events += [
                *(step(number, at, 90_000), launch(calls, at + 1), launch(calls + 1, at + 2)),
                kernel("gemm", at + 10, 75_000, launch=calls),
                Event("ncclDevKernel_AllReduce", at + 75_010, 14_900, "kernel", 1, 20, calls + 1, (*of, *size)),
            ]
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    assert [verdict.cause for verdict in build(tmp_path).verdicts] == causes


def test_analyze_prints_verdicts_and_the_temporal_table(tmp_path: Path, muster: Muster) -> None:
    folder = gpu_job(tmp_path, [CLEAN, GpuRank(extra=4)])
    found = json.loads(muster("trace", "analyze", str(folder), "--json").out)
    (verdict,) = found["verdicts"]
    assert list(verdict) == ["ranks", "stage", "cause", "cost_ms", "evidence", "confidence", "advice", "place"]
    assert (verdict["ranks"], verdict["cause"], verdict["cost_ms"]) == ([1], "extra-kernels", 20.0)
    assert list(found["temporal"][0]) == ["rank", "idle_us", "compute_us", "non_compute_us", "kernel_us", "overlap_pct"]
    assert found["temporal"][1]["compute_us"] == 240_000
    hta = json.loads(muster("trace", "analyze", str(folder), "--json", "--compat", "hta").out)
    assert hta["temporal"][1]["compute_us"] == 180_000  # without the last step
    newer = json.loads(muster("trace", "analyze", str(folder), "--json", "--compat", "hta-0.6").out)
    assert newer["temporal"] == hta["temporal"]
    assert "Rank 1: extra work" in " ".join(muster("trace", "analyze", str(folder)).out.split())
    clean = muster("trace", "analyze", str(gpu_job(tmp_path / "clean", [CLEAN, CLEAN]))).out
    assert "no single rank makes the others wait" in clean
    (tmp_path / "other.json").write_text('{"lr": 1}')
    ended = muster("trace", "analyze", str(tmp_path / "other.json"))
    assert ended.code == 2
    assert "no readable trace" in ended.err
    unknown = muster("trace", "analyze", "no-such-job")
    assert unknown.code == 3
    assert "neither a file, a folder nor a job" in unknown.err
