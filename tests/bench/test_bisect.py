"""The search for the first bad commit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.bench.bisection import CommitResult, SearchRange, StepRule
from muster.bench.statistics import Criteria, RatioInterval

RULE = StepRule(1.21, Criteria())


def search(count: int, first_bad: int, broken: frozenset[int] = frozenset()) -> tuple[list[str], int]:
    """(candidates at the end, number of steps) where the commits from `first_bad` on are bad."""
    commits = [str(number) for number in range(count)]
    results: dict[str, CommitResult] = {}
    while (commit := SearchRange(commits, results).next_commit) is not None:
        assert commit not in results
        number = int(commit)
        results[commit] = (
            CommitResult.BROKEN if number in broken else CommitResult.BAD if number >= first_bad else CommitResult.GOOD
        )
    return list(SearchRange(commits, results).candidates), len(results)


@given(st.integers(1, 200), st.data())
def test_the_first_bad_commit_is_found_in_a_logarithmic_number_of_steps(count: int, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(0, count - 1))
    found, steps = search(count, first_bad)
    assert found == [str(first_bad)]
    assert steps <= (count - 1).bit_length()


@given(st.integers(1, 40), st.data())
def test_with_commits_that_do_not_run_the_first_bad_one_is_among_the_candidates(
    count: int, data: st.DataObject
) -> None:
    first_bad = data.draw(st.integers(0, count - 1))
    broken = data.draw(st.frozensets(st.integers(0, count - 2) if count > 1 else st.nothing()))
    found, _ = search(count, first_bad, broken)
    assert str(first_bad) in found
    assert all(int(commit) in broken for commit in found[:-1])


@pytest.mark.parametrize(
    ("low", "high", "result"),
    [(1.11, 1.3, CommitResult.BAD), (0.9, 1.09, CommitResult.GOOD), (1.05, 1.2, CommitResult.UNDECIDED)],
)
def test_a_commit_is_bad_from_the_middle_between_good_and_bad_on(low: float, high: float, result: CommitResult) -> None:
    assert RULE.decide(RatioInterval(1.1, low, high, 12)) is result


def test_a_step_ends_when_it_is_decided_or_at_the_maximum() -> None:
    open_interval, decided = RatioInterval(1.1, 1.0999, 1.1001, 12), RatioInterval(1.0, 0.99, 1.01, 12)
    assert RULE.missing_pairs(None, 0) == 12
    assert RULE.missing_pairs(decided, 12) == 0
    assert RULE.missing_pairs(open_interval, 12) == 6  # however precise
    assert RULE.missing_pairs(open_interval, 24) == 0
    assert RULE.rate == pytest.approx(0.025 / 3)
