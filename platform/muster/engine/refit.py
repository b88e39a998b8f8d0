"""Does a gang that has its place on paper, and no pod there yet, still fit?

Between the two an operator may have been down, the API server may have refused the pods, or a restart may have waited
for its backoff; meanwhile pods of others take what is free in their eyes, and nodes are cordoned. A gang that does not
fit any more would only wait for its start timeout, in room that nobody else may use.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from muster.model import Node, Resources, Running, Snapshot

_NOTHING = Resources()


def misfits(snapshot: Snapshot, uids: Container[str]) -> dict[str, str]:
    """Which of these gangs do not fit where they are admitted, and why, as a sentence. Of several that do not fit
    beside each other the ones that were admitted last."""
    asked = [one for one in snapshot.running if one.state == "admitted" and one.gang.uid in uids]
    if not asked:
        return {}
    names = {node for one in asked for part in one.placement for node, _ in part.nodes}
    nodes = {node.name: node for node in snapshot.nodes if node.name in names}
    taken = {name: node.foreign for name, node in nodes.items()}
    for one in snapshot.running:
        for name, amount in _loads(one):
            if name in taken:
                taken[name] = taken[name].plus(amount)
    found: dict[str, str] = {}
    for one in sorted(asked, key=lambda one: (-one.admitted_at, one.gang.uid)):
        why = _trouble(one, nodes, taken)
        if why:
            found[one.gang.uid] = why
            for name, amount in _loads(one):
                if name in taken:
                    taken[name] = taken[name].minus(amount)
    return found


def _loads(one: Running) -> Iterable[tuple[str, Resources]]:
    """What it takes of nodes."""
    requests = {role.name: role.request for role in one.gang.roles}
    for part in one.placement:
        for name, pods in part.nodes:
            yield name, requests.get(part.role, _NOTHING).times(pods)


def _trouble(one: Running, nodes: dict[str, Node], taken: dict[str, Resources]) -> str:
    """Why it does not fit; empty where it does. A node that is gone is a lost node, and told as such."""
    for name, amount in _loads(one):
        node = nodes.get(name)
        if node is None:
            continue
        if not node.schedulable:
            return f"{name} takes no pods any more"
        for resource, _ in amount:
            if taken[name].get(resource) > node.allocatable.get(resource):
                return f"pods of others take {resource} of {name} that it was given"
    return ""
