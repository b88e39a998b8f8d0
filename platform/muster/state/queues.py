"""The planner's view of the queue tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster import model
from muster.api import spec
from muster.api.validation import QueueReadiness, namespace_allowed, queue_readiness
from muster.api.validation.queues import quotas_of
from muster.cluster import NO_DECODE_ERRORS, DecodeErrors
from muster.state.identity import reuse_equal, reuse_tuple, same_objects


@dataclass(slots=True)
class QueueProjection:
    """The queues of the last snapshot. `readiness` is by queue."""

    queues: tuple[model.QueueInfo, ...] = ()
    readiness: Mapping[str, QueueReadiness] = field(default_factory=dict)
    _key: tuple[object, ...] = ()
    _decode_errors: DecodeErrors = NO_DECODE_ERRORS

    def update(self, queues: tuple[spec.Queue, ...], decode_errors: DecodeErrors) -> bool:
        """Convert the queues if any changed; returns whether one did."""
        key = tuple(
            item for queue in queues for item in (queue.spec, queue.metadata.name, queue.metadata.deletion_timestamp)
        )
        if same_objects(key, self._key) and decode_errors == self._decode_errors:
            return False
        self._key, self._decode_errors = key, decode_errors
        self.readiness = queue_readiness(queues, decode_errors.queues)
        before = {queue.name: queue for queue in self.queues}
        fresh = [to_queue(queue, self.readiness[queue.metadata.name]) for queue in queues]
        self.queues = reuse_tuple([reuse_equal(before.get(queue.name), queue) for queue in fresh], self.queues)
        return True


def to_queue(queue: spec.Queue, readiness: QueueReadiness) -> model.QueueInfo:
    """One queue; an inactive one stays in the tree, since its running jobs are still charged."""
    return model.QueueInfo(
        name=queue.metadata.name,
        parent=queue.spec.parent,
        weight=queue.spec.weight,
        max_priority=queue.spec.max_priority,
        quotas=quotas_of(queue),
        active=readiness.active,
        inactive_reason="" if readiness.active else readiness.message,
    )


class AllowedNamespaces(dict[tuple[str, str], bool]):
    """Whether a queue admits jobs of a namespace, by (queue, namespace), computed at the first use."""

    def __init__(self, queues: tuple[spec.Queue, ...], namespaces: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__()
        self._queues = queues
        self._namespaces = namespaces

    def __missing__(self, key: tuple[str, str]) -> bool:
        queue, name = key
        labels = {"kubernetes.io/metadata.name": name, **self._namespaces.get(name, {})}
        self[key] = namespace_allowed(queue, self._queues, labels)
        return self[key]
