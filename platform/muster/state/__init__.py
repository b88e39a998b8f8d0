"""The state of a cluster between two scheduling cycles, and the planner's snapshot of it.

Pure. `ClusterState.update` finds what changed since the last cycle; `build_snapshot` converts it into the planner's
input: nodes of one flavor each, gangs, running gangs, nominations. What did not change stays the same object, which
makes planning cheap.
"""

from __future__ import annotations

from muster.state.cluster_state import ClusterState, JobEntry
from muster.state.snapshot import BuildResult, build_snapshot, snapshot_of

__all__ = ["BuildResult", "ClusterState", "JobEntry", "build_snapshot", "snapshot_of"]
