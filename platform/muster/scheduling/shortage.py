"""What a role lacks that does not fit the nodes: how many of its pods fit, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from muster.model import NodeInfo, Role
from muster.scheduling.capacity import FreeCapacity, PodClass
from muster.scheduling.nodes import BoolArray, FlavorNodes
from muster.text import closest_match

GPU = "nvidia.com/gpu"
GIB = 1 << 30

_NOUNS = {GPU: ("GPU", "GPUs"), "cpu": ("core", "cores"), "pods": ("pod slot", "pod slots")}
_BYTES = ("memory", "ephemeral-storage")


def format_amount(resource: str, amount: int) -> str:
    """An amount with its unit: GPUs, cores, pod slots, GiB, or the resource's own name."""
    if resource in _BYTES:
        return f"{format_number(resource, amount)} GiB of {resource}"
    one, many = _NOUNS.get(resource, (resource, resource))
    return f"{format_number(resource, amount)} {one if format_number(resource, amount) == '1' else many}"


def format_number(resource: str, amount: int) -> str:
    """An amount without its unit, for the second and later numbers of a sentence."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if resource not in _BYTES:
        return str(amount)
    gib = amount / GIB
    return f"{gib:.4g}" if gib < 10_000 else f"{gib:.0f}"


def resource_label(resource: str) -> str:
    """The name of a resource without an amount: `GPUs`, `cores`, or the resource's own name."""
    return _NOUNS.get(resource, (resource, resource))[1]


def format_pods(count: int) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} pod{'' if count == 1 else 's'}"


def main_resource(resources: Iterable[str]) -> str:
    """The resource that a message names first: GPUs, other devices, cores, memory; pod slots if there is no other."""
    names = list(resources)
    by_importance = (GPU, *(name for name in names if "/" in name), "cpu", *_BYTES)
    return next((name for name in by_importance if name in names), "pods")


_MAX_COMPARED = 200  # values of a label; a host name label has as many as there are nodes
_MAX_SHOWN = 4


def selector_mismatch(selector: Iterable[tuple[str, str]], nodes: Sequence[NodeInfo]) -> str:
    """The end of a message that begins with "no node has": `the label gpu=h20 of its nodeSelector; did you mean
    'h200'?`. "" if a node has all labels of the selector."""
    wanted = list(selector)
    for key, value in wanted:
        values = _first_distinct(node.labels[key] for node in nodes if key in node.labels)
        if not values:
            candidates = _first_distinct(name for node in nodes[:_MAX_COMPARED] for name in node.labels)
            closest = closest_match(key, candidates)
            return f"the label {key} of its nodeSelector" + (f"; did you mean {closest!r}?" if closest else "")
        if not any(node.labels.get(key) == value for node in nodes):
            closest = closest_match(value, values)
            shown = ", ".join(sorted(values)[:_MAX_SHOWN]) + (", ..." if len(values) > _MAX_SHOWN else "")
            hint = f"did you mean {closest!r}?" if closest else f"nodes have {shown}"
            return f"the label {key}={value} of its nodeSelector; {hint}"
    if all(any(node.labels.get(key) != value for key, value in wanted) for node in nodes):
        return "all labels of its nodeSelector: " + ", ".join(f"{key}={value}" for key, value in wanted)
    return ""


def _first_distinct(names: Iterable[str]) -> list[str]:
    """The first _MAX_COMPARED distinct names."""
    found: dict[str, None] = {}
    for name in names:
        found[name] = None
        if len(found) == _MAX_COMPARED:
            break
    return list(found)


NoFitCache: TypeAlias = dict[tuple[PodClass, int], tuple[bool, str]]
"""Why no pod of a class fits any domain of a tier, and whether free capacity is the cause. Cached, since it reads all
nodes and does not depend on the size of the gang."""


@dataclass(frozen=True, slots=True)
class RoleShortage:
    """A role that needs `size` pods inside one domain of tier `tier`, and the capacity it is checked against.

    `empty_cluster`: `capacity` is that of an empty cluster with all nodes schedulable. `no_fit_cache` is valid for
    `capacity` only, and shared by all shortages of it.
    """

    capacity: FreeCapacity
    role: Role
    pod: PodClass
    tier: int
    size: int
    empty_cluster: bool = False
    no_fit_cache: NoFitCache = field(default_factory=dict)

    def message(self) -> str:
        """The domain that fits the most pods, what it lacks, and how many nodes are down; "" if all pods fit there."""
        span = self._span
        counts = np.where(span.tiers[self.tier].is_named, self.capacity.counts(self.pod)[self.tier], 0)
        best = int(np.argmax(counts)) if len(counts) else 0
        count = int(counts[best]) if len(counts) else 0
        if count >= self.size:
            return ""
        if not count:
            return self.no_pod_message()
        edges = span.start + span.tiers[self.tier].first_node
        return (
            self._partial_message(count, best)
            + self._scarce_resources(slice(int(edges[best]), int(edges[best + 1])))
            + self._unavailable_nodes()
        )

    def no_pod_message(self) -> str:
        """Why not a single pod fits."""
        key = (self.pod, self.tier)
        if key not in self.no_fit_cache:
            self.no_fit_cache[key] = self._find_no_pod_reason()
        lacks_capacity, text = self.no_fit_cache[key]
        return f"capacity for 0 of {format_pods(self.size)}: {text}" if lacks_capacity and self.size > 1 else text

    def _find_no_pod_reason(self) -> tuple[bool, str]:
        span, up = self._span, self.capacity.usable(self.pod)
        accepted = self.capacity.masks.accepted(self.pod)
        if span.start == span.stop:
            return False, f"there is no node of {self.pod.flavor}"
        if not accepted.any():
            nodes = self.capacity.table.nodes[span.start : span.stop]
            lacks = selector_mismatch(self.role.node_selector, nodes)
            detail = f"has {lacks}" if lacks else "accepts its pods: check taints, nodeSelector and affinity"
            return False, f"no node of {self.pod.flavor} {detail}"
        if not up.any():
            total = int(accepted.sum())
            return False, f"{'the only node is' if total == 1 else f'all {total} nodes are'} down, cordoned or excluded"
        inside = up & span.tiers[self.tier].is_named[span.tiers[self.tier].domain_of_node]
        if not inside.any():
            return False, f"no available node has the label of topology level {span.tiers[self.tier].name}"
        return not self.empty_cluster, self._single_node_message(inside) + self._unavailable_nodes()

    @property
    def _span(self) -> FlavorNodes:
        return self.capacity.table.flavors[self.pod.flavor]

    def _partial_message(self, count: int, domain: int) -> str:
        """`capacity for 1 of 2 pods, 8 of 16 GPUs`, or `8 GPUs free in rack r2, 16 required in one rack`."""
        resource, tier = main_resource(name for name, _ in self.role.request), self._span.tiers[self.tier]
        each = self.role.request.get(resource)
        free, required = count * each, self.size * each
        where = f" in {tier.name} {tier.domains[domain]}" if self.tier else ""
        together = f" required in one {tier.name}" if self.tier else ""
        if resource == "pods":
            return f"capacity for {count} of {format_pods(self.size)}{where}{together and f', all{together}'}"
        if self.tier:
            return f"{format_amount(resource, free)} free{where}, {format_number(resource, required)}{together}"
        return (
            f"capacity for {count} of {format_pods(self.size)}, {format_number(resource, free)} of "
            f"{format_amount(resource, required)}"
        )

    def _scarce_resources(self, rows: slice) -> str:
        """`; memory for only 1 of 2 pods`, if the main resource alone would be enough."""
        names = [name for name, _ in self.role.request]
        counts = self.capacity.counts_by_resource(self.pod, rows, names)
        if counts.get(main_resource(names), 0) < self.size:
            return ""
        short = [
            f"{resource_label(name)} for only {count} of {format_pods(self.size)}"
            for name, count in counts.items()
            if count < self.size
        ]
        return f"; {' and '.join(short)}" if short else "; free resources are on different nodes"

    def _single_node_message(self, inside: BoolArray) -> str:
        """`no node has 8 GPUs free (at most 4)`."""
        table, free = self.capacity.table, self.capacity.free[self._span.start : self._span.stop][inside]
        free_word = "" if self.empty_cluster else " free"
        most = {
            name: max(0, int(free[:, table.columns[name]].max())) if name in table.columns else 0
            for name, _ in self.role.request
        }
        short = [(name, amount) for name, amount in self.role.request if most[name] < amount]
        if not short:
            names = [format_amount(name, amount) for name, amount in self.role.request if name != "pods"]
            return f"no node has {' and '.join(names)}{free_word} at once"
        main = main_resource(name for name, _ in short)
        short.sort(key=lambda item: (item[0] != main, item[0]))
        parts = [f"{format_amount(name, amount)} (at most {format_number(name, most[name])})" for name, amount in short]
        if len(parts) > 1:
            return f"no node has {' or '.join(parts)}{free_word}"
        amount, limit = format_amount(*short[0]), format_number(main, most[main])
        one_of_none = format_number(*short[0]) == "1" and limit == "0"
        return f"no node has {amount}{free_word}" + ("" if one_of_none else f" (at most {limit})")

    def _unavailable_nodes(self) -> str:
        """`; 1 of 2 nodes is down, cordoned or excluded`."""
        accepted = self.capacity.masks.accepted(self.pod)
        down = int((accepted & ~self.capacity.usable(self.pod)).sum())
        be = "is" if down == 1 else "are"
        return f"; {down} of {int(accepted.sum())} nodes {be} down, cordoned or excluded" if down else ""
