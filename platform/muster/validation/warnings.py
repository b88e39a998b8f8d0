"""Warnings of `muster apply` about valid queues that are probably a mistake.

For example a quota that cannot be used: a queue with only a limit may borrow, but only what a queue of its tree has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from muster.model import NodeInfo
from muster.quantity import format_quantity, parse_quantity
from muster.quota import QueueTree, QuotaUsage
from muster.spec import Flavor, Queue, TrainingJob
from muster.validation.namespaces import nearest_selector
from muster.validation.queue_readiness import NO_FLAVOR_MESSAGE
from muster.validation.quota_tree import quota_tree

_Object = TrainingJob | Queue | Flavor


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
