"""Admissions of a plan are withdrawn before a running gang of the queue is evicted; and through which flavor a gang is
within a guarantee."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.builders import wait_of
from tests.scheduling.random_snapshots import EITHER, both, snapshots, two_flavors
from tests.scheduling.snapshots import GPU, evicted, gang, inputs, nominated, on, queue, rack, run, started

from muster.model import (
    Admit,
    DecayedUsage,
    Evict,
    Gang,
    Nominate,
    Placement,
    Resize,
    RunningGang,
    Snapshot,
)
from muster.scheduling import MUSTER, plan

NODES = [*rack("h", 3), *rack("a", 2, flavor="a100")]


def on_a100(one: Gang, *nodes: str) -> RunningGang:
    return RunningGang(one, on(nodes, flavor="a100"), admitted_at=0.0, started_at=0.0)


def dev_and_prod(*waiting: Gang) -> Snapshot:
    """`dev` (8 h200 and 16 a100 guaranteed) runs `r1` on its h200; `prod` (16 h200) borrows all a100."""
    queues = [both("co", 24, 16, None), both("dev", 8, 16), both("prod", 16, 0)]
    running = [
        run(gang("r1", "dev"), ["h-0"]),
        on_a100(gang("p1", "prod"), "a-0"),
        on_a100(gang("p2", "prod"), "a-1"),
    ]
    return inputs(NODES, queues, waiting, running)


def test_a_gang_is_entitled_through_the_flavor_in_which_it_would_be_placed() -> None:
    wide, late = gang("w", "dev", at=1.0, flavors=EITHER), gang("p", "prod", pods=2, at=2.0, flavors=("h200",))
    result = plan(dev_and_prod(wide, late))
    assert set(started(result)) == {"p"}
    assert evicted(result) == {"p1": "w"}, "dev takes its a100 back; r1 stays within the guarantee of dev"
    assert nominated(result)["w"].placement[0].flavor == "a100"


def test_a_gang_that_would_borrow_in_its_first_flavor_goes_by_its_share_among_borrowers() -> None:
    wide, other = gang("w", "dev", at=1.0, flavors=EITHER), gang("o", "poor", pods=2, at=2.0, flavors=("h200",))
    before = dev_and_prod(wide, other)
    used = (DecayedUsage("dev", "h200", GPU, 3600.0),)
    result = plan(replace(before, queues=(*before.queues, both("poor", 0, 0)), usage=used))
    assert set(started(result)) == {"o"}
    assert evicted(result) == {"p1": "w"}


def test_flavors_are_tried_in_order_though_a_later_one_is_guaranteed() -> None:
    alone = replace(dev_and_prod(gang("w", "dev", flavors=EITHER)), running=())
    assert started(plan(alone))["w"][0].flavor == "h200"
    full = replace(alone, running=(run(gang("r1", "dev"), ["h-0"]),))
    assert started(plan(full))["w"][0].flavor == "h200", "it borrows where no entitled gang waits"


def test_a_start_is_taken_back_before_a_running_gang_of_its_queue_leaves_for_an_entitled_one() -> None:
    # `h` fits the guarantee of `a` on h200, which is in use, and hides `s` behind it: so `n` of `b` starts first and
    # takes the a100 that are guaranteed to `a`. Then `s` comes, and `b` is 8 above its guarantee of a100.
    queues = [both("co", 24, 16, None), both("a", 8, 8), both("b", 16, 8)]
    running = [
        *(run(gang(f"x{i}", "a" if not i else "b"), [f"h-{i}"]) for i in range(3)),
        on_a100(gang("old", "b"), "a-0"),
    ]
    hides, small = gang("h", "a", at=1.0, flavors=("h200",)), gang("s", "a", at=2.0, flavors=("a100",))
    newcomer = gang("n", "b", at=3.0, flavors=("a100",))
    snapshot = inputs(NODES, queues, [hides, small, newcomer], running, usage=(DecayedUsage("a", "a100", GPU, 3600.0),))
    result = plan(snapshot)
    assert evicted(result) == {}
    assert set(started(result)) == {"s"}
    assert wait_of(snapshot, "n").reason == "QuotaExceeded"


def test_a_start_is_taken_back_before_a_running_gang_of_the_same_priority_is_preempted() -> None:
    # `s` is within the guarantee of its leaf and starts before `high`, which must borrow.
    queues = [queue("co"), queue("q", "co", 8), queue("other", "co", 16)]
    high = gang("high", "q", pods=5, size=4, priority=5)
    running = [run(gang("old", "q", size=4), ["h-0"])]
    result = plan(inputs(rack("h", 3), queues, [gang("s", "q", size=4), high], running))
    assert evicted(result) == {}
    assert set(started(result)) == {"high"}


def test_a_start_that_is_taken_back_is_placed_elsewhere_in_the_same_plan() -> None:
    queues = [both("co", 24, 24, None), both("a", 8, 8), both("b", 16, 8)]
    nodes = [*NODES, *rack("e", 1, flavor="a100")]
    running = [
        *(run(gang(f"x{i}", "a" if not i else "b"), [f"h-{i}"]) for i in range(3)),
        on_a100(gang("old", "b"), "a-0"),
    ]
    hides, small = gang("h", "a", at=1.0, flavors=("h200",)), gang("s", "a", pods=2, size=4, at=2.0, flavors=("a100",))
    newcomer = gang("n", "b", at=3.0, flavors=("a100",))
    snapshot = inputs(nodes, queues, [hides, small, newcomer], running, usage=(DecayedUsage("a", "a100", GPU, 3600.0),))
    assert set(started(plan(snapshot))) == {"s", "n"}


# -- against every other choice


def without_evictions(snapshot: Snapshot, uid: str) -> bool:
    """Whether a gang starts if it is the only one that waits and none is evicted."""
    alone = replace(snapshot, pending=tuple(g for g in snapshot.pending if g.uid == uid))
    return uid in started(plan(alone, policy=replace(MUSTER, preempts=False)))


def after(snapshot: Snapshot, gone: set[str], places: Mapping[str, Placement]) -> Snapshot:
    """The snapshot without these gangs, in which those run that a plan has placed."""
    gangs = {g.uid: g for g in snapshot.pending}
    running = [r for r in snapshot.running if r.gang.uid not in gone and r.state == "admitted"]
    running += [RunningGang(gangs[uid], place, snapshot.now) for uid, place in places.items() if uid not in gone]
    return replace(snapshot, running=tuple(running), nominations=())


def choices(starts: list[str]) -> Iterator[set[str]]:
    """Every way to take back some of the starts, at most three."""
    return map(set, chain.from_iterable(combinations(starts, n) for n in (1, 2, 3)))


def set_of(placement: Placement) -> set[str]:
    """The flavors of a placement."""
    return {part.flavor for part in placement}


def unneeded(snapshot: Snapshot) -> list[tuple[str, set[str]]]:
    """Gangs that a plan evicts though it starts others in their queues and flavors, of the same or a lower priority,
    whose admissions it could have withdrawn instead: all of these are tried. Plans in which gangs shrink or lose
    nominations are left out."""
    decisions = plan(snapshot).decisions
    gangs = {g.uid: g for g in snapshot.pending} | {r.gang.uid: r.gang for r in snapshot.running}
    starts = {d.gang_uid: d for d in decisions if isinstance(d, Admit)}
    places = {d.gang_uid: d.placement for d in decisions if isinstance(d, Admit | Nominate)}
    flavors = {r.gang.uid: set_of(r.placement) for r in snapshot.running} | {u: set_of(p) for u, p in places.items()}
    evictions = [d for d in decisions if isinstance(d, Evict)]
    if any(isinstance(d, Resize) for d in decisions) or snapshot.nominations:
        return []
    gone = {d.gang_uid for d in evictions}
    found = []
    for eviction in evictions:
        victim = gangs[eviction.gang_uid]
        newcomers = [
            uid
            for uid in starts
            if gangs[uid].queue == victim.queue
            and flavors[uid] == flavors[victim.uid]
            and gangs[uid].priority <= victim.priority
        ]
        for taken_back in choices(newcomers):
            beneficiary = {eviction.preemptor}
            instead = after(snapshot, (gone - {victim.uid}) | taken_back | beneficiary, places)
            if without_evictions(instead, eviction.preemptor):
                found.append((victim.uid, taken_back))
    return found


@given(snapshots)
def test_no_running_gang_leaves_where_starts_of_its_queue_could_have_been_taken_back(snapshot: Snapshot) -> None:
    assert unneeded(snapshot) == []


@given(st.integers(0, 1 << 32).map(two_flavors))
def test_no_running_gang_leaves_for_starts_of_its_queue_where_teams_have_guarantees_in_two_flavors(
    snapshot: Snapshot,
) -> None:
    assert unneeded(snapshot) == []
