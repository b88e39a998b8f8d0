"""Plans a saved or generated snapshot once, with the engine's planner, under any of its policies."""

from __future__ import annotations

from muster.model import Decision, Snapshot
from muster.scheduling import BACKFILL, FIFO, MUSTER, PRIORITY, Policy, plan

POLICIES = {policy.name: policy for policy in (MUSTER, FIFO, PRIORITY, BACKFILL)}


def replay(snapshot: Snapshot, policy: Policy = MUSTER) -> tuple[Decision, ...]:
    """What a cycle would decide about this snapshot. Nothing is applied."""
    return plan(snapshot, policy=policy).decisions
