"""Parameters and optimizer states that were allocated before the recording, by the gradients that the recording has.

Such memory has no stack, but it remains to the end, and there are as many parameters of a size as gradients, and once
or twice as many states of the optimizer. Other numbers have another cause. Which one of equal allocations is a
parameter is unknown, and does not change the bytes of a category.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from muster.tracing.memory.lifetimes import BEFORE, Allocations
from muster.tracing.read.spans import Int64

_MOMENTS: Final = (2, 1)
"""States per parameter: Adam, and SGD with momentum."""
_TOLERANCE: Final = 0.02  # FSDP2 pads shards to equal sizes
_MOST: Final = 0.9
"""Of memory from before the recording: with much else the sums can be equal by chance."""
_MAX_SIZES: Final = 10_000
"""Of gradients, as of what they are compared with; more are of no model."""

Chosen = NDArray[np.bool_]


def recognise_by_size(
    allocations: Allocations, gradients: Chosen, parameters: Chosen, unknown: Int64
) -> tuple[Int64, Int64]:
    """The parameters and the optimizer states among `unknown` allocations, as their indices. `gradients` and
    `parameters`: which allocations are known to be such."""
    remains = (allocations.start[unknown] == BEFORE) & allocations.at_end[unknown]
    by_size = _by_size(allocations, unknown[remains])
    known = {size: len(same) for size, same in _by_size(allocations, np.flatnonzero(parameters)).items()}
    at_once = {
        size: _most_at_once(allocations, same)
        for size, same in _by_size(allocations, np.flatnonzero(gradients)).items()
    }
    found: list[Int64] = []
    states: list[Int64] = []
    is_complete = True
    for size, count in sorted(at_once.items(), reverse=True):
        if known.get(size, 0) + known.get(2 * size, 0) >= count:
            continue
        split = _split(by_size, size, count, is_double_own=2 * size in at_once)
        if split is None:
            is_complete = False
            continue
        of_size, (chosen, others) = split
        known[of_size] = known.get(of_size, 0) + count
        found.append(chosen)
        states.append(others)
    if not is_complete:
        shards = _shards(by_size, sum(size * count for size, count in at_once.items()))
        found, states = shards or (found, states)
    return _joined(found), _joined(states)


def _split(
    by_size: dict[int, Int64], size: int, count: int, *, is_double_own: bool
) -> tuple[int, tuple[Int64, Int64]] | None:
    """The size of the parameters, and the parameters and states, of `count` gradients of a size.

    If allocations of twice the size are not those of larger parameters, gradients are in half precision: then the
    larger ones are states, or parameters and states, with copies of the parameters in half precision.
    """
    none = np.empty(0, dtype=np.int64)
    same = by_size.get(size, none)
    double = none if is_double_own else by_size.get(2 * size, none)
    if len(same) in (2 * count, 3 * count) and not len(double):
        return size, (same[:count], same[count:])
    if len(same) == count and len(double) == 2 * count:
        return size, (same, double)
    if len(double) == 3 * count:
        return 2 * size, (double[:count], double[count:])
    return None


def _shards(by_size: dict[int, Int64], gradient_bytes: int) -> tuple[list[Int64], list[Int64]] | None:
    """As FSDP2 has them: the gradients of a group of parameters are one allocation, so only their sums are equal."""
    for parts in (1 + moments for moments in _MOMENTS):
        equal = [(size, same, len(same) // parts) for size, same in by_size.items() if len(same) % parts == 0]
        total = sum(size * count for size, _, count in equal)
        is_most = parts * total >= _MOST * sum(size * len(same) for size, same in by_size.items())
        if is_most and abs(total - gradient_bytes) <= _TOLERANCE * gradient_bytes:
            return [same[:count] for _, same, count in equal], [same[count:] for _, same, count in equal]
    return None


def _by_size(allocations: Allocations, chosen: Int64) -> dict[int, Int64]:
    """The chosen allocations by size, those of a size by address; none if they have more than `_MAX_SIZES` sizes."""
    ordered = chosen[np.lexsort((allocations.address[chosen], allocations.size[chosen]))]
    sizes, starts = np.unique(allocations.size[ordered], return_index=True)
    if not 0 < len(sizes) <= _MAX_SIZES:
        return {}
    return dict(zip(sizes.tolist(), np.split(ordered, starts[1:]), strict=True))


def _most_at_once(allocations: Allocations, chosen: Int64) -> int:
    """How many of the chosen allocations are in use at the same time."""
    times = np.concatenate((allocations.start[chosen] * 2 + 1, allocations.end[chosen] * 2))  # an end comes first
    signs = np.repeat((1, -1), len(chosen))
    return int(np.cumsum(signs[np.argsort(times, kind="stable")]).max())


def _joined(parts: list[Int64]) -> Int64:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
