"""Whether a gang could ever start: its request against the maximum quota of its queue and against the empty cluster.

Both checks are necessary, not sufficient: some combinations of roles pass and still cannot be placed, which the planner
reports. The error names the largest size that would pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from muster.api.quantity import format_quantity
from muster.api.spec import Queue
from muster.api.validation.apply import has_no_guarantee
from muster.api.validation.queues import quota_tree
from muster.errors import Refused, together
from muster.model import FlavorInfo, Gang, NodeInfo, Resources, Role, Topology
from muster.quota import QueueTree, QuotaUsage


def check_size(
    gang: Gang, queues: Iterable[Queue], flavors: Iterable[FlavorInfo] = (), nodes: Sequence[NodeInfo] | None = None
) -> None:
    """Raise `Refused` LargerThanQuota, LargerThanCluster, or FlavorNotAllowed if the queue has no flavor. Several
    errors are joined.

    `nodes` None skips the check against the cluster. `flavors` give the topology levels. The queue must exist and be
    active (`check_submit`).
    """
    tree = quota_tree(queues)
    levels = {flavor.name: flavor.levels for flavor in flavors}
    found: list[Refused] = []
    for role in gang.roles:
        candidates = role.flavors or gang.flavors or tree.flavors[tree.index[gang.queue]]
        if not candidates:
            raise Refused(
                f"queue {gang.queue} and those above it name no flavor, so they may use no node; name one in resources",
                field="spec.queue",
                reason="FlavorNotAllowed",
            )
        by_quota = _too_large_for_quota(role, gang.queue, candidates, tree)
        found += [by_quota[1]] if by_quota else []
        if nodes is not None:
            of_nodes = _too_large_for_nodes(role, role.topology or gang.topology, candidates, levels, nodes)
            if of_nodes is not None and (by_quota is None or of_nodes[0] < by_quota[0]):
                found.append(of_nodes[1])
    if found:
        raise together(found)


def max_quota(tree: QueueTree, queue: str, flavor: str, resource: str) -> int | None:
    """The maximum usage of the queue if all others used nothing; None if no queue on its path to the root limits it."""
    number, cell = tree.index[queue], tree.cell_index.get((flavor, resource), -1)
    return QuotaUsage(tree).available(number, cell) if cell in tree.named_cells[number] else None


def _too_large_for_quota(
    role: Role, queue: str, candidates: Sequence[str], tree: QueueTree
) -> tuple[int, Refused] | None:
    """(pods that would fit, error) if every candidate flavor has a resource whose maximum quota is too small."""
    message: list[tuple[str, str, int, int]] = []  # flavor, resource, the most, pods that fit it
    for flavor in candidates:
        limits = [(name, amount, max_quota(tree, queue, flavor, name)) for name, amount in role.request]
        short = [(name, limit, limit // amount) for name, amount, limit in limits
                 if limit is not None and amount * role.min_replicas > limit]  # fmt: skip
        if not short:
            return None
        message.append((flavor, *min(short, key=lambda item: item[2])))
    if not message:
        return None
    flavor, resource, limit, pods = max(message, key=lambda item: (item[3], item[0]))
    each, shown = role.request.get(resource), format_quantity(limit, resource)
    requested = format_quantity(each * role.min_replicas, resource)
    if has_no_guarantee(tree, tree.index[queue], tree.cell_index[flavor, resource]):
        shown += ", since neither it nor a queue above it guarantees any"
    return pods, Refused(
        f"role {role.name} needs {requested} {resource} of {flavor} ({_pods_text(role)}); "
        f"queue {queue} can never have more than {shown}: {_largest_text(pods)}",
        field="spec.roles",
        reason="LargerThanQuota",
    )


def _too_large_for_nodes(
    role: Role,
    topology: Topology | None,
    candidates: Sequence[str],
    levels: Mapping[str, Sequence[str]],
    nodes: Sequence[NodeInfo],
) -> tuple[int, Refused] | None:
    """(pods that would fit, error) if the empty cluster has insufficient capacity."""
    required = topology.required if topology else None
    best = 0
    for flavor in candidates:
        pods: dict[str, int] = {}  # by domain; one domain when no level is required
        for node in nodes:
            domain = _domain(node, required, levels.get(flavor, ())) if node.flavor == flavor else None
            if domain is not None:
                pods[domain] = pods.get(domain, 0) + _pods_that_fit(role.request, node)
        best = max(best, *pods.values(), 0)
    if best >= role.min_replicas:
        return None
    shown = ", ".join(f"{format_quantity(amount, name)} {name}" for name, amount in role.request if name != "pods")
    where = f"one {required} of the empty cluster" if required else "the empty cluster"
    return best, Refused(
        f"role {role.name} needs {_pods_text(role)} of {shown or 'a pod slot'} each on {' or '.join(candidates)}; "
        f"in {where} {_largest_text(best)}{'' if best else _missing_resources(role.request, candidates, nodes)}",
        field="spec.roles",
        reason="LargerThanCluster",
    )


def _domain(node: NodeInfo, required: str | None, levels: Sequence[str]) -> str | None:
    """The node's domain at the required level; None if it has none or is not schedulable."""
    if not node.schedulable:
        return None
    if required is None:
        return ""
    depth = levels.index(required) if required in levels else len(node.domains)
    return node.domains[depth] if depth < len(node.domains) else None


def _pods_that_fit(request: Resources, node: NodeInfo) -> int:
    """The number of pods of this request that fit on the empty node. Other pods do not count: they may end. Nor does it
    count that devices are unhealthy for now."""
    has = (node.allocatable.get(name) + node.unhealthy_devices.get(name) for name, _ in request)
    return min((total // amount for total, (_, amount) in zip(has, request, strict=True)), default=0)


def _missing_resources(request: Resources, candidates: Sequence[str], nodes: Sequence[NodeInfo]) -> str:
    """A message for each resource of which no node of these flavors has enough for one pod."""
    usable = [node for node in nodes if node.flavor in candidates and node.schedulable]
    if not usable:
        return "; no node is of that flavor"
    message = ""
    for name, amount in request:
        largest = min(usable, key=lambda node: (-node.allocatable.get(name), node.name))
        limit = largest.allocatable.get(name)
        if limit < amount:
            message += f"; the largest node, {largest.name}, has {_rounded_quantity(limit, name)} {name}"
    return message


def _rounded_quantity(amount: int, resource: str) -> str:
    """As `format_quantity`, of memory in whole MiB: nodes have odd numbers of KiB."""
    return format_quantity(amount >> 20 << 20 if resource in ("memory", "ephemeral-storage") else amount, resource)


def _pods_text(role: Role) -> str:
    return f"{role.min_replicas} pod{'s' if role.min_replicas != 1 else ''}"


def _largest_text(pods: int) -> str:
    return f"the largest that fits is {pods} pod{'s' if pods != 1 else ''}" if pods else "not even one pod fits"
