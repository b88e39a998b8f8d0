"""What a queue may borrow, which queue may reclaim it, and what reclaiming never does."""

from __future__ import annotations

from dataclasses import replace

from tests.scheduling.builders import two_teams, wait_of
from tests.scheduling.snapshots import (
    GPU,
    evicted,
    gang,
    gpus,
    inputs,
    nominated,
    on,
    queue,
    rack,
    role,
    run,
    started,
    waits_by_uid,
)

from muster.model import Evict, Nomination, QueueInfo, Quota
from muster.scheduling import plan

TWO_NODES = rack("r1", 2)


def test_an_idle_guarantee_is_lent_to_a_sibling() -> None:
    assert list(started(plan(inputs(TWO_NODES, two_teams(), [gang("wide", "a", pods=2)])))) == ["wide"]


def test_a_gang_within_its_guarantee_takes_back_what_a_sibling_borrowed() -> None:
    running = [run(gang("own", "a"), ["r1-0"]), run(gang("borrowed", "a"), ["r1-1"], since=5)]
    result = plan(inputs(TWO_NODES, two_teams(), [gang("owner", "b")], running))
    assert evicted(result) == {"borrowed": "owner"}
    assert Evict("borrowed", "owner", "Reclaimed") in result.decisions


def test_priority_plays_no_part_across_queues() -> None:
    humble_owner = gang("owner", "b", priority=-5)
    running = [run(gang("own", "a", priority=9), ["r1-0"]), run(gang("more", "a", priority=9), ["r1-1"])]
    assert len(evicted(plan(inputs(TWO_NODES, two_teams(), [humble_owner], running)))) == 1
    urgent_borrower = gang("borrower", "b", pods=2, priority=99)
    running = [run(gang("own", "a"), ["r1-0"])]
    assert evicted(plan(inputs(TWO_NODES, two_teams(), [urgent_borrower], running))) == {}


def test_no_gang_within_a_guarantee_is_evicted() -> None:
    running = [run(gang("one", "a"), ["r1-0"]), run(gang("two", "b"), ["r1-1"])]
    queues = [*two_teams(), queue("c", "co", 8)]
    assert evicted(plan(inputs(TWO_NODES, queues, [gang("owner", "c")], running))) == {}


def test_reclaim_stops_as_soon_as_the_other_queue_is_back_at_its_guarantee() -> None:
    # a is 4 above its guarantee, so one of its gangs may be evicted; with it gone the next is a's own.
    running = [run(gang(f"v{i}", "a", size=4), [f"r1-{i // 2}"], since=i) for i in range(4)]
    queues = [queue("co"), queue("a", "co", 12), queue("b", "co", 8)]
    snapshot = inputs(TWO_NODES, queues, [gang("owner", "b", size=4)], running)
    assert evicted(plan(snapshot)) == {"v3": "owner"}
    assert evicted(plan(inputs(TWO_NODES, queues, [gang("owner", "b", pods=2, size=4)], running))) == {}


def test_each_queue_from_the_victim_up_to_below_the_common_ancestor_must_be_above_its_guarantee() -> None:
    # x1 is above its own guarantee, but x as a whole is not: what x1 has it borrowed from its sister x2.
    inside = [queue("co"), queue("x", "co", 16), queue("x1", "x", 8), queue("x2", "x", 8), queue("y", "co", 8)]
    running = [run(gang("a", "x1"), ["r1-0"]), run(gang("b", "x1"), ["r1-1"], since=5)]
    assert evicted(plan(inputs(TWO_NODES, inside, [gang("owner", "y")], running))) == {}
    assert evicted(plan(inputs(TWO_NODES, inside, [gang("sister", "x2")], running))) == {"b": "sister"}


def test_the_guarantee_of_the_department_entitles_a_leaf_that_has_none() -> None:
    queues = [queue("co"), queue("x", "co", 8), queue("x1", "x"), queue("y", "co", 8), queue("y1", "y", 8)]
    running = [run(gang("a", "y1"), ["r1-0"]), run(gang("b", "y1"), ["r1-1"], since=5)]
    assert evicted(plan(inputs(TWO_NODES, queues, [gang("owner", "x1")], running))) == {"b": "owner"}


def test_a_gang_that_must_borrow_evicts_no_gang_of_other_queues() -> None:
    running = [run(gang("one", "a"), ["r1-0"]), run(gang("two", "a"), ["r1-1"])]
    wait = wait_of(inputs(TWO_NODES, two_teams(), [gang("wide", "b", pods=2)], running), "wide")
    assert wait.reason == "QuotaExceeded"
    assert evicted(plan(inputs(TWO_NODES, two_teams(), [gang("wide", "b", pods=2)], running))) == {}


def test_roots_take_nothing_from_each_other() -> None:
    running = [run(gang("one", "a"), ["r1-0"]), run(gang("two", "a"), ["r1-1"])]
    queues = [queue("a", guaranteed=8), queue("b", guaranteed=8)]
    wait = wait_of(inputs(TWO_NODES, queues, [gang("owner", "b")], running), "owner")
    assert wait.reason == "InsufficientResources"


def test_lowering_a_quota_evicts_no_gang_but_makes_the_excess_reclaimable() -> None:
    running = [run(gang("one", "a"), ["r1-0"]), run(gang("two", "a"), ["r1-1"], since=5)]
    lowered = [queue("co", guaranteed=16), queue("a", "co", 8), queue("b", "co", 8)]
    assert plan(inputs(TWO_NODES, lowered, [], running)).decisions == ()
    assert evicted(plan(inputs(TWO_NODES, lowered, [gang("owner", "b")], running))) == {"two": "owner"}


def test_two_queues_do_not_both_borrow_the_same_idle_guarantee() -> None:
    queues = [queue("co"), queue("a", "co", 0), queue("b", "co", 0), queue("idle", "co", 8)]
    result = plan(inputs(TWO_NODES, queues, [gang("one", "a"), gang("two", "b", at=1)]))
    assert (list(started(result)), waits_by_uid(result)["two"].reason) == (["one"], "QuotaExceeded")


def test_what_a_queue_keeps_for_itself_starts_its_owner_at_once() -> None:
    # b lends nothing: a may fill its own 8 only, though both nodes are free, and b's gang starts at once.
    queues = [queue("co"), queue("a", "co", 8), queue("b", "co", 8, lend=0)]
    waiting = [gang("one", "a"), gang("two", "a", at=1), gang("owner", "b", at=2)]
    result = plan(inputs(TWO_NODES, queues, waiting))
    assert set(started(result)) == {"one", "owner"}
    assert waits_by_uid(result)["two"].reason == "QuotaExceeded"


def test_a_limit_nominations_even_if_everything_else_is_idle() -> None:
    queues = [queue("co", guaranteed=16), queue("q", "co", 4, 8)]
    wait = wait_of(inputs(TWO_NODES, queues, [gang("g", pods=2)]), "g")
    assert (wait.reason, wait.message) == (
        "LargerThanQuota",
        "needs 16 GPUs of h200; queue q can never use more than 8 GPUs",
    )


def test_each_resource_is_counted_for_itself() -> None:
    cores = QueueInfo("q", quotas=(Quota("h200", GPU, 8), Quota("h200", "cpu", 10_000)))
    heavy = gang("heavy", roles=[role("trainer", 1, request=gpus(1, cpu=16))])
    wait = wait_of(inputs(TWO_NODES, [cores], [heavy]), "heavy")
    assert wait.message == "needs 16 cores of h200; queue q can never use more than 10 cores"


def test_a_nomination_is_charged_so_that_others_do_not_borrow_its_quota() -> None:
    nominee = gang("nominee", "b", at=9)
    leaving = run(gang("leaving", "a"), ["r1-1"], state="evicting", preemptor="nominee")
    nomination = Nomination("nominee", on(["r1-1"]), ("leaving",), expires_at=2000.0)
    third = rack("r2", 1)
    snapshot = inputs(
        TWO_NODES + third, two_teams(), [nominee, gang("two", "a", pods=2)], [leaving], nominations=(nomination,)
    )
    assert waits_by_uid(plan(snapshot))["two"].reason == "QuotaExceeded"
    assert list(started(plan(replace(snapshot, running=(), nominations=(), pending=snapshot.pending[1:])))) == ["two"]


def test_capacity_reclaimed_from_borrowers_is_not_lent_again_while_its_owner_waits() -> None:
    running = [run(gang("own", "a"), ["r1-0"]), run(gang("borrowed", "a"), ["r1-1"], since=5)]
    result = plan(inputs(TWO_NODES, two_teams(), [gang("owner", "b", at=9), gang("again", "a", at=0)], running))
    assert set(nominated(result)) == {"owner"}
    assert "again" in waits_by_uid(result)


def test_flavors_are_counted_apart() -> None:
    both = QueueInfo("q", quotas=(Quota("a100", GPU, 8), Quota("h200", GPU, 0)))
    nodes = rack("x", 1, flavor="a100") + TWO_NODES
    snapshot = inputs(nodes, [both], [gang("g", flavors=("h200",)), gang("h", flavors=("h200", "a100"), at=1)])
    result = plan(snapshot)
    assert started(result)["h"][0].flavor == "a100"
    assert waits_by_uid(result)["g"].reason == "LargerThanQuota"
