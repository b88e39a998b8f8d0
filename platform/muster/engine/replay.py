"""Plans outside a scheduling cycle: saved snapshots under any policy, and whether a job could ever start."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.cluster import DRAIN_TAINT, NodeView, ObservedState
from muster.errors import InvalidSpec
from muster.model import Decision, Resources, Snapshot, Wait
from muster.scheduling import BACKFILL, FIFO, MUSTER, PRIORITY, Policy, plan
from muster.state import snapshot_of

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


def check_feasibility(job: TrainingJob, observed: ObservedState) -> Wait | None:
    """Why the job could not start even on the empty cluster; None if it could.

    Nodes that are down, cordoned or drained count as available and unmanaged pods as deleted, so that only permanent
    obstacles are reported.
    """
    meta = job.metadata.model_copy(update={"uid": job.metadata.uid or "assessed"})
    wanted = job.spec.model_copy(update={"suspend": False, "cancel": False})
    fresh = job.model_copy(
        update={"metadata": meta, "spec": wanted, "status": TrainingJobStatus(submitted_at=observed.now)}
    )
    nodes = tuple(_idle_and_healthy(node) for node in observed.nodes)
    built = snapshot_of(replace(observed, jobs=(fresh,), pods={}, heartbeats={}, nodes=nodes))
    if built.rejected:
        return built.rejected[0]
    decisions = replay(built.snapshot)
    return next(
        (decision for decision in decisions if isinstance(decision, Wait) and decision.gang_uid == meta.uid), None
    )


def _idle_and_healthy(node: NodeView) -> NodeView:
    taints = tuple(taint for taint in node.taints if taint.key != DRAIN_TAINT)
    return replace(node, ready=True, cordoned=False, taints=taints, unmanaged_usage=Resources())
