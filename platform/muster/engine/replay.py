"""A world that was saved, or thought up, planned once: by the planner of the engine, under any of its policies."""

from __future__ import annotations

from muster.model import Decision, Snapshot
from muster.scheduling import BACKFILL, FIFO, MUSTER, PRIORITY, Policy, plan

POLICIES = {policy.name: policy for policy in (MUSTER, FIFO, PRIORITY, BACKFILL)}


def replay(snapshot: Snapshot, policy: Policy = MUSTER) -> tuple[Decision, ...]:
    """What a round would decide about this snapshot. Nothing is carried out."""
    return plan(snapshot, policy=policy).decisions
