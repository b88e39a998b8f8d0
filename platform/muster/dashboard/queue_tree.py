"""Queues as pages show them: bars with amounts, warnings, and who holds capacity. The numbers are those of
`muster queues`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from muster.api.spec.queues import FLAVOR_REASONS
from muster.queue_bars import (
    BarUsage,
    FlavorResource,
    SegmentKind,
    bar_segments,
    bar_totals,
    quota_cells,
    usage_by_resource,
)
from muster.tables import QueueTableRow
from muster.visibility.reader import queue_row
from muster.visibility.types import QueueSummary

_BAR_WIDTH = 100  # units of the SVG's view box


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar, in hundredths of the bar."""

    kind: SegmentKind
    begin: float
    width: float


@dataclass(frozen=True, slots=True)
class QueueBar:
    """One resource of one flavor in a queue. `flavor` is empty if the cluster has one flavor only."""

    flavor: str
    resource: str
    usage: BarUsage
    segments: tuple[Segment, ...]

    @property
    def cells(self) -> list[str]:
        """The texts of `QUOTA_COLUMNS`."""
        return quota_cells(self.usage, self.resource)


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue with its bars. `warnings`: why it admits nothing, or what exceeds its quota. Jobs are in queues without
    children only, so that the others have no list of jobs."""

    summary: QueueSummary
    bars: tuple[QueueBar, ...]
    warnings: tuple[str, ...]
    has_children: bool

    @property
    def name(self) -> str:
        return self.summary.metadata.name


@dataclass(frozen=True, slots=True)
class CapacityHolder:
    """What jobs of one queue, without queues below it, use of one resource of one flavor."""

    queue: str
    flavor: str
    resource: str
    used: int
    borrowed: int


def queue_views(queues: Sequence[QueueSummary]) -> list[QueueView]:
    """The queues in their order, parents first."""
    roots = _roots(queues)
    parents = {queue.parent for queue in queues}
    levels = _levels(queues)
    totals = bar_totals(roots, levels)
    several = len({flavor for by_key in levels.values() for flavor, _ in by_key}) > 1
    return [
        QueueView(
            queue,
            tuple(
                QueueBar(
                    key[0] if several else "", key[1], usage, _segments(usage, totals[roots[queue.metadata.name], key])
                )
                for key, usage in levels[queue.metadata.name].items()
            ),
            tuple(_warnings(queue)),
            queue.metadata.name in parents,
        )
        for queue in queues
    ]


def capacity_holders(queues: Sequence[QueueSummary], waiting: str) -> list[CapacityHolder]:
    """Who uses the flavors that the queue `waiting` may use, largest use first. cpu and memory are left out where it
    has quota of other resources, such as GPUs."""
    levels = _levels(queues)
    wanted = {key for key, usage in levels.get(waiting, {}).items() if usage.has_quota}
    devices = {key for key in wanted if key[1] not in ("cpu", "memory")}
    children: dict[str, list[str]] = {}
    for queue in queues:
        if queue.parent is not None:
            children.setdefault(queue.parent, []).append(queue.metadata.name)
    found = []
    for name, by_key in levels.items():
        for key in devices or wanted:
            usage = by_key.get(key)
            below = sum(levels[child][key].used for child in children.get(name, ()) if key in levels[child])
            if usage is not None and usage.used > below:
                own = usage.used - below
                found.append(CapacityHolder(name, key[0], key[1], own, min(own, usage.borrowed)))
    return sorted(found, key=lambda one: (-one.used, one.queue, one.flavor, one.resource))


def _levels(queues: Iterable[QueueSummary]) -> dict[str, dict[FlavorResource, BarUsage]]:
    return {queue.metadata.name: usage_by_resource(cast(QueueTableRow, queue_row(queue))) for queue in queues}


def _roots(queues: Iterable[QueueSummary]) -> Mapping[str, str]:
    """The root of each queue; of one in a cycle, itself."""
    roots: dict[str, str] = {}
    for queue in queues:
        name = queue.metadata.name
        roots[name] = roots.get(queue.parent or "", name)
    return roots


def _segments(usage: BarUsage, total: int) -> tuple[Segment, ...]:
    scale = _BAR_WIDTH / total if total else 0.0
    return tuple(
        Segment(kind, round(begin * scale, 2), round((end - begin) * scale, 2))
        for kind, begin, end in bar_segments(usage, total)
    )


def _warnings(queue: QueueSummary) -> Iterable[str]:
    if not queue.active or queue.reason in FLAVOR_REASONS:
        yield queue.message
    if queue.overcommitted:
        yield queue.overcommitted
