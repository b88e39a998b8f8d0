"""Bars of queues, the same on a page and in a terminal: used, borrowed, idle guarantee and what may be borrowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from muster.api.quantity import parse_quantity
from muster.text import format_resource

if TYPE_CHECKING:
    from muster.tables import QueueTableRow

FlavorResource = tuple[str, str]
"""Names of a flavor and of a resource."""
SegmentKind = Literal["own", "borrowed", "idle", "borrowable"]


@dataclass(frozen=True, slots=True)
class BarUsage:
    """One resource of one flavor in one queue, in the units of `muster.model`; `limit` None: unlimited."""

    used: int
    guaranteed: int
    limit: int | None
    has_quota: bool = True  # whether the queue or an ancestor sets a quota for it

    @property
    def borrowed(self) -> int:
        """The part of the usage above the guarantee."""
        return max(0, self.used - self.guaranteed)


QUOTA_COLUMNS: Mapping[str, Callable[[BarUsage], int | None]] = {
    "Used": lambda usage: usage.used,
    "Guaranteed": lambda usage: usage.guaranteed if usage.has_quota else None,
    "Borrowed": lambda usage: usage.borrowed or None if usage.has_quota else None,
    "Limit": lambda usage: usage.limit if usage.has_quota else None,
}
"""What is shown beside a bar, by title; None: nothing."""


def quota_cells(usage: BarUsage, resource: str) -> list[str]:
    """The texts of `QUOTA_COLUMNS`."""
    amounts = (amount(usage) for amount in QUOTA_COLUMNS.values())
    return ["" if amount is None else format_resource(amount, resource) for amount in amounts]


def bar_segments(usage: BarUsage, total: int) -> list[tuple[SegmentKind, int, int]]:
    """(kind, begin, end) of the visible parts of a bar whose length is `total`, from left to right."""
    reach = total if usage.limit is None else min(usage.limit, total)
    ends: tuple[tuple[SegmentKind, int], ...] = (
        ("own", min(usage.used, usage.guaranteed)),
        ("borrowed", usage.used) if usage.used > usage.guaranteed else ("idle", usage.guaranteed),
        ("borrowable", reach),
    )
    found: list[tuple[SegmentKind, int, int]] = []
    begin = 0
    for kind, end in ends:
        if end > begin:
            found.append((kind, begin, end))
            begin = end
    return found


def usage_by_resource(row: QueueTableRow) -> dict[FlavorResource, BarUsage]:
    """The bars of one queue; by flavor, GPUs before cpu and memory."""
    levels = {}
    for entry in row["resources"]:
        names = {**entry["guaranteed"], **entry["limit"], **entry["lend"], **entry["used"]}
        for name in names:
            limit = entry["limit"].get(name)
            levels[entry["flavor"], name] = BarUsage(
                used=parse_quantity(entry["used"].get(name, 0), name),
                guaranteed=parse_quantity(entry["guaranteed"].get(name, 0), name),
                limit=None if limit is None else parse_quantity(limit, name),
                has_quota=any(name in entry[word] for word in ("guaranteed", "limit", "lend")),
            )
    return {key: levels[key] for key in sorted(levels, key=_gpus_first_key)}


def bar_totals(
    roots: Mapping[str, str], levels: Mapping[str, Mapping[FlavorResource, BarUsage]]
) -> dict[tuple[str, FlavorResource], int]:
    """The lengths of the bars, by tree and resource: the largest guarantee or usage of its queues, else the limit.
    `roots`: the root of each queue; `levels`: the bars of each queue."""
    totals: dict[tuple[str, FlavorResource], int] = {}
    for at, level in _by_root(roots, levels):
        totals[at] = max(totals.get(at, 1), level.guaranteed, level.used)
    for at, level in _by_root(roots, levels):  # a tree with limits and without guarantees
        if totals[at] == 1 and level.limit:
            totals[at] = max(totals[at], level.limit)
    return totals


def _by_root(
    roots: Mapping[str, str], levels: Mapping[str, Mapping[FlavorResource, BarUsage]]
) -> Iterable[tuple[tuple[str, FlavorResource], BarUsage]]:
    for queue, root in roots.items():
        for key, level in levels[queue].items():
            yield (root, key), level


def _gpus_first_key(key: FlavorResource) -> tuple[str, int, str]:
    flavor, resource = key
    return flavor, ("cpu", "memory").index(resource) + 1 if resource in ("cpu", "memory") else 0, resource
