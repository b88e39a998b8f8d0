"""What pods of objects of other kinds really request.

The API server adds resources to pods that no template shows: defaults of a LimitRange, overhead of a RuntimeClass,
sidecars of a webhook. The first pods of a template in a namespace are gated, so that they show it before any of them
runs; later objects with such a template are charged for it from the start. It is in memory only: after a restart the
first pods are gated again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from muster.cluster import PodView
from muster.kinds.suspended.read import PodSet
from muster.kinds.suspended.table import KindRow
from muster.model import Resources
from muster_operator.cache.lru_cache import LRUCache


class ObservedRequests:
    """Requests of pods by namespace, kind and template."""

    def __init__(self) -> None:
        self._known = LRUCache[Hashable, Resources]()

    def complete(self, namespace: str, row: KindRow, pod_sets: Sequence[PodSet]) -> tuple[PodSet, ...]:
        """The pod sets with what is known; the same tuple if nothing is."""
        known = [self._known.get(_key(namespace, row, one)) for one in pod_sets]
        if not any(known):
            return tuple(pod_sets)
        return tuple(
            replace(one, known_request=request or one.known_request)
            for one, request in zip(pod_sets, known, strict=True)
        )

    def observe(self, namespace: str, row: KindRow, one: PodSet, pod: PodView) -> bool:
        """A pod of this pod set exists: whether it shows something new. One that has started may have been resized."""
        key, request = _key(namespace, row, one), shown_request(one.shape.request, pod)
        known = self._known.get(key)
        if known == request or (known is not None and pod.phase != "Pending"):
            return False
        self._known.put(key, request, sum(map(len, one.shape.profile)))
        return True


def shown_request(least: Resources, pod: PodView) -> Resources:
    """What a pod shows that the pods of its template request: no less than what is known, since users can create pods
    with the labels of others."""
    shown = pod.request
    return Resources.of({name: max(least.get(name), shown.get(name)) for name, _ in (*least, *shown)})


def _key(namespace: str, row: KindRow, one: PodSet) -> Hashable:
    return namespace, row.kind, one.row.each and one.name, one.shape.request, one.shape.profile
