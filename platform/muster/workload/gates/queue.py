"""The queue of a workload exists, and admits its namespace."""

from __future__ import annotations

from muster.model import Gang
from muster.workload.gates.gate import Closed, GateState
from muster.workload.planning import namespace_of
from muster.workload.protocol import Workload


def queue_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: QueueNotFound."""
    if gang.queue in state.queues:
        return None
    known = ", ".join(sorted(state.queues)[:8]) or "none"
    return Closed("QueueNotFound", f"queue {gang.queue} does not exist; existing queues: {known}")


def namespace_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: QueueNotAllowed."""
    queue, namespace = gang.queue, namespace_of(workload)
    if state.allowed_namespaces[queue, namespace]:
        return None
    message = f"queue {queue} does not admit jobs of namespace {namespace} (its namespaceSelector)"
    return Closed("QueueNotAllowed", message)
