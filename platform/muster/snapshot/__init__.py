"""Converts observed objects into the planner's snapshot: nodes of one flavor each, gangs, running gangs, nominations.

Pure. `build_snapshot` keeps the identity of everything that did not change, which makes planning cheap.
"""

from __future__ import annotations

from muster.snapshot.build import BuildResult, SnapshotCache, build_snapshot
from muster.snapshot.jobs import to_gang, to_roles
from muster.spec.pod_request import pod_request

__all__ = ["BuildResult", "SnapshotCache", "build_snapshot", "pod_request", "to_gang", "to_roles"]
