"""The order of samples: each once per epoch, for any number of ranks."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muster_components.trainer.data.order import permute, sample_indices


def read_by(ranks: int, micro_batch: int, *, seed: int, step: int, global_batch: int, samples: int) -> list[int]:
    """The samples that all ranks read in one step, by position, computed as in the trainer."""
    micro_steps = math.ceil(math.ceil(global_batch / ranks) / micro_batch)
    by_place: dict[int, int] = {}
    for micro_step in range(micro_steps):
        for rank in range(ranks):
            first = (micro_step * ranks + rank) * micro_batch
            places = range(first, first + micro_batch)
            chosen = sample_indices(seed=seed, step=step, positions=places, global_batch=global_batch, samples=samples)
            for place, sample in zip(places, chosen.tolist(), strict=True):
                assert place not in by_place
                by_place[place] = sample
    return [sample for place, sample in sorted(by_place.items()) if sample >= 0]


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_the_permutation_contains_every_index_once(size: int, key: int) -> None:
    permuted = permute(np.arange(size, dtype=np.uint64), size, key)
    assert sorted(permuted.tolist()) == list(range(size))


@given(
    seed=st.integers(0, 2**40),
    global_batch=st.integers(1, 40),
    samples=st.integers(1, 300),
    first=st.integers(0, 1000),
    data=st.data(),
)
def test_a_resume_on_another_world_size_repeats_and_skips_no_sample(
    seed: int, global_batch: int, samples: int, first: int, data: st.DataObject
) -> None:
    steps = range(first, first + 4)

    def run(ranks: int, micro_batch: int, step: int) -> list[int]:
        return read_by(ranks, micro_batch, seed=seed, step=step, global_batch=global_batch, samples=samples)

    alone = [run(1, global_batch, step) for step in steps]
    changing = []
    for step in steps:
        ranks = data.draw(st.integers(1, global_batch))
        changing.append(run(ranks, data.draw(st.integers(1, math.ceil(global_batch / ranks))), step))
    assert changing == alone
    assert all(len(step) == global_batch for step in changing)


@given(seed=st.integers(0, 2**40), global_batch=st.integers(1, 20), samples=st.integers(1, 200))
def test_an_epoch_has_every_sample_once_even_if_it_ends_within_a_step(
    seed: int, global_batch: int, samples: int
) -> None:
    steps = math.ceil(2 * samples / global_batch)
    read = [
        sample
        for step in range(steps)
        for sample in read_by(1, global_batch, seed=seed, step=step, global_batch=global_batch, samples=samples)
    ]
    assert sorted(read[:samples]) == list(range(samples))
    assert sorted(read[samples : 2 * samples]) == list(range(samples))


def test_seeds_and_epochs_differ_in_their_order() -> None:
    def epoch(seed: int, number: int) -> tuple[int, ...]:
        chosen = sample_indices(seed=seed, step=number, positions=range(100), global_batch=100, samples=100)
        return tuple(int(sample) for sample in chosen)

    orders = {epoch(0, 0), epoch(0, 1), epoch(1, 0), tuple(range(100))}
    assert len(orders) == 4


def test_the_order_is_that_of_earlier_releases() -> None:
    """A job that resumes with a newer release must not read samples twice."""
    chosen = sample_indices(seed=7, step=3, positions=range(8), global_batch=8, samples=1000)
    assert chosen.tolist() == [34, 983, 611, 752, 28, 51, 994, 703]
