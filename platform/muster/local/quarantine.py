"""Jobs of which something cannot be written, and never could: they are left alone for a while, so that others go on.

A round is one transaction, and the next one decides the same again: one job whose status the database does not take
would keep every other job from being looked after. What it has running keeps its room meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from muster.cluster import NodeView
from muster.local.records import PodRecord
from muster.model import Resources

QUARANTINE_S = 60.0
"""After so long it is tried again."""


@dataclass(slots=True)
class Quarantine:
    """By job uid, until when it is left alone. Times are Unix seconds."""

    _until: dict[str, float] = field(default_factory=dict)

    def add(self, uid: str, now: float) -> None:
        """Leave this job alone from now on."""
        self._until[uid] = now + QUARANTINE_S

    def active(self, now: float) -> frozenset[str]:
        """The jobs that are left alone now."""
        self._until = {uid: until for uid, until in self._until.items() if now < until}
        return frozenset(self._until)


def with_unmanaged_usage(nodes: tuple[NodeView, ...], pods: Iterable[PodRecord]) -> tuple[NodeView, ...]:
    """The nodes as they are to others while these pods are left alone: what has not ended keeps its room."""
    taken: dict[str, Resources] = {}
    for pod in pods:
        if not pod.finished:
            taken[pod.node] = taken.get(pod.node, Resources()).plus(pod.request)
    return tuple(_add_unmanaged_usage(node, taken) for node in nodes) if taken else nodes


def _add_unmanaged_usage(node: NodeView, taken: Mapping[str, Resources]) -> NodeView:
    here = taken.get(node.name)
    return node if here is None else replace(node, unmanaged_usage=node.unmanaged_usage.plus(here))
