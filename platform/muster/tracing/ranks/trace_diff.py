"""What changed between two sets of traces of the same program: kernels (operators without a device) and collectives.

Times are means per step and rank, so that the sets may have different numbers of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.tracing.account.rank_record import RankRecord
from muster.tracing.work.operator_stats import short_name

WorkKind = Literal["kernel", "operator", "collective"]


@dataclass(frozen=True, slots=True)
class WorkChange:
    """One name on both sides: calls and milliseconds per step and rank; 0 where a side does not have it."""

    kind: WorkKind
    name: str
    a_calls: float
    b_calls: float
    a_ms: float
    b_ms: float

    @property
    def change_ms(self) -> float:
        return self.b_ms - self.a_ms

    def describe(self) -> str:
        """`kernel softmax: +0.31 ms a step (1.02 -> 1.33 ms, 12 calls)`."""
        calls = f"{self.b_calls:g} calls" if self.a_calls == self.b_calls else f"{self.a_calls:g} -> {self.b_calls:g}"
        change = f"{self.change_ms:+.3g} ms a step ({self.a_ms:.3g} -> {self.b_ms:.3g} ms, {calls} calls)"
        return f"{self.kind} {short_name(self.name)}: {change.replace('calls calls', 'calls')}"


def diff_work(a: Sequence[RankRecord], b: Sequence[RankRecord]) -> tuple[WorkChange, ...]:
    """All kernels, operators and collectives of two sets of ranks, the largest change first. Each set has a rank."""
    before, after = _totals(a), _totals(b)
    changes = [
        WorkChange(kind, name, *_pair(before, after, (kind, name), 0), *_pair(before, after, (kind, name), 1))
        for kind, name in before.keys() | after.keys()
    ]
    return tuple(sorted(changes, key=lambda one: (-abs(one.change_ms), one.kind, one.name)))


_Totals = dict[tuple[WorkKind, str], tuple[float, float]]


def _pair(before: _Totals, after: _Totals, key: tuple[WorkKind, str], part: int) -> tuple[float, float]:
    return before.get(key, (0.0, 0.0))[part], after.get(key, (0.0, 0.0))[part]


def _totals(records: Sequence[RankRecord]) -> _Totals:
    """(calls, milliseconds) per step and rank by kind and name."""
    sums: _Totals = {}

    def add(key: tuple[WorkKind, str], calls: float, ms: float, steps: int) -> None:
        share = len(records) * steps
        before = sums.get(key, (0.0, 0.0))
        sums[key] = (before[0] + calls / share, before[1] + ms / share)

    for record in records:
        steps = len(record.steps)
        for work in record.work:
            add(("kernel" if record.on_device else "operator", work.name), work.calls, work.total_ns / 1e6, steps)
        table = record.collectives
        for code in np.unique(table.name).tolist():
            of_code = table.name == code
            ms = float((table.end[of_code] - table.start[of_code]).sum()) / 1e6
            add(("collective", table.labels[code]), int(of_code.sum()), ms, steps)
    return sums
