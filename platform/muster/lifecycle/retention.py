"""What an evicted gang retains of its capacity to restart soon: its placement on good nodes, nominated for a while.

The nomination is written once its last pod is gone. Until then its evicted condition implies it, so that the capacity
is not given to another gang meanwhile.
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
"""Evictions after which the gang retains its good nodes while the others are replaced."""


def retained_placement(status: TrainingJobStatus, spec: TrainingJobSpec, now: float) -> list[RolePlacementStatus]:
    """Where an evicted gang restarts: its placement without nodes that it excludes. Empty: it retains nothing. Which of
    these nodes accept pods by then is not known yet."""
    evicted = find_condition(status, EVICTED)
    if not is_evicting(status) or evicted is None or evicted.reason not in CAPACITY_RETAINING_REASONS:
        return []
    blamed = frozenset(entry.node for entry in status.blamed_nodes if entry.until > now)
    places = without_nodes(status.placement, blamed)
    return places if matches_spec(places, spec) else []


def nomination_ttl_s(job: TrainingJob) -> float:
    """Seconds for which it retains them, from when it may start again."""
    return max_grace_period_s(job) + job.spec.start_timeout_seconds


def retained_until(job: TrainingJob, timeouts: Timeouts) -> float:
    """When that nomination ends at the latest, for an evicted gang whose pods stop within their grace period."""
    evicted = find_condition(job.status, EVICTED)
    assert evicted is not None
    delay_s = backoff_s(job.status, evicted.reason, timeouts)
    return evicted.last_transition_time + max_grace_period_s(job) + delay_s + nomination_ttl_s(job)
