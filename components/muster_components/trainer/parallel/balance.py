"""Contiguous parts of nearly equal cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from muster_components.trainer.errors import InputError


def partition(costs: Sequence[float], parts: int) -> list[int]:
    """The lengths of `parts` contiguous parts of `costs`, none empty, whose largest sum is as small as possible.

    Of several such partitions it is one with the smallest sum of squares. Exact, by dynamic programming in
    O(parts * len(costs)^2).

    Raises InputError if there are more parts than costs.
    """
    count = len(costs)
    if not 1 <= parts <= count:
        raise InputError(
            f"--parallel pp=N (times the stages of a rank, by --pipeline_schedule) must give 1 to {count} stages, one "
            f"for each block of the model; got {parts}"
        )
    sums = [0.0, *accumulate(costs)]
    # largest[k][n], with k parts of the first n costs.
    largest = [[0.0] + [float("inf")] * count]
    for _ in range(parts):
        before = largest[-1]
        row = [
            min((max(before[m], sums[n] - sums[m]) for m in range(n)), default=float("inf")) for n in range(count + 1)
        ]
        largest.append(row)
    limit = largest[parts][count]
    # The same with squares, of parts within the limit, and the start of the last part.
    squares: list[list[tuple[float, int]]] = [[(0.0, 0)] + [(float("inf"), 0)] * count]
    for _ in range(parts):
        before_squares = squares[-1]
        squares.append(
            [
                min(
                    (
                        (before_squares[m][0] + (sums[n] - sums[m]) ** 2, m)
                        for m in range(n)
                        if sums[n] - sums[m] <= limit
                    ),
                    default=(float("inf"), 0),
                )
                for n in range(count + 1)
            ]
        )
    lengths, end = [], count
    for row_index in range(parts, 0, -1):
        start = squares[row_index][end][1]
        lengths.append(end - start)
        end = start
    return lengths[::-1]
