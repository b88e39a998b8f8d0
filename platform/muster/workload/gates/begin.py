"""The begin time of a workload has come."""

from __future__ import annotations

from datetime import UTC, datetime

from muster.model import Gang
from muster.workload.gates.gate import Closed, GateState
from muster.workload.protocol import Workload


def begin_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: BeginTimeNotReached."""
    begin_at = workload.start_conditions.begin_at
    if begin_at is None or now >= begin_at:
        return None
    at = datetime.fromtimestamp(begin_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Closed("BeginTimeNotReached", f"waits until {at} (spec.beginTime)", recheck_at=begin_at)
