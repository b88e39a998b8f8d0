"""Which gangs are preempted, in what order, and only if the preemptor then starts. The time is 10000."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.scheduling.builders import two_teams, wait_of
from tests.scheduling.snapshots import (
    evicted,
    gang,
    inputs,
    nodes_of,
    nominated,
    queue,
    rack,
    role,
    run,
    started,
    waits_by_uid,
)

from muster.model import Evict, Gang, NodeInfo, Resize, RunningGang, Snapshot
from muster.scheduling import plan

NOW = 10_000.0
QUEUE = [queue("q", guaranteed=1000)]


def full(running: list[RunningGang], *waiting: Gang, nodes: list[NodeInfo] | None = None) -> Snapshot:
    """A rack of as many nodes as gangs run, one queue, and who waits."""
    return inputs(nodes or rack("r1", len(running)), QUEUE, waiting, running, now=NOW)


def urgent(pods: int = 1, **more: object) -> Gang:
    return gang("urgent", pods=pods, priority=5, at=9000, **more)  # type: ignore[arg-type]


def test_inside_a_leaf_a_strictly_lower_priority_leaves() -> None:
    result = plan(full([run(gang("low", priority=4), ["r1-0"])], urgent()))
    assert [d for d in result.decisions if isinstance(d, Evict)] == [Evict("low", "urgent", "Preempted")]


@pytest.mark.parametrize("priority", [5, 6])
def test_inside_a_leaf_an_equal_or_higher_priority_stays(priority: int) -> None:
    snapshot = full([run(gang("equal", priority=priority), ["r1-0"])], urgent())
    assert (evicted(plan(snapshot)), wait_of(snapshot, "urgent").reason) == ({}, "InsufficientResources")


def test_the_lowest_priority_leaves_first_whatever_it_loses() -> None:
    running = [run(gang("p1", priority=1), ["r1-0"], since=0), run(gang("p2", priority=2), ["r1-1"], since=NOW)]
    assert evicted(plan(full(running, urgent()))) == {"p1": "urgent"}


def test_of_equals_the_one_that_loses_least_since_its_checkpoint_leaves() -> None:
    running = [
        run(gang("young"), ["r1-0"], since=NOW - 900),
        run(gang("old"), ["r1-1"], since=0, checkpoint_at=NOW - 60),
        run(gang("older"), ["r1-2"], since=0, checkpoint_at=NOW - 600),
    ]
    assert evicted(plan(full(running, urgent()))) == {"old": "urgent"}


def test_without_a_checkpoint_lost_work_counts_from_the_start_and_not_from_the_admission() -> None:
    running = [
        run(gang("admitted-first"), ["r1-0"], since=NOW - 900, started_at=NOW - 100),
        run(gang("started-first"), ["r1-1"], since=NOW - 800, started_at=NOW - 700),
    ]
    assert evicted(plan(full(running, urgent()))) == {"admitted-first": "urgent"}


def test_a_gang_that_has_not_started_yet_loses_nothing() -> None:
    running = [run(gang("starting"), ["r1-0"], since=0, started_at=None), run(gang("b"), ["r1-1"], since=NOW - 1)]
    assert evicted(plan(full(running, urgent()))) == {"starting": "urgent"}


@pytest.mark.parametrize("started_at", [NOW - 100, None], ids=["started", "starting"])
def test_a_checkpoint_from_before_the_restart_does_not_count_as_lost_work(started_at: float | None) -> None:
    restarted = run(gang("restarted"), ["r1-0"], since=NOW - 850, started_at=started_at, checkpoint_at=NOW - 1500)
    assert evicted(plan(full([restarted, run(gang("b"), ["r1-1"], since=NOW - 800)], urgent()))) == {
        "restarted": "urgent"
    }


def test_lost_work_counts_every_pod() -> None:
    running = [
        run(gang("two-pods", pods=2, size=4), {"r1-0": 2}, since=NOW - 100),
        run(gang("one-pod"), ["r1-1"], since=NOW - 150),
    ]
    assert evicted(plan(full(running, urgent()))) == {"one-pod": "urgent"}


def test_lost_work_is_capped_at_30_minutes_a_pod_so_that_missing_checkpoints_protect_no_gang() -> None:
    # 1800 s against 2 x 1700 s, though the first ran for 10000 s without a checkpoint.
    running = [
        run(gang("never-saves"), ["r1-0"], since=0),
        run(gang("saves", pods=2, size=4), {"r1-1": 2}, since=0, checkpoint_at=NOW - 1700),
    ]
    assert evicted(plan(full(running, urgent()))) == {"never-saves": "urgent"}


def test_at_the_same_loss_the_newest_leaves() -> None:
    running = [run(gang("a-older"), ["r1-0"], since=0), run(gang("b-newer"), ["r1-1"], since=1000)]
    assert evicted(plan(full(running, urgent()))) == {"b-newer": "urgent"}


def test_at_last_the_uid_decides() -> None:
    running = [run(gang("y"), ["r1-0"]), run(gang("x"), ["r1-1"])]
    assert evicted(plan(full(running, urgent()))) == {"x": "urgent"}


def test_no_gang_is_evicted_for_a_gang_that_would_not_start() -> None:
    running = [run(gang("low"), ["r1-0"]), run(gang("high", priority=9), ["r1-1"])]
    result = plan(full(running, urgent(pods=2)))
    assert (evicted(result), nominated(result), waits_by_uid(result)["urgent"].reason) == (
        {},
        {},
        "InsufficientResources",
    )


def test_no_gang_is_evicted_for_a_gang_that_its_own_rules_about_nodes_keep_out() -> None:
    running = [run(gang("low"), ["r1-0"])]
    assert evicted(plan(full(running, urgent(excluded_nodes=frozenset({"r1-0"}))))) == {}


def test_no_gang_is_evicted_where_there_is_capacity() -> None:
    result = plan(full([run(gang("low"), ["r1-0"])], urgent(), nodes=rack("r1", 2)))
    assert (evicted(result), list(started(result))) == ({}, ["urgent"])


def test_no_gang_is_evicted_where_capacity_comes_free_anyway() -> None:
    leaving = run(gang("leaving"), ["r1-1"], state="terminating")
    assert evicted(plan(full([run(gang("low"), ["r1-0"]), leaving], urgent()))) == {}


def test_unnecessary_victims_are_not_evicted() -> None:
    # The cheapest, `half`, is chosen first; once `whole` is evicted as well, its eviction is not needed.
    running = [
        run(gang("half", size=4), ["r1-0"], since=NOW),
        run(gang("other", size=4, priority=9), ["r1-0"]),
        run(gang("whole"), ["r1-1"], since=0),
    ]
    assert evicted(plan(full(running, urgent(), nodes=rack("r1", 2)))) == {"whole": "urgent"}


def test_the_required_domain_whose_victims_lose_least_is_emptied() -> None:
    nodes = rack("r1", 2) + rack("r2", 2)
    running = [
        run(gang("a"), ["r1-0"], since=NOW - 5),
        run(gang("b"), ["r1-1"], since=NOW - 1500),
        run(gang("c"), ["r2-0"], since=NOW - 100),
        run(gang("d"), ["r2-1"], since=NOW - 100),
    ]
    assert set(evicted(plan(full(running, urgent(2, required="rack"), nodes=nodes)))) == {"c", "d"}


def test_freed_capacity_is_nominated_until_grace_period_and_start_timeout_have_passed() -> None:
    running = [run(gang("low", grace_s=120.0), ["r1-0"]), run(gang("low2", grace_s=40.0), ["r1-1"])]
    nomination = nominated(plan(full(running, urgent(pods=2, start_timeout_s=300.0))))["urgent"]
    assert (nodes_of(nomination.placement), sorted(nomination.victims)) == ({"r1-0": 1, "r1-1": 1}, ["low", "low2"])
    assert nomination.expires_at == NOW + 120.0 + 300.0


def test_two_gangs_never_count_on_the_same_victim() -> None:
    running = [run(gang("v1"), ["r1-0"]), run(gang("v2"), ["r1-1"])]
    waiting = [gang(f"u{i}", priority=5, at=i) for i in range(3)]
    result = plan(full(running, *waiting))
    assert sorted(evicted(result).values()) == ["u0", "u1"]
    assert waits_by_uid(result)["u2"].reason == "InsufficientResources"


def test_a_terminating_gang_is_not_preempted_again() -> None:
    leaving = run(gang("leaving"), ["r1-0"], state="evicting", preemptor="other")
    result = plan(full([leaving, run(gang("low"), ["r1-1"])], urgent(pods=2)))
    assert evicted(result) == {"low": "urgent"}


def test_a_small_gang_of_lower_priority_does_not_start_on_capacity_that_is_being_freed() -> None:
    running = [run(gang("low"), ["r1-0"])]
    result = plan(full(running, urgent(pods=2), gang("small", at=0), nodes=rack("r1", 2)))
    assert evicted(result) == {"low": "urgent"}
    assert started(result) == {}


def test_quota_alone_is_reason_enough_to_preempt_in_the_leaf() -> None:
    queues = [queue("q", guaranteed=8)]
    running = [run(gang("low"), ["r1-0"])]
    result = plan(inputs(rack("r1", 2), queues, [urgent()], running, now=NOW))
    assert evicted(result) == {"low": "urgent"}


def test_reclaiming_prefers_the_lowest_priority_of_all_borrowing_queues() -> None:
    queues = [queue("co", guaranteed=24), *two_teams()[1:], queue("c", "co", 0)]
    running = [
        run(gang("b1", "b", priority=3), ["r1-0"]),
        run(gang("b2", "b", priority=3), ["r1-1"]),
        run(gang("c1", "c", priority=1), ["r1-2"], since=0),
    ]
    snapshot = inputs(rack("r1", 3), queues, [gang("owner", "a")], running, now=NOW)
    assert evicted(plan(snapshot)) == {"c1": "owner"}


def test_a_priority_raised_above_the_maximum_of_the_queue_while_the_gang_runs_does_not_protect_it() -> None:
    queues = [queue("co", guaranteed=24), *two_teams()[1:], queue("c", "co", 0, max_priority=2)]
    running = [
        run(gang("b1", "b", priority=3), ["r1-0"]),
        run(gang("b2", "b", priority=3), ["r1-1"]),
        run(gang("c1", "c", priority=9), ["r1-2"], since=0),
    ]
    snapshot = inputs(rack("r1", 3), queues, [gang("owner", "a")], running, now=NOW)
    assert evicted(plan(snapshot)) == {"c1": "owner"}


def spread_thin(nodes: int, size: int = 8, **more: object) -> list[RunningGang]:
    """Gangs of `b` with one GPU each that fill the rack, started node after node in turn: those that came last are one
    on every node."""
    order = [(turn, node) for turn in range(size) for node in range(nodes)]
    return [
        run(gang(f"b{turn}-{node}", "b", size=1, **more), [f"r1-{node}"], since=float(turn))  # type: ignore[arg-type]
        for turn, node in order
    ]


def emptied(snapshot: Snapshot) -> dict[str, int]:
    """How many leave each node."""
    left: dict[str, int] = {}
    for uid in evicted(plan(snapshot)):
        node = "r1-" + uid.partition("-")[2]
        left[node] = left.get(node, 0) + 1
    return left


def test_a_guarantee_is_taken_back_node_by_node_where_borrowers_are_spread_thin() -> None:
    """Newest first would evict half of each node's gangs, and then no other: no pod would fit anywhere."""
    snapshot = inputs(rack("r1", 4), two_teams(16, 16), [gang("owner", "a", pods=2)], spread_thin(4), now=NOW)
    left = emptied(snapshot)
    assert list(left.values()) == [8, 8]
    nomination = nominated(plan(snapshot))["owner"]
    assert sorted(nodes_of(nomination.placement)) == sorted(left)


def test_the_nodes_that_are_emptied_are_those_that_lose_least() -> None:
    running = spread_thin(4)
    cheap = {"r1-1", "r1-3"}
    running = [
        replace(one, checkpoint_at=NOW - (10 if one.placement[0].nodes[0][0] in cheap else 1000)) for one in running
    ]
    snapshot = inputs(rack("r1", 4), two_teams(16, 16), [gang("owner", "a", pods=2)], running, now=NOW)
    assert emptied(snapshot) == {"r1-1": 8, "r1-3": 8}


def test_a_node_with_a_gang_of_higher_priority_is_emptied_last() -> None:
    running = spread_thin(4)
    running[0] = replace(running[0], gang=replace(running[0].gang, priority=9))  # on r1-0
    snapshot = inputs(rack("r1", 4), two_teams(24, 8), [gang("owner", "a", pods=3)], running, now=NOW)
    assert set(emptied(snapshot)) == {"r1-1", "r1-2", "r1-3"}


def test_a_node_that_cannot_be_emptied_is_left_alone() -> None:
    """The owner's own gangs run on one node, and borrowers may not be asked without end."""
    running = spread_thin(4)
    own = [replace(one, gang=replace(one.gang, queue="a")) for one in running if one.gang.uid.endswith("-0")][:4]
    others = [one for one in running if one.gang.uid not in {one.gang.uid for one in own}]
    snapshot = inputs(rack("r1", 4), two_teams(20, 12), [gang("owner", "a", pods=2)], [*own, *others], now=NOW)
    left = emptied(snapshot)
    assert list(left.values()) == [8, 8]
    assert "r1-0" not in left


def test_where_a_node_nominations_several_pods_no_more_leave_it_than_have_to() -> None:
    """Three pods of four GPUs need half of three nodes, or one node and a half."""
    snapshot = inputs(rack("r1", 4), two_teams(12, 20), [gang("owner", "a", pods=3, size=4)], spread_thin(4), now=NOW)
    left = emptied(snapshot)
    assert sum(left.values()) == 12
    assert all(count in (4, 8) for count in left.values())


def test_gangs_that_run_on_several_nodes_are_preempted_once() -> None:
    """Every pair of nodes is filled by eight gangs of two pods."""
    running = [
        run(gang(f"p{i}-{n}", "b", pods=2, size=1), [f"r1-{n}", f"r1-{n + 1}"], since=float(i))
        for i in range(8)
        for n in (0, 2)
    ]
    snapshot = inputs(rack("r1", 4), two_teams(16, 16), [gang("owner", "a", pods=2)], running, now=NOW)
    gone = evicted(plan(snapshot))
    assert len(gone) == 8
    assert len({uid.partition("-")[2] for uid in gone}) == 1


def test_elastic_gangs_shrink_before_any_is_evicted_also_node_by_node() -> None:
    """Eight gangs with an extra pod on the one node cost more than eight small ones on the other, which would leave."""
    elastic = [
        run(gang(f"e{i}", "b", pods=2, least=1, size=1), [f"r1-{i % 2}", f"r1-{3 + i % 2}"], since=1.0)
        for i in range(16)
    ]
    fixed = [run(gang(f"f{i}", "b", size=1), ["r1-2"], since=NOW - 1) for i in range(8)]
    snapshot = inputs(rack("r1", 5), two_teams(8, 32), [gang("owner", "a")], [*elastic, *fixed], now=NOW)
    result = plan(snapshot)
    assert evicted(result) == {}
    resized = [decision for decision in result.decisions if isinstance(decision, Resize)]
    assert len(resized) == 8
    assert len({uid[1:] for uid in (one.gang_uid for one in resized)}) == 8


def test_a_victim_on_a_node_shrinks_where_that_is_enough() -> None:
    running = [
        run(gang(f"e{n}-{i}", "b", pods=2, least=1, size=1), [f"r1-{n}", f"r2-{n}"], since=1.0)
        for n in range(4)
        for i in range(8)
    ]
    nodes = [*rack("r1", 4), *rack("r2", 4)]
    result = plan(inputs(nodes, two_teams(16, 48), [gang("owner", "a")], running, now=NOW))
    assert evicted(result) == {}
    assert sum(isinstance(decision, Resize) for decision in result.decisions) == 8


def test_no_victim_is_evicted_for_capacity_that_is_reserved_for_another() -> None:
    """The gangs that lose least would free the node that is reserved for another gang, which must run there; the
    borrower may be asked for one node only."""
    nodes = [replace(node, labels={"zone": node.name}) for node in rack("r1", 4)]
    running = [
        replace(
            one,
            gang=replace(one.gang, max_runtime_s=20_000.0 if one.gang.uid.endswith("-0") else None),
            checkpoint_at=NOW - (1 if one.gang.uid.endswith("-0") else 500),
        )
        for one in spread_thin(3)
    ]
    running.append(run(gang("lent", "d2"), ["r1-3"], since=0.0))
    queues = [queue("co", None, 64), queue("a", "co", 8), queue("b", "co", 16)]
    queues += [queue("D", "co", 8), queue("d", "D", 8), queue("d2", "D")]
    first = gang("first", "d", at=1.0, roles=[role("trainer", 1, node_selector=(("zone", "r1-0"),))])
    snapshot = inputs(nodes, queues, [first, gang("owner", "a", at=5.0)], running, now=NOW)
    left = {uid.partition("-")[2] for uid, beneficiary in evicted(plan(snapshot)).items() if beneficiary == "owner"}
    assert left in ({"1"}, {"2"})


def test_a_needless_neighbour_keeps_no_node_from_being_freed() -> None:
    """`c` is above its guarantee by one, and has the newest gang on both nodes that `b` alone could free."""
    queues = [queue("co"), queue("a", "co", 24), queue("b", "co", 7), queue("c", "co", 1)]
    running = [
        run(gang(f"{name}-{node}", name, size=size), [f"r1-{node}"], since=since)
        for node in (0, 1)
        for name, size, since in (("a", 3, 0.0), ("b", 4, 1.0), ("c", 1, 900.0))
    ]
    running += [
        run(
            gang(f"{'b' if i >= 5 else 'a'}{i}-{node}", "b" if i >= 5 else "a", size=1), [f"r1-{node}"], since=500.0 + i
        )
        for node in (2, 3)
        for i in range(8)
    ]
    result = plan(inputs(rack("r1", 4), queues, [gang("owner", "a", pods=2, size=4)], running, now=NOW))
    assert sorted(evicted(result)) == ["b-0", "b-1"]


def test_a_paused_gang_is_not_preempted_and_another_is_in_its_place() -> None:
    running = [run(gang("paused", priority=-1), ["r1-0"]), run(gang("other"), ["r1-1"])]
    snapshot = full(running, urgent())
    assert evicted(plan(snapshot)) == {"paused": "urgent"}
    assert evicted(plan(replace(snapshot, paused=frozenset({"paused"})))) == {"other": "urgent"}
    both = replace(snapshot, paused=frozenset({"paused", "other"}))
    assert (evicted(plan(both)), wait_of(both, "urgent").reason) == ({}, "InsufficientResources")
    assert evicted(plan(snapshot, plan(both).cache)) == {"paused": "urgent"}
