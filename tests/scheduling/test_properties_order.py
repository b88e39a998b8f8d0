"""Of two equal gangs of a queue the earlier one starts first, whatever becomes free while a plan is made."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st
from tests.scheduling.builders import two_teams
from tests.scheduling.random_snapshots import snapshots, tight, two_flavors
from tests.scheduling.snapshots import (
    evicted,
    gang,
    inputs,
    nominated,
    queue,
    rack,
    run,
    started,
    waits_by_uid,
)

from muster.model import Gang, RunningGang, Snapshot
from muster.scheduling import plan


def test_a_gang_does_not_preempt_with_capacity_freed_after_an_equal_gang_before_it_found_no_victims() -> None:
    # `first` finds no victims: a would be back within its guarantee before a second pod fits. What `small` reclaims
    # frees capacity for that pod, so an equal gang behind it would find victims in the same plan.
    on_nodes = {  # GPUs, priority and start of the gangs there
        "r1-0": ((2, 0, 796.0), (2, 0, 793.0), (4, 2, 394.0)),
        "r2-0": ((7, 2, 451.0),),
        "r2-1": ((1, 0, 193.0), (1, 0, 537.0), (1, 2, 182.0), (4, 0, 380.0), (1, 0, 162.0)),
    }
    nodes = rack("r1", 1) + rack("r2", 2)
    running: list[RunningGang] = []
    for node, gangs in on_nodes.items():
        for size, priority, since in gangs:
            one = gang(f"r{len(running)}", "a", size=size, priority=priority)
            running.append(run(one, [node], since=since))
    waiting = [gang("first", "b", 2, size=4), gang("small", "b", size=2, at=1), gang("second", "b", 2, size=4, at=2)]
    result = plan(inputs(nodes, two_teams(19, 24), waiting, running))
    assert set(nominated(result)) == {"small"}
    assert waits_by_uid(result)["first"].reason == waits_by_uid(result)["second"].reason == "InsufficientResources"


def test_of_two_equal_gangs_admitted_in_a_plan_the_later_one_is_withdrawn_first() -> None:
    # Both are within the guarantee of their leaf and start before `high`, which must borrow.
    queues = [queue("co"), queue("q", "co", 8), queue("other", "co", 16)]
    equal = [gang("a", "q", size=4), gang("b", "q", size=4)]
    high = gang("high", "q", pods=5, size=4, priority=5)
    result = plan(inputs(rack("h", 3), queues, [*equal, high], []))
    assert (set(started(result)), evicted(result)) == ({"a", "high"}, {})


def equality(gang: Gang) -> Gang:
    """What makes gangs equal."""
    return replace(gang, uid="", name="", submitted_at=0.0)


def with_equal_gangs(snapshot: Snapshot, seed: int) -> Snapshot:
    """The snapshot with later copies of some gangs that wait."""
    draw = Random(seed)
    later = [
        replace(g, uid=f"{g.uid}+", name=f"{g.name}+", submitted_at=g.submitted_at + draw.randint(0, 3))
        for g in snapshot.pending
        if draw.random() < 0.7
    ]
    return replace(snapshot, pending=(*snapshot.pending, *later))


def passed(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Gangs that wait although an equal gang behind them is admitted or nominated, with that gang.

    Nominated gangs come first in any case, and a gang waits while its old pods terminate.
    """
    result = plan(snapshot)
    ahead = started(result).keys() | nominated(result).keys()
    apart = {n.gang_uid for n in snapshot.nominations} | {r.gang.uid for r in snapshot.running}
    waiting = sorted((g for g in snapshot.pending if g.uid not in apart), key=lambda g: (g.submitted_at, g.uid))
    return [
        (first.uid, second.uid)
        for i, first in enumerate(waiting)
        for second in waiting[i + 1 :]
        if second.uid in ahead and first.uid not in ahead and equality(first) == equality(second)
    ]


@given(snapshots, st.integers(0, 1 << 32))
def test_no_gang_passes_an_equal_one_of_its_queue(snapshot: Snapshot, seed: int) -> None:
    assert passed(with_equal_gangs(snapshot, seed)) == []


@given(st.integers(0, 1 << 32))
def test_no_gang_passes_an_equal_one_of_its_queue_where_many_searches_for_victims_fail(seed: int) -> None:
    assert passed(with_equal_gangs(tight(seed), seed)) == []


@example(790)  # a gang ahead of the equal one takes its admission when its own is withdrawn,
@example(771)  # its nomination,
@example(4196)  # and its nomination with two victims
@given(st.integers(0, 1 << 32))
def test_no_gang_passes_an_equal_one_of_its_queue_where_teams_have_guarantees_in_two_flavors(seed: int) -> None:
    assert passed(with_equal_gangs(two_flavors(seed), seed)) == []
