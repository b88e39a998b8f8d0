"""The PriorityClass of a workload exists."""

from __future__ import annotations

from functools import partial

from muster.errors import NotFound
from muster.model import Gang
from muster.text import name_hint
from muster.workload.gates.gate import Closed, GateState
from muster.workload.planning import effective_priority
from muster.workload.protocol import Workload


def priority_class_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: PriorityClassNotFound."""
    if effective_priority(workload, state.priority_classes) is not None:
        return None
    named = str(workload.priority_class)
    return Closed(
        "PriorityClassNotFound",
        f"PriorityClass {named!r} does not exist",
        field="spec.priorityClassName",
        hint=partial(name_hint, named, state.priority_classes, "PriorityClass"),
        error=NotFound,
    )
