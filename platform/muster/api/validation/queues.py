"""The conditions Active and Overcommitted of queues, the namespaces that may use them, and the quota tree.

A queue in a cycle, below a missing parent, or being deleted is inactive and admits nothing. Overcommitted queues, whose
children have a larger guarantee in total, still admit: the quota formulas remain well defined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from muster import model
from muster.api.pod_security import PodSecurityLevel
from muster.api.quantity import format_quantity, parse_quantity
from muster.api.spec import DEFAULT_MAX_GRACE_PERIOD_S, FlavorQuota, LabelSelector, Queue
from muster.quota import QueueTree, queue_tree
from muster.text import name_hint

INVALID_QUEUE_PREFIX = "it cannot be read: "
"""Prefix of the message of an invalid queue."""
NO_FLAVOR_MESSAGE = "neither this queue nor one above it names a flavor, so its jobs cannot use any node"
"""Message of a queue without `resources` on its path to the root."""
_Amounts = dict[tuple[str, str], int]  # by flavor and resource


@dataclass(frozen=True, slots=True)
class QueueReadiness:
    """`active`, `reason` and `message` are of the condition Active, `overcommitted_message` of Overcommitted."""

    active: bool
    reason: str
    message: str
    overcommitted_message: str | None = None


def queue_readiness(
    queues: Iterable[Queue], invalid: Mapping[str, str] = MappingProxyType({}), flavors: Collection[str] | None = None
) -> dict[str, QueueReadiness]:
    """The readiness of every queue, by name. `invalid` has error messages by name of queues whose spec cannot be
    decoded; `queues` contains the valid part or an earlier version of these. `flavors`: those that exist; None: not
    known.

    Reasons: Ready, NoResources and FlavorNotFound (active), InvalidSpec, Cycle, ParentNotFound, ParentInactive,
    Deleting.
    """
    by_name = {queue.metadata.name: queue for queue in queues}
    readiness = {
        name: QueueReadiness(False, "InvalidSpec", f"{INVALID_QUEUE_PREFIX}{error}")
        for name, error in invalid.items()
        if name in by_name
    }
    for name in by_name:
        _evaluate(name, by_name, readiness)
    for name, message in _overcommitted(by_name, readiness).items():
        readiness[name] = replace(readiness[name], overcommitted_message=message)
    parents = {queue.spec.parent for queue in by_name.values()}
    hint = cache(lambda flavor: name_hint(flavor, flavors or (), "flavor"))  # many queues may name the same flavor
    for name, queue_state in readiness.items():
        if queue_state.active and name not in parents and not usable_flavors(name, by_name):
            readiness[name] = replace(queue_state, reason="NoResources", message=NO_FLAVOR_MESSAGE)
        elif queue_state.active and flavors is not None and (warning := _flavor_warning(name, by_name, flavors, hint)):
            readiness[name] = replace(queue_state, reason="FlavorNotFound", message=warning)
    return readiness


def missing_flavor(
    queue: Queue, flavors: Collection[str], hint: Callable[[str], str] | None = None
) -> tuple[str, str] | None:
    """Field and error message of the first flavor in `resources` of the queue that does not exist. `hint`: `name_hint`
    for a flavor, if it is known already."""
    for index, entry in enumerate(queue.spec.resources):
        if entry.flavor not in flavors:
            field = f"spec.resources[{index}].flavor"
            similar = name_hint(entry.flavor, flavors, "flavor") if hint is None else hint(entry.flavor)
            return field, f"{field}: flavor {entry.flavor!r} does not exist; {similar}"
    return None


def _flavor_warning(
    name: str, by_name: Mapping[str, Queue], flavors: Collection[str], hint: Callable[[str], str]
) -> str | None:
    """The error of the queue's own flavors, or of those of the queues above if none that its jobs may use exists."""
    path = path_to_root(name, by_name)
    if any(entry.flavor in flavors for queue in path for entry in queue.spec.resources):
        path = path[:1]
    for queue in path:
        if missing := missing_flavor(queue, flavors, hint):
            owner = "" if queue.metadata.name == name else f"queue {queue.metadata.name!r}: "
            return f"{owner}{missing[1]}"
    return None


def path_to_root(name: str, by_name: Mapping[str, Queue]) -> list[Queue]:
    """The queue and its ancestors, root last; ends early at a missing parent and before a queue repeats."""
    path: dict[str, Queue] = {}
    current: str | None = name
    while current is not None and current in by_name and current not in path:
        path[current] = by_name[current]
        current = by_name[current].spec.parent
    return list(path.values())


def usable_flavors(queue: str, by_name: Mapping[str, Queue]) -> tuple[str, ...]:
    """The flavors in `resources` of the queue and its ancestors, sorted; no other can be used."""
    return tuple(sorted({entry.flavor for one in path_to_root(queue, by_name) for entry in one.spec.resources}))


def _evaluate(name: str, by_name: Mapping[str, Queue], readiness: dict[str, QueueReadiness]) -> None:
    """Add the readiness of `name` and of its ancestors, from the root down."""
    path: list[str] = []
    current: str | None = name
    while current is not None and current in by_name and current not in readiness and current not in path:
        path.append(current)
        current = by_name[current].spec.parent
    if current in path:
        cycle = path[path.index(current) :]
        start = cycle.index(min(cycle))
        ring = [*cycle[start:], *cycle[: start + 1]]
        message = f"in a cycle: {' → '.join(ring)} (each names the next as its parent); remove one spec.parent"
        for member in cycle:
            readiness[member] = QueueReadiness(False, "Cycle", message)
        path = path[: path.index(cycle[0])]
    for member in reversed(path):
        readiness[member] = _evaluate_below_parent(by_name[member], by_name, readiness)


def _evaluate_below_parent(
    queue: Queue, by_name: Mapping[str, Queue], readiness: Mapping[str, QueueReadiness]
) -> QueueReadiness:
    parent = queue.spec.parent
    if queue.metadata.deletion_timestamp is not None:
        return QueueReadiness(False, "Deleting", "it is being deleted and waits for its unfinished jobs")
    if parent is not None and parent not in by_name:
        return QueueReadiness(
            False, "ParentNotFound", f"its parent {parent!r} does not exist; create it or remove spec.parent"
        )
    if parent is not None and not readiness[parent].active:
        return QueueReadiness(
            False, "ParentInactive", f"its parent {parent!r} is inactive: {readiness[parent].message}"
        )
    return QueueReadiness(True, "Ready", "admits jobs")


def _overcommitted(by_name: Mapping[str, Queue], readiness: Mapping[str, QueueReadiness]) -> dict[str, str]:
    """A message for every queue whose children's guarantees exceed its own guarantee or limit, by name."""
    children: dict[str, list[str]] = {}
    for name, queue in by_name.items():
        if queue.spec.parent in by_name and readiness[name].reason != "Cycle":
            children.setdefault(str(queue.spec.parent), []).append(name)
    messages: dict[str, str] = {}
    counted: dict[str, _Amounts] = {}  # guarantees, at least the sum of the children's
    for name in _leaves_first(by_name, children):
        sums: _Amounts = {}
        for child in children.get(name, ()):
            for key, amount in counted[child].items():
                sums[key] = sums.get(key, 0) + amount
        own, limits = _amounts(by_name[name], "guaranteed"), _amounts(by_name[name], "limit")
        for word, bounds in (("guarantees", own), ("is limited to", limits)):
            for (flavor, resource), total in sorted(sums.items()):
                bound = bounds.get((flavor, resource))
                if bound is not None and total > bound and name not in messages:
                    shown, requested = format_quantity(bound, resource), format_quantity(total, resource)
                    messages[name] = (
                        f"its children are guaranteed {requested} {resource} of {flavor} together, it {word} {shown}; "
                        f"raise it to {requested} or lower those of its children ({', '.join(sorted(children[name]))})"
                    )
        counted[name] = {key: max(own.get(key, 0), sums.get(key, 0)) for key in {*own, *sums}}
    return messages


def _leaves_first(by_name: Mapping[str, Queue], children: Mapping[str, list[str]]) -> list[str]:
    """Every queue after all of its children; `children` has no entries for queues in a cycle."""
    nested = {child for group in children.values() for child in group}
    order = [name for name in by_name if name not in nested]
    for name in order:
        order.extend(children.get(name, ()))
    return order[::-1]


def _amounts(queue: Queue, which: str) -> _Amounts:
    return {
        (entry.flavor, resource): parse_quantity(value, resource)
        for entry in queue.spec.resources
        for resource, value in getattr(entry, which).items()
    }


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


def selector_text(selector: LabelSelector) -> str:
    """The requirements of a selector, for a message."""
    lines = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    for line in selector.match_expressions:
        values = f" ({', '.join(line['values'])})" if line.get("values") else ""
        lines.append(f"{line['key']} {line['operator']}{values}")
    return ", ".join(lines)


def queue_max_grace_period_s(queue_name: str, by_name: Mapping[str, Queue]) -> float:
    """The effective `maxGracePeriodSeconds` of the queue: its own, else that of its nearest ancestor, else the
    default."""
    for queue in path_to_root(queue_name, by_name):
        if queue.spec.max_grace_period_seconds is not None:
            return float(queue.spec.max_grace_period_seconds)
    return DEFAULT_MAX_GRACE_PERIOD_S


def nearest_pod_security(queue_name: str, by_name: Mapping[str, Queue]) -> PodSecurityLevel | None:
    """The effective podSecurity of the queue: its own, else that of its nearest ancestor; None if none sets one."""
    levels = (queue.spec.pod_security for queue in path_to_root(queue_name, by_name))
    return next((level for level in levels if level is not None), None)


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


def quota_tree(queues: Iterable[Queue]) -> QueueTree:
    """The quota tree of all queues, active or not; a queue in a cycle or with a missing parent is a root."""
    return queue_tree([
        model.QueueInfo(queue.metadata.name, queue.spec.parent, quotas=quotas_of(queue)) for queue in queues
    ])  # fmt: skip


def quotas_of(queue: Queue) -> tuple[model.Quota, ...]:
    """One quota for each flavor and resource. A flavor without amounts gets a quota of the resource "", so that the
    tree contains the flavor."""
    return tuple(quota for entry in queue.spec.resources for quota in _quotas(entry))


def _quotas(entry: FlavorQuota) -> list[model.Quota]:
    names = sorted({*entry.guaranteed, *entry.limit, *entry.lend}) or [""]
    return [
        model.Quota(
            flavor=entry.flavor,
            resource=name,
            guaranteed=_amount(entry.guaranteed, name),
            limit=_amount(entry.limit, name),
            lend=_amount(entry.lend, name),
        )
        for name in names
    ]


def _amount(amounts: Mapping[str, str], name: str) -> int | None:
    return parse_quantity(amounts[name], name) if name in amounts else None
