"""The times of steps without work between them."""

from __future__ import annotations

import pytest

from muster_components.trainer.progress import StepTimer


def test_a_step_lasts_from_the_end_of_the_one_before() -> None:
    timer = StepTimer(10.0)
    assert [timer.step_ended(at_s) for at_s in (12.0, 12.5, 13.5)] == [2.0, 0.5, 1.0]
    assert timer.median_s() == 0.75


def test_excluded_work_before_a_step_does_not_count() -> None:
    timer = StepTimer(0.0)
    timer.step_ended(1.0)
    timer.exclude(1.0, 4.0)
    assert timer.step_ended(4.5) == 0.5


def test_excluded_work_after_a_step_that_ended_already_counts_for_the_next_step() -> None:
    """On a GPU the result of a step is read after the next was launched: that one has ended when the work begins."""
    timer = StepTimer(0.0)
    timer.step_ended(1.0)
    timer.exclude(1.5, 4.0)  # the second step has ended at 1.5, but is not reported yet
    assert timer.step_ended(1.5) == 0.5
    assert timer.step_ended(4.75) == pytest.approx(0.75)
    assert timer.step_ended(5.0) == 0.25


def test_excluded_work_that_two_steps_share_is_split_at_their_border() -> None:
    timer = StepTimer(0.0)
    timer.exclude(0.5, 2.0)
    timer.exclude(2.5, 2.75)
    assert timer.step_ended(1.0) == 0.5
    assert timer.step_ended(3.0) == 0.75
