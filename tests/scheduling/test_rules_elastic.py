"""Gangs between a minimum and a full size: how large they start, when they grow, when they shrink. The clock: 1000."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.scheduling.builders import two_teams
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
    role,
    run,
    started,
    waits_by_uid,
)

from muster.model import Gang, NodeInfo, Resize, RunningGang
from muster.scheduling import plan

QUEUE = [queue("q", guaranteed=1000)]


def pods(nodes: list[NodeInfo], waiting: Gang, *running: RunningGang) -> int:
    """At how many pods a gang starts; 0 when it does not."""
    return sum(nodes_of(started(plan(inputs(nodes, QUEUE, [waiting], running))).get(waiting.uid, ())).values())


@pytest.mark.parametrize(("nodes", "size"), [(1, 0), (2, 2), (3, 3), (4, 4), (5, 4)])
def test_a_gang_starts_at_the_largest_size_that_fits_now(nodes: int, size: int) -> None:
    down = rack("z", 5, schedulable=False)
    assert pods(rack("r1", nodes) + down, gang("g", pods=4, least=2)) == size


def test_a_gang_starts_at_the_largest_size_that_one_required_domain_nominations() -> None:
    nodes = rack("r1", 2) + rack("r2", 3) + rack("r3", 2)
    waiting = gang("g", pods=5, least=2, required="rack")
    assert set(nodes_of(started(plan(inputs(nodes, QUEUE, [waiting])))["g"])) == {"r2-0", "r2-1", "r2-2"}


def test_the_tightest_domain_is_taken_when_several_nomination_the_same_size() -> None:
    nodes = rack("r1", 4) + rack("r2", 3) + rack("r3", 4)
    waiting = gang("g", pods=3, least=2, required="rack")
    assert {name[:2] for name in nodes_of(started(plan(inputs(nodes, QUEUE, [waiting])))["g"])} == {"r2"}


def test_several_elastic_roles_take_extras_in_list_order() -> None:
    roles = [role("first", 3, 1), role("second", 3, 1)]
    for nodes, sizes in ((3, (2, 1)), (4, (3, 1)), (5, (3, 2))):
        down = rack("z", 6, schedulable=False)
        placed = started(plan(inputs(rack("r1", nodes) + down, QUEUE, [gang("g", roles=roles)])))["g"]
        assert tuple(part.replicas for part in placed) == sizes


def test_extra_pods_never_keep_out_a_gang_later_in_the_order() -> None:
    # Beyond its guarantee it takes only what no other waiting gang could use.
    queues = two_teams(8, 8)
    waiting = [gang("elastic", "a", pods=2, least=1, at=0), gang("fixed", "b", at=5)]
    assert {uid: len(nodes_of(p)) for uid, p in started(plan(inputs(rack("r1", 2), queues, waiting))).items()} == {
        "elastic": 1,
        "fixed": 1,
    }
    assert len(nodes_of(started(plan(inputs(rack("r1", 2), queues, waiting[:1])))["elastic"])) == 2


def small_one(**more: object) -> RunningGang:
    """An elastic gang that runs at 1 of 3 pods since time 0."""
    return run(gang("elastic", pods=3, least=1), ["r1-0"], **more)  # type: ignore[arg-type]


def test_a_gang_grows_into_idle_capacity_and_keeps_its_nodes() -> None:
    grown = resized(plan(inputs(rack("r1", 3), QUEUE, [], [small_one()])))["elastic"]
    assert (grown.reason, grown.preemptor) == ("Grown", None)
    assert nodes_of(grown.placement) == {"r1-0": 1, "r1-1": 1, "r1-2": 1}


@pytest.mark.parametrize(("since", "resized_at", "grows"), [(401, None, False), (400, None, True), (0, 401, False)])
def test_a_gang_grows_at_most_every_ten_minutes(since: float, resized_at: float | None, grows: bool) -> None:
    snapshot = inputs(rack("r1", 3), QUEUE, [], [small_one(since=since, resized_at=resized_at)])
    assert bool(resized(plan(snapshot))) is grows


def test_a_gang_grows_only_with_capacity_that_no_waiting_gang_can_use() -> None:
    waiting = gang("waiting", pods=3)  # two nodes are idle, it needs three
    assert resized(plan(inputs(rack("r1", 3), QUEUE, [waiting], [small_one()]))) == {}
    result = plan(inputs(rack("r1", 3), QUEUE, [gang("small")], [small_one()]))
    assert (list(started(result)), nodes_of(resized(result)["elastic"].placement)) == (
        ["small"],
        {"r1-0": 1, "r1-2": 1},
    )


def test_a_gang_waiting_for_another_flavor_does_not_prevent_growth() -> None:
    queues = [queue("q", guaranteed=1000), queue("p", guaranteed=1000, flavor="a100")]
    nodes = rack("r1", 3) + rack("x", 1, flavor="a100") + rack("y", 1, flavor="a100", schedulable=False)
    snapshot = inputs(nodes, queues, [gang("waiting", "p", pods=2)], [small_one()])
    assert "elastic" in resized(plan(snapshot))


def test_a_paused_gang_does_not_grow() -> None:
    snapshot = inputs(rack("r1", 3), QUEUE, [], [small_one()])
    assert not resized(plan(replace(snapshot, paused=frozenset({"elastic"}))))


def test_a_gang_grows_inside_its_required_domain_only() -> None:
    bound = run(gang("elastic", pods=3, least=1, required="rack"), ["r1-0"])
    snapshot = inputs(rack("r1", 2) + rack("r2", 3), QUEUE, [], [bound])
    assert nodes_of(resized(plan(snapshot))["elastic"].placement) == {"r1-0": 1, "r1-1": 1}
    assert resized(plan(inputs(rack("r1", 1) + rack("r2", 3), QUEUE, [], [bound]))) == {}


def test_a_gang_grows_within_its_quota_only() -> None:
    queues = [queue("q", guaranteed=16)]
    assert len(nodes_of(resized(plan(inputs(rack("r1", 3), queues, [], [small_one()])))["elastic"].placement)) == 2


def test_a_gang_of_full_size_or_without_idle_capacity_stays_as_it_is() -> None:
    whole = run(gang("elastic", pods=2, least=1), ["r1-0", "r1-1"])
    assert plan(inputs(rack("r1", 3), QUEUE, [], [whole])).decisions == ()
    assert plan(inputs(rack("r1", 1), QUEUE, [], [small_one()])).decisions == ()


def test_gangs_shrink_before_any_is_evicted_whatever_the_priority_and_lost_work() -> None:
    running = [
        run(gang("elastic", pods=2, least=1, priority=4), ["r1-0", "r1-1"], since=-9000.0),
        run(gang("fixed", priority=0), ["r1-2"], since=1000.0),
    ]
    result = plan(inputs(rack("r1", 3), QUEUE, [gang("urgent", priority=5)], running))
    assert evicted(result) == {}
    shrunk = resized(result)["elastic"]
    assert (shrunk.reason, shrunk.preemptor) == ("Preempted", "urgent")
    assert nodes_of(shrunk.placement) == {"r1-0": 1}
    assert nodes_of(nominated(result)["urgent"].placement) == {"r1-1": 1}


def test_a_gang_of_equal_priority_in_the_leaf_does_not_shrink_either() -> None:
    running = [
        run(gang("elastic", pods=2, least=1, priority=5), ["r1-0", "r1-1"]),
        run(gang("fixed", priority=4), ["r1-2"]),
    ]
    result = plan(inputs(rack("r1", 3), QUEUE, [gang("urgent", priority=5, at=9)], running))
    assert (resized(result), evicted(result)) == ({}, {"fixed": "urgent"})


def test_a_gang_gives_no_more_pods_than_are_needed() -> None:
    wide = run(gang("elastic", pods=4, least=1), [f"r1-{i}" for i in range(4)])
    result = plan(inputs(rack("r1", 4), QUEUE, [gang("urgent", priority=5)], [wide]))
    assert len(nodes_of(resized(result)["elastic"].placement)) == 3


def test_a_gang_is_evicted_when_shrinking_does_not_free_enough() -> None:
    wide = run(gang("elastic", pods=2, least=1), ["r1-0", "r1-1"])
    result = plan(inputs(rack("r1", 2), QUEUE, [gang("urgent", pods=2, priority=5)], [wide]))
    assert (evicted(result), resized(result)) == ({"elastic": "urgent"}, {})


def test_the_last_role_gives_first() -> None:
    roles = [role("first", 2, 1), role("second", 2, 1)]
    elastic = gang("elastic", roles=roles)
    place = started(plan(inputs(rack("r1", 4), QUEUE, [elastic])))["elastic"]
    running = RunningGang(elastic, place, 0.0, 0.0)
    kept = resized(plan(inputs(rack("r1", 4), QUEUE, [gang("urgent", priority=5)], [running])))["elastic"].placement
    assert [part.replicas for part in kept] == [2, 1]


def test_borrowed_extras_are_reclaimed_first() -> None:
    # a uses 24 of its 8: the extras of `elastic` go, not `fixed` who has lost nothing yet.
    running = [
        run(gang("elastic", "a", pods=2, least=1), ["r1-0", "r1-1"], since=-9000.0),
        run(gang("fixed", "a"), ["r1-2"], since=1000.0),
    ]
    queues = [queue("co"), queue("a", "co", 8), queue("b", "co", 16)]
    result = plan(inputs(rack("r1", 3), queues, [gang("owner", "b")], running))
    assert (evicted(result), resized(result)["elastic"].reason) == ({}, "Reclaimed")


def test_what_was_shed_is_used_once_it_is_free_and_the_gang_does_not_grow_back_into_it() -> None:
    wide = run(gang("elastic", pods=2, least=1), ["r1-0", "r1-1"])
    before = inputs(rack("r1", 2), QUEUE, [gang("urgent", priority=5)], [wide])
    during = carried_out(before, plan(before).decisions)
    assert waits_by_uid(plan(during))["urgent"].reason == "WaitingForPreemption"
    after = left(during, 700.0)
    after = after if after.nominations and after.nominations[0].expires_at > after.now else left(during, 60.0)
    result = plan(after)
    assert nodes_of(started(result)["urgent"]) == {"r1-1": 1}
    assert resized(result) == {}


def test_a_gang_does_not_grow_in_the_plan_in_which_it_shrinks() -> None:
    running = [run(gang("elastic", pods=3, least=1, required="rack"), ["r1-0", "r1-1"], since=0.0)]
    wants = gang("urgent", pods=2, priority=5, required="rack")
    result = plan(inputs(rack("r1", 3), QUEUE, [wants], running))
    changes = [d for d in result.decisions if isinstance(d, Resize)]
    assert [(d.gang_uid, d.preemptor) for d in changes] == [("elastic", "urgent")]
