"""What a job says of itself: which numbers and times can be true, whoever read them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.beats import FIGURES, SKEW_S, Clock, beat_of, count_of, time_of
from muster.cluster import Beat

NOW = 1_000_000.0
CLOCK = Clock(NOW)


def test_a_time_ahead_of_now_is_now_and_a_small_difference_of_clocks_is_none() -> None:
    assert time_of(NOW + SKEW_S, CLOCK) == NOW + SKEW_S
    assert time_of(NOW + SKEW_S + 0.1, CLOCK) == NOW
    assert time_of(NOW + 3600.0, Clock(NOW, -3600.0)) == NOW
    assert [time_of(at, CLOCK) for at in (1.7e12, -1.0, 1e400, True, "soon", None)] == [None] * 6
    assert [count_of(count) for count in (2**53, 2**53 + 2, -1, 7.0, False)] == [2**53, None, None, 7, None]


def test_a_checkpoint_dated_ahead_counts_from_when_it_was_seen_and_the_next_true_one_is_later() -> None:
    ahead = {"step": 10, "at": NOW + 3600}
    seen = beat_of({}, ahead, CLOCK)
    assert seen == Beat(at=NOW, step=10, step_at=NOW, checkpoint_step=10, checkpoint_at=NOW)
    assert beat_of({}, ahead, Clock(NOW + 15), seen).checkpoint_at == NOW  # type: ignore[union-attr]
    later = beat_of({}, {"step": 20, "at": NOW + 30}, Clock(NOW + 31), seen)
    assert later is not None
    assert (later.checkpoint_step, later.checkpoint_at) == (20, NOW + 30)


def test_what_the_newest_checkpoint_does_not_tell_the_heartbeat_does() -> None:
    said = {"at": NOW, "step": 9, "checkpoint_step": 8, "checkpoint_at": NOW - 5}
    for latest in ({}, {"step": None, "at": None}, {"step": "x", "at": -1}):
        beat = beat_of(said, latest, CLOCK)
        assert beat is not None
        assert (beat.checkpoint_step, beat.checkpoint_at) == (8, NOW - 5)


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)


@given(
    st.dictionaries(st.sampled_from(FIGURES), ANYTHING),
    st.dictionaries(st.sampled_from(("step", "at")), ANYTHING),
    st.floats(-1e9, 1e9),
)
def test_no_time_is_ahead_of_now_and_the_same_again_is_the_same_object(
    said: dict[str, Any], latest: dict[str, Any], offset_s: float
) -> None:
    clock = Clock(NOW, offset_s)
    beat = beat_of(said, latest, clock)
    if beat is not None:
        assert all(0 <= at <= NOW + SKEW_S for at in (beat.at, beat.step_at, beat.checkpoint_at or 0.0))
        assert beat_of(said, latest, clock, beat) is beat
