"""Plans outside a scheduling cycle: saved snapshots under any policy, and whether a job could ever start."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from muster.cluster import DRAIN_TAINT, NodeView
from muster.errors import InvalidSpec
from muster.model import Decision, Resources, Snapshot, Wait
from muster.scheduling import BACKFILL, FIFO, MUSTER, PRIORITY, Policy, plan
from muster.state import snapshot_of
from muster.workload.observed import ObservedState
from muster.workload.protocol import Workload

POLICIES = {policy.name: policy for policy in (MUSTER, FIFO, PRIORITY, BACKFILL)}


def replay(snapshot: Snapshot, policy: Policy = MUSTER) -> tuple[Decision, ...]:
    """What a cycle would decide about this snapshot. Nothing is applied."""
    return plan(snapshot, policy=policy).decisions


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """JSON with every field of the snapshot."""
    return msgspec.json.encode(snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """The snapshot written by `encode_snapshot`. Raises InvalidSpec that names the missing or wrong field."""
    try:
        return msgspec.json.decode(data, type=Snapshot)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"not a snapshot file written by `muster`: {error}", field="snapshot") from error


def check_feasibility(workload: Workload, observed: ObservedState) -> Wait | None:
    """Why a workload that was just submitted could not start even on the empty cluster; None if it could.

    Nodes that are down, cordoned or drained count as available and unmanaged pods as deleted, so that only permanent
    obstacles are reported.
    """
    nodes = tuple(_idle_and_healthy(node) for node in observed.nodes)
    built = snapshot_of(replace(observed, workloads=(workload,), pods={}, heartbeats={}, nodes=nodes))
    if built.rejected:
        return built.rejected[0]
    waits = (decision for decision in replay(built.snapshot) if isinstance(decision, Wait))
    return next((wait for wait in waits if wait.gang_uid == workload.key), None)


def _idle_and_healthy(node: NodeView) -> NodeView:
    taints = tuple(taint for taint in node.taints if taint.key != DRAIN_TAINT)
    return replace(node, ready=True, cordoned=False, taints=taints, unmanaged_usage=Resources())
