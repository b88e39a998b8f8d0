"""The queue of a workload exists, and admits its namespace."""

from __future__ import annotations

from functools import partial

from muster.api.validation.queues import nearest_selector, selector_text
from muster.errors import NotFound
from muster.model import Gang
from muster.text import did_you_mean
from muster.workload.gates.gate import Closed, GateState
from muster.workload.planning import namespace_of
from muster.workload.protocol import Workload


def queue_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: QueueNotFound."""
    if gang.queue in state.queues:
        return None
    known = ", ".join(sorted(state.queues)[:8]) or "none"
    message = f"queue {gang.queue} does not exist; existing queues: {known}"
    hint = partial(did_you_mean, gang.queue, state.queues, "")
    return Closed("QueueNotFound", message, hint=hint, error=NotFound)


def namespace_gate(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
    """Closed: QueueNotAllowed."""
    queue, namespace = gang.queue, namespace_of(workload)
    if state.allowed_namespaces[queue, namespace]:
        return None

    def hint() -> str:
        selector = nearest_selector(queue, state.queues.values())
        if selector is None:
            return "neither the queue nor a queue above it sets one ({} allows all)"
        labels = sorted(state.namespaces.get(namespace, {}).items())
        shown = ", ".join(f"{key}={value}" for key, value in labels) or "none"
        return f"it requires {selector_text(selector)}; the namespace's labels are {shown}"

    message = f"queue {queue} does not admit jobs of namespace {namespace} (its namespaceSelector)"
    return Closed("QueueNotAllowed", message, hint=hint)
