"""The samples of a rank, for any engine."""

from __future__ import annotations

import pytest

from muster_components.parts.sample_order import rank_samples
from muster_components.trainer.errors import InputError


def batch(step: int, world_size: int, samples: int = 50) -> list[int]:
    return [
        index
        for rank in range(world_size)
        for index in rank_samples(step=step, samples=samples, global_batch=10, rank=rank, world_size=world_size)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 16])
def test_a_step_reads_the_same_samples_with_any_number_of_ranks(world_size: int) -> None:
    assert [batch(step, world_size) for step in range(5)] == [batch(step, 1) for step in range(5)]
    assert sorted(index for step in range(5) for index in batch(step, world_size)) == list(range(50))


def test_invalid_values_are_named() -> None:
    with pytest.raises(InputError, match="rank must be from 0 to world_size - 1, 1; got 2"):
        rank_samples(step=0, samples=4, global_batch=2, rank=2, world_size=2)
    with pytest.raises(InputError, match="samples must be at least 1; got 0"):
        rank_samples(step=0, samples=0, global_batch=2)
