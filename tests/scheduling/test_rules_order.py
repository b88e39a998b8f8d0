"""The queue order: guarantee, share down the tree, priority in the leaf, submit time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.scheduling.builders import gpu_hours, in_order, two_teams, wait_of
from tests.scheduling.snapshots import HOUR, evicted, gang, inputs, queue, rack, run, started, waits_by_uid

from muster.model import DecayedUsage, Nomination, Quota
from muster.scheduling import plan

ONE_NODE = rack("r1", 1)


def test_in_a_leaf_the_higher_priority_goes_first() -> None:
    waiting = [gang("low", at=0), gang("high", at=9, priority=1)]
    assert in_order(plan(inputs(ONE_NODE, [queue("q", guaranteed=8)], waiting))) == ["high"]


def test_at_equal_priority_the_first_submitted_goes_first() -> None:
    waiting = [gang("later", at=2), gang("sooner", at=1)]
    assert in_order(plan(inputs(ONE_NODE, [queue("q", guaranteed=8)], waiting))) == ["sooner"]


def test_submitted_together_the_uid_decides_and_not_the_place_in_the_snapshot() -> None:
    for waiting in ([gang("x"), gang("y")], [gang("y"), gang("x")]):
        assert in_order(plan(inputs(ONE_NODE, [queue("q", guaranteed=8)], waiting))) == ["x"]


def test_a_gang_with_a_nomination_goes_before_any_priority_of_its_leaf() -> None:
    nominee, urgent = gang("nominee"), gang("urgent", priority=9, at=-1.0)
    place = started(plan(inputs(ONE_NODE, [queue("q", guaranteed=8)], [nominee])))["nominee"]
    nomination = Nomination("nominee", place, (), expires_at=2000.0)
    calm = gang("calm", at=-1.0)  # equal priority, came first: it may not take the nomination
    snapshot = inputs(ONE_NODE, [queue("q", guaranteed=8)], [calm, nominee], nominations=(nomination,))
    assert in_order(plan(snapshot)) == ["nominee"]
    snapshot = inputs(ONE_NODE, [queue("q", guaranteed=8)], [urgent, nominee], nominations=(nomination,))
    assert in_order(plan(snapshot)) == ["nominee"]


def test_gangs_within_the_guarantee_come_before_borrowers_of_a_queue_with_a_smaller_share() -> None:
    queues = [queue("co", guaranteed=16), queue("a", "co", 8), queue("b", "co", 0)]
    waiting = [gang("borrower", "b", at=0), gang("entitled", "a", at=5)]
    snapshot = inputs(ONE_NODE, queues, waiting, usage=gpu_hours({"a": 9}))
    assert in_order(plan(snapshot)) == ["entitled"]


def test_gangs_of_a_queue_without_any_quota_are_within_no_guarantee() -> None:
    anything = replace(queue("anything"), quotas=(Quota("h200", "", None, None, None),))
    waiting = [gang("large", "anything", pods=2, at=0), gang("entitled", "mine", pods=2, at=5)]
    nodes = rack("r1", 2)
    assert in_order(plan(inputs(nodes, [anything, queue("mine", guaranteed=16)], waiting))) == ["entitled"]
    assert in_order(plan(inputs(nodes, [anything, queue("mine", guaranteed=0)], waiting))) == ["large"]


def test_gangs_within_guarantee_come_before_borrowers_even_behind_one_in_their_leaf() -> None:
    # `large` is the head of its leaf and would have to borrow; if the borrower of b started instead of the small gang
    # behind it, the small one would reclaim its capacity at once, again and again.
    waiting = [gang("large", "a", pods=2, at=0), gang("borrower", "b", at=1), gang("small", "a", at=2)]
    queues = [queue("co", guaranteed=16), queue("a", "co", 8), queue("b", "co", 0)]
    elsewhere = run(gang("elsewhere", "gone"), ["r1-0"])
    snapshot = inputs(rack("r1", 2), queues, waiting, [elsewhere], usage=gpu_hours({"a": 1}))
    assert in_order(plan(snapshot)) == ["small"]


def test_a_gang_is_not_within_a_guarantee_that_one_ahead_of_it_in_its_leaf_waits_for() -> None:
    # `large` fits the guarantee of a once its other gang has ended; were `small` entitled before it, small ones would
    # pass it for ever. So the head of b, which is entitled, goes first, and no gang is evicted for `small`.
    queues = [queue("co", guaranteed=32), queue("a", "co", 16), queue("b", "co", 8)]
    busy = run(gang("busy", "a"), ["r1-0"])
    waiting = [gang("large", "a", pods=2, at=0), gang("small", "a", at=1), gang("of-b", "b", at=2)]
    snapshot = inputs(rack("r1", 3), queues, waiting, [busy], usage=gpu_hours({"b": 9}))
    assert in_order(plan(snapshot))[:1] == ["of-b"]
    borrowers = [run(gang(f"more{i}", "b"), [f"r1-{i + 1}"]) for i in range(2)]
    assert "small" not in evicted(plan(inputs(rack("r1", 3), queues, waiting[:2], [busy, *borrowers]))).values()
    alone = inputs(rack("r1", 3), queues, waiting[1:2], [busy, *borrowers])
    assert list(evicted(plan(alone)).values()) == ["small"], "without the large one it is entitled"


def test_the_smallest_share_goes_first() -> None:
    waiting = [gang("of-a", "a", at=0), gang("of-b", "b", at=5)]
    snapshot = inputs(ONE_NODE, two_teams(), waiting, usage=gpu_hours({"a": 2, "b": 1}))
    assert in_order(plan(snapshot)) == ["of-b"]


def test_a_share_is_divided_by_the_weight() -> None:
    queues = [queue("co", guaranteed=16), queue("a", "co", 8, weight=4.0), queue("b", "co", 8)]
    waiting = [gang("of-a", "a", at=5), gang("of-b", "b", at=0)]
    snapshot = inputs(ONE_NODE, queues, waiting, usage=gpu_hours({"a": 3, "b": 1}))
    assert in_order(plan(snapshot)) == ["of-a"]


def test_the_share_of_a_queue_is_that_of_its_scarcest_resource() -> None:
    # a used an eighth of all a100, b a quarter of all h200 though fewer GPU hours.
    queues = [
        queue("co", guaranteed=8),
        queue("a", "co", 0),
        queue("b", "co", 0),
    ]
    wide = queue("co", guaranteed=64, flavor="a100")
    queues[0] = type(queues[0])("co", quotas=queues[0].quotas + wide.quotas)
    usage = (*gpu_hours({"a": 8}, flavor="a100"), *gpu_hours({"b": 2}))
    waiting = [gang("of-b", "b", at=0, flavors=("h200",)), gang("of-a", "a", at=5, flavors=("h200",))]
    assert in_order(plan(inputs(ONE_NODE, queues, waiting, usage=usage))) == ["of-a"]


def test_shares_are_compared_at_each_level_of_the_tree_from_the_top() -> None:
    # x as a whole used less than y, though its leaf x1 used more than y's leaf y2.
    queues = [queue("co", guaranteed=16), queue("x", "co"), queue("y", "co")]
    queues += [queue("x1", "x", 0), queue("y1", "y", 0), queue("y2", "y", 0)]
    waiting = [gang("of-x1", "x1", at=9), gang("of-y2", "y2", at=0)]
    snapshot = inputs(ONE_NODE, queues, waiting, usage=gpu_hours({"x1": 3, "y1": 5, "y2": 1}))
    assert in_order(plan(snapshot)) == ["of-x1"]


def test_what_a_plan_places_counts_towards_the_share_at_once_so_equals_take_turns() -> None:
    waiting = [gang(f"{team}{i}", team, at=i) for team in ("a", "b") for i in range(2)]
    assert in_order(plan(inputs(rack("r1", 4), two_teams(16, 16), waiting))) == ["a0", "b0", "a1", "b1"]


def test_priority_counts_inside_a_leaf_only() -> None:
    waiting = [gang("urgent", "a", priority=9, at=0), gang("humble", "b", at=5)]
    snapshot = inputs(ONE_NODE, two_teams(), waiting, usage=gpu_hours({"a": 1}))
    assert in_order(plan(snapshot)) == ["humble"]


def test_a_share_orders_and_never_evicts() -> None:
    hog = run(gang("hog", "a"), ["r1-0"])
    snapshot = inputs(ONE_NODE, two_teams(), [gang("poor", "b", at=5)], [hog], usage=gpu_hours({"a": 500}))
    assert evicted(plan(snapshot)) == {}
    assert evicted(plan(inputs(ONE_NODE, [queue("co"), queue("a", "co", 4), queue("b", "co", 4)], [], [hog]))) == {}


def test_usage_of_a_queue_that_is_gone_is_passed_over() -> None:
    usage = (DecayedUsage("gone", "h200", "nvidia.com/gpu", HOUR), *gpu_hours({"a": 1}))
    snapshot = inputs(ONE_NODE, two_teams(), [gang("of-a", "a"), gang("of-b", "b", at=5)], usage=usage)
    assert in_order(plan(snapshot)) == ["of-b"]


@pytest.mark.parametrize(("own", "above"), [(5, None), (None, 5), (9, 5)])
def test_max_priority_of_any_queue_on_the_path_caps_the_priority(own: int | None, above: int | None) -> None:
    queues = [queue("co", guaranteed=8, max_priority=above), queue("q", "co", max_priority=own)]
    wait = wait_of(inputs(ONE_NODE, queues, [gang("g", priority=6)]), "g")
    assert (wait.reason, wait.message) == ("PriorityTooHigh", "has priority 6; queue q allows at most 5")
    assert started(plan(inputs(ONE_NODE, queues, [gang("g", priority=5)])))


def test_a_gang_that_can_never_start_blocks_no_gang() -> None:
    queues = [queue("q", guaranteed=8, max_priority=5)]
    waiting = [gang("too-high", priority=6, at=0), gang("fine", at=5)]
    assert in_order(plan(inputs(ONE_NODE, queues, waiting))) == ["fine"]


def test_positions_count_in_the_order_of_the_leaf() -> None:
    waiting = [gang("c", at=3), gang("b", at=2), gang("a", at=9, priority=1)]
    busy = run(gang("busy", priority=9), ["r1-0"])
    waits = waits_by_uid(plan(inputs(ONE_NODE, [queue("q", guaranteed=8)], waiting, [busy])))
    assert {uid: wait.position for uid, wait in waits.items()} == {"a": 1, "b": 2, "c": 3}


def test_first_submission_counts_after_an_eviction() -> None:
    # It was evicted and waits again: what came in the meantime stays behind it.
    waiting = [gang("since", at=500), gang("evicted-before", at=1)]
    assert in_order(plan(inputs(ONE_NODE, [queue("q", guaranteed=8)], waiting))) == ["evicted-before"]
