"""Validation of numbers and times in heartbeats."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cluster import Heartbeat
from muster.heartbeats.parse import (
    MAX_CLOCK_SKEW_S,
    NUMERIC_FIELDS,
    ClockReading,
    newest_checkpoint,
    parse_collectives,
    parse_count,
    parse_field,
    parse_heartbeat,
    parse_time,
)

NOW = 1_000_000.0
CLOCK = ClockReading(NOW)


def test_a_time_ahead_of_now_is_now_and_a_small_difference_of_clocks_is_none() -> None:
    assert parse_time(NOW + MAX_CLOCK_SKEW_S, CLOCK) == NOW + MAX_CLOCK_SKEW_S
    assert parse_time(NOW + MAX_CLOCK_SKEW_S + 0.1, CLOCK) == NOW
    assert parse_time(NOW + 3600.0, ClockReading(NOW, -3600.0)) == NOW
    assert [parse_time(at, CLOCK) for at in (1.7e12, -1.0, 1e400, True, "soon", None)] == [None] * 6
    assert [parse_count(count) for count in (2**53, 2**53 + 2, -1, 7.0, False)] == [2**53, None, None, 7, None]


def test_a_checkpoint_dated_ahead_counts_from_when_it_was_seen_and_the_next_true_one_is_later() -> None:
    ahead = {"step": 10, "at": NOW + 3600}
    seen = parse_heartbeat({}, ahead, CLOCK)
    assert seen == Heartbeat(
        at=NOW, step=10, step_changed_at=NOW, has_stepped=False, checkpoint_step=10, checkpoint_at=NOW
    )
    assert parse_heartbeat({}, ahead, ClockReading(NOW + 15), seen).checkpoint_at == NOW  # type: ignore[union-attr]
    later = parse_heartbeat({}, {"step": 20, "at": NOW + 30}, ClockReading(NOW + 31), seen)
    assert later is not None
    assert (later.checkpoint_step, later.checkpoint_at) == (20, NOW + 30)


def test_fields_missing_in_the_newest_checkpoint_come_from_the_heartbeat() -> None:
    document = {"at": NOW, "step": 9, "checkpoint_step": 8, "checkpoint_at": NOW - 5}
    for latest in ({}, {"step": None, "at": None}, {"step": "x", "at": -1}):
        heartbeat = parse_heartbeat(document, latest, CLOCK)
        assert heartbeat is not None
        assert (heartbeat.checkpoint_step, heartbeat.checkpoint_at) == (8, NOW - 5)


def test_of_a_job_that_reports_nothing_else_a_checkpoint_gives_steps_and_loss_and_no_step_that_has_ended() -> None:
    found = {"format": "Transformers", "step": 40, "steps": 100, "loss": 2.5, "at": NOW - 60, "path": "/x"}
    seen = parse_heartbeat({}, found, CLOCK)
    assert seen is not None
    assert (seen.step, seen.total_steps, seen.loss, seen.checkpoint_at) == (40, 100, 2.5, NOW - 60)
    assert not seen.has_stepped, "else it would stall between two checkpoints"
    reported = parse_heartbeat({"at": NOW, "step": 45, "steps": 90, "loss": 2.0}, found, CLOCK)
    assert reported is not None
    assert (reported.step, reported.total_steps, reported.loss, reported.has_stepped) == (45, 90, 2.0, True)
    assert (reported.checkpoint_step, reported.checkpoint_at) == (40, NOW - 60)


def test_the_step_of_a_checkpoint_may_be_unknown_and_is_not_that_of_another_one() -> None:
    document = {"at": NOW, "step": 9, "checkpoint_step": 8, "checkpoint_at": NOW - 50}
    seen = parse_heartbeat(document, {"step": None, "at": NOW - 5}, CLOCK)
    assert seen is not None
    assert (seen.step, seen.checkpoint_step, seen.checkpoint_at) == (9, None, NOW - 5)
    alone = parse_heartbeat({}, {"step": None, "at": NOW - 5}, CLOCK)
    assert alone is not None
    assert (alone.step, alone.checkpoint_step, alone.checkpoint_at) == (0, None, NOW - 5)


def test_of_an_announced_and_a_found_checkpoint_the_later_one_counts() -> None:
    announced, found = {"step": 10, "at": NOW - 10}, {"step": 20, "at": NOW - 5}
    assert newest_checkpoint(announced, found) is found
    assert newest_checkpoint(found, announced) is found
    assert newest_checkpoint({"step": 10, "at": "soon"}, found) is found
    assert newest_checkpoint(announced, {"step": 20, "at": None}) is announced
    assert [newest_checkpoint(announced, None), newest_checkpoint(None, found)] == [announced, found]
    assert newest_checkpoint(None, None) is None


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)


@given(
    st.dictionaries(st.sampled_from(NUMERIC_FIELDS), ANYTHING),
    st.dictionaries(st.sampled_from(("step", "at")), ANYTHING),
    st.floats(-1e9, 1e9),
)
def test_no_time_is_ahead_of_now_and_the_same_again_is_the_same_object(
    document: dict[str, Any], latest: dict[str, Any], offset_s: float
) -> None:
    clock = ClockReading(NOW, offset_s)
    heartbeat = parse_heartbeat(document, latest, clock)
    if heartbeat is not None:
        assert all(
            0 <= at <= NOW + MAX_CLOCK_SKEW_S
            for at in (heartbeat.at, heartbeat.step_changed_at, heartbeat.checkpoint_at or 0.0)
        )
        assert parse_heartbeat(document, latest, clock, heartbeat) is heartbeat


def test_negative_huge_and_wrong_typed_rates_are_unknown_and_only_a_loss_may_be_negative() -> None:
    for name in ("collectives_per_step", "collective_bytes_per_step", "tokens_per_s"):
        hostile = (-1, -0.5, 1e300, 2**53 + 2, 10**400, float("nan"), float("inf"), "9", True, [5], {"a": 1}, None)
        for value in hostile:
            heartbeat = parse_heartbeat({"at": NOW, "step": 1, name: value}, {}, CLOCK)
            assert heartbeat == Heartbeat(at=NOW, step=1, step_changed_at=NOW), (name, value)
    assert parse_field("loss", -2.5) == -2.5
    assert [parse_field("collective_bytes_per_step", value) for value in (0, 2**53)] == [0, 2**53]


def test_counts_of_collectives_are_checked_and_bounded() -> None:
    assert parse_collectives({"mesh_fsdp": 7, "a": -1, "b": "1", "\x1b[31m": 5, "": 1, "c": True}) == {"mesh_fsdp": 7}
    assert len(parse_collectives({f"g{number}": number for number in range(99)})) == 16
    values: tuple[object, ...] = (None, [], "x", 5)
    assert [parse_collectives(value) for value in values] == [{}] * 4


@pytest.mark.parametrize(("phase", "stepped"), [("setup", False), ("compile", False), ("train", True), (None, True)])
def test_before_the_first_step_of_an_attempt_a_heartbeat_says_so(phase: str | None, stepped: bool) -> None:
    seen = parse_heartbeat({"at": NOW, "step": 40, "attempt": 2, "phase": phase}, {}, ClockReading(NOW))
    assert seen is not None
    assert (seen.attempt, seen.has_stepped) == (2, stepped)
