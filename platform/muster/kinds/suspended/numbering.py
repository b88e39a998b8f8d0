"""Which pod of an object is which pod of its placement: its controller does not number them.

A pod counts for a place on its own node. A pod that has completed gives its place back only if the object needs no
other pod in its stead, which its controller would create at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from muster.api.spec import QueueingStatus
from muster.cluster import PodView
from muster.workload.placement import pod_slots


def number_pods(status: QueueingStatus, needed: Mapping[str, int], pods: Sequence[PodView]) -> tuple[PodView, ...]:
    """The pods with the indexes of their places; those without a place have indexes behind all others. `needed`: how
    many pods each role needs now."""
    places: dict[str, dict[int, str]] = {}
    for slot in pod_slots(status.placement):
        places.setdefault(slot.role, {})[slot.index] = slot.node
    numbered: dict[str, int] = {}
    for role in {pod.role for pod in pods}:
        own = sorted((pod for pod in pods if pod.role == role), key=lambda pod: pod.name)
        current = [pod for pod in own if pod.attempt == status.attempt]
        numbered |= _number(current, places.get(role, {}), needed.get(role, 0))
    behind = max((len(free) for free in places.values()), default=0)
    found = []
    for pod in sorted(pods, key=lambda pod: pod.name):
        index = numbered.get(pod.name)
        if index is None:
            index, behind = behind, behind + 1
        found.append(pod if pod.index == index else replace(pod, index=index))
    return tuple(found)


def _number(pods: Sequence[PodView], places: Mapping[int, str], needed: int) -> dict[str, int]:
    """The indexes by name, in time that grows with the number of pods and places."""
    free, found = _by_node(places), dict[str, int]()
    live = [pod for pod in pods if pod.holds_capacity]
    _take_own(free, live, found)
    left = sorted(index for indexes in free.values() for index in indexes)
    found |= dict(zip((pod.name for pod in live if pod.name not in found), left, strict=False))
    spare = len(places) - max(needed, len(live))
    ended = [pod for pod in pods if pod.phase == "Succeeded" and not pod.deleting]
    taken = set(found.values())
    free = _by_node({index: node for index, node in places.items() if index not in taken})
    _take_own(free, ended[: max(0, spare)], found)
    return found


def _by_node(places: Mapping[int, str]) -> dict[str, deque[int]]:
    """The indexes of places."""
    indexes: dict[str, deque[int]] = {}
    for index, node in places.items():
        indexes.setdefault(node, deque()).append(index)
    return indexes


def _take_own(free: Mapping[str, deque[int]], pods: Iterable[PodView], found: dict[str, int]) -> None:
    """Give each pod a free place on its node."""
    for pod in pods:
        if indexes := free.get(pod.node):
            found[pod.name] = indexes.popleft()
