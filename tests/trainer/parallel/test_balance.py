"""Contiguous parts of nearly equal cost, against all partitions."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_components.trainer.errors import InputError
from muster_components.trainer.parallel.balance import partition


def part_sums(costs: list[int], lengths: list[int]) -> list[int]:
    bounds = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    return [sum(costs[start:end]) for start, end in pairwise(bounds)]


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8).flatmap(
        lambda costs: st.tuples(st.just(costs), st.integers(1, len(costs)))
    )
)
def test_the_largest_part_is_as_small_as_possible_and_then_the_sum_of_squares(case: tuple[list[int], int]) -> None:
    costs, parts = case
    lengths = partition(costs, parts)
    assert len(lengths) == parts
    assert sum(lengths) == len(costs)
    assert min(lengths) >= 1

    def rank(sums: list[int]) -> tuple[int, int]:
        return max(sums), sum(value**2 for value in sums)

    every = (
        [end - start for start, end in pairwise((0, *cuts, len(costs)))]
        for cuts in combinations(range(1, len(costs)), parts - 1)
    )
    assert rank(part_sums(costs, lengths)) == min(rank(part_sums(costs, candidate)) for candidate in every)


def test_a_costly_head_leaves_fewer_blocks_to_the_last_stage() -> None:
    assert partition([1.0] * 7 + [3.0], 2) == [5, 3]


@pytest.mark.parametrize("parts", [0, 4])
def test_more_parts_than_costs_are_refused(parts: int) -> None:
    with pytest.raises(InputError, match=f"must give 1 to 3 stages, one for each block of the model; got {parts}"):
        partition([1, 1, 1], parts)
