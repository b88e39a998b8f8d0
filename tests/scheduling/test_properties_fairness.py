"""Properties of a cluster over many plans: every gang starts in the end, and backfill delays no reservation."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.builders import PlanningLoop
from tests.scheduling.random_snapshots import cluster, gangs, queue_tree
from tests.scheduling.snapshots import A100, GPU, H200, gang, inputs, queue, rack, run, started, waits_by_uid

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
