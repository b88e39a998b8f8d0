"""Which ranks a capture profiles."""

from __future__ import annotations

import math

import pytest

from muster.capture.protocol import RankReport, parse_answer, parse_report
from muster.capture.ranks import select_ranks
from muster.errors import InvalidSpec, Refused


def reports(count: int, stages: int = 0) -> list[RankReport]:
    return [
        RankReport(
            rank=rank, world_size=count, attempt=0, step=5, age_s=0.0, step_time_s=0.1 if rank != 2 else 0.2,
            stage=rank * stages // count if stages else None,
        )
        for rank in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("all", (0, 1, 2, 3)), ("3,0,3", (0, 3)), ("slowest", (2,)), ("stage-leaders", (0, 2))],
)
def test_ranks_are_chosen_in_ascending_order(text: str, chosen: tuple[int, ...]) -> None:
    assert select_ranks(text, reports(4, stages=2), "seed") == chosen


def test_random_ranks_depend_on_the_capture_only() -> None:
    first = select_ranks("random:2", reports(8), "one")
    assert len(first) == 2
    assert select_ranks("random:2", reports(8), "one") == first
    assert len({select_ranks("random:2", reports(8), str(seed)) for seed in range(20)}) > 1


@pytest.mark.parametrize(
    ("text", "reason"), [("9", "RankNotFound"), ("random:5", "RankNotFound"), ("stage-leaders", "NoPipeline")]
)
def test_ranks_that_the_job_does_not_have_are_refused(text: str, reason: str) -> None:
    with pytest.raises(Refused, check=lambda error: error.reason == reason):
        select_ranks(text, reports(4), "seed")


def test_more_ranks_than_a_status_can_name_are_refused() -> None:
    with pytest.raises(Refused, match="at most 1024; all are 1025"):
        select_ranks("all", reports(1025), "seed")


@pytest.mark.parametrize("text", ["", "al", "0,", "-1", "random:0", "random:", "0;1", "all "])
def test_invalid_texts_name_what_is_valid(text: str) -> None:
    with pytest.raises(InvalidSpec, match="must be all, ranks such as 0,8, stage-leaders, slowest, or random:4"):
        select_ranks(text, reports(2), "seed")


def test_heartbeats_and_answers_with_impossible_values_are_left_out() -> None:
    valid: dict[str, object] = {"rank": 0, "world_size": 2, "attempt": 0, "step": 3, "at": 10.0}
    found = parse_report(valid, 12.5)
    assert found is not None
    assert (found.age_s, found.step_time_s) == (2.5, None)
    impossible = [("rank", 2), ("rank", -1), ("rank", "0"), ("world_size", None), ("at", math.nan)]
    for name, value in impossible:
        assert parse_report({**valid, name: value}, 12.5) is None
    assert parse_report(valid | {"step_time_s": -1}, 12.5) == found
    answer = {"id": "a", "proposal": 1, "attempt": 0, "rank": 0, "state": "armed", "reason": "x" * 9999}
    parsed = parse_answer(answer)
    assert parsed is not None
    assert len(parsed.reason) == 500
    invalid: list[dict[str, object]] = [{"state": "ready"}, {"state": []}, {"proposal": "1"}, {"rank": None}]
    for changes in invalid:
        assert parse_answer({**answer, **changes}) is None
