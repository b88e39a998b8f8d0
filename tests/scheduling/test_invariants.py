"""Invariants of every plan, on random snapshots of busy clusters; the Hypothesis profile says how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.random_snapshots import histories, snapshots
from tests.scheduling.snapshots import GPU, carried_out, left

from muster.model import Admit, Evict, Gang, Nominate, Placement, Resize, Resources, Snapshot, Wait
from muster.scheduling import placement_error, plan


def gangs_of(snapshot: Snapshot) -> dict[str, Gang]:
    """All gangs, by uid."""
    return {g.uid: g for g in snapshot.pending} | {r.gang.uid: r.gang for r in snapshot.running}


def taken(gang: Gang, placement: Placement) -> Iterator[tuple[str, str, int]]:
    """(node, resource, amount) that a placement takes."""
    request = {role.name: role.request for role in gang.roles}
    for part in placement:
        for node, count in part.nodes:
            for resource, amount in request[part.role]:
                yield node, resource, amount * count


@given(snapshots)
def test_no_node_is_ever_oversubscribed(snapshot: Snapshot) -> None:
    after = carried_out(snapshot, plan(snapshot).decisions)
    total = Counter[tuple[str, str]]()
    for running in after.running:
        for node, resource, amount in taken(running.gang, running.placement):
            total[node, resource] += amount
    capacity = {(n.name, name): amount for n in after.nodes for name, amount in n.allocatable}
    assert {key: amount for key, amount in total.items() if amount > capacity.get(key, 0)} == {}


@given(snapshots)
def test_every_placement_passes_the_placement_check(snapshot: Snapshot) -> None:
    gangs = gangs_of(snapshot)
    nodes = {node.name: node for node in snapshot.nodes}
    flavors = {flavor.name: flavor for flavor in snapshot.flavors}
    for decision in plan(snapshot).decisions:
        if isinstance(decision, Admit):
            gang = gangs[decision.gang_uid]
            assert placement_error(gang, decision.placement, nodes, flavors, snapshot.excluded_nodes) == ""


@given(snapshots)
def test_nominated_capacity_is_free_once_victims_have_terminated(snapshot: Snapshot) -> None:
    after = left(carried_out(snapshot, plan(snapshot).decisions))
    total = Counter[tuple[str, str]]()
    for running in after.running:
        if running.state == "admitted":
            for node, resource, amount in taken(running.gang, running.placement):
                total[node, resource] += amount
    gangs = gangs_of(after)
    for nomination in after.nominations:
        if nomination.expires_at > after.now:
            for node, resource, amount in taken(gangs[nomination.gang_uid], nomination.placement):
                total[node, resource] += amount
    capacity = {(n.name, name): amount for n in after.nodes for name, amount in n.allocatable}
    assert {key: amount for key, amount in total.items() if amount > capacity.get(key, 0)} == {}


@given(snapshots)
def test_all_or_nothing_at_min(snapshot: Snapshot) -> None:
    gangs = gangs_of(snapshot)
    for decision in plan(snapshot).decisions:
        if isinstance(decision, Admit | Nominate | Resize):
            placed = {part.role: part.replicas for part in decision.placement}
            for role in gangs[decision.gang_uid].roles:
                assert role.min_replicas <= placed.get(role.name, 0) <= role.replicas


@given(snapshots)
def test_a_required_domain_contains_the_whole_gang(snapshot: Snapshot) -> None:
    gangs, nodes = gangs_of(snapshot), {node.name: node for node in snapshot.nodes}
    for decision in plan(snapshot).decisions:
        if isinstance(decision, Admit | Nominate | Resize):
            topology = gangs[decision.gang_uid].topology
            if topology is not None and topology.required is not None:
                level = ("block", "rack").index(topology.required)
                places = [node for part in decision.placement for node, _ in part.nodes]
                assert len({(nodes[name].flavor, nodes[name].domains[level]) for name in places}) == 1


@given(snapshots)
def test_exactly_the_waiting_gangs_get_a_wait(snapshot: Snapshot) -> None:
    decisions = plan(snapshot).decisions
    admitted = {d.gang_uid for d in decisions if isinstance(d, Admit)}
    waiting = [d.gang_uid for d in decisions if isinstance(d, Wait)]
    assert sorted(waiting) == sorted({g.uid for g in snapshot.pending} - admitted)
    assert all(d.message for d in decisions if isinstance(d, Wait))


@given(snapshots)
def test_positions_count_from_one_in_each_queue(snapshot: Snapshot) -> None:
    gangs, positions = gangs_of(snapshot), dict[str, list[int]]()
    for decision in plan(snapshot).decisions:
        if isinstance(decision, Wait) and decision.position is not None:
            positions.setdefault(gangs[decision.gang_uid].queue, []).append(decision.position)
    for found in positions.values():
        assert sorted(found) == list(range(1, len(found) + 1))


@given(snapshots)
def test_no_gang_is_evicted_unless_its_preemptor_is_nominated(snapshot: Snapshot) -> None:
    result = plan(snapshot)
    preemptors = {d.preemptor for d in result.decisions if isinstance(d, Evict)}
    preemptors |= {d.preemptor for d in result.decisions if isinstance(d, Resize) and d.preemptor}
    nominations = {d.gang_uid: d for d in result.decisions if isinstance(d, Nominate)}
    assert preemptors <= set(nominations)
    after = left(carried_out(snapshot, result.decisions))
    admitted = {d.gang_uid for d in plan(after).decisions if isinstance(d, Admit)}
    terminating = {r.gang.uid for r in after.running if r.state != "admitted"}
    for uid, nomination in nominations.items():
        if not terminating & set(nomination.victims) and nomination.expires_at > after.now:
            assert uid in admitted, "capacity was freed for it, and it does not start"


@given(snapshots, st.lists(st.integers(0, 8), min_size=1, max_size=4))
def test_larger_than_cluster_does_not_depend_on_unmanaged_pods(snapshot: Snapshot, gpus: list[int]) -> None:
    def too_large(taken: list[int]) -> set[str]:
        """Gangs that are too large while no gang runs and unmanaged pods take so many GPUs of each node in turn."""
        others = [
            Resources.of({GPU: min(n, node.allocatable.get(GPU))}) for node, n in zip(nodes, cycle(taken), strict=False)
        ]
        crowded = tuple(replace(node, unmanaged_usage=unmanaged) for node, unmanaged in zip(nodes, others, strict=True))
        waits = [d for d in plan(replace(alone, nodes=crowded)).decisions if isinstance(d, Wait)]
        return {wait.gang_uid for wait in waits if wait.reason in ("LargerThanCluster", "LargerThanQuota")}

    nodes = snapshot.nodes
    alone = replace(
        snapshot, running=(), nominations=(), pending=(*snapshot.pending, *(r.gang for r in snapshot.running))
    )
    assert too_large(gpus) == too_large([0])


@given(snapshots)
def test_nominations_come_first_then_evictions_then_admissions(snapshot: Snapshot) -> None:
    def turn(decision: object) -> int:
        if isinstance(decision, Resize):
            return 3 if decision.reason == "Grown" else 1
        return {Nominate: 0, Evict: 1, Admit: 2, Wait: 4}[type(decision)]

    turns = [turn(decision) for decision in plan(snapshot).decisions]
    assert turns == sorted(turns)


@given(snapshots)
def test_the_same_snapshot_gives_the_same_plan(snapshot: Snapshot) -> None:
    assert plan(snapshot).decisions == plan(snapshot).decisions


@given(histories)
def test_a_plan_with_the_cache_of_any_earlier_plan_equals_the_plan_without(history: tuple[Snapshot, ...]) -> None:
    cache = None
    caches = []
    for snapshot in history:
        result = plan(snapshot, cache)
        assert result.decisions == plan(snapshot).decisions
        cache = result.cache
        caches.append(cache)
    for old in caches:
        assert plan(history[-1], old).decisions == plan(history[-1]).decisions


@given(snapshots, st.integers(0, 1 << 32))
def test_no_paused_gang_is_evicted_or_resized(snapshot: Snapshot, seed: int) -> None:
    draw = Random(seed)
    paused = frozenset(uid for uid in gangs_of(snapshot) if draw.random() < 0.3)
    waiting = tuple(gang for gang in snapshot.pending if gang.uid not in paused)
    result = plan(replace(snapshot, pending=waiting, paused=paused), plan(snapshot).cache)
    assert not [one for one in result.decisions if getattr(one, "gang_uid", "") in paused]


@given(snapshots)
def test_a_plan_does_not_change_the_previous_cache(snapshot: Snapshot) -> None:
    first = plan(snapshot)
    cache = first.cache
    before = (
        cache.free_now.free.tolist(),
        cache.free_later.free.tolist(),
        cache.usage_now.usage[:],
        cache.usage_later.usage[:],
    )
    plan(left(carried_out(snapshot, first.decisions)), cache)
    assert (
        cache.free_now.free.tolist(),
        cache.free_later.free.tolist(),
        cache.usage_now.usage,
        cache.usage_later.usage,
    ) == before
    assert plan(snapshot, cache).decisions == first.decisions
