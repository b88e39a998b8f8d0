"""One round of Muster: observe, let every job live, plan, write."""

from __future__ import annotations

from muster.engine.feasibility import check_feasibility
from muster.engine.engine import Engine, CycleResult
from muster.engine.snapshot_file import encode_snapshot, decode_snapshot
from muster.engine.replay import POLICIES, replay
from muster.scheduling import MUSTER, Policy

__all__ = ["MUSTER", "POLICIES", "Engine", "Policy", "CycleResult", "check_feasibility", "encode_snapshot", "decode_snapshot", "replay"]
