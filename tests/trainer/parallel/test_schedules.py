"""Schedules: refused combinations, stages of a rank, and the ideal bubble against torch's own order of actions."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from muster_components.trainer.errors import InputError
from muster_components.trainer.parallel.schedules import SCHEDULES, build_schedule, find_schedule, invalid_because

MULTI_STAGE = [name for name, schedule in SCHEDULES.items() if schedule.stages_per_rank > 1]
SPLIT = ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


def stages_of(name: str, ranks: int) -> list[Any]:
    """What a schedule reads of rank 0's stages when it is built."""
    schedule = SCHEDULES[name]
    count = ranks * schedule.stages_per_rank
    return [
        SimpleNamespace(
            num_stages=count,
            group_size=ranks,
            group_rank=0,
            stage_index=index,
            submod=None,
            is_first=index == 0,
            is_last=index == count - 1,
            stage_index_to_group_rank=None,
            has_backward=True,
        )
        for index in schedule.stage_indices(0, ranks)
    ]


@pytest.mark.parametrize("name", ["zbvzerobubble", "ZBVZeroBubble"])
def test_a_schedule_is_found_in_any_case(name: str) -> None:
    assert find_schedule(name).name == "ZBVZeroBubble"


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"--pipeline_schedule must be one of GPipe, 1F1B, .*; got 'chimera'"):
        find_schedule("chimera")


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches", "backend", "reason"),
    [
        ("1F1B", 1, 4, None, "needs at least 2 pipeline ranks; got pp=1"),
        ("1F1B", 4, 3, None, "needs at least as many micro-batches as stages, 4; got 3"),
        ("DualPipeV", 2, 3, None, "needs at least as many micro-batches as stages, 4; got 3"),
        ("Interleaved1F1B", 4, 9, None, "9 micro-batches do not divide into 2 rounds; use 8 or 12"),
        *((name, 2, 8, "inductor", "use --pipeline_schedule Interleaved1F1B, or --no_compile") for name in SPLIT),
        *((name, 2, 8, "aot_eager", "cannot do for compiled modules (backend aot_eager)") for name in SPLIT),
    ],
)
def test_what_torch_cannot_do_is_refused(
    name: str, ranks: int, micro_batches: int, backend: str | None, reason: str
) -> None:
    text = invalid_because(SCHEDULES[name], ranks=ranks, micro_batches=micro_batches, compile_backend=backend)
    assert text is not None
    assert f"--pipeline_schedule {name}" in text
    assert reason in text


@pytest.mark.parametrize("name", SCHEDULES)
def test_selective_recomputation_is_refused_where_backward_is_split_and_nothing_else(name: str) -> None:
    for recompute in ("none", "selective", "full"):
        text = invalid_because(SCHEDULES[name], ranks=2, micro_batches=8, compile_backend=None, recompute=recompute)
        assert (text is not None) == (name in SPLIT and recompute == "selective")
        assert text is None or "use --activation_checkpointing full or none" in text


@pytest.mark.slow  # imports torch
@pytest.mark.matrix
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_refused_exactly_where_torch_raises_an_error(name: str) -> None:
    for ranks in (2, 3, 4):
        for micro_batches in range(1, 14):
            refused = invalid_because(SCHEDULES[name], ranks=ranks, micro_batches=micro_batches, compile_backend=None)
            try:
                build_schedule(SCHEDULES[name], stages_of(name, ranks), micro_batches, lambda *_: None)
            except ValueError:
                assert refused is not None, (ranks, micro_batches)
            else:
                assert refused is None, (ranks, micro_batches)


@pytest.mark.slow  # imports torch
@pytest.mark.matrix
@pytest.mark.parametrize("name", MULTI_STAGE)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rounds", [2, 5])
def test_bubble_and_stages_of_a_rank_are_those_of_torchs_order_of_actions(name: str, ranks: int, rounds: int) -> None:
    schedule, micro_batches = SCHEDULES[name], rounds * ranks
    built: Any = build_schedule(schedule, stages_of(name, ranks), micro_batches, lambda *_: None)
    order = built.pipeline_order
    actions = {rank: list(single_actions(order[rank])) for rank in order}
    for rank in range(ranks):
        assert {stage for _, stage, _ in actions[rank]} == set(schedule.stage_indices(rank, ranks))
    assert waiting_share(actions) == pytest.approx(schedule.bubble(ranks, micro_batches))


@pytest.mark.slow  # imports torch
@pytest.mark.matrix
@pytest.mark.parametrize("name", MULTI_STAGE)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (2, 10), (3, 6), (4, 20), (8, 16)])
def test_micro_batches_in_flight_are_those_of_torchs_order_of_actions(
    name: str, ranks: int, micro_batches: int
) -> None:
    schedule = SCHEDULES[name]
    built: Any = build_schedule(schedule, stages_of(name, ranks), micro_batches, lambda *_: None)
    for rank in range(ranks):
        live, most = 0, 0
        for kind, _, _ in single_actions(built.pipeline_order[rank]):
            live += {"F": 1, "B": -1, "W": -1}.get(kind, 0)
            most = max(most, live)
        assert most / schedule.stages_per_rank == schedule.in_flight(rank, ranks, micro_batches)


def test_micro_batches_in_flight_of_one_stage_per_rank() -> None:
    assert [SCHEDULES["1F1B"].in_flight(rank, 4, 8) for rank in range(4)] == [4, 3, 2, 1]
    assert [SCHEDULES["GPipe"].in_flight(rank, 4, 8) for rank in range(4)] == [8, 8, 8, 8]


@pytest.mark.parametrize(("name", "share"), [("GPipe", 3 / 11), ("1F1B", 3 / 11), ("ZBVZeroBubble", 3 / 51)])
def test_the_bubble_of_4_ranks_and_8_micro_batches(name: str, share: float) -> None:
    assert SCHEDULES[name].bubble(4, 8) == pytest.approx(share)


KINDS = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "B"}
DURATIONS = {"F": 1, "I": 1, "W": 1, "B": 2}


def single_actions(order: list[Any]) -> list[tuple[str, int, int]]:
    """Kind, stage and micro-batch of each action of a rank; overlapped actions one after the other."""
    found = []
    for action in order:
        for single in () if action is None else getattr(action, "sub_actions", None) or (action,):
            found.append((KINDS[single.computation_type.name], single.stage_index, single.microbatch_index))
    return found


def waiting_share(actions: dict[int, list[tuple[str, int, int]]]) -> Fraction:
    """The share of time in which the ranks wait, where each action starts as soon as it can."""
    last_stage = max(stage for of_rank in actions.values() for _, stage, _ in of_rank)
    ends: dict[tuple[str, int, int], int] = {}
    clocks = dict.fromkeys(actions, 0)
    pending = {rank: list(reversed(of_rank)) for rank, of_rank in actions.items()}
    while any(pending.values()):
        before = len(ends)
        for rank, left in pending.items():
            while left and all(need in ends for need in requirements(left[-1], last_stage)):
                kind, stage, micro_batch = left.pop()
                start = max(
                    [clocks[rank], *(ends[need] for need in requirements((kind, stage, micro_batch), last_stage))]
                )
                clocks[rank] = start + DURATIONS[kind]
                ends["I" if kind == "B" else kind, stage, micro_batch] = clocks[rank]
        assert len(ends) > before, "the order of actions is a deadlock"
    busy = sum(DURATIONS[kind] for of_rank in actions.values() for kind, _, _ in of_rank)
    return 1 - Fraction(busy, len(actions) * max(clocks.values()))


def requirements(action: tuple[str, int, int], last_stage: int) -> list[tuple[str, int, int]]:
    """The actions that must have ended before."""
    kind, stage, micro_batch = action
    if kind == "F":
        return [("F", stage - 1, micro_batch)] if stage > 0 else []
    if kind == "W":
        return [("I", stage, micro_batch)]
    after = [("I", stage + 1, micro_batch)] if stage < last_stage else []
    return [("F", stage, micro_batch), *after]
