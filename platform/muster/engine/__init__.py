"""The scheduling cycle: observe, reconcile every changed job, plan, write."""

from __future__ import annotations

from muster.engine.engine import CycleResult, Engine, run_cycle
from muster.engine.feasibility import check_feasibility
from muster.engine.replay import POLICIES, replay
from muster.engine.snapshot_file import decode_snapshot, encode_snapshot
from muster.scheduling import MUSTER, Policy

__all__ = [
    "MUSTER",
    "POLICIES",
    "CycleResult",
    "Engine",
    "Policy",
    "check_feasibility",
    "decode_snapshot",
    "encode_snapshot",
    "replay",
    "run_cycle",
]
