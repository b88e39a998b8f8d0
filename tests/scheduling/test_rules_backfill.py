"""Reservations of blocked gangs, and which gangs may start behind them. The time is 1000."""

from __future__ import annotations

from dataclasses import replace

from tests.scheduling.builders import in_order, wait_of
from tests.scheduling.snapshots import (
    HOUR,
    evicted,
    gang,
    inputs,
    nodes_of,
    on,
    queue,
    rack,
    run,
    started,
    waits_by_uid,
)

from muster.model import Admit, RunningGang, Snapshot
from muster.scheduling import BACKFILL, FIFO, plan

TWO_NODES = rack("r1", 2)
QUEUE = [queue("q", guaranteed=1000)]
LONG = run(gang("long", runtime=2000.0), ["r1-0"], since=0.0)
"""Gone at 0 + 2000 + 30 (grace) + 30 (cleaning up) = 2060."""
WIDE = gang("wide", pods=2, at=1)


def behind_wide(runtime: float | None, **more: object) -> Snapshot:
    """`wide` waits for both nodes, one of which is idle; behind it waits a gang that declares this runtime."""
    return inputs(TWO_NODES, QUEUE, [WIDE, gang("small", at=2, runtime=runtime)], [LONG], **more)  # type: ignore[arg-type]


def test_the_first_gang_without_capacity_reserves_the_time_at_which_enough_is_free() -> None:
    assert wait_of(behind_wide(None), "wide").estimated_start == 2060.0


def test_a_gang_that_is_gone_by_then_starts_behind_it() -> None:
    result = plan(behind_wide(1000.0))  # gone at 1000 + 1000 + 60 = 2060: just in time
    assert [d for d in result.decisions if isinstance(d, Admit)] == [
        Admit("small", started(result)["small"], backfilled=True)
    ]


def test_grace_and_cleaning_up_count_towards_being_gone() -> None:
    assert waits_by_uid(plan(behind_wide(1001.0)))["small"].reason == "BlockedByReservation"


def test_a_gang_without_max_runtime_never_backfills_into_reserved_capacity() -> None:
    assert waits_by_uid(plan(behind_wide(None)))["small"].reason == "BlockedByReservation"


def test_a_gang_without_max_runtime_starts_beside_reserved_capacity() -> None:
    half = inputs(TWO_NODES + rack("r2", 1, size=4), QUEUE, [WIDE, gang("small", size=4, at=2)], [LONG])
    assert nodes_of(started(plan(half))["small"]) == {"r2-0": 1}


def test_without_max_runtimes_there_is_no_estimate_but_unbounded_gangs_do_not_take_the_reservation() -> None:
    endless = run(gang("endless"), ["r1-0"])
    snapshot = inputs(TWO_NODES, QUEUE, [WIDE, gang("small", at=2)], [endless])
    waits = waits_by_uid(plan(snapshot))
    assert (waits["wide"].estimated_start, waits["small"].reason) == (None, "BlockedByReservation")
    assert waits["small"].estimated_start is None
    bounded = inputs(TWO_NODES, QUEUE, [WIDE, gang("small", at=2, runtime=9e9)], [endless])
    assert in_order(plan(bounded)) == ["small"]


def test_only_the_first_gang_without_capacity_gets_a_reservation() -> None:
    # `second` wants both nodes too; `late` would delay it, but not the first.
    snapshot = inputs(
        TWO_NODES,
        QUEUE,
        [gang("first", at=1, runtime=1.0, pods=2), gang("second", at=2, pods=2), gang("late", at=3, runtime=500.0)],
        [LONG],
    )
    assert in_order(plan(snapshot)) == ["late"]


def test_each_root_and_each_flavor_has_its_own_reservation() -> None:
    queues = [queue("q", guaranteed=1000), queue("z", guaranteed=1000, flavor="a100")]
    nodes = TWO_NODES + rack("x", 2, flavor="a100")
    small = gang("small-z", "z", at=2)
    waiting = [WIDE, gang("wide-z", "z", pods=3, at=1), gang("small", at=2), small]
    # A node of a100 is down, so there is no reservation there, and that of h200 blocks no gang on a100.
    down = rack("y", 1, flavor="a100", schedulable=False)
    assert in_order(plan(inputs(nodes + down, queues, waiting, [LONG]))) == ["small-z"]
    blocked = [LONG, RunningGang(gang("long-z", "z"), on(["y-0"], flavor="a100"), 0.0, 0.0)]
    waits = waits_by_uid(plan(inputs(TWO_NODES + rack("y", 3, flavor="a100"), queues, waiting, blocked)))
    assert {uid: wait.reason for uid, wait in waits.items()} == {
        "wide": "InsufficientResources",
        "wide-z": "InsufficientResources",
        "small": "BlockedByReservation",
        "small-z": "BlockedByReservation",
    }


def test_a_reservation_binds_gangs_of_other_roots_too() -> None:
    queues = [queue("q", guaranteed=1000), queue("z", guaranteed=1000)]
    for runtime, starts in ((1000.0, ["small"]), (1001.0, [])):
        waiting = [WIDE, gang("small", "z", at=2, runtime=runtime)]
        assert in_order(plan(inputs(TWO_NODES, queues, waiting, [LONG]))) == starts


def test_a_gang_over_its_quota_gets_no_reservation() -> None:
    greedy = gang("greedy", "a", pods=2, at=1)
    busy = run(gang("busy", "a"), ["r1-0"])
    queues = [queue("co"), queue("a", "co", 16, 16), queue("b", "co", 8)]
    result = plan(inputs(rack("r1", 3), queues, [greedy, gang("small", "b", at=2)], [busy]))
    assert (in_order(result), waits_by_uid(result)["greedy"].reason) == (["small"], "QuotaExceeded")


def test_a_gang_over_its_quota_is_not_overtaken_for_ever_by_smaller_ones_of_its_leaf() -> None:
    running = [run(gang("x", runtime=2000.0), ["r1-0"], since=0.0)]
    queues = [queue("q", guaranteed=16, limit=16)]
    for runtime, starts in ((None, []), (1000.0, ["small"]), (1001.0, [])):
        waiting = [WIDE, gang("small", at=2, runtime=runtime)]
        assert in_order(plan(inputs(rack("r1", 4), queues, waiting, running))) == starts
    assert wait_of(inputs(rack("r1", 4), queues, [WIDE], running), "wide").estimated_start == 2060.0


def test_a_gang_that_does_not_fit_while_nodes_are_down_blocks_no_gang() -> None:
    nodes = rack("r1", 1) + rack("r2", 1, schedulable=False)
    assert in_order(plan(inputs(nodes, QUEUE, [WIDE, gang("small", at=2)]))) == ["small"]


def test_a_reservation_is_on_nodes_that_accept_the_gang() -> None:
    # `wide` has to lie in one rack: r2 alone comes free in time, so an endless gang may have the idle node of r1.
    nodes = rack("r1", 1) + rack("r2", 2)
    busy = run(gang("busy", runtime=2000.0), ["r2-0"], since=0.0)
    result = plan(inputs(nodes, QUEUE, [gang("wide", pods=2, at=1, required="rack"), gang("small", at=2)], [busy]))
    assert nodes_of(started(result)["small"]) == {"r1-0": 1}


def test_terminating_gangs_count_with_their_grace_period() -> None:
    leaving = run(gang("leaving", grace_s=45.0), ["r1-0"], state="terminating")
    assert wait_of(inputs(TWO_NODES, QUEUE, [WIDE], [leaving]), "wide").estimated_start == 1045.0


def test_the_estimate_stays_while_a_gang_terminates_until_its_grace_period_is_over() -> None:
    leaving = run(gang("leaving", grace_s=45.0), ["r1-0"], state="terminating", stopping_since=990.0)
    snapshot = inputs(TWO_NODES, QUEUE, [WIDE], [leaving])
    at = [wait_of(replace(snapshot, now=now), "wide").estimated_start for now in (1000.0, 1010.0, 1035.0, 1040.0)]
    assert at == [1035.0, 1035.0, 1035.0, 1040.0]


def test_the_second_in_line_is_estimated_behind_the_first() -> None:
    running = [LONG, run(gang("longer", runtime=4000.0), ["r1-1"], since=0.0)]
    waits = waits_by_uid(plan(inputs(TWO_NODES, QUEUE, [gang("one", at=1), gang("two", at=2)], running)))
    assert [waits[uid].estimated_start for uid in ("one", "two")] == [2060.0, 4060.0]


def test_capacity_of_nodes_that_are_down_does_not_count_for_estimates() -> None:
    line = [gang("one", at=1), gang("two", at=2)]
    running = [LONG, run(gang("longer", runtime=4000.0), ["r1-1"], since=0.0)]
    idle = inputs([*TWO_NODES, *rack("r2", 3, schedulable=False)], QUEUE, line, running)
    assert waits_by_uid(plan(idle))["two"].estimated_start == 4060.0
    leaves_a_dead_node = run(gang("dead", runtime=3000.0), ["r2-0"], since=0.0)
    soon_free = inputs([*TWO_NODES, *rack("r2", 1, schedulable=False)], QUEUE, line, [*running, leaves_a_dead_node])
    assert waits_by_uid(plan(soon_free))["two"].estimated_start == 4060.0
    blamed = inputs(
        [*TWO_NODES, *rack("r2", 3)], QUEUE, line, running, excluded_nodes=frozenset({"r2-0", "r2-1", "r2-2"})
    )
    assert waits_by_uid(plan(blamed))["two"].estimated_start == 4060.0


def test_fifo_starts_no_gang_behind_a_waiting_one() -> None:
    result = plan(behind_wide(1.0), policy=FIFO)
    wait = waits_by_uid(result)["small"]
    assert (in_order(result), wait.reason) == ([], "BlockedByQueueHead")
    assert in_order(plan(behind_wide(1.0), policy=BACKFILL)) == ["small"]


def test_capacity_that_a_preemption_frees_beside_a_reservation_is_used_in_the_same_plan() -> None:
    queues = [queue("co", guaranteed=64), *(queue(name, "co", 0) for name in ("a", "b", "c", "d"))]
    low = run(gang("low", "c", pods=3, size=4), {"r1-0": 1, "r1-1": 2})
    ending = run(gang("ending", "x", runtime=HOUR), ["r1-2"])
    waiting = [
        gang("large", "a", pods=3, size=4),  # reserved: the free half of r1-0, and r1-2
        gang("first", "b", size=4),
        gang("high", "c", priority=5),  # evicts `low` and takes r1-1
        gang("second", "d", size=4),
    ]
    result = plan(inputs(rack("r1", 3), queues, waiting, [low, ending]))
    assert evicted(result) == {"low": "high"}
    assert waits_by_uid(result)["first"].reason == "BlockedByReservation"
    assert nodes_of(started(result)["second"]) == {"r1-0": 1}
