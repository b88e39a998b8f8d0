"""A job is not evicted again and again: how often it was evicted counts, and there is a limit per hour."""

from __future__ import annotations

from dataclasses import replace

from tests.scheduling.builders import two_teams
from tests.scheduling.snapshots import evicted, gang, inputs, rack, run

from muster.api.spec import EvictionStatus, TrainingJobStatus
from muster.lifecycle import transitions
from muster.model import RunningGang, Snapshot
from muster.scheduling import plan

NOW = 10_000.0


def reclaiming(*running: RunningGang) -> Snapshot:
    """Team a has borrowed both nodes; team b wants one of them back."""
    return inputs(rack("r1", 2), two_teams(8, 8), [gang("claimant", "b", at=5)], running, now=NOW)


def victim(uid: str, node: str, *evictions: float, since: float = NOW - 60) -> RunningGang:
    return run(replace(gang(uid, "a"), evicted_at=evictions), [node], since=since)


def test_of_equal_victims_the_one_with_the_fewest_evictions_in_the_last_hour_is_evicted() -> None:
    often, old = victim("often", "r1-0", NOW - 50), victim("old", "r1-1")
    assert evicted(plan(reclaiming(often, old))) == {"old": "claimant"}
    long_ago = victim("often", "r1-0", NOW - 3601, since=NOW - 60)
    assert evicted(plan(reclaiming(long_ago, old))) == {"often": "claimant"}  # by uid


def test_a_gang_that_was_evicted_four_times_within_an_hour_is_not_evicted() -> None:
    times = (NOW - 3000, NOW - 2000, NOW - 1000, NOW - 100)
    first, second = victim("a1", "r1-0", *times), victim("a2", "r1-1", *times)
    assert evicted(plan(reclaiming(first, second))) == {}
    earlier = victim("a2", "r1-1", NOW - 3600, *times[1:])
    assert evicted(plan(reclaiming(first, earlier))) == {"a2": "claimant"}


def test_the_status_keeps_the_last_four_evictions_for_other_jobs() -> None:
    status = TrainingJobStatus()
    eviction = EvictionStatus.model_validate({"for": "other", "reason": "Reclaimed", "deadline": NOW})
    for minute in range(6):
        status = transitions.evict(status, "Reclaimed", "", NOW + 60.0 * minute, eviction=eviction)
    assert status.evicted_at == [NOW + 120, NOW + 180, NOW + 240, NOW + 300]
    assert transitions.evict(status, "NodeLost", "", NOW + 400).evicted_at == status.evicted_at


def test_an_eviction_that_is_revoked_does_not_count() -> None:
    eviction = EvictionStatus.model_validate({"for": "other", "reason": "Reclaimed", "deadline": NOW})
    once = transitions.evict(TrainingJobStatus(), "Reclaimed", "", NOW - 60, eviction=eviction)
    twice = transitions.evict(once, "Reclaimed", "", NOW, eviction=eviction)
    assert transitions.revoke_eviction(twice, NOW + 1).evicted_at == once.evicted_at == [NOW - 60]
