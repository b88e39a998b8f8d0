"""What a workload depends on can be read: its queue and those above it, and its flavors."""

from __future__ import annotations

from muster.api.validation.queues import path_to_root, usable_flavors
from muster.model import Gang
from muster.workload.gates.gate import Closed, GateState
from muster.workload.protocol import Workload


def readable_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: QueueInactive or FlavorNotFound."""
    errors, queue = state.decode_errors, gang.queue
    if not errors:
        return None
    for one in path_to_root(queue, state.queues):
        name = one.metadata.name
        if name in errors.queues:
            which = f"queue {name}" if name == queue else f"queue {name}, above queue {queue},"
            return Closed("QueueInactive", f"{which} cannot be read: {errors.queues[name]}")
    usable = usable_flavors(queue, state.queues)
    for flavors in (role.flavors or gang.flavors for role in gang.roles):
        # A flavor that the queue may not use is no alternative to one that cannot be read.
        names = [name for name in flavors if name in usable] or flavors or usable
        if names and all(name in errors.flavors for name in names):
            message = "; ".join(f"flavor {name} cannot be read: {errors.flavors[name]}" for name in names)
            return Closed("FlavorNotFound", message, field="spec.flavors")
    return None
