"""What a gang keeps of its room when it leaves and comes back: its places on good nodes, under a hold, for a while.

The hold is written once the last of its pods is gone. Until then its evicted condition tells that there will be one, so
that nobody is promised that room meanwhile.
"""

from __future__ import annotations

from typing import Final

from muster.lifecycle.bounds import Bounds
from muster.lifecycle.conditions import EVICTED, find, is_leaving
from muster.lifecycle.moves import backoff_s
from muster.lifecycle.places import is_wanted, without_nodes
from muster.lifecycle.sight import max_grace
from muster.spec import RoleStatusPlacement, TrainingJob, TrainingJobSpec, TrainingJobStatus

ROOM_KEEPERS: Final = frozenset({"NodeLost", "PodLost", "RestartElsewhere", "Drained"})
"""Evictions after which the gang keeps its good nodes under a hold while the others are replaced."""


def kept_places(status: TrainingJobStatus, wanted: TrainingJobSpec, now: float) -> list[RoleStatusPlacement]:
    """Where a gang that leaves comes back to: its places, but for nodes that it blames. Empty: it leaves for good.

    Which of these nodes take pods by then nobody knows yet; those that take none are no use to anybody.
    """
    evicted = find(status, EVICTED)
    if not is_leaving(status) or evicted is None or evicted.reason not in ROOM_KEEPERS:
        return []
    blamed = frozenset(entry.node for entry in status.blamed_nodes if entry.until > now)
    places = without_nodes(status.placement, blamed)
    return places if is_wanted(places, wanted) else []


def hold_s(job: TrainingJob) -> float:
    """For how long it keeps them, from when it may start again."""
    return max_grace(job) + job.spec.start_timeout_seconds


def kept_until(job: TrainingJob, bounds: Bounds) -> float:
    """When that hold ends at the latest, of a gang that leaves and whose pods stop within their grace."""
    evicted = find(job.status, EVICTED)
    assert evicted is not None
    delay_s = backoff_s(job.status, evicted.reason, bounds)
    return evicted.last_transition_time + max_grace(job) + delay_s + hold_s(job)
