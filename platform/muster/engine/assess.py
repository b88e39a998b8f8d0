"""Could this job ever start? The planner's own answer, on the cluster as it would be if nobody else were there."""

from __future__ import annotations

from dataclasses import replace

from muster.cluster import DRAIN, NodeView, World
from muster.engine.replay import replay
from muster.model import Resources, Wait
from muster.snapshot import Cache, build
from muster.spec import TrainingJob, TrainingJobStatus


def assess(job: TrainingJob, world: World) -> Wait | None:
    """Why the job could not start even on the empty cluster; None when it could.

    Nodes that are down, cordoned or drained now count as there, foreign pods as gone: only what cannot heal is told.
    """
    meta = job.metadata.model_copy(update={"uid": job.metadata.uid or "assessed"})
    wanted = job.spec.model_copy(update={"suspend": False, "cancel": False})
    fresh = job.model_copy(
        update={"metadata": meta, "spec": wanted, "status": TrainingJobStatus(submitted_at=world.now)}
    )
    nodes = tuple(_empty_and_well(node) for node in world.nodes)
    built = build(replace(world, jobs=(fresh,), pods={}, beats={}, nodes=nodes), Cache())
    if built.refused:
        return built.refused[0]
    decisions = replay(built.snapshot)
    return next((decision for decision in decisions if isinstance(decision, Wait) and decision.gang == meta.uid), None)


def _empty_and_well(node: NodeView) -> NodeView:
    taints = tuple(taint for taint in node.taints if taint.key != DRAIN)
    return replace(node, ready=True, cordoned=False, taints=taints, foreign=Resources())
