"""Time by kind of work: nesting, overlap, steps, operators, causes of idle time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.kineto import DATA, Event, kernel, launch, step, write_trace

from muster.tracing.analysis.trace_summary import TraceSummary, analyse_trace
from muster.tracing.read.events import EventKind, Trace, build_call_tree, profiled_steps
from muster.tracing.read.spans import spans_from_pairs
from muster.tracing.reader import read_trace
from muster.tracing.work.hta_breakdown import StreamIdle, idle_by_stream
from muster.tracing.work.operator_stats import operators_by_self_time, short_name
from muster.tracing.work.timelines import SLOTS, slot_levels
from muster.tracing.work.work_kinds import TimeCategory

MS = 1000.0


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


class Traced:
    """The trace of these events, written to a file and read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def trace(self, events: Sequence[Event]) -> Trace:
        return read_trace(write_trace(self._folder / "trace.json", events))

    def summary(self, events: Sequence[Event]) -> TraceSummary:
        return analyse_trace(self.trace(events)).summary


def work_ms(summary: TraceSummary) -> dict[TimeCategory, float]:
    return {
        kind: round(summary.time_by_category_s[kind.name.lower()] * 1e3, 6)
        for kind in TimeCategory
        if summary.time_by_category_s[kind.name.lower()]
    }


def annotation(name: str, start_ms: float, ms: float, *, thread: int = 1) -> Event:
    return Event(name, start_ms * MS, ms * MS, "user_annotation", thread=thread)


def op(name: str, start_ms: float, ms: float, *, thread: int = 1) -> Event:
    return Event(name, start_ms * MS, ms * MS, thread=thread)


def a_step(number: int, start_ms: float, ms: float) -> Event:
    return step(number, start_ms * MS, ms * MS)


def test_each_instant_of_a_cpu_step_counts_for_one_kind_of_work(traced: Traced) -> None:
    """10 ms: 4 compute (1 with communication), 3 communication alone, 1 optimizer, 1 data, 1 without operator."""
    summary = traced.summary(
        [
            a_step(1, 0, 10),
            annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 1),
            op("aten::mm", 1, 4),
            annotation("gloo:all_reduce", 4, 4, thread=2),
            op("aten::copy_", 5, 1, thread=2),
            annotation("Optimizer.step#AdamW.step", 8, 1),
            op("aten::lerp_", 8.2, 0.5),
        ]
    )
    assert work_ms(summary) == {
        TimeCategory.COMPUTE: 4.0,
        TimeCategory.OPTIMIZER: 1.0,
        TimeCategory.COMMUNICATION: 3.0,
        TimeCategory.DATA: 1.0,
        TimeCategory.OTHER: 1.0,
    }
    assert (summary.communication_s, summary.overlapped_s) == (0.004, 0.001)
    assert summary.overlap_ratio == 0.25


@pytest.mark.parametrize(
    ("name", "kind"),
    [("data", TimeCategory.DATA), ("optimizer", TimeCategory.OPTIMIZER), ("clip", TimeCategory.OPTIMIZER)],
)
def test_common_annotation_names_have_a_kind_of_work(traced: Traced, name: str, kind: TimeCategory) -> None:
    summary = traced.summary([a_step(1, 0, 4), annotation(name, 1, 2), op("aten::mul", 1, 1)])
    assert work_ms(summary) == {kind: 2.0, TimeCategory.OTHER: 2.0}


def test_forward_and_backward_in_an_optimizer_closure_are_compute(traced: Traced) -> None:
    """10 ms in Optimizer.step: forward 2, zero_grad 1, backward 3 (with frames), clipping and update 2; 2 of Python,
    of which the part after the backward pass is the optimizer's."""
    summary = traced.summary(
        [
            a_step(1, 0, 10),
            annotation("Optimizer.step#AdamW.step", 0, 10),
            op("aten::linear", 0, 2),
            annotation("Optimizer.zero_grad#AdamW.zero_grad", 2, 1),
            op("autograd::engine::evaluate_function: AddmmBackward0", 4, 2),
            op("AddmmBackward0", 4, 2),
            op("aten::mm", 4, 2),
            op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 6, 1),
            op("aten::add_", 6, 1),
            op("aten::linalg_vector_norm", 7, 0.5),
            op("aten::lerp_", 8, 1.5),
        ]
    )
    assert work_ms(summary) == {TimeCategory.COMPUTE: 5.0, TimeCategory.OPTIMIZER: 4.0, TimeCategory.OTHER: 1.0}


def test_a_closure_ends_with_the_annotation_around_its_backward_pass(traced: Traced) -> None:
    """Frameworks annotate their calls: the annotation goes on after the last of autograd's events."""
    summary = traced.summary(
        [
            a_step(1, 0, 10),
            annotation("Optimizer.step#Wrapped.step", 0, 10),
            annotation("Optimizer.step#AdamW.step", 0, 9),
            annotation("[pl][profile]Strategy.backward", 1, 4),
            op("autograd::engine::evaluate_function: MmBackward0", 1, 2),
            op("aten::mm", 1, 2),
            op("aten::lerp_", 6, 3),
        ]
    )
    assert work_ms(summary) == {TimeCategory.COMPUTE: 2.0, TimeCategory.OPTIMIZER: 5.0, TimeCategory.OTHER: 3.0}


def test_an_optimizer_step_within_the_backward_pass_is_optimizer_work(traced: Traced) -> None:
    summary = traced.summary(
        [
            a_step(1, 0, 10),
            op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 4),
            annotation("Optimizer.step#SGD.step", 1, 3),
            op("aten::add_", 1, 3),
            op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 4, 4),
            annotation("Optimizer.step#SGD.step", 5, 3),
            op("aten::add_", 5, 3),
        ]
    )
    assert work_ms(summary) == {TimeCategory.OPTIMIZER: 6.0, TimeCategory.OTHER: 4.0}


def test_on_a_device_kernels_launched_by_a_closure_are_compute_and_later_ones_optimizer_work(traced: Traced) -> None:
    summary = traced.summary(
        [
            annotation("Optimizer.step#AdamW.step", 0, 10),
            launch(1, 1 * MS),
            op("autograd::engine::evaluate_function: MmBackward0", 2, 2, thread=2),
            replace(launch(2, 3 * MS), thread=2),
            launch(3, 6 * MS),
            kernel("gemm", 10 * MS, 1 * MS, launch=1),
            kernel("gemm", 11 * MS, 2 * MS, launch=2),
            kernel("multi_tensor_apply_kernel", 13 * MS, 3 * MS, launch=3),
        ]
    )
    assert work_ms(summary) == {TimeCategory.COMPUTE: 3.0, TimeCategory.OPTIMIZER: 3.0}


def test_a_lightning_run_has_more_compute_than_optimizer_time() -> None:
    """Its forward and backward passes run in the closure of `optimizer.step`."""
    summary = analyse_trace(read_trace(DATA / "lightning.json.gz")).summary
    assert [step.step for step in summary.steps] == [5, 6, 7]
    assert summary.share(TimeCategory.COMPUTE) > summary.share(TimeCategory.OPTIMIZER) > 0
    assert summary.share(TimeCategory.DATA) > 0.2


def test_communication_inside_the_optimizer_is_communication(traced: Traced) -> None:
    summary = traced.summary(
        [a_step(1, 0, 4), annotation("clip", 0, 4), op("c10d::allreduce_", 1, 2), op("aten::add", 1, 1)]
    )
    assert work_ms(summary) == {TimeCategory.OPTIMIZER: 2.0, TimeCategory.COMMUNICATION: 2.0}


def test_enclosing_operators_are_not_work(traced: Traced) -> None:
    """Time directly in an annotation, a subclass dispatch or an autograd frame is Python."""
    frames = [annotation("FSDP::pre_forward", 0, 4), op("PythonSubclass", 1, 3), op("aten::mm", 2, 1)]
    assert work_ms(traced.summary([a_step(1, 0, 4), *frames])) == {TimeCategory.COMPUTE: 1.0, TimeCategory.OTHER: 3.0}


def test_a_compiled_graph_with_only_an_annotation_is_compute(traced: Traced) -> None:
    summary = traced.summary([a_step(1, 0, 4), annotation("## Call CompiledFxGraph f2vzvlwqq ##", 1, 2)])
    assert work_ms(summary) == {TimeCategory.COMPUTE: 2.0, TimeCategory.OTHER: 2.0}
    assert [short_name(o.name) for o in summary.operators] == ["compiled graph f2vzvlwq"]


def test_collectives_are_ordered_by_exposed_time(traced: Traced) -> None:
    summary = traced.summary(
        [
            a_step(1, 0, 10),
            op("aten::mm", 0, 4),
            annotation("gloo:all_gather", 1, 4, thread=2),
            annotation("gloo:all_reduce", 6, 2, thread=2),
            annotation("gloo:all_reduce", 9, 1, thread=2),
        ]
    )
    assert [(c.name, c.calls, c.exposed_ns) for c in summary.collectives] == [
        ("gloo:all_reduce", 2, 3_000_000),
        ("gloo:all_gather", 1, 1_000_000),
    ]


def test_on_a_device_kernels_decide_and_the_optimizer_is_identified_by_launches(traced: Traced) -> None:
    """Device time 10 to 20 ms: 3 compute, 2 optimizer, 2 communication alone, 1 copy, 2 idle of which 1 for data."""
    summary = traced.summary(
        [
            launch(1, 0),
            launch(2, 100),
            annotation("Optimizer.step#AdamW.step", 1, 1),
            launch(3, 1.5 * MS),
            launch(4, 3 * MS),
            annotation("data", 17, 1),
            launch(5, 3.1 * MS),
            kernel("gemm", 10 * MS, 3 * MS, launch=1),
            kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)", 12 * MS, 3 * MS, stream=20, launch=2),
            kernel("multi_tensor_apply_kernel", 15 * MS, 2 * MS, launch=3),
            Event("Memcpy DtoH (Device -> Pinned)", 19 * MS, 1 * MS, "gpu_memcpy", stream=7, correlation=5),
        ]
    )
    assert summary.on_device
    assert work_ms(summary) == {
        TimeCategory.COMPUTE: 3.0,
        TimeCategory.OPTIMIZER: 2.0,
        TimeCategory.COMMUNICATION: 2.0,
        TimeCategory.MEMORY: 1.0,
        TimeCategory.DATA: 1.0,
        TimeCategory.OTHER: 1.0,
    }
    assert [c.name for c in summary.collectives] == ["nccl:AllGather"]


def test_gaps_of_a_stream_have_three_causes(traced: Traced) -> None:
    trace = traced.trace(
        [
            *(launch(i, at) for i, at in enumerate([0, 1, 150, 2, 3])),
            kernel("a", 10, 40, launch=0),
            kernel("b", 60, 40, launch=1),  # launched in time, 10 us later: kernel wait
            kernel("c", 160, 40, launch=2),  # launched after the end of b: host wait, 60 us
            kernel("d", 300, 40, launch=3),  # launched in time, 100 us later: other
            kernel("e", 0, 5, stream=9, launch=4),
        ]
    )
    assert idle_by_stream(trace, trace.device_work) == (
        StreamIdle(stream=7, host_wait_ns=60_000, kernel_wait_ns=10_000, other_ns=100_000),
        StreamIdle(stream=9, host_wait_ns=0, kernel_wait_ns=0, other_ns=0),
    )


def test_self_time_excludes_callees(traced: Traced) -> None:
    found = operators_by_self_time(
        traced.trace(
            [
                op("aten::linear", 0, 10),
                op("aten::addmm", 2, 6),
                op("aten::linear", 20, 1),
                op("aten::mm", 0, 3, thread=2),
            ]
        )
    )
    assert [(o.name, o.calls, o.total_ns / 1e6) for o in found] == [
        ("aten::addmm", 1, 6.0),
        ("aten::linear", 2, 5.0),
        ("aten::mm", 1, 3.0),
    ]
    assert found[1].mean_ns == 2_500_000


@pytest.mark.parametrize("frame", ["PythonSubclass", "CompiledFunction", "CompiledFunctionBackward"])
def test_torchs_operators_around_python_are_not_listed_but_their_callees_are(traced: Traced, frame: str) -> None:
    found = operators_by_self_time(traced.trace([op(frame, 0, 10), op("aten::addmm", 2, 6)]))
    assert [(o.name, o.total_ns / 1e6) for o in found] == [("aten::addmm", 6.0)]


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=14)


@given(spans)
def test_self_times_of_a_thread_sum_to_its_busy_time(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]]
) -> None:
    """Also for events that overlap without nesting, due to rounded timestamps: no time counts twice."""
    events = [Event(f"op{i}", start, length) for i, (start, length) in enumerate(pairs)]
    trace = read_trace(write_trace(tmp_path_factory.mktemp("nest") / "t.json", events))
    tree = build_call_tree(trace.of_kind(EventKind.CPU_OP))
    busy = {t for start, length in pairs for t in range(start, start + length)}
    reachable = {t for start, end in outermost(pairs) for t in range(start, end)}
    assert (tree.self_time() >= 0).all()
    assert int(tree.self_time().sum()) == 1000 * len(reachable & busy)


def outermost(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Events that begin outside of all others; one that runs past the end of its parent is cut there."""
    found: list[tuple[int, int]] = []
    for start, length in sorted(pairs, key=lambda p: (p[0], -p[1])):
        if not found or start >= found[-1][1]:
            found.append((start, start + length))
    return found


def test_steps_are_read_from_the_profilers_annotations(traced: Traced) -> None:
    steps = profiled_steps(traced.trace([a_step(21, 2, 3), a_step(20, 0, 2), op("ProfilerStep#9", 0, 1)]))
    assert [(s.number, s.end - s.start) for s in steps] == [(20, 2_000_000), (21, 3_000_000)]


def test_a_timeline_has_the_utilisation_of_each_slot() -> None:
    width = 100
    spans = spans_from_pairs([(0, width), (2 * width, 2 * width + 50), (4 * width, 4 * width + 5)])
    picture = slot_levels(spans, 0, SLOTS * width)
    assert picture == "40201" + "0" * (SLOTS - 5)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::mm", "aten::mm"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "ncclKernel_AllReduce_RING_LL_Sum_float"),
        (
            "void at::native::elementwise_kernel<2, at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<int> > >()",
            "elementwise_kernel<CUDAFunctor_add>",
        ),
        ("void cutlass::Kernel<cutlass_80_gemm>(cutlass_80_gemm::Params)", "cutlass::Kernel<cutlass_80_gemm>"),
        ("x" * 100, "x" * 31 + "…" + "x" * 32),
        ("<<<(", "<<<("),
    ],
)
def test_kernel_names_are_shortened_to_their_distinctive_part(name: str, short: str) -> None:
    assert short_name(name) == short


@given(st.text(alphabet="<>(){}:, aZ_9", max_size=40))
def test_any_name_can_be_shortened(name: str) -> None:
    assert len(short_name(name, 20)) <= max(20, len(name))
