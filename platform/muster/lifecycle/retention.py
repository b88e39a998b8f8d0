"""What a gang keeps of its room when it leaves and comes back: its places on good nodes, under a hold, for a while.

The hold is written once the last of its pods is gone. Until then its evicted condition tells that there will be one, so
that nobody is promised that room meanwhile.
"""

from __future__ import annotations

from typing import Final

from muster.lifecycle.conditions import EVICTED, find_condition, is_evicting
from muster.lifecycle.observation import max_grace_period_s
from muster.lifecycle.placement import matches_spec, without_nodes
from muster.lifecycle.timeouts import Timeouts
from muster.lifecycle.transitions import backoff_s
from muster.spec import RolePlacementStatus, TrainingJob, TrainingJobSpec, TrainingJobStatus

CAPACITY_RETAINING_REASONS: Final = frozenset({"NodeLost", "PodLost", "RestartElsewhere", "Drained"})
"""Evictions after which the gang keeps its good nodes under a hold while the others are replaced."""


def retained_placement(status: TrainingJobStatus, spec: TrainingJobSpec, now: float) -> list[RolePlacementStatus]:
    """Where a gang that leaves comes back to: its places, but for nodes that it blames. Empty: it leaves for good.

    Which of these nodes take pods by then nobody knows yet; those that take none are no use to anybody.
    """
    evicted = find_condition(status, EVICTED)
    if not is_evicting(status) or evicted is None or evicted.reason not in CAPACITY_RETAINING_REASONS:
        return []
    blamed = frozenset(entry.node for entry in status.blamed_nodes if entry.until > now)
    places = without_nodes(status.placement, blamed)
    return places if matches_spec(places, spec) else []


def nomination_ttl_s(job: TrainingJob) -> float:
    """For how long it keeps them, from when it may start again."""
    return max_grace_period_s(job) + job.spec.start_timeout_seconds


def retained_until(job: TrainingJob, timeouts: Timeouts) -> float:
    """When that hold ends at the latest, of a gang that leaves and whose pods stop within their grace."""
    evicted = find_condition(job.status, EVICTED)
    assert evicted is not None
    delay_s = backoff_s(job.status, evicted.reason, timeouts)
    return evicted.last_transition_time + max_grace_period_s(job) + delay_s + nomination_ttl_s(job)
