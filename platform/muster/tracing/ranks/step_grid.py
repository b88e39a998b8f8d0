"""The time of each step on each rank as a grid of limited size, for a heat map of any number of ranks and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.tracing.ranks.exposed_waits import exposed_waits
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.read.spans import Int64

MAX_GRID_ROWS = 64
MAX_GRID_COLUMNS = 80

RankSteps = tuple[int, Int64, NDArray[np.float64]]
"""A rank, its steps and the seconds of each; NaN: unknown."""


@dataclass(frozen=True, slots=True)
class StepGrid:
    """Seconds per step, for ranks (rows) and steps (columns), in at most 64 rows and 80 columns.

    `ranks` and `steps` are the first and the last one of each row and column. A cell of several steps is their mean; a
    cell of several ranks is that of the slowest, which `slowest` names. None: no rank of the row has such a step.
    """

    ranks: tuple[tuple[int, int], ...]
    steps: tuple[tuple[int, int], ...]
    ranks_per_row: int
    steps_per_column: int
    seconds: tuple[tuple[float | None, ...], ...]
    slowest: tuple[tuple[int | None, ...], ...]


def step_grid(rows: Sequence[RankSteps]) -> StepGrid | None:
    """The grid of these ranks, each given once; None for fewer than two ranks, or without a known time."""
    rows = sorted(((r, s[np.isfinite(t)], t[np.isfinite(t)]) for r, s, t in rows), key=lambda row: row[0])
    rows = [row for row in rows if len(row[1])]
    if len(rows) < 2:
        return None
    steps = np.unique(np.concatenate([of_rank for _, of_rank, _ in rows]))
    width = -(-len(steps) // MAX_GRID_COLUMNS)
    height = -(-len(rows) // MAX_GRID_ROWS)
    columns = -(-len(steps) // width)
    means = np.stack([_column_means(steps, width, columns, row) for row in rows])
    blocks = [range(at, min(at + height, len(rows))) for at in range(0, len(rows), height)]
    slowest = [_slowest_rows(means[block.start : block.stop], block.start) for block in blocks]
    return StepGrid(
        ranks=tuple((rows[block[0]][0], rows[block[-1]][0]) for block in blocks),
        steps=tuple((int(part[0]), int(part[-1])) for part in np.split(steps, range(width, len(steps), width))),
        ranks_per_row=height,
        steps_per_column=width,
        seconds=tuple(
            tuple(None if row is None else float(means[row, i]) for i, row in enumerate(of_block))
            for of_block in slowest
        ),
        slowest=tuple(tuple(None if row is None else rows[row][0] for row in of_block) for of_block in slowest),
    )


def _column_means(steps: Int64, width: int, columns: int, row: RankSteps) -> NDArray[np.float64]:
    """The rank's mean per column; NaN without a step there."""
    _, own_steps, seconds = row
    column = np.searchsorted(steps, own_steps) // width
    counts = np.bincount(column, minlength=columns)
    sums = np.bincount(column, weights=seconds, minlength=columns)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _slowest_rows(means: NDArray[np.float64], first: int) -> list[int | None]:
    """Per column the row of the largest mean; None if all are NaN."""
    filled = np.where(np.isnan(means), -np.inf, means)
    largest = filled.argmax(axis=0)
    known = np.isfinite(filled.max(axis=0))
    return [first + int(row) if there else None for row, there in zip(largest, known, strict=True)]


def grid_without_waiting(comparison: RankComparison) -> StepGrid | None:
    """The time of each common step without that in which the rank waited for others in collectives."""
    steps = np.array(comparison.steps, dtype=np.int64)
    waited = exposed_waits(comparison).waited_ms
    return step_grid(
        [
            (
                record.rank,
                steps,
                np.maximum(comparison.per_step(record, record.step_ms) - waited[i], 0) / 1e3,
            )
            for i, record in enumerate(comparison.records)
        ]
    )
