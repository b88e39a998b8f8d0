"""Namespaces that may use a queue, by the namespaceSelector of the queue or its nearest ancestor that sets one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from muster.spec import LabelSelector, Queue
from muster.validation.queue_readiness import path_to_root


def namespace_allowed(queue_name: str, queues: Iterable[Queue], namespace_labels: Mapping[str, str]) -> bool:
    """Whether a namespace with these labels may submit to the queue. Without a selector none may; an empty one
    selects all."""
    selector = nearest_selector(queue_name, queues)
    return selector is not None and matches(selector, namespace_labels)


def nearest_selector(queue_name: str, queues: Iterable[Queue]) -> LabelSelector | None:
    """The effective selector of the queue: its own, else that of its nearest ancestor; None if none sets one."""
    by_name = {queue.metadata.name: queue for queue in queues}
    for queue in path_to_root(queue_name, by_name):
        if queue.spec.namespace_selector is not None:
            return queue.spec.namespace_selector
    return None


def matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether labels match a selector, as in Kubernetes: all requirements must match; NotIn matches an absent label."""
    equal = all(labels.get(key) == value for key, value in selector.match_labels.items())
    return equal and all(_requirement_matches(line, labels) for line in selector.match_expressions)


def _requirement_matches(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = requirement["key"], requirement["operator"], requirement.get("values") or []
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    return bool((key in labels) == (operator == "Exists"))
