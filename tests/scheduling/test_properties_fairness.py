"""Properties of a cluster over many plans: every gang starts in the end, and backfill delays no reservation."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.builders import PlanningLoop
from tests.scheduling.random_snapshots import cluster, gangs, queue_tree, snapshots
from tests.scheduling.snapshots import (
    A100,
    GPU,
    H200,
    evicted,
    gang,
    inputs,
    queue,
    rack,
    resized,
    run,
    started,
    waits_by_uid,
)

from muster.model import Admit, Gang, RunningGang, Snapshot
from muster.scheduling import BACKFILL, plan


def crowd(seed: int, size: int, *, bounded: bool) -> PlanningLoop:
    """A small cluster with more gangs than fit, some of which come later; every run ends."""
    draw = Random(seed)
    nodes = tuple(replace(node, schedulable=True) for node in cluster(draw))
    queues = queue_tree(draw, sum(node.allocatable.get(GPU) for node in nodes if node.flavor == "h200"))
    all_gangs = [
        replace(g, submitted_at=draw.choice((0.0, 0.0, 300.0, 2000.0)), grace_s=10.0)
        for g in gangs(draw, "g", size, queues, 0.0)
    ]
    runtime = {g.uid: draw.choice((60.0, 400.0, 3000.0)) for g in all_gangs}
    if bounded:
        all_gangs = [replace(g, max_runtime_s=runtime[g.uid]) for g in all_gangs]
    waiting = tuple(g for g in all_gangs if not g.submitted_at)
    later = [g for g in all_gangs if g.submitted_at]
    return PlanningLoop(Snapshot(0.0, nodes, (H200, A100), queues, waiting, ()), runtime, later)


@given(st.integers(0, 1 << 32), st.integers(4, 14), st.booleans())
def test_if_every_run_ends_each_gang_that_fits_an_empty_cluster_starts(seed: int, size: int, bounded: bool) -> None:
    life = crowd(seed, size, bounded=bounded)
    uids = {*life.runtime}
    life.live()
    impossible = {g.uid for g in life.snapshot.pending if not fits_empty(life.snapshot, g)}
    assert uids == life.ended.keys() | impossible


def fits_empty(snapshot: Snapshot, gang: Gang) -> bool:
    return gang.uid in started(plan(replace(snapshot, pending=(gang,), running=(), nominations=())))


@given(st.integers(0, 1 << 32), st.integers(4, 14))
def test_no_gang_is_evicted_at_the_instant_at_which_it_started(seed: int, size: int) -> None:
    life = crowd(seed, size, bounded=False)
    life.live()
    starts = {(at, d.gang_uid) for at, result in life.plans for d in result.decisions if isinstance(d, Admit)}
    assert starts.isdisjoint(life.evictions)


DELAY, LONGEST = 600.0, 400.0


def streams(seed: int) -> tuple[PlanningLoop, int]:
    """Small gangs within the guarantees of their queues, more than the cluster can run, until a few large ones have
    started for sure; and how many of these there are."""
    draw = Random(seed)
    nodes = rack("r1", 4)
    queues = [replace(q, reservation_delay_s=None, max_priority=None) for q in queue_tree(draw, 32)]
    queues[0] = replace(queues[0], reservation_delay_s=DELAY)
    leaves = [q.name for q in queues if q.name.startswith("q")]
    large = [
        gang(f"large-{i}", draw.choice(leaves), pods=draw.randint(1, 4), at=draw.choice((0.0, 500.0)))
        for i in range(draw.randint(1, 2))
    ]
    guaranteed = {q.name: q.quotas[0].guaranteed or 0 for q in queues if q.name in leaves and q.quotas}
    empty = inputs(nodes, queues)
    large = [
        one for one in large if fits_empty(empty, one) and 8 * one.roles[0].replicas > guaranteed.get(one.queue, 0)
    ]
    runtime = {one.uid: draw.choice((200.0, LONGEST)) for one in large}
    small: list[Gang] = []
    until, at, declared = (len(large) + 1) * (2 * DELAY + 2 * LONGEST), 0.0, draw.choice((0.0, 0.5, 1.0))
    while at < until:
        runs, size = draw.choice((100.0, 300.0, LONGEST)), draw.choice((1, 2, 4, 8))
        bound = runs if draw.random() < declared else None
        leaf = draw.choice([name for name in guaranteed if guaranteed[name] >= size] or [""])
        if not leaf:
            break
        uid = f"s{len(small):03}"
        small.append(replace(gang(uid, leaf, size=size, at=at, runtime=bound), grace_s=0.0))
        runtime[uid] = runs
        at += draw.expovariate(1.3 * 32 / (3.75 * 267))
    arrivals = sorted([*large, *small], key=lambda one: one.submitted_at)
    return PlanningLoop(replace(empty, now=0.0), runtime, arrivals), len(large)


@given(st.integers(0, 1 << 32))
def test_each_gang_within_its_limit_starts_in_finite_time_whatever_smaller_ones_keep_coming(seed: int) -> None:
    loop, count = streams(seed)
    large = {one.uid for one in loop.arrivals if one.uid.startswith("large")}
    loop.live(5000, stop_when=large)
    slack = 30.0 + 60.0  # it counts as running for half a minute longer, and its victims take some seconds to stop
    assert {
        uid: at
        for uid, at in loop.started.items()
        if uid in large and at > 500 + count * (2 * DELAY + 2 * LONGEST + slack)
    } == {}
    assert large <= loop.started.keys()


@given(snapshots)
def test_some_gang_starts_whenever_one_is_within_quota_and_fits_and_no_gang_runs(snapshot: Snapshot) -> None:
    idle = replace(snapshot, running=(), nominations=(), paused=frozenset())
    could = [one.uid for one in idle.pending if started(plan(replace(idle, pending=(one,))))]
    assert bool(started(plan(idle))) == bool(could)


@given(snapshots)
def test_where_no_gang_starts_those_that_could_alone_wait_for_a_reservation(snapshot: Snapshot) -> None:
    result = plan(snapshot)
    if started(result) or evicted(result) or resized(result):
        return
    waits = waits_by_uid(result)
    one_flavor = [one for one in snapshot.pending if len(one.flavors) == 1]  # of several, the first one has the reason
    could = [one.uid for one in one_flavor if started(plan(replace(snapshot, pending=(one,))))]
    assert {uid: waits[uid].reason for uid in could} == dict.fromkeys(could, "BlockedByReservation")


@given(snapshots)
def test_capacity_is_kept_idle_beside_running_gangs_only_for_one_that_starts_once_they_have_ended(
    snapshot: Snapshot,
) -> None:
    """Of those that could start alone none does: then another one waits for capacity or quota that running gangs have,
    and is not itself too large."""
    result = plan(snapshot)
    if started(result) or evicted(result) or resized(result):
        return
    if not any(started(plan(replace(snapshot, pending=(one,)))) for one in snapshot.pending):
        return
    heads = {uid for uid, wait in waits_by_uid(result).items() if wait.reason != "BlockedByReservation"}
    nominated = {one.gang_uid for one in snapshot.nominations}
    alone = (one for one in snapshot.pending if one.uid in heads | nominated)
    assert any(fits_empty(snapshot, one) for one in alone)


# -- reservations


def blocked(draw: st.DataObject) -> tuple[Snapshot, dict[str, float]]:
    """A queue with quota for all, a gang that needs more nodes than are idle, and gangs that could be backfilled."""
    nodes = rack("r1", draw.draw(st.integers(1, 3))) + rack("r2", draw.draw(st.integers(1, 3)))
    times = st.integers(1, 40).map(lambda n: 100.0 * n)
    running: list[RunningGang] = []
    free = draw.draw(st.integers(0, len(nodes) - 1))
    for i, node in enumerate(nodes[free:]):
        bound = draw.draw(times)
        running.append(run(gang(f"r{i}", runtime=bound), [node.name], since=-draw.draw(st.sampled_from((0.0, 50.0)))))
    wide = gang("wide", pods=draw.draw(st.integers(free + 1, len(nodes))), runtime=draw.draw(times), at=-1.0)
    waiting = [wide]
    for i in range(draw.draw(st.integers(1, 6))):
        pods, size = draw.draw(st.sampled_from(((1, 4), (1, 8), (2, 8), (2, 4), (1, 2))))
        waiting.append(gang(f"b{i}", pods=pods, size=size, runtime=draw.draw(times), at=float(i)))
    runtime = {g.uid: _stay(g) for g in (*waiting, *(r.gang for r in running))}
    return inputs(nodes, [queue("q", guaranteed=1000)], waiting, running, now=0.0), runtime


def _stay(gang: Gang) -> float:
    """A gang stays for exactly as long as it may: its runtime, its grace, and cleaning up."""
    assert gang.max_runtime_s is not None
    return gang.max_runtime_s + gang.grace_s + 30.0


@given(st.data())
def test_a_gang_with_a_reservation_is_never_delayed_by_backfilled_gangs(data: st.DataObject) -> None:
    snapshot, runtime = blocked(data)
    promised = waits_by_uid(plan(snapshot))["wide"].estimated_start
    alone = PlanningLoop(replace(snapshot, pending=snapshot.pending[:1]), runtime)
    among = PlanningLoop(snapshot, runtime)
    strict = PlanningLoop(snapshot, runtime, policy=BACKFILL)
    for life in (alone, among, strict):
        life.live()
    assert alone.started["wide"] == promised, "the estimate comes true when every gang runs as long as it may"
    assert among.started["wide"] <= alone.started["wide"]
    assert strict.started["wide"] <= alone.started["wide"]


@given(st.data())
def test_the_reservation_does_not_depend_on_gangs_behind(data: st.DataObject) -> None:
    snapshot, _ = blocked(data)
    without = replace(snapshot, pending=snapshot.pending[:1])
    assert waits_by_uid(plan(snapshot))["wide"].estimated_start == waits_by_uid(plan(without))["wide"].estimated_start
