"""Whether the planner sees a workload at all: what has to hold before quota and capacity matter.

Each gate is one module with a pure function of the workload and the state. A closed gate has a reason, which the
workload's status gets, and may say when to look again.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.model import Gang
from muster.workload.gates.begin import begin_gate
from muster.workload.gates.dependencies import dependency_gate, singleton_gate
from muster.workload.gates.devices import devices_gate
from muster.workload.gates.gate import Closed, Gate, GateState
from muster.workload.gates.priority_class import priority_class_gate
from muster.workload.gates.queue import namespace_gate, queue_gate
from muster.workload.gates.readable import readable_gate
from muster.workload.protocol import Workload

__all__ = [
    "GATES", "Closed", "Gate", "GateState", "devices_gate", "first_closed", "namespace_gate", "priority_class_gate",
    "queue_gate", "readable_gate", "refuse_closed",
]  # fmt: skip

GATES: tuple[Gate, ...] = (
    queue_gate, readable_gate, namespace_gate, priority_class_gate, devices_gate, dependency_gate, singleton_gate,
    begin_gate,
)  # fmt: skip
"""In the order in which their reasons are given."""


def first_closed(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """The first gate that is closed for the workload, whose gang is `gang`, now; None if all are open."""
    return next((closed for gate in GATES if (closed := gate(workload, gang, state, now)) is not None), None)


def refuse_closed(gates: Iterable[Gate], workload: Workload, gang: Gang, state: GateState, now: float) -> None:
    """Raise `Refused` for the first of these gates that is closed, as before an object is created."""
    for gate in gates:
        closed = gate(workload, gang, state, now)
        if closed is not None:
            raise closed.refusal()
