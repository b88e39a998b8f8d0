"""The queue of a workload exists, can be read, and admits its namespace."""

from __future__ import annotations

from muster.api.validation import invalid_dependency
from muster.model import Gang
from muster.workload.gates.gate import Closed, GateState
from muster.workload.planning import namespace_of
from muster.workload.protocol import Workload


def queue_gate(workload: Workload, gang: Gang, state: GateState) -> Closed | None:
    """Closed: QueueNotFound, QueueInactive, FlavorNotFound or QueueNotAllowed."""
    queue, namespace = gang.queue, namespace_of(workload)
    if queue not in state.queues:
        known = ", ".join(sorted(state.queues)[:8]) or "none"
        return Closed("QueueNotFound", f"queue {queue} does not exist; existing queues: {known}")
    flavors = (role.flavors or gang.flavors for role in gang.roles)
    errors = state.decode_errors
    fault = invalid_dependency(queue, flavors, state.queues, errors.queues, errors.flavors)
    if fault is not None:
        return Closed(*fault)
    if not state.allowed_namespaces[queue, namespace]:
        message = f"queue {queue} does not admit jobs of namespace {namespace} (its namespaceSelector)"
        return Closed("QueueNotAllowed", message)
    return None
