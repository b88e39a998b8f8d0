"""Placements: the planner's form, the run-length form of a status, and the pods that follow from it.

Pods that have ended may be deleted while the others run: a cluster limits how many it keeps. So the status records
which pods have completed. Without that such a pod would be taken for a lost one, and the gang would
restart from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.api.spec import FinishedPods, NodePods, QueueingStatus, RolePlacementStatus
from muster.model import Placement, RolePlacement
from muster.workload.conditions import is_evicting

if TYPE_CHECKING:  # `muster jobs` imports this module
    from muster.cluster import PodView

PodSlotKey = tuple[str, int]
"""Role and index."""


@dataclass(frozen=True, slots=True)
class PodSlot:
    """Role, index and node of one pod of a gang."""

    role: str
    index: int
    node: str
    flavor: str
    replicas: int  # pods of the role in this placement
    rank0_node: str


def to_status(placement: Placement) -> list[RolePlacementStatus]:
    """The run-length form: indexes count up through the nodes."""
    roles = []
    for part in placement:
        shares, first = [], 0
        for node, count in part.nodes:
            last = first + count - 1
            shares.append(NodePods(node=node, indexes=str(first) if count == 1 else f"{first}-{last}"))
            first = last + 1
        roles.append(RolePlacementStatus(role=part.role, flavor=part.flavor, nodes=shares))
    return roles


def from_status(placement: Iterable[RolePlacementStatus]) -> Placement:
    """The planner's form of a status's placement."""
    return tuple(
        RolePlacement(
            role=part.role, flavor=part.flavor, nodes=tuple((s.node, len(index_range(s.indexes))) for s in part.nodes)
        )
        for part in placement
    )


def pod_slots(placement: Iterable[RolePlacementStatus]) -> Iterator[PodSlot]:
    """Every pod of a placement, by role and index."""
    for part in from_status(placement):
        rank0 = part.nodes[0][0] if part.nodes else ""
        index, replicas = 0, part.replicas
        for node, count in part.nodes:
            for _ in range(count):
                yield PodSlot(part.role, index, node, part.flavor, replicas, rank0)
                index += 1


def pods_of_placement(status: QueueingStatus, pods: Iterable[PodView]) -> tuple[PodView, ...]:
    """The pods of the present attempt whose role, index and node are those of a slot of the placement.

    Names of pods can be computed, so a user can create others under names that follow from the attempt. A pod that is
    neither bound nor pinned, as far as is known, has no node yet.
    """
    node_of = {(slot.role, slot.index): slot.node for slot in pod_slots(status.placement)}
    return tuple(
        pod
        for pod in pods
        if pod.attempt == status.attempt
        and (node := node_of.get((pod.role, pod.index))) is not None
        and pod.node in ("", node)
    )


def pod_count(placement: Iterable[RolePlacementStatus]) -> int:
    """Number of pods."""
    return sum(len(index_range(share.indexes)) for part in placement for share in part.nodes)


def nodes_of(placement: Iterable[RolePlacementStatus]) -> set[str]:
    """Names of the nodes."""
    return {share.node for part in placement for share in part.nodes}


def without_pods(placement: Iterable[RolePlacementStatus], ended: frozenset[PodSlotKey]) -> list[RolePlacementStatus]:
    """A placement without some pods, indexes dense again; roles without a pod are dropped."""
    parts = list(placement)
    return to_status(placement_of(parts, _keys(parts) - ended)) if ended else parts


def charged_placement(status: QueueingStatus) -> Placement:
    """What usage counts of an admitted gang: its placement without pods that are recorded to have completed."""
    return from_status(without_pods(status.placement, recorded_finished_pods(status)))


def without_nodes(placement: Iterable[RolePlacementStatus], excluded: frozenset[str]) -> list[RolePlacementStatus]:
    """A placement without some nodes, indexes dense again; roles without a pod are dropped."""
    left = tuple(
        RolePlacement(part.role, part.flavor, tuple(pair for pair in part.nodes if pair[0] not in excluded))
        for part in from_status(placement)
    )
    return to_status(tuple(part for part in left if part.nodes))


def held_placement(
    status: QueueingStatus,
    pods: Sequence[PodView],
    retained: Sequence[RolePlacementStatus],
    *,
    creates_pods: bool = False,
) -> Placement:
    """Where an admitted gang takes capacity: its placement without pods that have ended. While it is torn down, where
    it still has pods, and where it restarts (`retained`): a pod that ends after the eviction frees nothing there, since
    the gang restarts on its node. `creates_pods`: its controller may still create any of its pods."""
    if creates_pods or not is_evicting(status):
        ended = ended_pods(status, pods)
        if not ended:
            return from_status(status.placement)
        return placement_of(status.placement, _keys(status.placement) - ended)
    kept = nodes_of(retained)
    slots = {(slot.role, slot.index) for slot in pod_slots(status.placement) if slot.node in kept}
    keys = slots - recorded_finished_pods(status)  # recorded with the eviction
    live = {(pod.role, pod.index) for pod in pods_of_placement(status, pods) if pod.holds_capacity}
    return placement_of(status.placement, keys | live)


def _keys(placement: Iterable[RolePlacementStatus]) -> set[PodSlotKey]:
    return {(slot.role, slot.index) for slot in pod_slots(placement)}


def placement_of(placement: Iterable[RolePlacementStatus], pods: Container[tuple[str, int]]) -> Placement:
    """The part of a placement with these pods, by role and index, in the planner's form."""
    parts: dict[tuple[str, str], dict[str, int]] = {}
    for slot in pod_slots(placement):
        if (slot.role, slot.index) in pods:
            nodes = parts.setdefault((slot.role, slot.flavor), {})
            nodes[slot.node] = nodes.get(slot.node, 0) + 1
    return tuple(RolePlacement(role, flavor, tuple(nodes.items())) for (role, flavor), nodes in parts.items())


def first_pods(part: RolePlacement, most: int) -> RolePlacement:
    """The placement of a role with at most that many pods."""
    nodes, left = [], most
    for node, count in part.nodes:
        if left > 0:
            nodes.append((node, min(count, left)))
            left -= count
    return RolePlacement(part.role, part.flavor, tuple(nodes))


def describe(placement: Iterable[RolePlacementStatus]) -> str:
    """ "4 pods on 2 nodes of h200"."""
    parts = list(placement)
    pods = pod_count(parts)
    nodes = {share.node for part in parts for share in part.nodes}
    flavors = sorted({part.flavor for part in parts if part.flavor})
    text = f"{pods} pod{'s' * (pods != 1)} on {len(nodes)} node{'s' * (len(nodes) != 1)}"
    return text + (f" of {', '.join(flavors)}" if flavors else "")


def index_range(indexes: str) -> range:
    """The pods of `0-7` or `3`."""
    first, _, last = indexes.partition("-")
    return range(int(first), int(last or first) + 1)


def recorded_finished_pods(status: QueueingStatus) -> frozenset[PodSlotKey]:
    """The pods of the present attempt that are recorded to have exited with 0 by themselves."""
    ranges = ((part.role, index_range(run)) for part in status.finished_pods for run in part.indexes.split(","))
    return frozenset((role, index) for role, indexes in ranges for index in indexes)


def ended_pods(status: QueueingStatus, pods: Sequence[PodView]) -> frozenset[PodSlotKey]:
    """The pods of the present attempt that have exited with 0 by themselves, recorded or observed: their capacity is
    free."""
    recorded, observed = recorded_finished_pods(status), newly_finished_pods(status, pods)
    return recorded | {(pod.role, pod.index) for pod in observed} if observed else recorded


def newly_finished_pods(status: QueueingStatus, pods: Sequence[PodView], *, stopped: bool = False) -> list[PodView]:
    """Pods of the placement that have done so since; with `stopped` also those that were being stopped."""
    if all(pod.phase != "Succeeded" for pod in pods):
        return []
    known = recorded_finished_pods(status)
    return [
        pod
        for pod in pods_of_placement(status, pods)
        if pod.phase == "Succeeded" and (stopped or not pod.deleting) and (pod.role, pod.index) not in known
    ]


def to_finished_pods(keys: Iterable[PodSlotKey]) -> list[FinishedPods]:
    """The status form: by role, indexes run-length coded."""
    roles: dict[str, list[int]] = {}
    for role, index in sorted(keys):
        roles.setdefault(role, []).append(index)
    return [FinishedPods(role=role, indexes=",".join(_index_ranges(indexes))) for role, indexes in roles.items()]


def _index_ranges(indexes: list[int]) -> list[str]:
    runs: list[tuple[int, int]] = []
    for index in indexes:
        if runs and runs[-1][1] == index - 1:
            runs[-1] = runs[-1][0], index
        else:
            runs.append((index, index))
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]
