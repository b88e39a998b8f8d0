"""Waiting after consecutive failures."""

from __future__ import annotations

from muster.backoff import Backoff, backoff_s


def test_pauses_grow_to_a_maximum_and_start_anew_after_a_success() -> None:
    backoff = Backoff(1.0, 8.0)
    assert [backoff.fail(10.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert (backoff.failures, backoff.retry_at) == (6, 18.0)
    backoff.reset()
    assert backoff.fail(10.0) == 1.0


def test_a_failure_long_after_the_previous_one_is_a_first_one() -> None:
    backoff = Backoff(1.0, 8.0, reset_after_s=300.0)
    assert [backoff.fail(now) for now in (0.0, 300.0, 601.0)] == [1.0, 2.0, 1.0]


def test_pauses_stay_finite_after_any_number_of_failures() -> None:
    assert [backoff_s(failures, 5.0, 300.0) for failures in (0, 1, 2, 10_000)] == [0.0, 5.0, 10.0, 300.0]
    assert backoff_s(3, 1.0, 100.0, factor=3.0) == 9.0


def test_a_failure_may_have_a_longer_first_pause_than_others() -> None:
    backoff = Backoff(1.0, 30.0)
    assert [backoff.fail(0.0, 5.0), backoff.fail(0.0), backoff.fail(0.0, 5.0)] == [5.0, 2.0, 20.0]


def test_after_the_end_of_a_pause_the_failures_still_count() -> None:
    backoff = Backoff(1.0, 8.0)
    backoff.fail(10.0)
    backoff.end_pause()
    assert backoff.retry_at < 10.0
    assert backoff.fail(10.0) == 2.0
