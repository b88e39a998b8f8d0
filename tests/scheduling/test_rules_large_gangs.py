"""Gangs that are larger than their queue's guarantee, while other queues use theirs. The time is 1000 or later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.scheduling.builders import PlanningLoop, gpu_hours, in_order, two_teams, wait_of
from tests.scheduling.snapshots import (
    HOUR,
    carried_out,
    evicted,
    gang,
    inputs,
    queue,
    rack,
    run,
    started,
    waits_by_uid,
)

from muster.model import Gang, Snapshot
from muster.scheduling import plan

TEAMS = two_teams(4, 4)
ONE_NODE = rack("r1", 1)
LARGE = gang("large", "b", size=6, at=1)
DELAY = 6 * HOUR
SINCE = 900.0
DUE = SINCE + DELAY


def backlog(count: int = 20, runtime: float | None = None) -> list[Gang]:
    """Jobs of 2 GPUs of team a, which is guaranteed 4 of 8."""
    return [gang(f"small-{i:02}", "a", size=2, at=0.01 * i, runtime=runtime) for i in range(count)]


def busy(large: Gang = LARGE, runtime: float | None = None, count: int = 2, **more: object) -> Snapshot:
    """`count` of them have run since 800 s before, the others wait, and so does a gang of 6 GPUs of team b."""
    small, now = backlog(runtime=runtime), more.get("now", 1000.0)
    running = [run(one, ["r1-0"], since=now - 800.0) for one in small[:count]]  # type: ignore[operator]
    return inputs(ONE_NODE, TEAMS, [*small[count:], large], running, **more)  # type: ignore[arg-type]


def waiting_since(since: float, large: Gang = LARGE) -> Gang:
    return replace(large, borrowing_head_since=since)


def test_a_claim_that_gangs_within_their_guarantee_consume_holds_back_no_borrower() -> None:
    assert in_order(plan(busy())) == ["small-02", "small-03"]


def test_a_claim_that_comes_true_after_the_last_gang_within_its_guarantee_holds_back_borrowers() -> None:
    running = [run(one, ["r1-0"]) for one in backlog(2)]
    borrower = gang("borrower", "c", size=2, at=2)
    teams = [*TEAMS, queue("c", "co", 0)]
    assert in_order(plan(inputs(ONE_NODE, teams, [LARGE, borrower], running))) == []
    few = gang("few", "a", size=2, at=3)  # one more that team a is guaranteed: 2 + 6 of 8
    assert in_order(plan(inputs(ONE_NODE, teams, [LARGE, borrower, few], running[:1]))) == ["few"]
    many = [gang(f"many-{i}", "a", size=2, at=3) for i in range(3)]
    assert in_order(plan(inputs(ONE_NODE, teams, [LARGE, borrower, *many], running))) == ["many-0", "borrower"]


def test_the_guarantee_of_a_department_counts_like_that_of_a_team() -> None:
    departments = [queue("co"), queue("x", "co", 4), queue("a", "x", 0), queue("y", "co", 4), queue("b", "y", 0)]
    small = backlog()
    running = [run(one, ["r1-0"]) for one in small[:2]]
    assert in_order(plan(inputs(ONE_NODE, departments, [*small[2:], LARGE], running))) == ["small-02", "small-03"]


def own_runs(runtime: float | None, now: float, large: Gang = LARGE, **more: object) -> Snapshot:
    """3 GPUs of team b run for 2 hours, and its gang of 6 waits for them; a gang of 3 is within the other guarantee."""
    running = [run(gang("own", "b", size=3, runtime=2 * HOUR), ["r1-0"], since=now)]
    small = [gang("small", "a", size=3, at=0.5, runtime=runtime)]
    return inputs(ONE_NODE, TEAMS, [*small, waiting_since(SINCE, large)], running, now=now, **more)  # type: ignore[arg-type]


def test_after_the_delay_gangs_within_their_guarantee_respect_the_reservation_too() -> None:
    assert in_order(plan(own_runs(None, DUE - 1))) == ["small"]
    assert waits_by_uid(plan(own_runs(None, DUE)))["small"].reason == "BlockedByReservation"


def test_a_gang_that_has_ended_by_the_time_of_that_reservation_starts_before_it() -> None:
    assert in_order(plan(own_runs(2 * HOUR, DUE))) == ["small"]
    assert in_order(plan(own_runs(2 * HOUR + 1, DUE))) == []


@pytest.mark.parametrize(
    ("hours", "starts"),
    [(6, []), (11.9, []), (12, ["small"]), (17.9, ["small"]), (18, []), (24, ["small"]), (1e5, ["small"])],
)
def test_a_head_that_waits_for_a_job_without_end_binds_others_for_every_second_delay_only(
    hours: float, starts: list[str]
) -> None:
    own, now = run(gang("own", "b", size=1), ["r1-0"], since=500.0), SINCE + hours * HOUR
    waiting = [waiting_since(SINCE, gang("large", "b", size=8)), gang("small", "a", size=2, at=5)]
    result = plan(inputs(ONE_NODE, TEAMS, waiting, [own], now=now))
    assert in_order(result) == starts
    assert result.changes_at == SINCE + (now - SINCE) // DELAY * DELAY + DELAY


def test_reason_message_and_estimate_say_who_goes_first_and_until_when() -> None:
    passed = wait_of(busy(runtime=HOUR), "large")
    assert (passed.reason, passed.estimated_start, passed.borrowing_head_since) == (
        "QuotaExceeded",
        1000.0 + DELAY,
        1000.0,
    )
    assert passed.message == (
        "needs 6 GPUs of h200; queue b has 0 of 4 left and may borrow 0; queue a has borrowed 4; jobs within their "
        "guarantee go first until it has been the first job that has to borrow for 6h00m"
    )
    due = wait_of(busy(waiting_since(SINCE), runtime=HOUR, count=4, now=DUE), "large")
    assert due.estimated_start == DUE - 800 + HOUR + 60
    assert due.message.endswith("; what becomes free is reserved for it, before jobs within their guarantee")
    between = wait_of(busy(waiting_since(SINCE), runtime=HOUR, now=SINCE + 2 * DELAY), "large")
    assert between.estimated_start == SINCE + 3 * DELAY
    assert between.message.endswith("go first until it has been the first job that has to borrow for 18h00m")


def test_a_gang_that_no_delay_helps_has_no_estimate() -> None:
    second = replace(LARGE, uid="second", submitted_at=2.0)
    snapshot = busy(runtime=HOUR)
    wait = wait_of(replace(snapshot, pending=(*snapshot.pending, second)), "second")
    assert (wait.estimated_start, wait.borrowing_head_since) == (None, None)
    assert wait.message.endswith("; jobs within their guarantee go first")


def test_there_is_one_head_per_root_and_flavor_that_of_the_queue_with_the_smallest_share() -> None:
    teams = [*TEAMS, queue("c", "co", 0)]
    other = gang("other", "c", size=6, at=0.5)
    small = backlog()
    running = [run(one, ["r1-0"]) for one in small[:4]]
    snapshot = inputs(ONE_NODE, teams, [*small[4:], other, LARGE], running)
    for used, head in (({"b": 1, "c": 2}, "large"), ({"b": 2, "c": 1}, "other")):
        waits = waits_by_uid(plan(replace(snapshot, usage=gpu_hours(used))))
        assert {uid for uid, wait in waits.items() if wait.borrowing_head_since is not None} == {head}
    held = replace(snapshot, pending=(*small[4:], waiting_since(SINCE, other), LARGE), usage=gpu_hours({"c": 9}))
    assert {uid for uid, wait in waits_by_uid(plan(held)).items() if wait.borrowing_head_since} == {"other"}


@pytest.mark.parametrize(("root", "leaf", "due"), [(None, 0.0, False), (0.0, None, False), (0.0, 60.0, True)])
def test_the_delay_of_the_nearest_queue_that_sets_it_counts_and_0_means_never(
    root: float | None, leaf: float | None, due: bool
) -> None:
    co, a, b = TEAMS
    teams = (replace(co, reservation_delay_s=root), a, replace(b, reservation_delay_s=leaf))
    snapshot = replace(own_runs(None, SINCE + 60), queues=teams)
    assert (in_order(plan(snapshot)) == []) is due


def test_a_queue_without_a_delay_has_no_head() -> None:
    never = replace(busy(), queues=(TEAMS[0], TEAMS[1], replace(TEAMS[2], reservation_delay_s=0.0)))
    assert wait_of(never, "large").borrowing_head_since is None


def test_a_gang_of_a_higher_priority_in_its_leaf_comes_before_a_head() -> None:
    urgent = gang("urgent", "b", size=8, priority=1, at=5)
    for priority, starts in ((1, ["small"]), (0, [])):
        snapshot = own_runs(None, DUE)
        pending = (*snapshot.pending, replace(urgent, priority=priority))
        running = [replace(one, gang=replace(one.gang, priority=2)) for one in snapshot.running]
        assert in_order(plan(replace(snapshot, pending=pending, running=tuple(running)))) == starts


def after_start(now: float, pending: Sequence[Gang] = ()) -> Snapshot:
    """The gang has started a second after it was due."""
    return inputs(ONE_NODE, TEAMS, pending, [run(waiting_since(SINCE), ["r1-0"], since=DUE + 1)], now=now)


def test_a_gang_that_started_after_its_delay_is_not_reclaimed_for_as_long() -> None:
    small = [gang("small", "a", size=4, at=5)]
    assert evicted(plan(after_start(DUE + DELAY, small))) == {}
    assert plan(after_start(DUE + DELAY, small)).changes_at == DUE + 1 + DELAY
    assert evicted(plan(after_start(DUE + DELAY + 1, small))) == {"large": "small"}
    early = replace(after_start(DUE, small), running=(run(waiting_since(SINCE), ["r1-0"], since=DUE - 1),))
    assert evicted(plan(early)) == {"large": "small"}


def test_no_gang_becomes_head_and_none_is_due_while_another_is_not_reclaimed_yet() -> None:
    second = gang("second", "b", size=6, at=2)
    assert wait_of(after_start(DUE + DELAY, [second]), "second").borrowing_head_since is None
    assert wait_of(after_start(DUE + DELAY + 1, [second]), "second").borrowing_head_since == DUE + DELAY + 1
    stale = waiting_since(DUE - 1, second)
    small = gang("small", "a", size=2, at=5)
    assert in_order(plan(after_start(DUE + DELAY, [small, stale]))) == ["small"]


def test_the_gangs_that_it_passed_do_not_evict_it_in_the_plan_that_starts_it() -> None:
    snapshot = inputs(ONE_NODE, TEAMS, [*backlog(4), waiting_since(SINCE)], now=DUE)
    assert (list(started(plan(snapshot))), evicted(plan(snapshot))) == (["large", "small-00"], {})


def test_a_head_that_does_not_fit_while_nodes_are_down_holds_back_no_gang() -> None:
    nodes = [*rack("r1", 1, size=4), *rack("r2", 1, schedulable=False)]
    small = backlog(8)
    running = [run(one, ["r1-0"]) for one in small[:1]]
    large = gang("large", "b", size=6, at=1)
    other = gang("other", "b", size=5, at=2)
    waiting = [*small[1:], waiting_since(SINCE, large), other]
    assert in_order(plan(inputs(nodes, TEAMS, waiting, running, now=DUE))) == ["small-01"]


@pytest.mark.parametrize("runtimes", [(HOUR,), (None,), (HOUR, None), (2 * HOUR, None, HOUR)])
def test_a_gang_larger_than_its_guarantee_starts_one_longest_run_time_after_its_delay(
    runtimes: tuple[float | None, ...],
) -> None:
    """Three a minute of the other team come, more than can run; the longest of them runs for two hours."""
    small = [
        gang(f"small-{i:04}", "a", size=1 + i % 3, at=1000.0 + 400 * i, runtime=runtimes[i % len(runtimes)])
        for i in range(150)
    ]
    runtime = {one.uid: (1 + int(one.uid[-1]) % 2) * HOUR - 10 for one in small} | {"large": HOUR}
    for one in small:
        if one.max_runtime_s is not None:
            runtime[one.uid] = one.max_runtime_s
    loop = PlanningLoop(inputs(ONE_NODE, TEAMS, [replace(LARGE, submitted_at=3000.0)], [], now=1000.0), runtime, small)
    loop.snapshot = replace(loop.snapshot, pending=())
    loop.arrivals = sorted([*small, replace(LARGE, submitted_at=3000.0)], key=lambda one: one.submitted_at)
    loop.snapshot = replace(loop.snapshot, now=1000.0)
    loop.live(2000)
    assert 3000 + DELAY <= loop.started["large"] <= 3000 + DELAY + 2 * HOUR + 400


def test_a_gang_that_could_not_start_in_one_turn_starts_in_the_next_beside_what_started_in_between() -> None:
    small = [gang(f"small-{i:04}", "a", size=1 + i % 3, at=1000.0 + 800 * i) for i in range(150)]
    own, large = run(gang("own", "b", size=1), ["r1-0"], since=500.0), waiting_since(SINCE, gang("large", "b", size=8))
    runtime = {one.uid: 2 * HOUR for one in small} | {"large": HOUR, "own": 2.5 * DELAY}
    loop = PlanningLoop(inputs(ONE_NODE, TEAMS, [large], [own], now=1000.0), runtime, small)
    loop.live(2000, stop_when=["large"])
    assert SINCE + 3 * DELAY <= loop.started["large"] <= SINCE + 3 * DELAY + 2 * HOUR + 800


def heads_of(snapshot: Snapshot) -> dict[str, float | None]:
    """Clocks of the gangs that wait, by uid."""
    waits = waits_by_uid(plan(snapshot))
    return {uid: wait.borrowing_head_since for uid, wait in waits.items() if wait.borrowing_head_since is not None}


def contended(waiting: Sequence[Gang], *, now: float = 1000.0, **delays: float) -> Snapshot:
    """Team a uses all 8 GPUs and has more jobs; besides b there is c, which is guaranteed nothing."""
    queues = [*TEAMS, queue("c", "co", 0)]
    queues = [replace(one, reservation_delay_s=delays.get(one.name)) for one in queues]
    small = backlog()
    running = [run(one, ["r1-0"], since=now - 100) for one in small[:4]]
    return inputs(ONE_NODE, queues, [*small[4:], *waiting], running, now=now)


def test_a_head_that_is_outranked_in_its_leaf_leaves_its_place_and_its_clock_ends() -> None:
    urgent = gang("urgent", "b", size=8, priority=1, at=5)
    snapshot = contended([waiting_since(SINCE), urgent])
    assert heads_of(snapshot) == {"urgent": 1000.0}
    assert waits_by_uid(plan(snapshot))["large"].ends_clock
    other = gang("other", "c", size=6, at=6)
    within = gang("within", "b", size=4, priority=1, at=5)  # waits for its guarantee: needs no clock
    held = contended([waiting_since(SINCE), within, other])
    own = [run(gang(f"own-{i}", "b", size=4, priority=2), ["r1-0"], since=900.0) for i in range(2)]
    assert heads_of(replace(held, running=tuple(own))) == {"other": 1000.0}


def test_a_head_of_a_queue_whose_delay_is_set_to_0_leaves_its_place_and_its_clock_ends() -> None:
    snapshot = contended([waiting_since(SINCE), gang("other", "c", size=6, at=6)], b=0.0)
    assert heads_of(snapshot) == {"other": 1000.0}
    assert waits_by_uid(plan(snapshot))["large"].ends_clock


def test_a_head_with_a_long_delay_does_not_keep_one_with_a_short_delay_waiting() -> None:
    other = gang("other", "c", size=6, at=6)
    month = 30 * 24 * HOUR
    assert heads_of(contended([waiting_since(SINCE), other], b=month)) == {"large": SINCE, "other": 1000.0}
    late = contended([waiting_since(SINCE), waiting_since(1000.0, other)], now=1000.0 + DELAY, b=month)
    assert waits_by_uid(plan(late))["other"].message.endswith("before jobs within their guarantee")


def test_a_head_that_is_due_keeps_its_place_against_shorter_delays() -> None:
    other = gang("other", "c", size=6, at=6)
    assert heads_of(contended([waiting_since(SINCE), other], now=DUE, c=60.0)) == {"large": SINCE}


def test_a_row_of_ever_higher_priorities_collects_no_clocks() -> None:
    row: list[Gang] = []
    for number in range(5):
        snapshot = contended([*row, gang(f"large-{number}", "b", size=6, priority=number, at=number)])
        pending = carried_out(snapshot, plan(snapshot).decisions).pending
        row = [one for one in pending if one.queue == "b"]
    assert [one.uid for one in row if one.borrowing_head_since is not None] == ["large-4"]


@pytest.mark.parametrize("pause", [DELAY, 2 * DELAY - 1])
def test_a_head_that_starts_in_a_pause_has_not_passed_others_but_is_not_reclaimed_for_a_delay(pause: float) -> None:
    """In a pause gangs within their guarantee go first: it starts only where none of them waits."""
    now = DUE + pause
    small = gang("small", "a", size=4, at=5)
    assert in_order(plan(inputs(ONE_NODE, TEAMS, [waiting_since(SINCE), small], now=now))) == ["small"]
    assert in_order(plan(inputs(ONE_NODE, TEAMS, [waiting_since(SINCE)], now=now))) == ["large"]
    running = [run(waiting_since(SINCE), ["r1-0"], since=now)]
    last, after = (inputs(ONE_NODE, TEAMS, [small], running, now=now + d) for d in (DELAY - 1, DELAY))
    assert evicted(plan(last)) == {}
    assert evicted(plan(after)) == {"large": "small"}


def test_after_a_head_that_started_in_a_pause_there_is_no_other_for_a_delay() -> None:
    now = DUE + DELAY + HOUR
    running = [run(waiting_since(SINCE), ["r1-0"], since=now)]
    second = gang("second", "b", size=6, at=2)
    assert heads_of(inputs(ONE_NODE, TEAMS, [second], running, now=now + DELAY - 1)) == {}
    assert heads_of(inputs(ONE_NODE, TEAMS, [second], running, now=now + DELAY)) == {"second": now + DELAY}


@pytest.mark.parametrize(("used", "first"), [({"b": 1, "c": 2}, "large"), ({"b": 2, "c": 1}, "other")])
def test_of_heads_with_different_delays_that_fall_due_together_one_goes_first_that_of_the_smallest_share(
    used: dict[str, float], first: str
) -> None:
    """The other keeps its clock, and goes first once the one that has started may be reclaimed."""
    other = waiting_since(DUE - HOUR, gang("other", "c", size=6, at=6))
    both = replace(contended([waiting_since(SINCE), other], now=DUE, c=HOUR), usage=gpu_hours(used))
    assert heads_of(both) == {"large": SINCE, "other": DUE - HOUR}
    reserved = {uid for uid, wait in waits_by_uid(plan(both)).items() if "reserved for it" in wait.message}
    assert reserved == {first}
    free = replace(both, running=(), pending=tuple(one for one in both.pending if one.uid in ("large", "other")))
    assert in_order(plan(free)) == [first]
    one, left = (waiting_since(SINCE), other) if first == "large" else (other, waiting_since(SINCE))
    delay = DELAY if first == "large" else HOUR
    for end, is_first in ((DUE + delay - 1, False), (DUE + delay, True)):
        later = replace(both, now=end, running=(run(one, ["r1-0"], since=DUE),), pending=(left,))
        assert ("reserved for it" in wait_of(later, left.uid).message) is is_first


def test_of_heads_that_follow_each_other_at_once_each_has_another_delay() -> None:
    """A second gang of b gets no clock beside the first one, nor while another head is due or protected."""
    other = waiting_since(DUE - HOUR, gang("other", "c", size=6, at=6))
    second = gang("second", "b", size=6, at=2)
    first = [run(waiting_since(SINCE), ["r1-0"], since=DUE)]
    assert heads_of(contended([waiting_since(SINCE), second, other], now=DUE - 1, c=HOUR)) == {
        "large": SINCE,
        "other": DUE - HOUR,
    }
    for now in (DUE + 1, DUE + DELAY):
        waiting = replace(contended([second, other], now=now, c=HOUR), running=tuple(first))
        assert heads_of(waiting) == {"other": DUE - HOUR}
    now = DUE + DELAY
    follows = run(other, ["r1-0"], since=now)
    third = gang("third", "c", size=6, at=7)
    for end, clocks in ((HOUR - 1, {}), (HOUR, {"third": now + HOUR})):
        later = replace(contended([second, third], now=now + end, c=HOUR), running=(follows,))
        assert heads_of(later) == clocks, "others have their guarantees for an hour at least"
