"""Calls and times of the operators, annotations and kernels of a trace, summed while the collector checks the trace.

The summary of each rank is a table beside the trace: small, and readable without the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from muster.tracing.collect.parquet import write_parquet
from muster.tracing.read.raw_events import RawEvent

MAX_NAMES = 10_000
OTHERS = "(other names)"
_IGNORED = frozenset({"", "Trace", "python_function"})


class TotalsTable(msgspec.Struct, frozen=True):
    """Columns of equal length, one row for each category and name of events with a duration, longest total first.

    Times in microseconds. `category` is the profiler's: cpu_op, kernel, user_annotation, ...
    """

    category: tuple[str, ...]
    name: tuple[str, ...]
    calls: tuple[int, ...]
    total_us: tuple[float, ...]
    min_us: tuple[float, ...]
    max_us: tuple[float, ...]


@dataclass(slots=True)
class EventTotals:
    """Sums by category and name; names after the first 10,000 are summed together."""

    sums: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, events: Sequence[RawEvent]) -> None:
        for event in events:
            us = event.dur
            if event.ph != "X" or event.cat in _IGNORED or us is None or not 0 <= us < float("inf"):
                continue
            key = (event.cat, event.name.encode("utf-8", "replace").decode())  # JSON can have lone surrogates
            found = self.sums.get(key)
            if found is None:
                if len(self.sums) >= MAX_NAMES:
                    key = (event.cat, OTHERS)
                found = self.sums.setdefault(key, [0, 0.0, us, us])
            found[0] += 1
            found[1] += us
            found[2] = min(found[2], us)
            found[3] = max(found[3], us)

    def table(self) -> TotalsTable:
        rows = sorted(self.sums.items(), key=lambda item: (-item[1][1], item[0]))
        return TotalsTable(
            category=tuple(key[0] for key, _ in rows),
            name=tuple(key[1] for key, _ in rows),
            calls=tuple(int(sums[0]) for _, sums in rows),
            total_us=tuple(round(sums[1], 3) for _, sums in rows),
            min_us=tuple(sums[2] for _, sums in rows),
            max_us=tuple(sums[3] for _, sums in rows),
        )


def encode_totals(table: TotalsTable) -> bytes:
    """The table as a Parquet file."""
    kinds = {"category": str, "name": str, "calls": int}
    columns = {name: (kinds.get(name, float), getattr(table, name)) for name in table.__struct_fields__}
    return write_parquet(columns)
