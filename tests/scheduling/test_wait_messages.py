"""The exact wait message of every reason, with its numbers. The time is 1000."""

from __future__ import annotations

import pytest
from tests.scheduling.builders import message_of, two_teams, wait_of
from tests.scheduling.snapshots import (
    GIB,
    GPU,
    carried_out,
    gang,
    gpus,
    inputs,
    on,
    queue,
    rack,
    role,
    run,
    waits_by_uid,
)

from muster.model import FlavorInfo, Nomination, QueueInfo, Quota, Resources, Snapshot, Wait
from muster.scheduling import FIFO, plan

QUEUE = [queue("q", guaranteed=1000)]
ONE = rack("r1", 1)
TWO = rack("r1", 2)


def reason_and_message(snapshot: Snapshot, uid: str = "g") -> tuple[str, str]:
    """Code and sentence."""
    wait = wait_of(snapshot, uid)
    return wait.reason, wait.message


def test_queue_not_found() -> None:
    wait = wait_of(inputs(ONE, QUEUE, [gang("g", "nowhere")]), "g")
    assert wait == Wait("g", "QueueNotFound", "queue nowhere does not exist", None, None)


def test_queue_inactive_says_which_and_why() -> None:
    deleted = [queue("q", guaranteed=8, active=False, inactive_reason="it is being deleted")]
    assert reason_and_message(inputs(ONE, deleted, [gang("g")])) == (
        "QueueInactive",
        "queue q admits nothing: it is being deleted",
    )
    assert message_of(inputs(ONE, [queue("q", "lost", 8)], [gang("g")]), "g") == (
        "queue q admits nothing: its parent lost does not exist"
    )
    circle = [queue("q", "p", 8), queue("p", "q")]
    assert wait_of(inputs(ONE, circle, [gang("g")]), "g").reason == "QueueInactive"
    below = [queue("co", guaranteed=8, active=False), queue("q", "co")]
    assert message_of(inputs(ONE, below, [gang("g")]), "g") == "queue q admits nothing: it is not active"


def test_queue_not_allowed_names_where_jobs_may_go() -> None:
    assert reason_and_message(inputs(ONE, two_teams(), [gang("g", "co")])) == (
        "QueueNotAllowed",
        "queue co has child queues; submit jobs to one of these: a, b",
    )


def test_priority_too_high() -> None:
    assert reason_and_message(inputs(ONE, [queue("q", guaranteed=8, max_priority=3)], [gang("g", priority=4)])) == (
        "PriorityTooHigh",
        "has priority 4; queue q allows at most 3",
    )


def test_a_flavor_that_does_not_exist_has_another_reason_than_one_that_the_queue_may_not_use() -> None:
    assert reason_and_message(inputs(ONE, QUEUE, [gang("g", flavors=("b300",))])) == (
        "FlavorNotFound",
        "needs nodes of flavor b300, but no such flavor exists (queue q names h200)",
    )
    assert reason_and_message(inputs(ONE, QUEUE, [gang("g", flavors=("a100",))])) == (
        "FlavorNotAllowed",
        "needs nodes of flavor a100, but the queue may use none of them (queue q names h200)",
    )
    assert reason_and_message(inputs(ONE, [QueueInfo("q")], [gang("g", flavors=("a100",))])) == (
        "FlavorNotAllowed",
        "needs nodes of flavor a100, but the queue may use none of them (queue q names no flavor)",
    )
    assert reason_and_message(inputs(ONE, [QueueInfo("q")], [gang("g")])) == (
        "FlavorNotAllowed",
        "needs nodes, but the queue may use no flavor (queue q names no flavor)",
    )


def test_of_several_flavors_those_that_do_not_exist_are_named_apart_from_those_that_the_queue_may_not_use() -> None:
    reason, message = reason_and_message(inputs(ONE, QUEUE, [gang("g", flavors=("a100", "b300", "b400"))]))
    assert (reason, message.partition(", but ")[2]) == (
        "FlavorNotFound",
        "b300 and b400 do not exist, and the queue may not use a100 (queue q names h200)",
    )
    assert message.startswith("needs nodes of flavor a100 or b300 or b400, but ")
    named = [queue("q", guaranteed=8, flavor="b300")]
    assert reason_and_message(inputs(ONE, named, [gang("g", flavors=("b300", "a100"))]))[0] == "FlavorNotFound"


def test_the_flavors_of_all_roles_are_named_and_the_reason_is_that_of_the_first() -> None:
    roles = [role("a", 1, flavors=("h200",)), role("b", 1, flavors=("a100",)), role("c", 1, flavors=("b300",))]
    reason, message = reason_and_message(inputs(ONE, QUEUE, [gang("g", roles=roles)]))
    assert (reason, message.split("; also: ")) == (
        "FlavorNotAllowed",
        [
            "needs nodes of flavor a100, but the queue may use none of them",
            "needs nodes of flavor b300, but no such flavor exists (queue q names h200)",
        ],
    )


def test_roles_in_one_domain_need_a_flavor_in_common() -> None:
    h200, a100, b300 = (("h200",), ("a100",), ("b300",))
    apart = gang("g", required="rack", roles=[role("a", 1, flavors=h200), role("b", 1, flavors=a100)])
    reason, message = reason_and_message(inputs(ONE, QUEUE, [apart]))
    assert reason == "FlavorNotAllowed"
    assert message.startswith("needs nodes of one flavor for roles a and b, which share a topology domain, but")
    missing = gang("g", required="rack", roles=[role("a", 1, flavors=h200), role("b", 1, flavors=b300)])
    assert reason_and_message(inputs(ONE, QUEUE, [missing])) == (
        "FlavorNotFound",
        "needs nodes of flavor b300, but no such flavor exists (queue q names h200)",
    )
    unnamed = gang("g", required="rack", roles=[role("a", 1, flavors=h200), role("b", 1)])
    assert reason_and_message(inputs(ONE, [QueueInfo("q")], [unnamed])) == (
        "FlavorNotAllowed",
        "needs nodes, but the queue may use no flavor (queue q names no flavor)",
    )


def test_unknown_topology_level_names_those_that_are_there() -> None:
    assert reason_and_message(inputs(ONE, QUEUE, [gang("g", required="island")])) == (
        "UnknownTopologyLevel",
        "needs the topology level island, but flavor h200 has block, rack (queue q names h200)",
    )


def test_larger_than_quota_names_the_most_that_the_queue_can_ever_use() -> None:
    queues = [queue("co", guaranteed=100), queue("q", "co", 4, 12)]
    assert reason_and_message(inputs(rack("r1", 3), queues, [gang("g", pods=2)])) == (
        "LargerThanQuota",
        "needs 16 GPUs of h200; queue q can never use more than 12 GPUs",
    )


def test_larger_than_cluster_names_the_largest_that_fits() -> None:
    assert reason_and_message(inputs(TWO, QUEUE, [gang("g", pods=5)])) == (
        "LargerThanCluster",
        "needs 40 GPUs of h200; an empty cluster fits at most 2 of 5 pods, 16 GPUs",
    )
    busy = [run(gang("x"), ["r1-0"])]
    assert "2 of 5 pods" in message_of(inputs(TWO, QUEUE, [gang("g", pods=5)], busy), "g"), "of the empty cluster"


def test_larger_than_cluster_names_the_largest_that_fits_in_one_domain() -> None:
    nodes = rack("r1", 2) + rack("r2", 3)
    assert message_of(inputs(nodes, QUEUE, [gang("g", pods=4, required="rack")]), "g") == (
        "needs 32 GPUs of h200 in one rack; one rack of an empty cluster fits at most 3 of 4 pods, 24 GPUs"
    )


def test_larger_than_cluster_of_a_pod_that_no_node_nominations() -> None:
    assert message_of(inputs(TWO, QUEUE, [gang("g", size=9)]), "g") == (
        "needs 9 GPUs of h200; no node has 9 GPUs (at most 8)"
    )


def test_larger_than_cluster_of_an_elastic_gang_speaks_of_its_minimum() -> None:
    assert message_of(inputs(TWO, QUEUE, [gang("g", pods=5, least=3)]), "g") == (
        "needs at least 24 GPUs of h200; an empty cluster fits at most 2 of 3 pods, 16 GPUs"
    )


def test_quota_exceeded_reports_what_is_left_of_the_guarantee_and_what_may_be_borrowed() -> None:
    queues = [queue("co"), queue("q", "co", 24), queue("sister", "co", 12)]
    running = [run(gang("x", pods=2), ["r1-0", "r1-1"]), run(gang("y", "sister", size=4), ["r1-2"])]
    snapshot = inputs(rack("r1", 9), queues, [gang("g", pods=3)], running)
    assert reason_and_message(snapshot) == (
        "QuotaExceeded",
        "needs 24 GPUs of h200; queue q has 8 of 24 left and may borrow 8",
    )


def test_quota_exceeded_names_the_queues_that_have_borrowed_of_the_guarantee() -> None:
    queues = [queue("co", guaranteed=64), *(queue(name, "co", 16) for name in "abc"), queue("q", "co", 16)]
    running = [
        run(gang("x", "a", pods=3), ["r1-0", "r1-1", "r1-2"]),
        run(gang("y", "b", pods=5), [f"r1-{i}" for i in range(3, 8)]),
    ]
    needs_more = gang("g", pods=4)  # than the guarantee of its queue, so it reclaims nothing
    assert reason_and_message(inputs(rack("r1", 12), queues, [needs_more], running)) == (
        "QuotaExceeded",
        "needs 32 GPUs of h200; queue q has 0 of 16 left and may borrow 0; queue b has borrowed 24, queue a 8",
    )


def test_borrowers_beside_a_queue_above_are_named_and_of_many_the_largest() -> None:
    queues = [queue("co", guaranteed=48), queue("team", "co", 16), queue("q", "team", 16)]
    queues += [queue(f"b{i}", "co") for i in range(5)]
    running = [run(gang(f"x{i}", f"b{i}", size=7 - i), [f"r1-{i}"]) for i in range(5)]
    running.append(run(gang("y", "b0", pods=2), ["r1-5", "r1-6"]))
    assert message_of(inputs(rack("r1", 12), queues, [gang("g", pods=4)], running), "g") == (
        "needs 32 GPUs of h200; queue q has 7 of 16 left and may borrow 0; queue b0 has borrowed 23, queue b1 6, "
        "queue b2 5 and 2 more queues"
    )


@pytest.mark.parametrize(
    ("used", "limit", "size", "sentence"),
    [
        (1, 1, 1, "has 0 of 0 left and may borrow 0: its limit of 1 is in use"),
        (2, 1, 1, "has 0 of 0 left and may borrow 0: its limit of 1 is in use"),  # it was lowered
        (1, 2, 2, "has 0 of 0 left and may borrow 1: 1 of its limit of 2 in use"),
        (8, 8, 1, "has 0 of 0 left and may borrow 0"),  # there is nothing more to borrow
        (8, None, 1, "has 0 of 0 left and may borrow 0"),
    ],
)
def test_quota_exceeded_names_the_limit_of_the_queue_where_that_binds(
    used: int, limit: int | None, size: int, sentence: str
) -> None:
    queues = [queue("team", guaranteed=8), queue("q", "team", limit=limit)]
    snapshot = inputs(TWO, queues, [gang("g", size=size)], [run(gang("x", size=used), ["r1-0"])])
    code, text = reason_and_message(snapshot)
    assert (code, text.partition("; queue q ")[2]) == ("QuotaExceeded", sentence)


def test_the_limit_of_a_queue_above_is_not_reported_as_that_of_the_queue() -> None:
    queues = [queue("co", guaranteed=16), queue("team", "co", limit=4), queue("q", "team")]
    snapshot = inputs(TWO, queues, [gang("g", size=2)], [run(gang("x", size=4), ["r1-0"])])
    assert message_of(snapshot, "g") == "needs 2 GPUs of h200; queue q has 0 of 0 left and may borrow 0"


def test_quota_exceeded_speaks_of_the_resource_that_is_scarce() -> None:
    cores = QueueInfo("q", quotas=(Quota("h200", GPU, 80), Quota("h200", "cpu", 40_000)))
    busy = run(gang("x", roles=[role("trainer", 1, request=gpus(1, cpu=30))]), ["r1-0"])
    requested = gang("g", roles=[role("trainer", 1, request=gpus(1, cpu=16))])
    assert reason_and_message(inputs(TWO, [cores], [requested], [busy])) == (
        "QuotaExceeded",
        "needs 16 cores of h200; queue q has 10 of 40 left and may borrow 0",
    )


def test_over_admitted_means_that_nothing_is_left() -> None:
    running = [run(gang("x", pods=2), ["r1-0", "r1-1"])]
    snapshot = inputs(rack("r1", 3), [queue("q", guaranteed=8)], [gang("g")], running)
    assert message_of(snapshot, "g") == "needs 8 GPUs of h200; queue q has 0 of 8 left and may borrow 0"


def test_insufficient_resources_reports_how_much_fits_and_then_the_quota() -> None:
    running = [run(gang("x", size=5), ["r1-0"]), run(gang("y", size=2), ["r1-1"])]
    snapshot = inputs(TWO, [queue("q", guaranteed=64)], [gang("g", pods=4, size=4)], running)
    assert reason_and_message(snapshot) == (
        "InsufficientResources",
        "needs 16 GPUs of h200; capacity for 1 of 4 pods, 4 of 16 GPUs; queue q has 57 of 64 left and may borrow 0",
    )


def test_quota_of_pods_alone_is_in_pod_slots_beside_the_cores_that_are_needed() -> None:
    pods_only = QueueInfo("q", quotas=(Quota("h200", "pods", 220),))
    cores = Resources.of({"pods": 1, "cpu": 90_000})
    hungry, busy = (gang(uid, roles=[role("trainer", 2, request=cores)]) for uid in ("g", "x"))
    snapshot = inputs(TWO, [pods_only], [hungry], [run(busy, ["r1-0", "r1-1"])])
    assert message_of(snapshot, "g") == (
        "needs 180 cores of h200; capacity for 0 of 2 pods: no node has 90 cores free (at most 6); "
        "queue q has 218 of 220 pod slots left and may borrow 0"
    )


def test_insufficient_resources_reports_which_resource_is_short() -> None:
    lean = Resources.of({GPU: 1, "pods": 1, "memory": 200 * GIB})
    hungry = gang("x", roles=[role("trainer", 1, request=Resources.of({"pods": 1, "memory": 1000 * GIB}))])
    snapshot = inputs(ONE, QUEUE, [gang("g", roles=[role("trainer", 1, request=lean)])], [run(hungry, ["r1-0"])])
    assert message_of(snapshot, "g") == (
        "needs 1 GPU of h200; no node has 200 GiB of memory free (at most 24); "
        "queue q has 1000 of 1000 left and may borrow 0"
    )


def test_insufficient_resources_reports_when_what_is_free_is_scattered() -> None:
    running = [run(gang("x", roles=[role("trainer", 1, request=gpus(0, cpu=90))]), ["r1-0"])]
    running.append(run(gang("y"), ["r1-1"]))
    snapshot = inputs(TWO, QUEUE, [gang("g", roles=[role("trainer", 1, request=gpus(8, cpu=8))])], running)
    assert "; no node has 8 cores and 8 GPUs free at once; " in message_of(snapshot, "g")


def test_topology_unsatisfiable_names_the_best_domain() -> None:
    nodes = rack("r1", 3) + rack("r2", 3)
    running = [run(gang("x", pods=2), ["r1-0", "r1-1"]), run(gang("y"), ["r2-0"])]
    snapshot = inputs(nodes, QUEUE, [gang("g", pods=3, required="rack")], running)
    assert wait_of(snapshot, "g").reason == "TopologyUnsatisfiable"
    assert message_of(snapshot, "g") == (
        "needs 24 GPUs of h200; 16 GPUs free in rack b1/r2, 24 required in one rack; "
        "queue q has 976 of 1000 left and may borrow 0"
    )


def test_blocked_by_reservation_says_that_free_capacity_is_reserved() -> None:
    running = [run(gang("x", runtime=2000.0), ["r1-0"], since=0.0)]
    snapshot = inputs(TWO, QUEUE, [gang("wide", pods=2), gang("g", at=1)], running)
    assert wait_of(snapshot, "g").reason == "BlockedByReservation"
    assert message_of(snapshot, "g") == (
        "needs 8 GPUs of h200; free capacity exists, but is reserved for a gang ahead of it; "
        "queue q has 992 of 1000 left and may borrow 0"
    )
    assert wait_of(snapshot, "g").position == 2
    assert wait_of(snapshot, "wide").estimated_start == 2060.0


def test_waiting_for_preemption_names_the_victims() -> None:
    running = [run(gang(f"v{i}"), [f"r1-{i}"]) for i in range(4)]
    before = inputs(rack("r1", 4), QUEUE, [gang("g", pods=4, priority=1)], running)
    code, message = reason_and_message(before)
    assert (code, message) == (
        "WaitingForPreemption",
        f"preempting for it; waiting for {_listed(before)} and 1 more to terminate",
    )
    during = carried_out(before, plan(before).decisions)
    assert reason_and_message(during) == (
        "WaitingForPreemption",
        f"4 nodes nominated; waiting for {_listed(before)} and 1 more to terminate",
    )


def _listed(before: Snapshot) -> str:
    victims = next(d.victims for d in plan(before).decisions if hasattr(d, "victims"))
    assert sorted(victims) == ["v0", "v1", "v2", "v3"]
    return ", ".join(f"ns/{uid}" for uid in victims[:3])


def test_waiting_for_preemption_of_pods_that_are_not_victims() -> None:
    stopping = run(gang("x"), ["r1-0"], state="terminating")
    nomination = Nomination("g", on(["r1-0"]), (), expires_at=2000.0)
    assert message_of(inputs(ONE, QUEUE, [gang("g")], [stopping], nominations=(nomination,)), "g") == (
        "1 node nominated; waiting for pods still on them to terminate"
    )


def test_blocked_by_queue_head_names_the_head() -> None:
    result = plan(inputs(ONE, QUEUE, [gang("a", at=0), gang("b", at=1), gang("g", at=2)]), policy=FIFO)
    assert waits_by_uid(result)["g"] == Wait(
        "g", "BlockedByQueueHead", "waits behind ns/b, which is ahead in the queue order and cannot start", 2, None
    )


def test_two_flavors_are_both_named() -> None:
    queues = [QueueInfo("q", quotas=(Quota("a100", GPU, 80), Quota("h200", GPU, 80)))]
    roles = [role("big", 2, flavors=("h200",)), role("old", 1, 1, 4, flavors=("a100",))]
    nodes = TWO + rack("x", 1, flavor="a100")
    busy = run(gang("x", flavors=("h200",)), ["r1-0"])
    assert message_of(inputs(nodes, queues, [gang("g", roles=roles)], [busy]), "g") == (
        "needs 16 GPUs of h200 and 4 GPUs of a100; role big: capacity for 1 of 2 pods, 8 of 16 GPUs; "
        "queue q has 72 of 80 left and may borrow 0"
    )


def test_a_flavor_without_any_node() -> None:
    empty = FlavorInfo("none-yet", ("block", "rack"))
    queues = [queue("q", guaranteed=8, flavor="none-yet")]
    assert reason_and_message(inputs(ONE, queues, [gang("g")], flavors=(empty,))) == (
        "LargerThanCluster",
        "needs 8 GPUs of none-yet; there is no node of none-yet",
    )


def test_a_gang_that_no_flavor_fits_within_its_quota_gets_that_reason() -> None:
    # a100: enough quota, one node only. h200: three nodes, quota for one. It will never start.
    queues = [QueueInfo("q", quotas=(Quota("a100", GPU, 16), Quota("h200", GPU, 8)))]
    nodes = rack("h", 3) + rack("x", 1, flavor="a100")
    wait = wait_of(inputs(nodes, queues, [gang("g", pods=2)]), "g")
    assert wait.reason in ("LargerThanCluster", "LargerThanQuota")


def test_a_message_names_who_holds_capacity_until_its_last_pod_has_ended() -> None:
    old = run(gang("old"), ["r1-0"], state="terminating", waits_for="pod old-trainer-0-1a2b3 on r1-0 has ended")
    message = message_of(inputs(ONE, QUEUE, [gang("g")], [old]), "g")
    assert message.endswith("; job ns/old holds 8 GPUs until pod old-trainer-0-1a2b3 on r1-0 has ended")
    full = [queue("q", guaranteed=8)]
    by_quota = message_of(inputs(TWO, full, [gang("g")], [old]), "g")
    assert by_quota.startswith("needs 8 GPUs of h200; queue q has 0 of 8 left")
    assert by_quota.endswith("; job ns/old holds 8 GPUs until pod old-trainer-0-1a2b3 on r1-0 has ended")


def test_of_many_holders_the_largest_are_named() -> None:
    nodes = rack("r1", 4)
    sizes = {"a": 1, "b": 4, "c": 8, "d": 2}
    olds = [
        run(gang(name, size=size), [f"r1-{i}"], state="terminating", waits_for="x has ended")
        for i, (name, size) in enumerate(sizes.items())
    ]
    message = message_of(inputs(nodes, QUEUE, [gang("g", pods=4)], olds), "g")
    assert message.endswith(
        "; job ns/c holds 8 GPUs until x has ended; job ns/b holds 4 GPUs until x has ended; 2 more jobs hold some"
    )


def test_a_gang_that_retains_some_nodes_says_for_how_many_pods_capacity_is_nominated() -> None:
    nomination = Nomination("g", on(["r1-0", "r1-1"]), (), 2000.0)
    other = run(gang("other"), ["r1-2"])
    wait = wait_of(inputs(rack("r1", 3), QUEUE, [gang("g", pods=3)], [other], nominations=(nomination,)), "g")
    assert (wait.reason, wait.message) == (
        "InsufficientResources",
        "needs 24 GPUs of h200; capacity on 2 nodes is nominated for 2 of 3 pods; no capacity for the other",
    )
