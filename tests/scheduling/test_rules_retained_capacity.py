"""A gang that lost a node stops and comes back to its others: no other gang gets what it keeps meanwhile, except
those that could take a nomination. Once its pods are gone it is nominated there. The clock stands at 1000."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.scheduling.builders import in_order, two_teams, wait_of
from tests.scheduling.snapshots import (
    carried_out,
    evicted,
    gang,
    inputs,
    left,
    nodes_of,
    nominated,
    queue,
    rack,
    resized,
    returning,
    run,
    started,
    waits_by_uid,
)

from muster.model import RunningGang, Snapshot
from muster.scheduling import plan

QUEUE = [queue("q", guaranteed=1000)]


def lost_a_node(priority: int = 5, **more: object) -> RunningGang:
    """It ran on two nodes, lost one that is no more, and stops on the other."""
    return returning(run(gang("back", pods=2, priority=priority, **more), ["gone-0", "r1-0"]), ["r1-0"])  # type: ignore[arg-type]


def test_no_gang_is_evicted_for_a_gang_that_would_need_what_another_keeps() -> None:
    low = run(gang("low"), ["r1-1"])
    snapshot = inputs(rack("r1", 2), QUEUE, [gang("wide", pods=2, priority=3)], [lost_a_node(), low])
    result = plan(snapshot)
    assert (evicted(result), nominated(result), waits_by_uid(result)["wide"].reason) == (
        {},
        {},
        "InsufficientResources",
    )


def test_a_gang_that_may_preempt_does_not_wait_for_retained_capacity() -> None:
    low = run(gang("low"), ["r1-1"])
    snapshot = inputs(rack("r1", 2), QUEUE, [gang("mid", priority=3)], [lost_a_node(), low])
    assert evicted(plan(snapshot)) == {"low": "mid"}
    for_good = replace(lost_a_node(), retained_placement=(), retained_until=None)
    assert evicted(plan(replace(snapshot, running=(for_good, low)))) == {}, "it fits as soon as the other has left"


def test_no_reservation_is_on_retained_capacity() -> None:
    # `wide` gets r1-1 and r1-2 at 2060; were r1-0 to come free at once, `small` would have to leave r1-1 alone.
    long = run(gang("long", runtime=2000.0, priority=9), ["r1-2"], since=0.0)
    small = gang("small", at=2, runtime=900.0)
    result = plan(inputs(rack("r1", 3), QUEUE, [gang("wide", pods=2, at=1), small], [lost_a_node(), long]))
    assert waits_by_uid(result)["wide"].estimated_start == 2060.0
    assert nodes_of(started(result)["small"]) == {"r1-1": 1}


def test_retained_capacity_is_released_after_the_next_run() -> None:
    back = lost_a_node(runtime=100.0)  # by 2000 it has begun, and is gone at 2000 + 100 + 30 (grace) + 30
    assert wait_of(inputs(rack("r1", 1), QUEUE, [gang("next")], [back]), "next").estimated_start == 2160.0


def test_what_it_keeps_stays_charged_to_its_queue() -> None:
    low, back = run(gang("low"), ["r1-1"]), returning(run(gang("back", priority=5), ["r1-0"]), ["r1-0"])
    snapshot = inputs(rack("r1", 3), [queue("q", guaranteed=16)], [gang("mid", priority=3)], [back, low])
    assert evicted(plan(snapshot)) == {"low": "mid"}, "r1-2 is idle, but no quota is left beside what is kept"


def test_a_higher_priority_takes_retained_capacity_rather_than_that_of_a_running_gang() -> None:
    low = run(gang("low"), ["r1-1"])
    snapshot = inputs(rack("r1", 2), QUEUE, [gang("high", priority=9)], [lost_a_node(priority=0), low])
    result = plan(snapshot)
    assert evicted(result) == {"back": "high"}
    assert (nominated(result)["high"].victims, nodes_of(nominated(result)["high"].placement)) == (
        ("back",),
        {"r1-0": 1},
    )
    after = left(carried_out(snapshot, result.decisions))
    assert (in_order(plan(after)), evicted(plan(after))) == (["high"], {})


@pytest.mark.parametrize(("guaranteed", "taken"), [(8, {"back": "owner"}), (16, {})])
def test_another_queue_takes_it_only_from_borrowed_quota(guaranteed: int, taken: dict[str, str]) -> None:
    own = run(gang("own", "a", priority=9), ["r1-1"])
    back = returning(run(gang("back", "a"), ["r1-0"]), ["r1-0"])
    snapshot = inputs(rack("r1", 2), two_teams(guaranteed, 8), [gang("owner", "b")], [own, back])
    assert evicted(plan(snapshot)) == taken


def test_it_is_not_shrunk_since_it_is_terminating() -> None:
    back = returning(run(gang("back", pods=2, least=1), ["r1-0", "r1-1"]), ["r1-0", "r1-1"])
    result = plan(inputs(rack("r1", 2), QUEUE, [gang("high", priority=9)], [back]))
    assert (resized(result), evicted(result)) == ({}, {"back": "high"})


def test_it_comes_back_where_it_was_although_others_waited_longer() -> None:
    snapshot = inputs(rack("r1", 1), QUEUE, [gang("first", at=0)], [_on_one_node()])
    assert in_order(plan(snapshot)) == []
    assert in_order(plan(left(snapshot))) == ["back"]


def _on_one_node() -> RunningGang:
    return returning(run(gang("back", at=9), ["r1-0"]), ["r1-0"])


def test_a_cache_follows_a_gang_that_terminates_and_restarts() -> None:
    runs = inputs(rack("r1", 2), QUEUE, [gang("wide", pods=2)], [run(gang("back", at=9), ["r1-0"])])
    stops = replace(runs, running=(_on_one_node(),))
    gone: Snapshot = left(stops)
    cache = None
    for snapshot in (runs, stops, gone):
        result = plan(snapshot, cache)
        assert result.decisions == plan(snapshot).decisions
        cache = result.cache
