"""How objects become the planner's world: nodes of one flavor each, gangs, what runs, what is held.

Pure. `build` keeps the identity of everything that did not change, which is what makes planning cheap.
"""

from __future__ import annotations

from muster.snapshot.build import BuildResult, SnapshotCache, build_snapshot
from muster.snapshot.jobs import to_gang, to_roles
from muster.spec.pod_request import pod_request

__all__ = ["BuildResult", "SnapshotCache", "build_snapshot", "pod_request", "to_gang", "to_roles"]
