"""A job is not evicted again and again: how often it was evicted counts, and there is a limit per hour, which a team
cannot use up itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.builders import two_teams
from tests.scheduling.snapshots import evicted, gang, inputs, queue, rack, run

from muster.api.spec import EvictionStatus, TrainingJobStatus
from muster.model import (
    EVICTION_WINDOW_S,
    MAX_EVICTIONS_PER_HOUR,
    MAX_RECORDED_EVICTIONS,
    PastEviction,
    RunningGang,
    Snapshot,
)
from muster.quota import QueueTree, queue_tree
from muster.scheduling import plan
from muster.scheduling.eviction_limits import is_limit_reached, recent_evictions
from muster.workload import transitions

NOW = 10_000.0
TIMES = (NOW - 3000, NOW - 2000, NOW - 1000, NOW - 100)


def reclaiming(*running: RunningGang) -> Snapshot:
    """Team a has borrowed both nodes; team b wants one of them back."""
    return inputs(rack("r1", 2), two_teams(8, 8), [gang("claimant", "b", at=5)], running, now=NOW)


def victim(
    uid: str, node: str, *evictions: float, by: Sequence[str] = ("b",) * 4, of: str = "a", since: float = NOW - 60
) -> RunningGang:
    """A gang of the queue `of` that was evicted at these times for gangs of the queues `by`."""
    past = tuple(map(PastEviction, evictions, by))
    return run(replace(gang(uid, of), evictions=past), [node], since=since)


def test_of_equal_victims_the_one_with_the_fewest_evictions_in_the_last_hour_is_evicted() -> None:
    often, old = victim("often", "r1-0", NOW - 50), victim("old", "r1-1")
    assert evicted(plan(reclaiming(often, old))) == {"old": "claimant"}
    long_ago = victim("often", "r1-0", NOW - 3601, since=NOW - 60)
    assert evicted(plan(reclaiming(long_ago, old))) == {"often": "claimant"}  # by uid


def test_a_gang_that_was_evicted_four_times_within_an_hour_is_not_evicted() -> None:
    first, second = victim("a1", "r1-0", *TIMES), victim("a2", "r1-1", *TIMES)
    assert evicted(plan(reclaiming(first, second))) == {}
    earlier = victim("a2", "r1-1", NOW - 3600, *TIMES[1:])
    assert evicted(plan(reclaiming(first, earlier))) == {"a2": "claimant"}


@pytest.mark.parametrize("by", [("a", "b", "b", "b"), ("a",) * 4])
def test_evictions_for_its_own_queue_do_not_keep_a_gang_from_being_reclaimed(by: Sequence[str]) -> None:
    running = [victim(f"a{n}", f"r1-{n}", *TIMES, by=by) for n in range(2)]
    assert evicted(plan(reclaiming(*running))) == {"a0": "claimant"}


@pytest.mark.parametrize(
    ("by", "expected"), [("a2", {"v": "claimant"}), ("a", {"v": "claimant"}), ("b", {}), ("?", {})]
)
def test_evictions_for_another_queue_of_its_team_do_not_keep_a_gang_from_being_reclaimed_by_another_team(
    by: str, expected: dict[str, str]
) -> None:
    """A queue that does not exist any more may have been any."""
    queues = [*two_teams(0, 8), queue("a1", "a", 0), queue("a2", "a", 0)]
    running = victim("v", "r1-0", *TIMES, by=(by,) * 4, of="a1")
    snapshot = inputs(rack("r1", 1), queues, [gang("claimant", "b", at=5)], [running], now=NOW)
    assert evicted(plan(snapshot)) == expected


def test_a_gang_that_was_evicted_four_times_for_gangs_of_any_queue_is_not_preempted_in_its_own() -> None:
    running = victim("low", "r1-0", *TIMES, by=("a", "b", "a", "b"))
    snapshot = reclaiming(running)
    urgent = replace(gang("urgent", "a", at=6), priority=9)
    snapshot = replace(snapshot, pending=(urgent,), nodes=snapshot.nodes[:1])
    assert evicted(plan(snapshot)) == {}
    gone = replace(running, gang=replace(running.gang, evictions=running.gang.evictions[1:]))
    assert evicted(plan(replace(snapshot, running=(gone,)))) == {"low": "urgent"}


def test_the_status_keeps_the_last_evictions_for_other_jobs_within_an_hour() -> None:
    status = TrainingJobStatus()
    for number in range(MAX_RECORDED_EVICTIONS + 4):
        status = transitions.record_eviction(status, "a", "b", NOW + 50.0 * number)
    assert [one.at for one in status.evictions] == [NOW + 50.0 * n for n in range(4, MAX_RECORDED_EVICTIONS + 4)]
    assert {(one.job_queue, one.queue) for one in status.evictions} == {("a", "b")}
    assert transitions.evict(status, "NodeLost", "", NOW + 400).evictions == status.evictions
    later = transitions.record_eviction(status, "a", "b", NOW + 6800)
    assert [one.at for one in later.evictions] == [NOW + 3250, NOW + 3300, NOW + 3350, NOW + 6800]


@pytest.mark.parametrize("claims", [("b",) * 3 + ("a1",) + ("b",) * 4, ("a1", "a2", "b") * 6, ("b", "a2", "a1") * 6])
def test_evictions_for_its_own_team_do_not_allow_more_evictions_for_others(claims: Sequence[str]) -> None:
    tree = queue_tree([*two_teams(0, 8), queue("a1", "a", 0), queue("a2", "a", 0)])
    status, evicted_for = TrainingJobStatus(), list[str]()
    for second, claimant in enumerate(claims):
        past = tuple(PastEviction(one.at, one.queue, one.job_queue) for one in status.evictions)
        recent = recent_evictions(replace(gang("v", "a1"), evictions=past), NOW + second)
        if not is_limit_reached(tree, recent, tree.index["a1"], tree.index[claimant]):
            status = transitions.record_eviction(status, "a1", claimant, NOW + second)
            evicted_for.append(claimant)
    assert evicted_for.count("b") == 4
    assert len(evicted_for) <= 12, "four of each level"


def chain(levels: int) -> tuple[QueueTree, list[str]]:
    """A tree in which the queue of a job is so many levels below the root, and the queues whose common ancestor with
    it is next to its own queue, then one level higher, and so on; its own queue is the first."""
    queues, own = [queue("level-0")], ["level-0"]
    for level in range(1, levels + 1):
        queues += [queue(f"level-{level}", own[-1]), queue(f"other-{level}", own[-1])]
        own.append(f"level-{level}")
    return queue_tree(queues), [own[-1], *(f"other-{level}" for level in range(levels, 0, -1))]


def evicted_by(tree: QueueTree, own: str, claims: Iterable[str], step_s: float) -> list[tuple[float, str]]:
    """When a gang of the queue `own` is evicted, and for whom, if gangs of these queues claim its place in turn."""
    status, found = TrainingJobStatus(), list[tuple[float, str]]()
    for number, claimant in enumerate(claims):
        now = NOW + number * step_s
        past = tuple(PastEviction(one.at, one.queue, one.job_queue) for one in status.evictions)
        recent = recent_evictions(replace(gang("v", own), evictions=past), now)
        if not is_limit_reached(tree, recent, tree.index[own], tree.index[claimant]):
            status = transitions.record_eviction(status, own, claimant, now)
            found.append((now, claimant))
    return found


def most_in_an_hour(evictions: Sequence[tuple[float, str]], claimants: Sequence[str]) -> int:
    """The largest number of evictions for these claimants in one hour."""
    times = [at for at, claimant in evictions if claimant in claimants]
    return max((sum(at - EVICTION_WINDOW_S < one <= at for one in times) for at in times), default=0)


@pytest.mark.parametrize("levels", [1, 4, 5, 6, 8, 12, 20])
def test_in_a_deep_tree_evictions_for_near_queues_do_not_allow_more_of_those_for_far_ones(levels: int) -> None:
    """The worst order: one for the farthest queue, then three for each other one from the nearest on."""
    tree, claimants = chain(levels)
    *nearer, farthest = claimants
    claims = [farthest, *(one for one in nearer for _ in range(3)), *(farthest,) * 8]
    evictions = evicted_by(tree, claimants[0], claims, 1.0)
    assert most_in_an_hour(evictions, [farthest]) == MAX_EVICTIONS_PER_HOUR


@given(st.integers(1, 20), st.lists(st.integers(0, 20), max_size=150), st.sampled_from([1.0, 60.0, 400.0]))
def test_no_more_than_four_evictions_in_an_hour_are_for_queues_of_one_distance(
    levels: int, distances: list[int], step_s: float
) -> None:
    tree, claimants = chain(levels)
    claims = [claimants[min(distance, levels)] for distance in distances]
    evictions = evicted_by(tree, claimants[0], claims, step_s)
    for claimant in claimants:
        assert most_in_an_hour(evictions, [claimant]) <= MAX_EVICTIONS_PER_HOUR


def test_an_eviction_that_is_revoked_does_not_count() -> None:
    eviction = EvictionStatus.model_validate({"for": "other", "reason": "Reclaimed", "deadline": NOW})
    once = transitions.record_eviction(TrainingJobStatus(), "a", "b", NOW - 60)
    recorded = transitions.record_eviction(once, "a", "b", NOW)
    twice = transitions.evict(recorded, "Reclaimed", "", NOW, eviction=eviction)
    assert transitions.revoke_eviction(twice, NOW + 1).evictions == once.evictions
    assert [one.at for one in once.evictions] == [NOW - 60]
