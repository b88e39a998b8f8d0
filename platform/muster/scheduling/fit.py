"""Chooses nodes: for every pod of a gang or none, inside the required domain, as tightly as possible.

Tightest first leaves large free blocks for large gangs: of the domains that fit the remaining pods, the one with the
least free capacity is used; if none does, the one with the most is filled first, so that the gang spans few domains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from muster.quota import CellAmounts
from muster.scheduling.capacity import UNBOUNDED_PODS, CapacityView, Counts, NodeUsage, PodClass, ReservedView
from muster.scheduling.gang_requests import FlavorOption, PlacementGroup, RoleSizes
from muster.scheduling.nodes import FlavorNodes, IntArray, NodeTable


@dataclass(frozen=True, slots=True, eq=False)
class RoleAssignment:
    """Pods of one role: how many on which rows of the node table, in row order."""

    rows: IntArray
    counts: IntArray

    @property
    def pods(self) -> int:
        return int(self.counts.sum())

    def joined(self, other: RoleAssignment) -> RoleAssignment:
        """The sum of two assignments."""
        rows, place = np.unique(np.concatenate([self.rows, other.rows]), return_inverse=True)
        counts = np.zeros(len(rows), dtype=np.int64)
        np.add.at(counts, place, np.concatenate([self.counts, other.counts]))
        return RoleAssignment(rows, counts)


FixedPods: TypeAlias = Mapping[int, RoleAssignment]
"""Pods that are placed already, by role."""

NO_FIXED_PODS: FixedPods = {}

INSUFFICIENT = np.iinfo(np.int64).max  # sort key of a domain that does not fit the remaining pods


@dataclass(frozen=True, slots=True, eq=False)
class GangAssignment:
    """The placement of a gang, one assignment per role, and what it takes from the nodes."""

    roles: tuple[RoleAssignment, ...]
    node_usage: NodeUsage


@dataclass(frozen=True, slots=True, eq=False)
class FlavorAssignment:
    """A way to start a gang: the option, its size above the minimum, its nodes, and what it charges to its queue."""

    option: int
    extra_pods: int
    nodes: GangAssignment
    amounts: CellAmounts


def fit(
    table: NodeTable, option: FlavorOption, sizes: RoleSizes, view: CapacityView, fixed: FixedPods = NO_FIXED_PODS
) -> GangAssignment | None:
    """Nodes for every pod of the gang at these sizes, or None.

    `fixed` are pods that are placed already, by role (never more than the sizes): the others join them in the same
    domain. Their usage is not part of the result's, and `view` does not count it as free.
    """
    assignments: dict[int, RoleAssignment] = {}
    taken: NodeUsage | None = None
    for group in option.groups:
        remaining = view if taken is None else ReservedView(view, table, taken)
        placed = _fit_group(table, group, tuple(sizes[role] for role in group.roles), remaining, fixed)
        if placed is None:
            return None
        assignments.update(zip(group.roles, placed[0], strict=True))
        taken = placed[1] if taken is None else taken.joined(placed[1])
    if taken is None:
        return None
    return GangAssignment(tuple(assignments[role] for role in range(len(assignments))), taken)


def fits(table: NodeTable, option: FlavorOption, sizes: RoleSizes, view: CapacityView) -> bool:
    """Whether there are nodes for every pod of the gang; does not choose them unless necessary."""
    if len(option.groups) == 1 and len(option.groups[0].pods) == 1:
        group = option.groups[0]
        tier = group.required or 0
        counts = view.counts(group.pods[0])[tier]
        return bool(((counts >= sizes[0]) & table.flavors[group.flavor].tiers[tier].is_named).any())
    return fit(table, option, sizes, view) is not None


def _fit_group(
    table: NodeTable, group: PlacementGroup, sizes: RoleSizes, view: CapacityView, fixed: FixedPods
) -> tuple[tuple[RoleAssignment, ...], NodeUsage] | None:
    """Place the roles of one group in one domain, the preferred level if possible."""
    span = table.flavors[group.flavor]
    fixed_pods = [fixed.get(role) for role in group.roles]
    missing = tuple(size - (0 if old is None else old.pods) for size, old in zip(sizes, fixed_pods, strict=True))
    anchor = next((int(old.rows[0]) - span.start for old in fixed_pods if old is not None and len(old.rows)), None)
    counts = [view.counts(pod) for pod in group.pods]
    tiers = [tier for tier in (group.preferred, group.required) if tier is not None]
    if group.required is None:
        tiers.append(0)
    for tier in tiers:
        if anchor is None:
            domains = _candidate_domains(span, tier, counts, missing)
        else:
            domains = iter([int(span.tiers[tier].domain_of_node[anchor])])
        for domain in domains:
            placed = _fit_domain(table, group, missing, view, tier, domain)
            if placed is not None:
                assignments = tuple(
                    new if old is None else old.joined(new) for old, new in zip(fixed_pods, placed[0], strict=True)
                )
                return assignments, placed[1]
    return None


def _candidate_domains(span: FlavorNodes, tier: int, counts: list[Counts], sizes: RoleSizes) -> Iterator[int]:
    """Domains of a tier that fit each role, tightest first."""
    free = counts[0][tier]
    if len(counts) == 1:
        tightness = np.where(
            span.tiers[tier].is_named & (free >= sizes[0]), free, UNBOUNDED_PODS * len(span.tiers[-1].domains) + 1
        )
        if len(tightness) and free[best := int(np.argmin(tightness))] >= sizes[0] and span.tiers[tier].is_named[best]:
            yield best
        return
    enough = span.tiers[tier].is_named.copy()
    total = np.zeros(len(free), dtype=np.int64)
    for count, size in zip(counts, sizes, strict=True):
        enough &= count[tier] >= size
        total += count[tier]
    candidates = np.flatnonzero(enough)
    yield from (int(d) for d in candidates[np.argsort(total[candidates], kind="stable")])


def _fit_domain(
    table: NodeTable, group: PlacementGroup, sizes: RoleSizes, view: CapacityView, tier: int, domain: int
) -> tuple[tuple[RoleAssignment, ...], NodeUsage] | None:
    """Place the roles one after the other in one domain; those with the largest requests first."""
    span = table.flavors[group.flavor]
    assignments: list[RoleAssignment] = []
    taken: NodeUsage | None = None
    for pod, size in zip(group.pods, sizes, strict=True):
        remaining = view if taken is None else ReservedView(view, table, taken)
        counts = remaining.counts(pod)
        if counts[tier][domain] < size:
            return None
        assignment = pack(span, counts, tier, domain, size)
        assignments.append(assignment)
        usage = node_usage_of(table, pod, assignment)
        taken = usage if taken is None else taken.joined(usage)
    return None if taken is None else (tuple(assignments), taken)


def node_usage_of(table: NodeTable, pod: PodClass, assignment: RoleAssignment) -> NodeUsage:
    """What an assignment takes from its nodes."""
    return NodeUsage(assignment.rows, assignment.counts[:, None] * table.to_row(pod.request)[None, :])


def pack(span: FlavorNodes, counts: Counts, tier: int, domain: int, pods: int) -> RoleAssignment:
    """Place pods inside one domain that fits them, in as few and as tight subdomains as possible."""
    rows: list[IntArray] = []
    taken: list[IntArray] = []
    nodes = len(span.tiers) - 1
    while pods:
        if tier == nodes:
            rows.append(np.array([domain], dtype=np.int64))
            taken.append(np.array([pods], dtype=np.int64))
            break
        start, stop = int(span.tiers[tier].first_child[domain]), int(span.tiers[tier].first_child[domain + 1])
        tier += 1
        free = counts[tier][start:stop]
        if int(free.max()) < pods:
            order = np.argsort(-free, kind="stable")
            filled = np.cumsum(free[order])
            filled_domains = order[: int(np.searchsorted(filled, pods))]
            edges = span.tiers[tier].first_node
            for child in filled_domains:
                first, last = int(edges[start + child]), int(edges[start + child + 1])
                inside = first + np.flatnonzero(counts[nodes][first:last])
                rows.append(inside)
                taken.append(counts[nodes][inside])
            pods -= int(filled[len(filled_domains) - 1])
            free = free.copy()
            free[filled_domains] = 0
        domain = start + int(np.argmin(np.where(free >= pods, free, INSUFFICIENT)))
    if not rows:
        return RoleAssignment(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    found, number = np.concatenate(rows), np.concatenate(taken)
    order = np.argsort(found)
    return RoleAssignment(found[order] + span.start, number[order])
