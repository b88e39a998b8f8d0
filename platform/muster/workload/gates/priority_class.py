"""The PriorityClass of a workload exists."""

from __future__ import annotations

from muster.model import Gang
from muster.workload.gates.gate import Closed, GateState
from muster.workload.planning import effective_priority
from muster.workload.protocol import Workload


def priority_class_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: PriorityClassNotFound."""
    if effective_priority(workload, state.priority_classes) is not None:
        return None
    message = f"spec.priorityClassName: PriorityClass {workload.priority_class!r} does not exist"
    return Closed("PriorityClassNotFound", message)
