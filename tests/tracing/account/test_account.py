"""The account of a step: its parts sum to the step, and what is lost has one owner with one cause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.kineto import Event, kernel, launch, step, write_trace

from muster.tracing.account.kinds import Spent
from muster.tracing.account.lanes import Lane, combine, sums_within
from muster.tracing.analysis.rank_records import read_rank_records
from muster.tracing.analysis.run_analysis import analyse_run
from muster.tracing.ranks.attribution import account
from muster.tracing.ranks.rank_comparison import compare_ranks
from muster.tracing.read.spans import Spans
from muster.tracing.runs.run_folder import read_run_folder

DATA = Path(__file__).parents[1] / "data"
SMALL = DATA / "small"
RECORDINGS = (*sorted(path.name for path in SMALL.iterdir()),)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_parts_of_an_account_sum_to_the_step(name: str) -> None:
    ranks = compare_ranks(read_rank_records([SMALL / name]))
    assert ranks is not None
    found = account(ranks)
    total = np.sum(list(found.spent_ms.values()), axis=0)
    np.testing.assert_allclose(total, found.step_ms, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["control.json.gz", "negative_queue.json.gz", "ns_resolution.pt.trace.json.gz"])
def test_so_do_those_of_real_traces(name: str) -> None:
    ranks = compare_ranks(read_rank_records([DATA / name]))
    assert ranks is not None
    found = account(ranks)
    np.testing.assert_allclose(np.sum(list(found.spent_ms.values()), axis=0), found.step_ms, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("contention", [("host-blocked", (0,), 22)]),
        ("slow_gpu", [("slow-device", (1,), 6)]),
        ("larger_input", [("larger-input", (1,), 39)]),
        ("copy", [("copy", (0,), 25)]),
        ("autograd_thread", []),
        ("backslash", []),
        ("launch_both", [("launch-bound", (), 24)]),
        ("single_loader", [("data-loading", (0,), 30)]),
        ("single_loader_nosteps", [("data-loading", (0,), 30)]),
        ("ranks_in_names", [("data-loading", (0,), 30)]),
    ],
)
def test_small_traces_have_the_verdict_of_their_fault(
    name: str, expected: list[tuple[str, tuple[int, ...], int]]
) -> None:
    """contention: kernels beside a collective that waits take longer, which is no fault of their device.
    larger_input: the same kernels on twice the grid. autograd_thread: an operator is open on another thread."""
    verdicts = analyse_run(read_run_folder(SMALL / name)).verdicts
    assert [(str(v.cause), v.ranks) for v in verdicts] == [(cause, ranks) for cause, ranks, _ in expected]
    assert [v.cost_ms for v in verdicts] == pytest.approx([ms for _, _, ms in expected], abs=1)


def test_waiting_for_a_late_rank_is_apart_from_the_transfer() -> None:
    ranks = compare_ranks(read_rank_records([SMALL / "slow_gpu"]))
    assert ranks is not None
    found = account(ranks)
    assert found.waiting_ms[0].mean() == pytest.approx(6, abs=0.1)
    assert found.waiting_ms[1].mean() == pytest.approx(0, abs=0.1)
    assert {loss.rank for loss in found.losses if loss.ms.mean() > 0.5} == {1}
    (main,) = [loss for loss in found.losses if loss.ms.mean() > 0.5]
    assert main.label.spent is Spent.COMPUTE


def test_what_ranks_wait_for_in_the_next_step_is_lost_once(tmp_path: Path) -> None:
    """Rank 1 writes a checkpoint of 100 ms at the end of step 11; the others wait for it in step 12."""
    begin = [0.0, 0.0, 0.0]
    events: list[list[Event]] = [[], [], []]
    for number in range(4):
        ready = [at + 40_010 for at in begin]
        done = max(ready) + 1000
        for rank, (at, end) in enumerate(zip(begin, ready, strict=True)):
            saving = 100_000.0 * (rank == 1 and number == 1)
            events[rank] += [
                launch(2 * number, at),
                kernel("gemm", at + 10, 40_000, launch=2 * number),
                launch(2 * number + 1, at + 100),
                kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", end, done - end, stream=20, launch=2 * number + 1),
                step(10 + number, at, done + saving - at),
                *([Event("save_checkpoint", done, saving, "user_annotation")] if saving else []),
            ]
            begin[rank] = done + saving
    for rank, of_rank in enumerate(events):
        write_trace(tmp_path / f"rank{rank}.json", of_rank, rank=rank, world_size=3)
    ranks = compare_ranks(read_rank_records([tmp_path]))
    assert ranks is not None
    losses = [loss for loss in account(ranks).losses if loss.ms.sum() > 1]
    assert {(loss.rank, loss.label.spent) for loss in losses} == {(1, Spent.CHECKPOINT)}
    assert sum(loss.ms.sum() for loss in losses) == pytest.approx(100, abs=2)


times = st.lists(st.integers(0, 60), min_size=0, max_size=12, unique=True).map(sorted)


def lane(edges: list[int], code: int) -> Lane:
    pairs = list(zip(edges[::2], edges[1::2], strict=False))
    start, end = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in range(2))
    return Lane(start, end, np.full(len(pairs), code, dtype=np.int32))


@given(st.lists(times, min_size=1, max_size=4))
def test_lanes_combine_to_the_smallest_code_of_each_moment_without_gaps(edges: list[list[int]]) -> None:
    lanes = [lane(one, code) for code, one in enumerate(edges)]
    found = combine(lanes, 5, 50, 9)
    assert found.start[0] == 5
    assert found.end[-1] == 50
    assert (found.start[1:] == found.end[:-1]).all()
    assert (found.code[1:] != found.code[:-1]).all()
    moments = np.arange(5, 50)
    expected = np.minimum.reduce([np.full(len(moments), 9), *(one.at(moments) for one in lanes)])
    assert found.at(moments).tolist() == expected.tolist()


@given(times, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=5))
def test_sums_within_windows_are_those_of_each_moment(edges: list[int], pairs: list[tuple[int, int]]) -> None:
    one = combine([lane(edges, 1)], 0, 60, 2)
    windows = Spans(*(np.array([f(pair) for pair in pairs], dtype=np.int64) for f in (min, max)))
    window, code, ns = sums_within(one, windows, 3)
    found = {(w, c): n for w, c, n in zip(window.tolist(), code.tolist(), ns.tolist(), strict=True)}
    expected: dict[tuple[int, int], int] = {}
    for i, pair in enumerate(pairs):
        for moment in one.at(np.arange(min(pair), max(pair))).tolist():
            expected[i, moment] = expected.get((i, moment), 0) + 1
    assert found == expected
