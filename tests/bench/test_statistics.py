"""The ratio of two programs: intervals, decisions, and how often they are wrong on noise of known size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.random import Generator

from muster.bench.statistics import (
    Criteria,
    Outcome,
    RatioInterval,
    expanded_tail,
    pair_order,
    paired_ratio,
    student_quantile,
    unpaired_ratio,
)

CRITERIA = Criteria()


def noisy(rng: Generator, ratio: float, pairs: int) -> tuple[list[float], list[float]]:
    """Pairs with noise as on a shared machine: it drifts over the pairs, differs by process, and some runs stall."""
    drift = np.cumsum(rng.normal(0, 0.02, pairs))
    process = rng.normal(0, 0.008, (2, pairs))
    stalls = (rng.random((2, pairs)) < 0.08) * rng.exponential(0.5, (2, pairs))
    a, b = np.exp(drift + process + stalls)
    return a.tolist(), (ratio * b).tolist()


def rate(ratio: float, outcome: Outcome, trials: int = 400) -> float:
    rng = np.random.default_rng(7)
    found = [CRITERIA.decide(paired_ratio(*noisy(rng, ratio, 24), 0.025)) for _ in range(trials)]
    return found.count(outcome) / trials


def test_a_program_compared_with_itself_alarms_in_at_most_five_percent() -> None:
    assert rate(1.0, Outcome.REGRESSION) <= 0.05
    assert rate(1.0, Outcome.IMPROVEMENT) <= 0.05


def test_a_slowdown_by_three_percent_is_found_in_95_percent_and_a_speedup_too() -> None:
    assert rate(1.03, Outcome.REGRESSION) >= 0.95
    assert rate(1 / 1.03, Outcome.IMPROVEMENT) >= 0.95


def test_each_bound_is_exceeded_at_most_as_often_as_asked_also_with_few_pairs() -> None:
    rng = np.random.default_rng(3)
    for pairs in (6, 12):
        trials = np.exp(rng.normal(0, 0.02, (400, 2, pairs))).tolist()
        intervals = [paired_ratio(a, b, 0.05) for a, b in trials]
        assert np.mean([one.low > 1 for one in intervals]) <= 0.07
        assert np.mean([one.high < 1 for one in intervals]) <= 0.07


def test_the_ratio_is_that_of_b_to_a_and_scales_with_b() -> None:
    a, b = [1.0, 1.1, 0.9, 1.05, 1.0, 0.95], [2.0, 2.2, 1.8, 2.1, 2.0, 1.9]
    found = paired_ratio(a, b, 0.025)
    assert (found.ratio, found.low, found.high) == pytest.approx((2, 2, 2))
    assert (found.samples, found.paired) == (6, True)
    swapped = paired_ratio(b, a, 0.025)
    assert swapped.ratio == pytest.approx(0.5)


def test_a_drift_of_the_machine_cancels_in_pairs_but_not_without() -> None:
    rng = np.random.default_rng(5)
    drift = np.linspace(1, 2, 12)
    a, b = drift * np.exp(rng.normal(0, 0.001, 12)), 1.03 * drift * np.exp(rng.normal(0, 0.001, 12))
    assert CRITERIA.decide(paired_ratio(a.tolist(), b.tolist(), 0.025)) is Outcome.REGRESSION
    assert CRITERIA.decide(unpaired_ratio(a.tolist(), b.tolist(), 0.025)) is Outcome.UNCHANGED


def test_runs_that_were_not_interleaved_are_resampled_by_side() -> None:
    found = unpaired_ratio([1.0, 1.01, 0.99, 1.0, 1.0], [1.1, 1.11, 1.09, 1.1, 1.1, 1.1, 1.1], 0.05)
    assert found.ratio == pytest.approx(1.1, rel=1e-3)
    assert (found.samples, found.paired) == (5, False)
    assert CRITERIA.decide(found) is Outcome.REGRESSION


def test_a_change_below_the_threshold_is_not_reported_however_certain() -> None:
    assert CRITERIA.decide(RatioInterval(1.009, 1.008, 1.0095, 24)) is Outcome.UNCHANGED
    assert CRITERIA.decide(RatioInterval(1.011, 1.0105, 1.0115, 24)) is Outcome.REGRESSION
    assert CRITERIA.decide(RatioInterval(1 / 1.009, 0.9905, 0.9915, 24)) is Outcome.UNCHANGED
    assert CRITERIA.decide(RatioInterval(1.2, 0.99, 1.4, 24)) is Outcome.UNCHANGED


def test_runs_end_when_they_are_precise_or_at_the_maximum() -> None:
    wide, narrow = RatioInterval(1.0, 0.9, 1.1, 12), RatioInterval(1.0, 0.995, 1.005, 12)
    assert CRITERIA.missing_pairs(None, 0) == 12
    assert CRITERIA.missing_pairs(None, 7) == 5
    assert CRITERIA.missing_pairs(narrow, 12) == 0
    assert CRITERIA.missing_pairs(wide, 12) == 6
    assert CRITERIA.missing_pairs(wide, 20) == 4
    assert CRITERIA.missing_pairs(wide, 24) == 0
    assert narrow.half_width == pytest.approx(0.005, rel=1e-2)


def test_both_sides_are_second_as_often() -> None:
    assert pair_order(3, first=1) == [(1, "B"), (1, "A"), (2, "A"), (2, "B"), (3, "B"), (3, "A")]


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.025, 4, -2.7764), (0.025, 11, -2.2010), (0.005, 4, -4.6041), (0.005, 23, -2.8073), (0.05, 30, -1.6973)],
)
def test_quantiles_of_students_distribution_are_those_of_tables(
    probability: float, freedom: int, expected: float
) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=0.01)


def test_the_expanded_tail_approaches_the_rate_with_many_samples() -> None:
    assert expanded_tail(0.025, 8) < expanded_tail(0.025, 24) < expanded_tail(0.025, 10_000)
    assert expanded_tail(0.025, 10_000) == pytest.approx(0.025, rel=0.01)


@pytest.mark.parametrize("times", [[1.0] * 4, [1.0] * 4 + [0.0], [1.0] * 4 + [math.nan]])
def test_too_few_or_impossible_times_are_refused(times: list[float]) -> None:
    with pytest.raises(ValueError, match=r"at least 5 runs|must be finite and above 0"):
        paired_ratio(times, times, 0.025)


def test_sides_of_different_length_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="same number of runs; got 5 and 6"):
        paired_ratio([1.0] * 5, [1.0] * 6, 0.025)
