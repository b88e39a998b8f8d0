"""The sample at each position of each step.

The order of samples is a pure function of (seed, step, position in the global batch): a stateful generator would have
to be saved, and split among ranks again when the world size changes. Step and position give a running number, this an
epoch and a position in it, and a keyed permutation the sample there. Every sample is read once per epoch, for any
number of ranks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from muster_components.trainer.data.samples import PADDING

U64 = NDArray[np.uint64]
_ROUNDS: Final = 6


def sample_indices(*, seed: int, step: int, positions: range, global_batch: int, samples: int) -> NDArray[np.int64]:
    """The samples (0 <= i < `samples`) at `positions` of the global batch of `step` (both from 0).

    Positions at or beyond `global_batch` are PADDING.
    """
    position = np.arange(positions.start, positions.stop, dtype=np.int64)
    number = step * global_batch + position
    chosen = np.empty_like(number)
    for epoch in np.unique(number // samples):
        of_epoch = number // samples == epoch
        chosen[of_epoch] = permute((number[of_epoch] % samples).astype(np.uint64), samples, mix_key(seed, int(epoch)))
    chosen[position >= global_batch] = PADDING
    return chosen


def permute(index: U64, size: int, key: int) -> U64:
    """The image of `index` under a keyed permutation of 0..size-1.

    A Feistel network on the next even power of two, applied again while the result is outside of the range (cycle
    walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    result = _feistel(index, half, key)
    outside = result >= size
    while outside.any():
        result[outside] = _feistel(result[outside], half, key)
        outside = result >= size
    return result


def _feistel(value: U64, half: int, key: int) -> U64:
    mask = np.uint64((1 << half) - 1)
    left, right = value >> np.uint64(half), value & mask
    for number in range(_ROUNDS):
        salt = np.uint64(mix_key(key, number))
        left, right = right, left ^ (mix_u64(right ^ salt) & mask)
    return (left << np.uint64(half)) | right


def mix_u64(value: U64) -> U64:
    """The finaliser of splitmix64: every input bit affects half of the output bits."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def mix_key(first: int, second: int) -> int:
    """A 64-bit key that depends on both numbers."""
    golden = 0x9E3779B97F4A7C15
    number = (first * golden + (second + 1) * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    return int(mix_u64(np.array([number], dtype=np.uint64))[0])
