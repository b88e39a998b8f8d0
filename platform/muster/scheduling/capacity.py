"""How many pods of a class fit each node and domain, updated while a plan allocates and frees capacity.

The first count of a pod class is one pass over the arrays; later counts only read nodes that changed since, and only
when that class is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from muster.model import Resources
from muster.scheduling.node_labels import NodeLabels
from muster.scheduling.nodes import BoolArray, FlavorNodes, IntArray, NodeRule, NodeTable
from muster.scheduling.versioned_cache import VersionedCache

Counts: TypeAlias = tuple[IntArray, ...]
"""Pods of one class that fit: one array per tier of the flavor (widest first, nodes last), one number per domain."""

IDLE_PLANS_KEPT = 8
"""Counts of a pod class are dropped after this many plans without use."""

MAX_PENDING_CHANGES = 64
"""After this many changes counts are updated even without use."""

UNBOUNDED_PODS = np.int64(1) << 40  # more pods than any node fits: for a pod that requests nothing


@dataclass(frozen=True, slots=True, eq=False)
class PodClass:
    """Pods that are equal to the planner: same flavor, request and node rules. Compared by identity."""

    flavor: str
    request: Resources
    rule: NodeRule


@dataclass(frozen=True, slots=True, eq=False)
class NodeUsage:
    """What is taken from nodes: distinct rows of the node table, and the amounts on each."""

    rows: IntArray
    amounts: IntArray  # [rows, columns]

    def joined(self, other: NodeUsage) -> NodeUsage:
        """The sum of two usages."""
        rows, position = np.unique(np.concatenate([self.rows, other.rows]), return_inverse=True)
        amounts = np.zeros((len(rows), self.amounts.shape[1]), dtype=np.int64)
        np.add.at(amounts, position, np.concatenate([self.amounts, other.amounts]))
        return NodeUsage(rows, amounts)


def unique_rows(rows: IntArray, count: int) -> IntArray:
    """Distinct rows below `count`, sorted; faster than np.unique."""
    recounted = np.zeros(count, dtype=np.bool_)
    recounted[rows] = True
    return np.flatnonzero(recounted)


@dataclass(slots=True)
class NodeMasks:
    """Rows of its flavor that a pod class accepts, capacity aside; cached by class."""

    table: NodeTable
    _accepted: dict[PodClass, BoolArray] = field(default_factory=dict)
    _labels: dict[str, NodeLabels] = field(default_factory=dict)  # by flavor

    def accepted(self, pod: PodClass) -> BoolArray:
        """Rows of the pod's flavor whose taints and labels it accepts."""
        mask = self._accepted.get(pod)
        if mask is None:
            span = self.table.flavors[pod.flavor]
            labels = self._labels.get(pod.flavor)
            if labels is None:
                labels = self._labels[pod.flavor] = NodeLabels(self.table.nodes[span.start : span.stop])
            mask = self._accepted[pod] = pod.rule.accepts(labels.nodes, labels)
        return mask

    def usable(self, pod: PodClass) -> BoolArray:
        """Rows where it may start now: accepted, schedulable and not excluded."""
        span = self.table.flavors[pod.flavor]
        mask = self.accepted(pod) & self.table.schedulable[span.start : span.stop]
        for name in pod.rule.excluded_nodes:
            row = self.table.row_of.get(name, -1)
            if span.start <= row < span.stop:
                mask[row - span.start] = False
        return mask


@dataclass(slots=True)
class _CachedCounts:
    counts: Counts
    usable: BoolArray
    changes_seen: int  # number of capacity changes that the counts include
    shared: bool  # arrays are shared with another FreeCapacity: copy before writing
    idle_plans: int = 0  # plans since the last use


class CapacityView(Protocol):
    """Capacity as one gang may use it."""

    def counts(self, pod: PodClass) -> Counts:
        """How many of these pods fit, by tier and domain."""
        ...

    def node_counts(self, pod: PodClass, rows: IntArray, taken: IntArray) -> IntArray:
        """How many fit on these rows of the table if `taken` were taken from them."""
        ...


class FreeCapacity:
    """Free amounts of every node; negative where capacity is reserved before it is free.

    With `ignore_health`, nodes that are down or excluded count as well.
    """

    def __init__(self, masks: NodeMasks, free: IntArray, *, ignore_health: bool = False) -> None:
        self.masks = masks
        self.table = masks.table
        self.free = free
        self._ignore_health = ignore_health
        self._parent: FreeCapacity | None = None
        self._cached: dict[PodClass, _CachedCounts] = {}
        self._changes: list[IntArray] = []
        self.version = 0  # number of changes so far, including those that are no longer in `_changes`

    def fork(self) -> FreeCapacity:
        """A copy to write on; this one must not change any more. Counts are shared until they change."""
        copy = FreeCapacity(self.masks, self.free.copy(), ignore_health=self._ignore_health)
        copy._parent = self
        return copy

    def carry_over(self) -> FreeCapacity:
        """A copy for the next plan: it keeps counts that were used lately."""
        copy = FreeCapacity(self.masks, self.free.copy(), ignore_health=self._ignore_health)
        cached = {pod: entry for pod, entry in self._cached.items() if entry.idle_plans < IDLE_PLANS_KEPT}
        if len(self._changes) > MAX_PENDING_CHANGES:
            for pod in cached:
                self._sync(pod)
            self._changes = []
            for entry in self._cached.values():
                entry.changes_seen = 0
            self._cached = cached
        for pod, entry in cached.items():
            entry.shared = True
            copy._cached[pod] = _CachedCounts(
                entry.counts, entry.usable, entry.changes_seen, shared=True, idle_plans=entry.idle_plans + 1
            )
        copy._changes = self._changes.copy()
        return copy

    def add(self, usage: NodeUsage, sign: int) -> None:
        """Free capacity (+1) or allocate it (-1)."""
        if len(usage.rows):
            self.free[usage.rows] += sign * usage.amounts
            self._changes.append(usage.rows)
            self.version += 1

    def counts(self, pod: PodClass) -> Counts:
        cached = self._cached.get(pod)
        if cached is not None and cached.changes_seen == len(self._changes):
            cached.idle_plans = 0
            return cached.counts
        return self._sync(pod).counts

    def node_counts(self, pod: PodClass, rows: IntArray, taken: IntArray) -> IntArray:
        span = self.table.flavors[pod.flavor]
        fits = pods_per_node(self.table, pod, self.free[rows] - taken)
        return np.where(self._sync(pod).usable[rows - span.start], fits, 0)

    def _sync(self, pod: PodClass) -> _CachedCounts:
        span = self.table.flavors[pod.flavor]
        cached = self._cached.get(pod)
        if cached is None and self._parent is not None:
            entry = self._parent._sync(pod)
            entry.shared = True
            cached = self._cached[pod] = _CachedCounts(entry.counts, entry.usable, 0, shared=True)
        if cached is None:
            usable = self.masks.accepted(pod) if self._ignore_health else self.masks.usable(pod)
            counts = self._count(pod, span, usable)
            cached = self._cached[pod] = _CachedCounts(counts, usable, len(self._changes), shared=False)
        elif cached.changes_seen < len(self._changes):
            changes = self._changes[cached.changes_seen :]
            rows = changes[0] if len(changes) == 1 else np.concatenate(changes)
            if 2 * len(rows) > len(cached.usable):
                cached.counts, cached.shared = self._count(pod, span, cached.usable), False
            else:
                self._recount(pod, cached, span, rows if len(changes) == 1 else unique_rows(rows, len(self.free)))
            cached.changes_seen = len(self._changes)
        cached.idle_plans = 0
        return cached

    def usable(self, pod: PodClass) -> BoolArray:
        """Rows of the pod's flavor on which it may start, capacity aside."""
        return self._sync(pod).usable

    def counts_by_resource(self, pod: PodClass, rows: slice, names: Collection[str]) -> dict[str, int]:
        """How many of these pods would fit these rows if they requested only one resource, by resource."""
        usable = self._sync(pod).usable[rows.start - self.table.flavors[pod.flavor].start :][: rows.stop - rows.start]
        return {
            name: int(np.maximum(0, self.free[rows, column] // amount)[usable].sum())
            for name, amount in pod.request
            if name in names and (column := self.table.columns.get(name)) is not None
        }

    def _count(self, pod: PodClass, span: FlavorNodes, usable: BoolArray) -> Counts:
        return sum_by_tier(span, np.where(usable, pods_per_node(self.table, pod, self.free[span.start : span.stop]), 0))

    def _recount(self, pod: PodClass, cached: _CachedCounts, span: FlavorNodes, rows: IntArray) -> None:
        rows = rows[(rows >= span.start) & (rows < span.stop)]
        if not len(rows):
            return
        if cached.shared:
            cached.counts, cached.shared = tuple(array.copy() for array in cached.counts), False
        places = rows - span.start
        fits = np.where(cached.usable[places], pods_per_node(self.table, pod, self.free[rows]), 0)
        gained = fits - cached.counts[-1][places]
        cached.counts[-1][places] = fits
        for tier, sums in zip(span.tiers[:-1], cached.counts[:-1], strict=True):
            np.add.at(sums, tier.domain_of_node[places], gained)


class IntersectionView:
    """Capacity that is in all of several views: free now, and still free when it is needed later."""

    def __init__(self, views: Sequence[FreeCapacity]) -> None:
        self._views = tuple(views)
        self._table = views[0].table
        self._counts: VersionedCache[PodClass, Counts] = VersionedCache()

    def counts(self, pod: PodClass) -> Counts:
        """How many of these pods fit in every view, by tier and domain."""
        known = self._counts.at(tuple([view.version for view in self._views]))
        counts = known.get(pod)
        if counts is None:
            fits = self._views[0].counts(pod)[-1]
            for view in self._views[1:]:
                fits = np.minimum(fits, view.counts(pod)[-1])
            counts = known[pod] = sum_by_tier(self._table.flavors[pod.flavor], fits)
        return counts

    def node_counts(self, pod: PodClass, rows: IntArray, taken: IntArray) -> IntArray:
        fits = self._views[0].node_counts(pod, rows, taken)
        for view in self._views[1:]:
            fits = np.minimum(fits, view.node_counts(pod, rows, taken))
        return fits


class ReservedView:
    """A view without what other pods of the same gang take."""

    def __init__(self, view: CapacityView, table: NodeTable, taken: NodeUsage) -> None:
        self._view = view
        self._table = table
        self._taken = taken

    def counts(self, pod: PodClass) -> Counts:
        """How many of these pods fit besides what was taken."""
        span = self._table.flavors[pod.flavor]
        fits = self._view.counts(pod)[-1].copy()
        inside = (self._taken.rows >= span.start) & (self._taken.rows < span.stop)
        rows = self._taken.rows[inside]
        fits[rows - span.start] = self._view.node_counts(pod, rows, self._taken.amounts[inside])
        return sum_by_tier(span, fits)

    def node_counts(self, pod: PodClass, rows: IntArray, taken: IntArray) -> IntArray:
        total = taken.copy()
        position = np.searchsorted(self._taken.rows, rows)
        hit = (position < len(self._taken.rows)) & (
            self._taken.rows[np.minimum(position, len(self._taken.rows) - 1)] == rows
        )
        total[hit] += self._taken.amounts[position[hit]]
        return self._view.node_counts(pod, rows, total)


def sum_by_tier(span: FlavorNodes, fits: IntArray) -> Counts:
    """Counts by tier from counts by node."""
    if not len(fits):
        return tuple(np.zeros(len(tier.domains), dtype=np.int64) for tier in span.tiers)
    return (*(np.add.reduceat(fits, tier.first_node[:-1]) for tier in span.tiers[:-1]), fits)


def max_gain(table: NodeTable, pod: PodClass, node_usage: NodeUsage, tier: int) -> IntArray:
    """An upper bound of how many more pods fit each domain of a tier once a usage (whose rows may repeat) is freed.

    floor((free + freed) / request) <= floor(free / request) + ceil(freed / request), for each resource.
    """
    span = table.flavors[pod.flavor]
    inside = (node_usage.rows >= span.start) & (node_usage.rows < span.stop)
    amounts = node_usage.amounts[inside]
    gained = np.zeros(len(amounts), dtype=np.int64)
    for name, amount in pod.request:
        column = table.columns.get(name)
        if column is not None:
            np.maximum(gained, -(-amounts[:, column] // amount), out=gained)
    domains = span.tiers[tier].domain_of_node[node_usage.rows[inside] - span.start]
    return np.bincount(domains, weights=gained, minlength=len(span.tiers[tier].domains)).astype(np.int64)


def pods_per_node(table: NodeTable, pod: PodClass, free: IntArray) -> IntArray:
    """Whole pods that fit each row of `free`; 0 where it is overdrawn."""
    fits = np.full(len(free), UNBOUNDED_PODS, dtype=np.int64)
    for name, amount in pod.request:
        column = table.columns.get(name)
        if column is None:
            return np.zeros(len(free), dtype=np.int64)
        np.minimum(fits, free[:, column] // amount, out=fits)
    return np.maximum(fits, 0)
