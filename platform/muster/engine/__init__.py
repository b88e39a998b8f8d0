"""The scheduling cycle: observe, reconcile every changed job, plan, write."""

from __future__ import annotations

from muster.engine.engine import CycleResult, Engine, run_cycle
from muster.engine.gc_tuning import reduce_gc_frequency
from muster.engine.replay import POLICIES, check_feasibility, decode_snapshot, encode_snapshot, replay
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
    "reduce_gc_frequency",
    "replay",
    "run_cycle",
]
