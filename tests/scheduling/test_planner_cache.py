"""A planner cache is never stale, however pending gangs have changed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.builders import two_teams, wait_of
from tests.scheduling.random_snapshots import snapshots
from tests.scheduling.snapshots import gang, gpus, inputs, rack, role, run, waits_by_uid

from muster.model import Gang, Snapshot
from muster.scheduling import BACKFILL, FIFO, MUSTER, PRIORITY, plan
from muster.scheduling.planner_cache import STALE_REQUESTS_ALLOWED
from muster.scheduling.versioned_cache import VersionedCache


def edited(draw: Random, one: Gang, queues: list[str]) -> Gang | None:
    """What became of a gang that waits: it is gone, or was edited, or is the same."""
    match draw.randrange(8):
        case 0:
            return None
        case 1:
            return replace(one, priority=one.priority + draw.choice((-1, 1, 100)))
        case 2:
            return replace(one, queue=draw.choice(queues))
        case 3:
            return replace(one, submitted_at=one.submitted_at + draw.choice((-50.0, 50.0)))
        case _:
            return one


@given(snapshots, st.integers(0, 1 << 32))
def test_pending_gangs_may_leave_be_edited_and_change_positions(snapshot: Snapshot, seed: int) -> None:
    draw = Random(seed)
    queues = [queue.name for queue in snapshot.queues] + ["nowhere"]
    waiting = [now for one in snapshot.pending if (now := edited(draw, one, queues)) is not None]
    draw.shuffle(waiting)
    later = replace(snapshot, pending=tuple(waiting))
    for policy in (MUSTER, BACKFILL, PRIORITY, FIFO):
        cache = plan(snapshot, None, policy).cache
        assert plan(later, cache, policy).decisions == plan(later, None, policy).decisions
        assert plan(snapshot, cache, policy).decisions == plan(snapshot, None, policy).decisions


def test_a_gang_that_comes_with_a_higher_priority_moves_the_others_back() -> None:
    busy = run(gang("b", queue="b"), ["r1-0"])
    first = inputs(rack("r1", 1), two_teams(), [gang("x", queue="a"), gang("y", queue="a", at=1.0)], [busy])
    cache = plan(first).cache
    urgent = gang("z", queue="a", at=2.0, priority=5)
    waits = waits_by_uid(plan(replace(first, pending=(*first.pending, urgent)), cache))
    assert {uid: wait.position for uid, wait in waits.items()} == {"z": 1, "x": 2, "y": 3}


def test_a_gang_that_is_too_large_for_ever_may_come_back_smaller_under_the_same_uid() -> None:
    large = inputs(rack("r1", 1), two_teams(), [gang("x", queue="a", pods=9)])
    assert wait_of(large, "x").reason == "LargerThanCluster"
    small = replace(large, pending=(gang("x", queue="a"),))
    assert not waits_by_uid(plan(small, plan(large).cache))


def test_a_cache_drops_removed_gangs_so_that_plans_do_not_slow_down() -> None:
    busy = run(gang("b", queue="b"), ["r1-0"])
    there = inputs(rack("r1", 1), two_teams(), [], [busy])
    cache, cached = None, []
    for step in range(100):
        alone = [role("trainer", 1, request=gpus(8, memory=1 + 8 * step + i)) for i in range(8)]  # each its own size
        waiting = tuple(gang(f"g{step}-{i}", queue="a", roles=[one]) for i, one in enumerate(alone))
        result = plan(replace(there, pending=waiting), cache)
        assert len(waits_by_uid(result)) == 8
        cache = result.cache
        cached.append(len(cache.request_cache))
    assert max(cached) <= STALE_REQUESTS_ALLOWED + 2 * 9 + 8


def test_a_versioned_cache_returns_only_values_of_the_version_asked_for() -> None:
    cache = VersionedCache[str, int]()
    cache.at(1)["x"] = 10
    assert cache.at(1) == {"x": 10}
    assert cache.at((1, 2)) == {}
    assert cache.at(1) == {}
