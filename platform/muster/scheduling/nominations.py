"""Capacity nominated for one gang: freed by preemption, or retained across a restart.

A nomination is charged like a running gang until its gang is admitted. Its placement is validated first, since nodes
may have been lost; a nomination for a part of the gang is completed with further pods in the same domain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from muster.model import Gang, Nomination, Placement
from muster.quota import QueueTree, QuotaUsage
from muster.scheduling.capacity import FreeCapacity, ReservedView
from muster.scheduling.fit import FixedPods, FlavorAssignment, GangAssignment, RoleAssignment, fit
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.nodes import NodeTable, placement_error
from muster.scheduling.releases import (
    ExpectedRelease,
    GangUsage,
    node_usage_of_placement,
    quota_of_placement,
)


@dataclass(frozen=True, slots=True, eq=False)
class ActiveNomination:
    """A nomination that has not expired, with what it takes and charges until its gang's latest release."""

    gang: Gang
    request: QueueRequest
    nomination: Nomination
    release: ExpectedRelease
    covers_minimum: bool  # whether it covers the gang's minimum
    node_count: int  # number of its nodes
    option: int | None  # the option whose flavors it uses; None if the gang may not use them (any more)
    nodes_valid: bool  # whether all its nodes exist and accept its pods, capacity aside

    @classmethod
    def of(
        cls, table: NodeTable, tree: QueueTree, nomination: Nomination, gang: Gang, request: QueueRequest
    ) -> ActiveNomination:
        """Validate a nomination, and count what it takes and charges."""
        node_usage = node_usage_of_placement(table, gang, nomination.placement)
        amounts = quota_of_placement(tree, request.queue, gang, nomination.placement)
        expires_at = nomination.expires_at
        release = ExpectedRelease.of(gang, expires_at, expires_at, node_usage, request.queue, amounts)
        missing = {role.name: role.min_replicas for role in gang.roles}
        for part in nomination.placement:
            missing[part.role] = missing.get(part.role, 0) - part.replicas
        names = {node for part in nomination.placement for node, _ in part.nodes}
        nodes = {table.nodes[row].name: table.nodes[row] for row in node_usage.rows}
        flavors = {name: span.flavor for name, span in table.flavors.items()}
        return cls(
            gang=gang,
            request=request,
            nomination=nomination,
            release=release,
            covers_minimum=all(pods <= 0 for pods in missing.values()),
            node_count=len(names),
            option=next(request.gang_request.options_of(nomination.placement), None),
            nodes_valid=len(names) == len(nodes) and not placement_error(gang, nomination.placement, nodes, flavors),
        )

    @property
    def is_usable_part(self) -> bool:
        """Whether it is for a part of the gang only, on nodes that the gang may use."""
        return not self.covers_minimum and self.option is not None and self.nodes_valid and self.node_count > 0

    def fits(self, capacity: FreeCapacity, usage: QuotaUsage) -> bool:
        """Whether the whole gang fits its nominated placement, with this capacity and quota usage."""
        return (
            self.covers_minimum
            and self._has_capacity(capacity)
            and usage.fits(self.request.queue, self.release.amounts)
        )

    def fits_while_reserved(self, capacity: FreeCapacity, usage: QuotaUsage) -> bool:
        """Whether capacity and quota that already include this nomination are not overdrawn."""
        if not self.covers_minimum or not self._is_usable(capacity.table):
            return False
        if (capacity.free[self.release.node_usage.rows] < 0).any():
            return False
        return all(usage.available(self.request.queue, cell) >= 0 for cell, amount in self.release.amounts if amount)

    def completed(self, capacity: FreeCapacity, usage: QuotaUsage) -> FlavorAssignment | None:
        """The nomination of a part of a gang, completed to its minimum; None if the other pods do not fit."""
        node_usage, table = self.release.node_usage, capacity.table
        if self.covers_minimum or not len(node_usage.rows) or not self._has_capacity(capacity):
            return None
        gang_request = self.request.gang_request
        placed = placed_pods(table, self.gang, self.nomination.placement)
        sizes = tuple(
            max(size, placed[role].pods if role in placed else 0) for role, size in enumerate(gang_request.min_sizes)
        )
        for index in gang_request.options_of(self.nomination.placement):
            option, amounts = gang_request.options[index], self.request.quota_at(index, sizes)
            if not usage.fits(self.request.queue, amounts):
                continue
            assignment = fit(table, option, sizes, ReservedView(capacity, table, node_usage), placed)
            if assignment is not None:
                joined = GangAssignment(assignment.roles, assignment.node_usage.joined(node_usage))
                return FlavorAssignment(index, 0, joined, amounts)
        return None

    def until(self, start: float | None) -> ActiveNomination:
        """This nomination, which its gang cannot use, charged only until the reservation of its gang begins at `start`
        (None: it has none), since that is for the whole gang."""
        if start is None:
            return self
        # It ends before all other releases of that time, so that it is not taken from the reserved capacity.
        release = replace(self.release, release_at=min(start, self.nomination.expires_at), since=-math.inf)
        return replace(self, release=release)

    def waiting_message(self, running: Mapping[str, GangUsage]) -> str:
        """What the gang waits for, as a sentence."""
        terminating = [
            running[uid].running.gang.name
            for uid in self.nomination.victims
            if uid in running and not running[uid].is_admitted
        ]
        nodes = "1 node nominated" if self.node_count == 1 else f"{self.node_count} nodes nominated"
        return f"{nodes}; waiting for {join_names(terminating) or 'pods still on them'} to terminate"

    def _has_capacity(self, capacity: FreeCapacity) -> bool:
        node_usage = self.release.node_usage
        enough = capacity.free[node_usage.rows] >= node_usage.amounts
        return self._is_usable(capacity.table) and bool(enough.all())

    def _is_usable(self, table: NodeTable) -> bool:
        """Whether the gang may still use all nominated nodes, capacity aside."""
        if self.option is None or not self.nodes_valid:
            return False
        return bool(table.schedulable[self.release.node_usage.rows].all())


def nominated_gang(nomination: Nomination, gang_usage: GangUsage | None) -> Gang | None:
    """The gang of a nomination that is not pending; None when it is running (the nomination is over) or unknown.
    `gang_usage` is what it takes, if it has pods."""
    if gang_usage is None:
        return nomination.nominated_gang
    return gang_usage.running.gang if gang_usage.release is None else None


def placed_pods(table: NodeTable, gang: Gang, placement: Placement) -> FixedPods:
    """A placement as assignments by role, without pods on nodes that no longer exist."""
    index = {role.name: i for i, role in enumerate(gang.roles)}
    placed: dict[int, RoleAssignment] = {}
    for part in placement:
        pods: dict[int, int] = {}
        for node, count in part.nodes:
            row = table.row_of.get(node)
            if row is not None:
                pods[row] = pods.get(row, 0) + count
        if pods and part.role in index:
            rows = np.array(sorted(pods), dtype=np.int64)
            placed[index[part.role]] = RoleAssignment(rows, np.array([pods[int(row)] for row in rows], dtype=np.int64))
    return placed


def join_names(names: list[str]) -> str:
    """Up to three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
