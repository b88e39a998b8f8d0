"""Which nodes: every pod of a gang or none, inside the required domain, in the tightest place that holds them.

Tightest first keeps large holes for large gangs: of the domains that hold what is left, the one with the least room;
when none does, the roomiest is filled first, so that the gang spans as few domains as can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from muster.scheduling.nodes import FlavorNodes, IntArray, NodeTable
from muster.scheduling.room import ENDLESS, Counts, Less, Load, PodKind, View
from muster.scheduling.shape import Option, Sizes, Spot


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Pods of one role: how many on which rows of the node table, in row order."""

    rows: IntArray
    counts: IntArray

    @property
    def pods(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    def joined(self, other: Spread) -> Spread:
        """Both together."""
        rows, place = np.unique(np.concatenate([self.rows, other.rows]), return_inverse=True)
        counts = np.zeros(len(rows), dtype=np.int64)
        np.add.at(counts, place, np.concatenate([self.counts, other.counts]))
        return Spread(rows, counts)


Kept: TypeAlias = Mapping[int, Spread]
"""Pods that have their place already, by role."""

NOTHING: Kept = {}

FULL = np.iinfo(np.int64).max  # of a domain that does not hold what is left: never the tightest


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A whole gang's place, one spread a role, and what it takes from the nodes."""

    spreads: tuple[Spread, ...]
    load: Load


def fit(table: NodeTable, option: Option, sizes: Sizes, view: View, kept: Kept = NOTHING) -> Fit | None:
    """Nodes for every pod of the gang at these sizes, or None.

    `kept` are pods that have their place already, by role (never more than the sizes): the others join them in the
    same domain. Their load is not part of the result's, and `view` does not count it as free.
    """
    spreads: dict[int, Spread] = {}
    taken: Load | None = None
    for spot in option.spots:
        seen = view if taken is None else Less(view, table, taken)
        placed = _fit_spot(table, spot, tuple(sizes[role] for role in spot.roles), seen, kept)
        if placed is None:
            return None
        spreads.update(zip(spot.roles, placed[0], strict=True))
        taken = placed[1] if taken is None else taken.joined(placed[1])
    if taken is None:
        return None
    return Fit(tuple(spreads[role] for role in range(len(spreads))), taken)


def fits(table: NodeTable, option: Option, sizes: Sizes, view: View) -> bool:
    """Tell whether there are nodes for every pod of the gang, without choosing them where that is not needed."""
    if len(option.spots) == 1 and len(option.spots[0].pods) == 1:
        spot = option.spots[0]
        tier = spot.required or 0
        counts = view.counts(spot.pods[0])[tier]
        return bool(((counts >= sizes[0]) & table.flavors[spot.flavor].tiers[tier].named).any())
    return fit(table, option, sizes, view) is not None


def _fit_spot(
    table: NodeTable, spot: Spot, sizes: Sizes, view: View, kept: Kept
) -> tuple[tuple[Spread, ...], Load] | None:
    """Place the roles of one spot in one domain, the preferred one if there is room."""
    span = table.flavors[spot.flavor]
    there = [kept.get(role) for role in spot.roles]
    more = tuple(size - (0 if old is None else old.pods) for size, old in zip(sizes, there, strict=True))
    anchor = next((int(old.rows[0]) - span.start for old in there if old is not None and len(old.rows)), None)
    counts = [view.counts(pod) for pod in spot.pods]
    tiers = [tier for tier in (spot.preferred, spot.required) if tier is not None]
    if spot.required is None:
        tiers.append(0)
    for tier in tiers:
        if anchor is None:
            domains = _domains(span, tier, counts, more)
        else:
            domains = iter([int(span.tiers[tier].of_node[anchor])])
        for domain in domains:
            placed = _fit_domain(table, spot, more, view, tier, domain)
            if placed is not None:
                spreads = tuple(
                    new if old is None else old.joined(new) for old, new in zip(there, placed[0], strict=True)
                )
                return spreads, placed[1]
    return None


def _domains(span: FlavorNodes, tier: int, counts: list[Counts], sizes: Sizes) -> Iterator[int]:
    """Domains of a tier that have room for each role, tightest first."""
    room = counts[0][tier]
    if len(counts) == 1:
        wide = np.where(span.tiers[tier].named & (room >= sizes[0]), room, ENDLESS * len(span.tiers[-1].domains) + 1)
        if len(wide) and room[best := int(np.argmin(wide))] >= sizes[0] and span.tiers[tier].named[best]:
            yield best
        return
    enough = span.tiers[tier].named.copy()
    total = np.zeros(len(room), dtype=np.int64)
    for count, size in zip(counts, sizes, strict=True):
        enough &= count[tier] >= size
        total += count[tier]
    candidates = np.flatnonzero(enough)
    yield from (int(d) for d in candidates[np.argsort(total[candidates], kind="stable")])


def _fit_domain(
    table: NodeTable, spot: Spot, sizes: Sizes, view: View, tier: int, domain: int
) -> tuple[tuple[Spread, ...], Load] | None:
    """Place the roles one after the other in one domain; the largest requests of the first role come first."""
    span = table.flavors[spot.flavor]
    spreads: list[Spread] = []
    taken: Load | None = None
    for pod, size in zip(spot.pods, sizes, strict=True):
        seen = view if taken is None else Less(view, table, taken)
        counts = seen.counts(pod)
        if counts[tier][domain] < size:
            return None
        spread = pack(span, counts, tier, domain, size)
        spreads.append(spread)
        load = load_of(table, pod, spread)
        taken = load if taken is None else taken.joined(load)
    return None if taken is None else (tuple(spreads), taken)


def load_of(table: NodeTable, pod: PodKind, spread: Spread) -> Load:
    """What a spread takes from its nodes."""
    return Load(spread.rows, spread.counts[:, None] * table.amounts(pod.request)[None, :])


def pack(span: FlavorNodes, counts: Counts, tier: int, domain: int, pods: int) -> Spread:
    """Spread pods inside one domain that has room for them, over as few and as tight domains as can be."""
    rows: list[IntArray] = []
    taken: list[IntArray] = []
    nodes = len(span.tiers) - 1
    while pods:
        if tier == nodes:
            rows.append(np.array([domain], dtype=np.int64))
            taken.append(np.array([pods], dtype=np.int64))
            break
        start, stop = int(span.tiers[tier].first[domain]), int(span.tiers[tier].first[domain + 1])
        tier += 1
        room = counts[tier][start:stop]
        if int(room.max()) < pods:
            order = np.argsort(-room, kind="stable")
            filled = np.cumsum(room[order])
            whole = order[: int(np.searchsorted(filled, pods))]
            edges = span.tiers[tier].first_node
            for child in whole:
                first, last = int(edges[start + child]), int(edges[start + child + 1])
                inside = first + np.flatnonzero(counts[nodes][first:last])
                rows.append(inside)
                taken.append(counts[nodes][inside])
            pods -= int(filled[len(whole) - 1])
            room = room.copy()
            room[whole] = 0
        domain = start + int(np.argmin(np.where(room >= pods, room, FULL)))
    if not rows:
        return Spread(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    found, number = np.concatenate(rows), np.concatenate(taken)
    order = np.argsort(found)
    return Spread(found[order] + span.start, number[order])
