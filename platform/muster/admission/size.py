"""Whether a gang could ever start: compared with the most its queue can get, and with the empty cluster.

Both bounds are necessary, not sufficient: what passes may still wait for ever in rare mixes of roles, and the planner
says so. What fails is told with the largest size that would pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster.admission.queues import path_to_root, usable_flavors
from muster.errors import Refused
from muster.model import Flavor, Gang, Node, Resources, Role, Topology
from muster.quantity import format_quantity, parse_quantity
from muster.spec import Queue


def check_size(
    gang: Gang, queues: Iterable[Queue], flavors: Iterable[Flavor] = (), nodes: Sequence[Node] | None = None
) -> None:
    """Raise `Refused` LargerThanQuota or LargerThanCluster; `nodes` None leaves the cluster unchecked.

    `flavors` give the topology levels. The queue must exist and be active (`check_submit`).
    """
    tree = QuotaTree.of(queues)
    levels = {flavor.name: flavor.levels for flavor in flavors}
    for role in gang.roles:
        candidates = role.flavors or gang.flavors or usable_flavors(gang.queue, tree.by_name)
        _check_quota(role, gang.queue, candidates, tree)
        if nodes is not None:
            _check_nodes(role, role.topology or gang.topology, candidates, levels, nodes)


@dataclass(frozen=True, slots=True)
class QuotaTree:
    """The quota formulas of docs/scheduling.md at zero usage."""

    by_name: Mapping[str, Queue]
    children: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, queues: Iterable[Queue]) -> QuotaTree:
        """A tree without cycles below the queues that are asked for."""
        by_name = {queue.metadata.name: queue for queue in queues}
        children: dict[str, list[str]] = {}
        for name, queue in by_name.items():
            children.setdefault(queue.spec.parent or "", []).append(name)
        return cls(by_name, children)

    def most(self, queue: str, flavor: str, resource: str) -> int | None:
        """The most the queue could use if nobody else used anything; None when nobody on the path limits it."""
        path = [one.metadata.name for one in path_to_root(queue, self.by_name)]
        words = ("guaranteed", "limit", "lend")
        if all(self.amount(name, word, flavor, resource) is None for name in path for word in words):
            return None
        most = 0
        for name in reversed(path):
            total, kept = self.total_and_kept(name, flavor, resource)
            limit = self.amount(name, "limit", flavor, resource)
            most = total if name == path[-1] else kept + most
            most = most if limit is None else min(limit, most)
        return most

    def total_and_kept(self, name: str, flavor: str, resource: str) -> tuple[int, int]:
        """T and kept: all that lies in the queue, and what of it nobody else may borrow."""
        below, lent = 0, 0
        for child in self.children.get(name, ()):
            below += self.guaranteed(child, flavor, resource)
            total, kept = self.total_and_kept(child, flavor, resource)
            lent += total - kept
        total = max(0, (self.amount(name, "guaranteed", flavor, resource) or 0) - below) + lent
        lend = self.amount(name, "lend", flavor, resource)
        return total, 0 if lend is None else max(0, total - lend)

    def guaranteed(self, name: str, flavor: str, resource: str) -> int:
        """G; of an inner queue at least its children's sum."""
        below = sum(self.guaranteed(child, flavor, resource) for child in self.children.get(name, ()))
        return max(below, self.amount(name, "guaranteed", flavor, resource) or 0)

    def amount(self, name: str, which: str, flavor: str, resource: str) -> int | None:
        """What the queue itself says; None when it says nothing."""
        for entry in self.by_name[name].spec.resources:
            if entry.flavor == flavor and resource in getattr(entry, which):
                return parse_quantity(getattr(entry, which)[resource], resource)
        return None


def _check_quota(role: Role, queue: str, candidates: Sequence[str], tree: QuotaTree) -> None:
    """Refuse when every candidate flavor has a resource of which the queue can never have enough."""
    told: list[tuple[str, str, int, int]] = []  # flavor, resource, the most, pods that fit it
    for flavor in candidates:
        limits = [(name, amount, tree.most(queue, flavor, name)) for name, amount in role.request]
        short = [(name, most, most // amount) for name, amount, most in limits
                 if most is not None and amount * role.min_replicas > most]  # fmt: skip
        if not short:
            return
        told.append((flavor, *min(short, key=lambda item: item[2])))
    if not told:
        return
    flavor, resource, most, pods = max(told, key=lambda item: (item[3], item[0]))
    each, shown = role.request.get(resource), format_quantity(most, resource)
    asked = format_quantity(each * role.min_replicas, resource)
    raise Refused(
        f"role {role.name} needs {asked} {resource} of {flavor} ({_pods(role)}); "
        f"queue {queue} can never have more than {shown}: {_largest(pods)}",
        reason="LargerThanQuota",
    )


def _check_nodes(
    role: Role,
    topology: Topology | None,
    candidates: Sequence[str],
    levels: Mapping[str, Sequence[str]],
    nodes: Sequence[Node],
) -> None:
    required = topology.required if topology else None
    best = 0
    for flavor in candidates:
        pods: dict[str, int] = {}  # by domain; one domain when no level is required
        for node in nodes:
            domain = _domain(node, required, levels.get(flavor, ())) if node.flavor == flavor else None
            if domain is not None:
                pods[domain] = pods.get(domain, 0) + _fitting(role.request, node)
        best = max(best, *pods.values(), 0)
    if best < role.min_replicas:
        shown = ", ".join(f"{format_quantity(amount, name)} {name}" for name, amount in role.request if name != "pods")
        where = f"one {required} of the empty cluster" if required else "the empty cluster"
        raise Refused(
            f"role {role.name} needs {_pods(role)} of {shown or 'a pod slot'} each on {' or '.join(candidates)}; "
            f"in {where} {_largest(best)}{'' if best else _lacking(role.request, candidates, nodes)}",
            reason="LargerThanCluster",
        )


def _domain(node: Node, required: str | None, levels: Sequence[str]) -> str | None:
    """The domain of the required level that the node is in; None where it is in none, or cannot be used."""
    if not node.schedulable:
        return None
    if required is None:
        return ""
    depth = levels.index(required) if required in levels else len(node.domains)
    return node.domains[depth] if depth < len(node.domains) else None


def _fitting(request: Resources, node: Node) -> int:
    """Pods of this request that fit the node when it is empty of ours."""
    free = node.allocatable.minus(node.foreign)
    return min((max(0, free.get(name)) // amount for name, amount in request), default=0)


def _lacking(request: Resources, candidates: Sequence[str], nodes: Sequence[Node]) -> str:
    """Of what no node of these flavors has enough for one pod."""
    usable = [node for node in nodes if node.flavor in candidates and node.schedulable]
    if not usable:
        return "; no node is of that flavor"
    most = {name: max(node.allocatable.get(name) for node in usable) for name, _ in request}
    short = [f"{format_quantity(most[name], name)} {name}" for name, amount in request if most[name] < amount]
    return f"; the largest node has {', '.join(short)}" if short else ""


def _pods(role: Role) -> str:
    return f"{role.min_replicas} pod{'s' if role.min_replicas != 1 else ''}"


def _largest(pods: int) -> str:
    return f"the largest that fits is {pods} pod{'s' if pods != 1 else ''}" if pods else "not even one pod fits"
