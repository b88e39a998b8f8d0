"""Nominations: which gang starts on one, which may take it, when it ends. The time is 1000."""

from __future__ import annotations

from dataclasses import replace

from tests.scheduling.builders import in_order, message_of, two_teams, wait_of
from tests.scheduling.snapshots import (
    carried_out,
    evicted,
    gang,
    inputs,
    left,
    nodes_of,
    nominated,
    on,
    queue,
    rack,
    run,
    started,
    waits_by_uid,
)

from muster.model import NodeTaint, Nomination
from muster.scheduling import plan

QUEUE = [queue("q", guaranteed=1000)]
NOMINEE = gang("nominee", at=9)


def nomination(*nodes: str, victims: tuple[str, ...] = (), until: float = 2000.0, uid: str = "nominee") -> Nomination:
    return Nomination(uid, on(nodes), victims, until)


def test_a_gang_starts_exactly_on_its_nominated_capacity() -> None:
    result = plan(inputs(rack("r1", 3), QUEUE, [NOMINEE, gang("first", at=0)], nominations=(nomination("r1-2"),)))
    assert nodes_of(started(result)["nominee"]) == {"r1-2": 1}
    assert nodes_of(started(result)["first"]) == {"r1-0": 1}


def test_a_gang_does_not_start_on_a_nominated_node_that_was_tainted() -> None:
    nodes = rack("r1", 2)
    tainted = [nodes[0], replace(nodes[1], taints=(NodeTaint("example.com/upkeep"),))]
    result = plan(inputs(tainted, QUEUE, [NOMINEE], nominations=(nomination("r1-1"),)))
    assert nodes_of(started(result)["nominee"]) == {"r1-0": 1}


def test_nominated_capacity_is_reserved_while_its_gang_waits_for_victims() -> None:
    leaving = run(gang("old", size=4), ["r1-0"], state="evicting", preemptor="nominee")
    snapshot = inputs(
        rack("r1", 1),
        QUEUE,
        [NOMINEE, gang("small", size=4, at=0)],
        [leaving],
        nominations=(nomination("r1-0", victims=("old",)),),
    )
    result = plan(snapshot)
    assert (started(result), evicted(result)) == ({}, {})
    assert waits_by_uid(result)["nominee"].message == "1 node nominated; waiting for ns/old to terminate"
    assert in_order(plan(left(snapshot))) == ["nominee"]


def test_a_nomination_ends_at_its_expiry() -> None:
    snapshot = inputs(
        rack("r1", 1), QUEUE, [NOMINEE, gang("first", at=0)], nominations=(nomination("r1-0", until=1000.0),)
    )
    assert in_order(plan(snapshot)) == ["first"]
    assert in_order(plan(replace(snapshot, now=999.9))) == ["nominee"]


def test_a_nomination_of_a_gang_that_is_gone_or_runs_is_over() -> None:
    for running in ([], [run(NOMINEE, ["r1-0"])]):
        nodes = rack("r1", 2)[0 if running else 1 :]
        result = plan(inputs(nodes, QUEUE, [gang("other")], running, nominations=(nomination("r1-1"),)))
        assert nodes_of(started(result)["other"]) == {"r1-1": 1}


def test_capacity_is_retained_for_a_gang_in_backoff() -> None:
    kept = replace(nomination("r1-0"), nominated_gang=NOMINEE)
    assert (
        waits_by_uid(plan(inputs(rack("r1", 1), QUEUE, [gang("other")], nominations=(kept,))))["other"].reason
        == "InsufficientResources"
    )


def test_a_gang_whose_nominated_node_was_lost_is_scheduled_first_elsewhere() -> None:
    snapshot = inputs(
        rack("r1", 1), QUEUE, [NOMINEE, gang("first", at=0, priority=3)], nominations=(nomination("gone-0"),)
    )
    assert in_order(plan(snapshot)) == ["nominee"]
    cordoned = rack("r1", 1) + rack("r2", 1, schedulable=False)
    assert nodes_of(
        started(plan(inputs(cordoned, QUEUE, [NOMINEE], nominations=(nomination("r2-0"),))))["nominee"]
    ) == {"r1-0": 1}


def test_a_nomination_of_a_part_is_completed_beside_it_in_the_same_domain() -> None:
    nodes = rack("r1", 3) + rack("r2", 3)
    wide = gang("nominee", pods=2, required="rack")
    assert set(nodes_of(started(plan(inputs(nodes, QUEUE, [wide], nominations=(nomination("r2-1"),))))["nominee"])) == {
        "r2-0",
        "r2-1",
    }


def test_a_nomination_of_a_part_whose_domain_has_no_more_capacity_is_given_up() -> None:
    nodes = rack("r1", 2) + rack("r2", 2)
    wide = gang("nominee", pods=2, required="rack")
    full = run(gang("x"), ["r2-0"])
    place = started(plan(inputs(nodes, QUEUE, [wide], [full], nominations=(nomination("r2-1"),))))["nominee"]
    assert set(nodes_of(place)) == {"r1-0", "r1-1"}


def test_a_higher_priority_of_the_leaf_may_take_a_nomination_and_an_equal_one_may_not() -> None:
    leaving = run(gang("old", priority=-1), ["r1-0"], state="evicting", preemptor="nominee")
    for priority, takes in ((1, {"nominee": "rival"}), (0, {})):
        rival = gang("rival", priority=priority, at=0)
        snapshot = inputs(
            rack("r1", 1), QUEUE, [NOMINEE, rival], [leaving], nominations=(nomination("r1-0", victims=("old",)),)
        )
        assert evicted(plan(snapshot)) == takes


def test_the_nomination_of_a_paused_gang_is_not_taken() -> None:
    snapshot = inputs(rack("r1", 1), QUEUE, [NOMINEE, gang("rival", priority=1)], nominations=(nomination("r1-0"),))
    backing_off = replace(snapshot.nominations[0], nominated_gang=NOMINEE)
    paused = replace(snapshot, pending=snapshot.pending[1:], nominations=(backing_off,), paused=frozenset({"nominee"}))
    assert evicted(plan(replace(paused, paused=frozenset()))) == {"nominee": "rival"}
    assert (evicted(plan(paused)), started(plan(paused))) == ({}, {})


def test_a_gang_that_takes_a_nomination_waits_for_its_victims_and_evicts_no_others() -> None:
    leaving = run(gang("old", priority=-1), ["r1-0"], state="evicting", preemptor="nominee")
    snapshot = inputs(
        rack("r1", 1),
        QUEUE,
        [NOMINEE, gang("rival", priority=1)],
        [leaving],
        nominations=(nomination("r1-0", victims=("old",)),),
    )
    result = plan(snapshot)
    assert nominated(result)["rival"].victims == ("old",)
    assert waits_by_uid(result)["nominee"].message == "its nominated capacity went to a gang ahead of it"
    assert list(started(plan(left(carried_out(snapshot, result.decisions))))) == ["rival"]


def test_another_queue_takes_a_nomination_back_only_from_borrowed_quota() -> None:
    leaving = run(gang("old", "a"), ["r1-1"], state="evicting", preemptor="nominee")
    own = run(gang("own", "a", priority=9), ["r1-0"])
    kept = nomination("r1-1", victims=("old",))
    owner = gang("owner", "b")
    borrowing = inputs(rack("r1", 2), two_teams(), [gang("nominee", "a"), owner], [own, leaving], nominations=(kept,))
    assert evicted(plan(borrowing)) == {"nominee": "owner"}
    entitled = inputs(
        rack("r1", 2), two_teams(16, 8), [gang("nominee", "a"), owner], [own, leaving], nominations=(kept,)
    )
    assert evicted(plan(entitled)) == {}


def test_a_nominated_gang_whose_victim_has_left_starts_although_a_higher_priority_came_meanwhile() -> None:
    before = inputs(rack("r1", 1), QUEUE, [gang("mid", priority=3)], [run(gang("low"), ["r1-0"])])
    after = left(carried_out(before, plan(before).decisions))
    late = replace(after, pending=(*after.pending, gang("high", priority=9, at=999)))
    result = plan(late)
    assert (in_order(result), evicted(result)) == (["mid"], {})


def test_nominations_are_charged_to_the_queue() -> None:
    snapshot = inputs(
        rack("r1", 3),
        [queue("q", guaranteed=16)],
        [gang("wide", pods=2)],
        nominations=(replace(nomination("r1-0"), nominated_gang=NOMINEE),),
    )
    assert message_of(snapshot, "wide") == (
        "needs 16 GPUs of h200; queue q has 8 of 16 left and may borrow 0; 8 GPUs are nominated for job ns/nominee"
    )
    assert wait_of(snapshot, "wide").reason == "QuotaExceeded"


def test_a_gang_whose_old_pods_are_terminating_waits_even_if_it_is_nominated() -> None:
    stopping = run(NOMINEE, ["r1-0"], state="terminating")
    wait = wait_of(inputs(rack("r1", 1), QUEUE, [NOMINEE], [stopping], nominations=(nomination("r1-0"),)), "nominee")
    assert (wait.reason, wait.message) == ("WaitingForPreemption", "pods of its previous attempt are still terminating")


def test_a_queue_whose_only_nomination_was_used_in_this_plan_has_no_candidates() -> None:
    tree = [queue("co", guaranteed=64), queue("a", "co", 16), queue("b", "co", 0), queue("d", "co", 0)]
    blocked = gang("blocked", pods=2, queue="d", at=0)  # has its turn first: `b` still has a nomination then
    borrower, entitled = gang("nominee", queue="b", at=1), gang("entitled", queue="a", at=2)
    nominations = (nomination("gone-0", uid="blocked"), nomination("r1-1"))
    running = [run(gang("old", queue="a", priority=9), ["r1-0"])]
    result = plan(inputs(rack("r1", 2), tree, [blocked, borrower, entitled], running, nominations=nominations))
    assert (in_order(result), evicted(result)) == (["nominee"], {})
    assert waits_by_uid(result)["entitled"].reason == "InsufficientResources"
    urgent = gang("urgent", queue="b", priority=5, at=2)
    result = plan(inputs(rack("r1", 2), tree, [blocked, borrower, urgent], running, nominations=nominations))
    assert (in_order(result), evicted(result)) == (["nominee"], {})


def test_the_nomination_of_a_gang_that_backs_off_can_be_taken_over_too() -> None:
    kept = replace(nomination("r1-0"), nominated_gang=NOMINEE)
    waiting = [gang("urgent", priority=5), gang("other")]
    result = plan(inputs(rack("r1", 1), QUEUE, waiting, nominations=(kept,)))
    assert evicted(result) == {"nominee": "urgent"}
    assert waits_by_uid(result).keys() == {"urgent", "other"}


def test_an_infeasible_gang_keeps_its_reason_although_its_nomination_is_taken() -> None:
    tree = [queue("co", guaranteed=8), queue("a", "co", 8), queue("b", "co", 0)]
    reasons = {
        "UnknownTopologyLevel": gang("nominee", queue="b", required="aisle"),
        "FlavorNotFound": gang("nominee", queue="b", flavors=("b300",)),
        "LargerThanCluster": gang("nominee", queue="b", pods=2),
    }
    for code, nominee in reasons.items():
        result = plan(
            inputs(rack("r1", 1), tree, [nominee, gang("owner", queue="a")], nominations=(nomination("r1-0"),))
        )
        assert evicted(result) == {"nominee": "owner"}
        assert waits_by_uid(result)["nominee"].reason == code


def test_a_nomination_beyond_quota_is_charged_until_it_expires() -> None:
    nominee, small = gang("nominee", "a", pods=2), gang("small", "b", at=9, runtime=10.0)
    other = run(gang("other", "a", runtime=3600.0), ["r1-3"])
    nodes, teams = rack("r1", 4), [queue("a", "co"), queue("b", "co")]
    place = started(plan(inputs(nodes, [queue("co", guaranteed=24), *teams], [nominee])))["nominee"]
    nomination = Nomination("nominee", place, (), expires_at=2000.0)
    snapshot = inputs(nodes, [queue("co", guaranteed=16), *teams], [nominee, small], [other], nominations=(nomination,))
    assert waits_by_uid(plan(snapshot)).keys() == {"nominee", "small"}
    assert started(plan(replace(snapshot, now=2000.0))).keys() == {"small"}


def test_a_nomination_that_is_replaced_by_another_one_is_charged_no_more() -> None:
    nominee, later = gang("nominee", priority=5), gang("later", at=9)
    victim, other = run(gang("victim", priority=-1), ["r1-1"]), run(gang("other", priority=9), ["r1-2"])
    nodes, queues = rack("r1", 3), [queue("q", guaranteed=32)]
    place = started(plan(inputs(nodes, queues, [nominee], [victim, other])))["nominee"]
    nomination = Nomination("nominee", place, (), expires_at=2000.0)
    cordoned = [replace(node, schedulable=node.name not in nodes_of(place)) for node in nodes]
    result = plan(inputs(cordoned, queues, [nominee, later], [victim, other], nominations=(nomination,)))
    assert evicted(result) == {"victim": "nominee"}
    assert nominated(result).keys() == {"nominee"}
    assert waits_by_uid(result)["later"].reason == "InsufficientResources"  # not for quota: 24 GPUs of 32 are charged


def test_of_two_conflicting_nominations_the_guaranteed_one_takes_the_other() -> None:
    """Both are written when the engine dies between the two writes that replace one by the other."""
    tree = [queue("co"), queue("a", "co", 8), queue("b", "co", 8)]
    borrower = gang("borrower", "a", pods=2, priority=5)
    entitled, leaving = gang("entitled", "b", at=9), run(gang("old", "a"), ["r1-0"], state="evicting")
    nominations = (
        nomination("r1-0", "r1-1", uid="borrower", victims=("old",)),
        nomination("r1-0", uid="entitled", victims=("old",)),
    )
    snapshot = inputs(rack("r1", 2), tree, [borrower, entitled], [leaving], nominations=nominations)
    result = plan(snapshot)
    assert evicted(result) == {"borrower": "entitled"}
    assert nominated(result).keys() == {"entitled"}
    assert in_order(plan(left(carried_out(snapshot, result.decisions)))) == ["entitled", "old"]


def test_a_nomination_in_a_flavor_that_the_gang_may_no_longer_use_is_not_used() -> None:
    nodes = [*rack("x", 1, flavor="a100"), *rack("r1", 1)]
    elsewhere = Nomination("nominee", on(["x-0"], flavor="a100"), (), 2000.0)
    result = plan(inputs(nodes, QUEUE, [NOMINEE], nominations=(elsewhere,)))
    assert nodes_of(started(result)["nominee"]) == {"r1-0": 1}
    result = plan(inputs(nodes[:1], QUEUE, [NOMINEE], nominations=(elsewhere,)))
    assert started(result) == {}


def test_a_gang_whose_nomination_ended_preempts_although_an_equal_gang_before_it_found_no_victims() -> None:
    first, second = gang("first", pods=2, priority=5), gang("second", pods=2, priority=5, at=1, runtime=60.0)
    nominations = (nomination("gone-0", "gone-1", uid="first"), nomination("r1-1", "gone-2", uid="second"))
    low = run(gang("low", runtime=10_000.0), ["r1-0"])  # `second` is gone before the reservation of `first`
    result = plan(inputs(rack("r1", 2), QUEUE, [first, second], [low], nominations=nominations))
    assert evicted(result) == {"low": "second"}
    assert set(nodes_of(nominated(result)["second"].placement)) == {"r1-0", "r1-1"}


# -- a nomination that its gang cannot use is charged until it expires, and the gang waits in the queue meanwhile

LOST = gang("nominee", pods=2, required="rack", grace_s=0.0)
"""Its nomination has one of its nodes; the other one is gone."""


def test_quota_is_not_charged_for_a_lost_nomination_and_for_the_reservation_of_its_gang_too() -> None:
    # From 2060 on `nominee` has the reservation: 16 of 24 GPUs; before that the nomination (8) and `long` (8).
    nodes = rack("r1", 2) + rack("r2", 1, size=4)
    long = run(gang("long", runtime=2000.0), ["r1-1"], since=0.0)
    waiting = [LOST, gang("small", size=4, at=20)]
    snapshot = inputs(
        nodes, [queue("q", guaranteed=24)], waiting, [long], nominations=(nomination("r1-0", until=5000.0),)
    )
    result = plan(snapshot)
    assert waits_by_uid(result)["nominee"].estimated_start == 2060.0
    assert nodes_of(started(result)["small"]) == {"r2-0": 1}


def test_quota_is_not_charged_twice_if_the_gang_of_a_lost_nomination_waits_for_terminating_pods_only() -> None:
    nodes = rack("r1", 2) + rack("r2", 1, size=4)
    leaving = run(gang("leaving", queue="gone"), ["r1-1"], state="terminating")
    waiting, lost = [LOST, gang("small", size=4, at=20)], nomination("gone-0", "gone-1")
    snapshot = inputs(nodes, [queue("q", guaranteed=20)], waiting, [leaving], nominations=(lost,))
    assert nodes_of(started(plan(snapshot))["small"]) == {"r2-0": 1}


def test_a_guarantee_is_not_used_up_by_a_lost_nomination_and_by_its_waiting_gang_too() -> None:
    # 28 GPUs are guaranteed to a: 8 run, `nominee` waits for 16, and 4 are left for `small`.
    nodes = rack("r1", 2) + rack("r2", 1, size=4)
    running = [run(gang("own", "a", priority=9), ["r1-1"]), run(gang("borrower", "b", size=4), ["r2-0"])]
    for guaranteed, taken in ((28, {"borrower": "small"}), (27, {})):
        waiting = [replace(LOST, queue="a"), gang("small", "a", size=4, at=20)]
        snapshot = inputs(nodes, two_teams(guaranteed, 0), waiting, running, nominations=(nomination("r1-0"),))
        assert evicted(plan(snapshot)) == taken


def test_a_lost_nomination_beside_a_reservation_can_still_be_taken() -> None:
    long = run(gang("long", runtime=2000.0, priority=9), ["r1-1"], since=0.0)
    waiting = [LOST, gang("urgent", priority=5, at=20, runtime=60.0)]
    result = plan(inputs(rack("r1", 2), QUEUE, waiting, [long], nominations=(nomination("r1-0"),)))
    assert evicted(result) == {"nominee": "urgent"}
