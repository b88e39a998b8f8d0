"""The checks and warnings of `muster apply` and `muster delete`.

Only errors that the new documents cause are refused: an error elsewhere in the queue tree does not block an apply.
Warnings are about valid queues that are probably a mistake, such as a quota that cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from muster.api.quantity import format_quantity, parse_quantity
from muster.api.spec import Flavor, Queue, TrainingJob
from muster.api.validation.queues import (
    NO_FLAVOR_MESSAGE,
    QueueReadiness,
    missing_flavor,
    nearest_selector,
    queue_readiness,
    quota_tree,
)
from muster.errors import Conflict, NotFound, Refused
from muster.model import NodeInfo
from muster.quota import QueueTree, QuotaUsage
from muster.text import name_hint

_Object = TrainingJob | Queue | Flavor
_REASONS = {"Cycle": "QueueCycle", "ParentNotFound": "ParentNotFound", "Overcommitted": "Overcommitted"}
_MAX_JOBS_SHOWN = 8


def check_apply(documents: Sequence[_Object], existing: Iterable[_Object]) -> None:
    """Check the queues that would exist after `documents` are applied.

    Raises `Refused`: QueueCycle, ParentNotFound, Overcommitted, FlavorNotFound (a queue names a flavor that exists
    neither in `existing` nor in `documents`, while others do). Jobs are checked by `check_submit`.
    """
    existing = list(existing)
    before = {item.metadata.name: item for item in existing if isinstance(item, Queue)}
    new = {item.metadata.name: item for item in documents if isinstance(item, Queue)}
    after = {**before, **new}
    flavors = {item.metadata.name for item in (*existing, *documents) if isinstance(item, Flavor)}
    readiness_before, readiness = queue_readiness(before.values()), queue_readiness(after.values())
    for name, queue_state in readiness.items():
        fault = _queue_error(queue_state)
        known = name in readiness_before and _queue_error(readiness_before[name]) == fault
        if fault is not None and not (known and name not in new):
            field = "spec.resources" if fault[0] == "Overcommitted" else "spec.parent"
            message = f"queue {name!r}: {field}: {fault[1]}"
            if fault[0] == "ParentNotFound":
                message = f"{message}; {name_hint(str(after[name].spec.parent), [*after], 'queue')}"
            raise Refused(message, field=field, reason=_REASONS[fault[0]])
    for queue in new.values():
        if flavors and (missing := missing_flavor(queue, flavors)):
            field, error = missing
            raise NotFound(f"queue {queue.metadata.name!r}: {error}", field=field, reason="FlavorNotFound")


def check_no_children(name: str, queues: Iterable[Queue]) -> None:
    """Raise `Conflict` HasChildren if other queues name the queue as their parent: without it they admit nothing.
    Queues that are being deleted do not count."""
    children = sorted(
        queue.metadata.name
        for queue in queues
        if queue.spec.parent == name and queue.metadata.deletion_timestamp is None
    )
    if children:
        message = f"queue {name!r} has queues below it: {', '.join(children)}; without it they would admit nothing."
        raise Conflict(
            f"{message} Delete them first, or together: muster delete queue {' '.join([*children, name])}; or give them"
            " another spec.parent",
            reason="HasChildren",
        )


def check_flavor_unused(name: str, users: Iterable[str]) -> None:
    """Raise `Conflict` FlavorInUse if there are jobs with pods on the flavor's nodes. `users` are their names."""
    jobs = sorted(users)
    if jobs:
        more = f" and {len(jobs) - _MAX_JOBS_SHOWN} more" if len(jobs) > _MAX_JOBS_SHOWN else ""
        message = f"flavor {name!r} is in use by {', '.join(jobs[:_MAX_JOBS_SHOWN])}{more}; let them end first"
        raise Conflict(message, reason="FlavorInUse")


def _queue_error(readiness: QueueReadiness) -> tuple[str, str] | None:
    """(reason, message) of the queue's own error or of its guarantees; None for an error inherited from its parent."""
    if readiness.reason in ("Cycle", "ParentNotFound"):
        return readiness.reason, readiness.message
    if readiness.overcommitted_message is not None:
        return "Overcommitted", readiness.overcommitted_message
    return None


def apply_warnings(
    documents: Sequence[_Object], existing: Iterable[_Object], nodes: Iterable[NodeInfo] | None = None
) -> dict[str, list[str]]:
    """Warnings about the queues in `documents`, by name of the queue, without those that have none.

    `check_apply` must have accepted the documents. `nodes` None skips the comparison of guarantees with the nodes.
    """
    new = {item.metadata.name: item for item in documents if isinstance(item, Queue)}
    before = {item.metadata.name: item for item in existing if isinstance(item, Queue)}
    queues = list((before | new).values())
    tree = quota_tree(queues)
    unused = QuotaUsage(tree)
    parents_before = {queue.spec.parent for queue in before.values()}
    message = {name: _limit_warnings(queue, unused) for name, queue in new.items()}
    if nodes is not None:
        capacity = _capacity(nodes)
        for name, queue in new.items():
            message[name] += _guarantee_warnings(queue, capacity)
    for name in new:
        number = tree.index[name]
        if tree.children[number]:
            continue
        if not tree.flavors[number]:
            message[name].append(f"spec.resources: {NO_FLAVOR_MESSAGE}")
        if nearest_selector(name, queues) is None:
            message[name].append(
                "spec.namespaceSelector: neither this queue nor one above it sets it, so no namespace may submit jobs"
                " to it; {} allows all"
            )
    for name, queue in new.items():
        parent = queue.spec.parent
        if parent in before and parent not in parents_before:
            message[name].append(
                f"jobs can no longer be submitted to {parent!r}: only queues without children take jobs"
            )
            parents_before.add(parent)
    return {name: sentences for name, sentences in message.items() if sentences}


def has_no_guarantee(tree: QueueTree, queue: int, cell: int) -> bool:
    """Whether the queue's path names the flavor and resource, but no queue of its tree has a guarantee of it: then the
    queue can use none."""
    return cell in tree.named_cells[queue] and not tree.guaranteed[tree.root(queue)][cell]


def _capacity(nodes: Iterable[NodeInfo]) -> dict[tuple[str, str], int]:
    """The total allocatable amount by flavor and resource."""
    total: dict[tuple[str, str], int] = {}
    for node in nodes:
        for resource, amount in node.allocatable if node.flavor is not None else ():
            key = str(node.flavor), resource
            total[key] = total.get(key, 0) + amount
    return total


def _guarantee_warnings(queue: Queue, capacity: Mapping[tuple[str, str], int]) -> list[str]:
    message = []
    for index, entry in enumerate(queue.spec.resources):
        for resource, text in sorted(entry.guaranteed.items()):
            limit = capacity.get((entry.flavor, resource), 0)
            if parse_quantity(text, resource) > limit:
                shown = format_quantity(limit, resource)
                message.append(
                    f"spec.resources[{index}].guaranteed: {resource} of {entry.flavor}: {text} is more than the {shown}"
                    " that all its nodes have"
                )
    return message


def _limit_warnings(queue: Queue, unused: QuotaUsage) -> list[str]:
    message, tree, number = [], unused.tree, unused.tree.index[queue.metadata.name]
    root = tree.queues[tree.root(number)].name
    for index, entry in enumerate(queue.spec.resources):
        for resource, text in sorted(entry.limit.items()):
            cell, limit = tree.cell_index[entry.flavor, resource], parse_quantity(text, resource)
            place, what = f"spec.resources[{index}].limit", f"{resource} of {entry.flavor}"
            guaranteed = tree.guaranteed[number][cell]
            if limit and has_no_guarantee(tree, number, cell):
                message.append(
                    f"{place}: {what}: neither this queue nor one above it guarantees any, so it can use 0;"
                    f" set guaranteed here, or guaranteed or limit of queue {root!r}"
                )
            elif root == queue.metadata.name and 0 < guaranteed < limit:
                maximum = format_quantity(guaranteed, resource)
                message.append(
                    f"{place}: {what}: {text} is never reached: a root cannot borrow, and {maximum} is guaranteed"
                )
            elif (at_most := unused.available(number, cell)) < limit:
                maximum = format_quantity(at_most, resource)
                message.append(
                    f"{place}: {what}: {text} is never reached: the queues above it leave it {maximum} at most"
                )
    return message
