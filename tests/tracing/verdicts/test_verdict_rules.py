"""One rule of the verdicts each: what is late, what all ranks lose, and where."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.cpu_ranks import CpuRank, cpu_job
from tests.tracing.gpu_ranks import Stage, one_f_one_b
from tests.tracing.kineto import Event, GpuRank, gpu_job, kernel, launch, step, write_trace

from muster.tracing.ranks.attribution import Float64
from muster.tracing.report import build
from muster.tracing.verdicts import Cause, Verdict
from muster.tracing.verdicts.types import confidence

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
DATA = Path(__file__).parents[1] / "data"


def with_events(path: Path, add: Callable[[dict[str, Any]], Sequence[Event]]) -> None:
    """Add events to a trace for each of its events."""
    document = json.loads(path.read_text())
    document["traceEvents"] += [new.as_json() for one in document["traceEvents"] for new in add(one)]
    path.write_text(json.dumps(document))


def only(folder: Path, out: Path | None = None) -> Verdict:
    (verdict,) = build(folder, out=out).verdicts
    return verdict


@pytest.mark.parametrize(("working_ms", "cause"), [(25, Cause.INPUT_PREPROCESSING), (5, Cause.DATA_LOADING)])
def test_a_loader_whose_operators_work_prepares_its_input(tmp_path: Path, working_ms: int, cause: Cause) -> None:
    """Of 30 ms of data loading a step."""
    folder = gpu_job(tmp_path, [GpuRank(), GpuRank(blocked=(LOADER, 30, 1))])

    def work(event: dict[str, Any]) -> list[Event]:
        is_loader = event["name"] == LOADER
        return [Event("aten::upsample_bilinear2d", event["ts"] + 10, working_ms * 1000)] if is_loader else []

    with_events(folder / "rank1.json", work)
    verdict = only(folder)
    assert (verdict.cause, verdict.ranks) == (cause, (1,))
    assert verdict.cost_ms == pytest.approx(29.5, abs=0.1)
    assert verdict.place == ("aten::upsample_bilinear2d" if working_ms == 25 else LOADER)


def test_a_long_operator_that_launches_nothing_prepares_the_input_also_outside_of_annotations(tmp_path: Path) -> None:
    folder = gpu_job(tmp_path, [GpuRank(), GpuRank(blocked=("forward", 30, 1))])

    def work(event: dict[str, Any]) -> list[Event]:
        is_forward = event["name"] == "forward"
        # Its all-reduce is launched 400 µs after the beginning of the step.
        return [Event("aten::upsample_bilinear2d", event["ts"] + 500, 29_000)] if is_forward else []

    with_events(folder / "rank1.json", work)
    verdict = only(folder)
    assert (verdict.cause, verdict.ranks) == (Cause.INPUT_PREPROCESSING, (1,))
    assert verdict.place == "aten::upsample_bilinear2d"


@pytest.mark.parametrize(("name", "category"), [("Python GC", "python_function"), ("gc.collect", "user_annotation")])
def test_garbage_collection_is_named_where_it_is_recorded(tmp_path: Path, name: str, category: str) -> None:
    folder = gpu_job(tmp_path, [GpuRank(), GpuRank(blocked=("forward", 30, 1))])

    def collect(event: dict[str, Any]) -> list[Event]:
        return [Event(name, event["ts"] + 10, 29_000, category)] if event["name"] == "forward" else []

    with_events(folder / "rank1.json", collect)
    verdict = only(folder)
    assert (verdict.cause, verdict.ranks, verdict.place) == (Cause.GARBAGE_COLLECTION, (1,), name)


def accumulating(folder: Path, reducing: Sequence[bool]) -> Path:
    """Two ranks with micro-batches of 20 ms in a step, some followed by an all-reduce of 10 ms."""
    of = (("Collective name", "allreduce"), ("Process Group Name", "0"), ("In msg nelems", 1 << 22), ("dtype", "Float"))
    for rank in range(2):
        events, at, calls = [], 0.0, 0
        for number in range(4):
            begin = at
            for reduces in reducing:
                events += [
                    Event("DistributedDataParallel.forward", at, 100, "user_annotation"),
                    launch(calls, at + 10),
                    kernel("gemm", at + 20, 20_000, launch=calls),
                ]
                if reduces:
                    reduce = kernel("ncclDevKernel_AllReduce", at + 20_020, 10_000, stream=20, launch=calls + 1)
                    events += [launch(calls + 1, at + 120), replace(reduce, args=of)]
                at, calls = at + 20_020 + 10_000 * reduces, calls + 2
            events.append(step(number, begin, at - begin))
        write_trace(folder / f"{rank}.json", events, rank=rank, world_size=2)
    return folder


def test_gradients_that_every_backward_pass_of_a_step_reduces_are_redundant(tmp_path: Path) -> None:
    causes = {verdict.cause: verdict for verdict in build(accumulating(tmp_path, [True] * 4)).verdicts}
    verdict = causes[Cause.REDUNDANT_ALL_REDUCE]
    assert verdict.ranks == ()
    assert verdict.cost_ms == pytest.approx(30, abs=0.1)
    assert "no_sync" in verdict.advice


@pytest.mark.parametrize("reducing", [[False, False, False, True], [True]])
def test_gradients_that_the_last_pass_reduces_are_not(tmp_path: Path, reducing: list[bool]) -> None:
    causes = [verdict.cause for verdict in build(accumulating(tmp_path, reducing)).verdicts]
    assert Cause.REDUNDANT_ALL_REDUCE not in causes


def test_the_operator_with_most_launches_is_named(tmp_path: Path) -> None:
    verdict = only(DATA / "small" / "launch_both", out=tmp_path)
    assert verdict.cause is Cause.LAUNCH_BOUND
    assert "aten::add_" in verdict.evidence
    assert verdict.place.startswith("aten::add_")


def test_a_pipeline_of_any_program_has_its_bubble_said_with_the_ideal_of_its_schedule(tmp_path: Path) -> None:
    report = build(one_f_one_b(tmp_path, [Stage(), Stage()], micro_batches=8))
    assert report.pipeline is not None
    assert (report.pipeline.ranks, report.pipeline.micro_batches) == (2, 8)
    assert report.pipeline.ideal == pytest.approx(1 / 9)
    assert report.pipeline.ideal_of_twice == pytest.approx(1 / 17)
    assert 1 / 9 < report.pipeline.bubble < 1 / 9 + 0.1
    assert "with twice the micro-batches 5.9%" in " ".join(report.findings)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_pipeline_of_which_a_rank_is_missing_has_no_bubble(tmp_path: Path, missing: int) -> None:
    folder = one_f_one_b(tmp_path, [Stage()] * 3)
    (folder / f"{missing}.json").unlink()
    assert build(folder).pipeline is None


def test_too_few_micro_batches_have_a_verdict_with_what_twice_as_many_give(tmp_path: Path) -> None:
    verdict = only(one_f_one_b(tmp_path, [Stage(), Stage()], micro_batches=2))
    assert (verdict.cause, verdict.ranks) == (Cause.PIPELINE_BUBBLE, ())
    assert "2 micro-batches on 2 ranks leave 33.3% idle, twice as many 20.0%" in verdict.evidence


def test_a_data_loader_of_all_ranks_accuses_none_though_the_device_of_one_waits_for_the_other(tmp_path: Path) -> None:
    """Both hosts load for 30 ms of steps of 80 ms. The collective of rank 0 is launched before that, and waits for the
    one that rank 1 launches after it."""
    of = (("Collective name", "allreduce"), ("Process Group Name", "0"))
    for rank in range(2):
        events = []
        for number in range(4):
            at, calls = number * 80_000.0, 10 * number
            entered = at + 100 if rank == 0 else at + 30_200
            events += [
                step(number, at, 80_000),
                launch(calls, entered - 50),
                Event(LOADER, at + 100, 30_000, "user_annotation"),
                Event("ncclDevKernel_AllReduce", entered, at + 31_000 - entered, "kernel", 1, 20, calls, of),
                launch(calls + 1, at + 30_300),
                kernel("gemm", at + 31_000, 48_990, launch=calls + 1),
            ]
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    verdict = only(tmp_path)
    assert (verdict.cause, verdict.ranks) == (Cause.DATA_LOADING, ())
    assert verdict.cost_ms == pytest.approx(30, abs=0.5)


def test_kernels_that_others_do_not_have_are_named_also_if_the_others_hardly_wait(tmp_path: Path) -> None:
    """The kernels of the others take longer beside a collective in which they wait for the rank with more work."""
    (slower, more) = GpuRank(layers=20, slowdown=1.055), GpuRank(layers=20, extra=2, slowdown=1.0)
    ranks = [slower, slower, replace(more, slowdown=0.97)]
    found = [(v.cause, v.ranks) for v in build(gpu_job(tmp_path, ranks)).verdicts]
    assert found == [(Cause.EXTRA_KERNELS, (2,))]


def test_a_host_on_the_cpu_that_pauses_between_its_operators_is_slow_not_blocked(tmp_path: Path) -> None:
    """Its operators are as fast as those of others; short pauses between them sum to 30% of a step."""
    folder = cpu_job(tmp_path, [CpuRank(work={"aten::mm": (40, 0.5)})] * 3)
    path = folder / "2.json"
    document = json.loads(path.read_text())
    last: dict[float, int] = {}
    for event in document["traceEvents"]:
        if event["name"] == "aten::mm":
            begin = event["ts"] // 200_000 * 200_000
            last[begin] = last.get(begin, -1) + 1
            event["ts"] += 750 * last[begin]
        elif event["name"] == "gloo:all_reduce":
            event["ts"], event["dur"] = event["ts"] + 30_000, event["dur"] - 30_000
    path.write_text(json.dumps(document))
    verdict = only(folder)
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_HOST, (2,))
    assert "between its operators" in verdict.evidence


SMALL_OPERATORS = {f"aten::small{i}": (20, 0.05) for i in range(4)}


@pytest.mark.parametrize(("others", "found"), [(2, [((0,), Cause.LARGER_INPUT)]), (1, [])])
def test_large_operators_that_take_longer_on_one_of_several_ranks_have_a_larger_input(
    tmp_path: Path, others: int, found: list[tuple[tuple[int, ...], Cause]]
) -> None:
    """On the CPU, where either of two ranks may be slowed down by other processes."""
    usual, larger = CpuRank(work={"aten::mm": (10, 2.0), **SMALL_OPERATORS}), {"aten::mm": (10, 3.0), **SMALL_OPERATORS}
    verdicts = build(cpu_job(tmp_path, [CpuRank(work=larger), *[usual] * others])).verdicts
    assert [(v.ranks, v.cause) for v in verdicts] == found


costs = st.lists(st.floats(1, 100), min_size=2, max_size=10).map(np.array)


@given(costs, st.floats(0.1, 50))
def test_a_verdict_is_surer_the_further_its_cost_is_above_the_threshold(ms: Float64, threshold: float) -> None:
    assert 0.5 <= confidence(ms, threshold) <= confidence(ms, threshold / 2) <= 0.99


@given(st.floats(10, 100), st.integers(2, 10))
def test_a_verdict_is_surer_with_more_steps_and_less_spread(mean: float, steps: int) -> None:
    even, uneven = np.full(2 * steps, mean), np.tile((1.9 * mean, 0.1 * mean), steps)
    assert confidence(uneven, 3) <= confidence(even, 3)
    assert confidence(even[:steps], 3) <= confidence(even, 3)


def working_host(folder: Path, pauses: Sequence[tuple[int, float]], *, others: int = 1, in_turns: bool = False) -> Path:
    """Ranks with ten operators of a kernel of 4 ms each in a step, of which the last, or each in turns, pauses before
    some of them: (operator, milliseconds). Each step ends with an all-reduce."""
    of = (("Collective name", "allreduce"), ("Process Group Name", "0"))
    for rank in range(others + 1):
        events, paused = [], sum(ms for _, ms in pauses) * 1000
        for number in range(4):
            at, host = number * (45_000 + paused), number * (45_000 + paused)
            pausing = number % 2 == rank if in_turns else rank == others
            for i in range(10):
                host += sum(ms for place, ms in pauses if place == i and pausing) * 1000
                events += [
                    Event(f"aten::op{i}", host, 400),
                    launch(100 * number + i, host + 10),
                    kernel("gemm", host + 20, 3_900, launch=100 * number + i),
                ]
                events.append(Event("aten::wait", host + 400, 3_600))
                host += 4_000
            end = at + 42_000 + paused
            reduce = Event("ncclDevKernel_AllReduce", host, end - host, "kernel", 1, 20, 100 * number + 50, of)
            events += [launch(100 * number + 50, host - 100), reduce, Event("aten::wait", host, end - host)]
            events.append(step(number, at, end - at))
        write_trace(folder / f"{rank}.json", events, rank=rank, world_size=others + 1)
    return folder


def test_pauses_before_one_operator_are_of_code_which_is_named_by_it(tmp_path: Path) -> None:
    verdict = only(working_host(tmp_path, [(3, 12.0)]))
    assert (verdict.cause, verdict.ranks, verdict.place) == (Cause.HOST_BLOCKED, (1,), "aten::op3")
    assert verdict.cost_ms == pytest.approx(12, abs=0.5)


def test_pauses_at_no_one_place_are_those_of_a_slow_host(tmp_path: Path) -> None:
    verdict = only(working_host(tmp_path, [(i, 3.0) for i in (1, 3, 5, 8)]))
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_HOST, (1,))
    assert "at no one place" in verdict.evidence


def test_a_process_alone_that_pauses_outside_of_annotations_is_blocked(tmp_path: Path) -> None:
    folder = working_host(tmp_path, [(3, 12.0)], others=0)
    verdict = only(folder)
    assert (verdict.cause, verdict.ranks, verdict.place) == (Cause.HOST_BLOCKED, (0,), "aten::op3")


def test_two_ranks_that_are_late_in_turns_have_no_verdict(tmp_path: Path) -> None:
    assert build(working_host(tmp_path, [(3, 3.5)], in_turns=True)).verdicts == ()


@given(costs, st.floats(0.1, 50), st.floats(0, 0.5))
def test_a_verdict_is_less_sure_if_its_cause_explains_less(ms: Float64, threshold: float, explained: float) -> None:
    assert 0.5 <= confidence(ms, threshold, explained) <= confidence(ms, threshold, 0.5) == confidence(ms, threshold)


def launching(folder: Path, *, synchronises: bool) -> Path:
    """Two ranks with 48 operators in a step, of 0.5 ms on the first rank and 0.75 ms on the second, with a kernel of
    0.25 ms at the end of each. After each fourth one both hosts wait for the device, or neither."""
    of = (("Collective name", "allreduce"), ("Process Group Name", "0"))
    for rank, took in enumerate((500, 750)):
        events = []
        for number in range(5):
            at = host = number * 60_000.0
            for call in range(100 * number, 100 * number + 48):
                host += took
                events += [
                    Event("aten::mm", host - took, took),
                    launch(call, host - 20),
                    kernel("gemm", host - 10, 250, launch=call),
                ]
                if synchronises and call % 4 == 3:
                    events.append(Event("cudaStreamSynchronize", host, 250, "cuda_runtime"))
                    host += 250
            end = at + 50_000
            reduce = Event("ncclDevKernel_AllReduce", host + 1_000, end - host - 1_000, "kernel", 1, 20, call + 1, of)
            events += [launch(call + 1, host), reduce, Event("nccl:all_reduce", host, end - host)]
            events.append(step(number, at, 60_000))
        write_trace(folder / f"{rank}.json", events, rank=rank, world_size=2)
    return folder


@pytest.mark.parametrize(
    ("synchronises", "found"), [(False, [(Cause.SLOW_HOST, (1,))]), (True, [(Cause.HOST_SYNC, ())])]
)
def test_hosts_that_all_wait_for_their_devices_often_are_not_slow(
    tmp_path: Path, synchronises: bool, found: list[tuple[Cause, tuple[int, ...]]]
) -> None:
    """They cannot launch ahead, so that whatever takes one host longer delays its device."""
    verdicts = build(launching(tmp_path, synchronises=synchronises)).verdicts
    assert [(verdict.cause, verdict.ranks) for verdict in verdicts] == found
