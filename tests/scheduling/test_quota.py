"""What quota means for a plan: which resources and flavors it limits, and who is charged."""

from __future__ import annotations

from tests.scheduling.snapshots import gang, inputs, queue, rack, run, started, waits_by_uid

from muster.scheduling import plan


def test_a_resource_that_no_queue_on_the_path_names_is_not_limited() -> None:
    greedy = gang("g", pods=1, size=0)  # asks for a pod slot only; the queue names GPUs
    assert started(plan(inputs(rack("r1", 1), [queue("q", guaranteed=0)], [greedy])))


def test_a_flavor_that_no_queue_on_the_path_names_cannot_be_used() -> None:
    wait = waits_by_uid(
        plan(inputs(rack("r1", 1), [queue("q", guaranteed=8, flavor="a100")], [gang("g", flavors=("h200",))]))
    )
    assert wait["g"].reason == "FlavorNotAllowed"
    assert wait["g"].message == ("needs nodes of flavor h200, but the queue may use none of them (queue q names a100)")


def test_a_root_with_a_limit_alone_is_used_up_to_it() -> None:
    gangs = [gang(uid, at=float(i)) for i, uid in enumerate("abc")]
    result = plan(inputs(rack("r1", 4), [queue("q", limit=16)], gangs))
    assert list(started(result)) == ["a", "b"]
    assert waits_by_uid(result)["c"].message == "needs 8 GPUs of h200; queue q has 0 of 16 left and may borrow 0"


def test_pods_that_still_terminate_are_charged() -> None:
    stopping = run(gang("old"), ["r1-0"], state="terminating")
    snapshot = inputs(rack("r1", 2), [queue("q", guaranteed=8)], [gang("new")], [stopping])
    assert waits_by_uid(plan(snapshot))["new"].reason == "QuotaExceeded"


def test_a_gang_whose_queue_was_deleted_takes_capacity_but_charges_no_queue() -> None:
    orphan = run(gang("old", "gone"), ["r1-0"])
    queues = [queue("q", guaranteed=16)]
    assert list(started(plan(inputs(rack("r1", 2), queues, [gang("one")], [orphan])))) == ["one"]
    assert (
        waits_by_uid(plan(inputs(rack("r1", 2), queues, [gang("two", pods=2)], [orphan])))["two"].reason
        == "InsufficientResources"
    )
