"""A placement is fitted again before pods are created on it, or when kube-scheduler cannot bind them; if it no longer
fits, the gang is un-admitted whole. Pods that are bound kept_gangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.objects import adapted, flavor, job, nodes, queue

from muster.api import spec
from muster.cluster import CreatePod, DeletePod, NodeView, PodView, RefusedStatus, WriteStatus
from muster.engine import CycleResult, Engine
from muster.engine.invalid_placements import invalid_placements
from muster.kinds.trainingjob.pods import pod_name
from muster.model import (
    FlavorInfo,
    Gang,
    NodeInfo,
    NodeTaint,
    Resources,
    Role,
    RolePlacement,
    RunningGang,
    Snapshot,
    Topology,
)
from muster.scheduling import PlannerCache, plan
from muster.workload.conditions import find_condition, is_admitted
from muster.workload.observed import ObservedState
from muster.workload.placement import pod_slots

GPUS = "nvidia.com/gpu"
ANY = (FlavorInfo("any"),)


def submitted(one: spec.TrainingJob) -> spec.TrainingJob:
    name = one.metadata.name
    meta = one.metadata.model_copy(update={"uid": f"u-{name}", "namespace": "d", "resource_version": "1"})
    return one.model_copy(update={"metadata": meta})


def observed_state(jobs: tuple[spec.TrainingJob, ...], seen: list[NodeView], now: float = 1000.0) -> ObservedState:
    quota = queue(gpus=32)
    return ObservedState(
        now=now,
        nodes=tuple(seen),
        flavors=(flavor(),),
        queues=(quota,),
        workloads=adapted(jobs),
        pods={},
        namespaces={"d": {}},
    )


def statuses(cycle: CycleResult) -> dict[str, spec.QueueingStatus]:
    return {write.job_uid: write.status for write in cycle.writes if isinstance(write, WriteStatus)}


def admitted(one: spec.TrainingJob, seen: list[NodeView]) -> spec.TrainingJob:
    """The job as a crash leaves it between its admission and its first pod."""
    status = statuses(Engine().reconcile(observed_state((one,), seen)))[one.metadata.uid]
    assert is_admitted(status)
    return one.model_copy(update={"status": status})


def created(cycle: CycleResult) -> set[str]:
    return {write.node for write in cycle.writes if isinstance(write, CreatePod)}


def test_a_gang_that_still_fits_gets_its_pods_after_a_crash() -> None:
    seen = nodes(2)
    one = admitted(submitted(job("a", pods=2)), seen)
    cycle = Engine().reconcile(observed_state((one,), seen))
    assert created(cycle) == {"n0", "n1"}
    assert statuses(cycle) == {}


def test_a_gang_whose_capacity_was_taken_meanwhile_gets_another_placement_before_any_pod() -> None:
    one = admitted(submitted(job("a", pods=1)), nodes(2))
    (place,) = one.status.placement
    taken = place.nodes[0].node
    unmanaged = Resources.of({GPUS: 1})
    seen = [replace(node, unmanaged_usage=unmanaged) if node.name == taken else node for node in nodes(2)]
    engine = Engine()
    first = engine.reconcile(observed_state((one,), seen))
    assert created(first) == set()
    status = statuses(first)["u-a"]
    assert not is_admitted(status)
    assert [c.reason for c in status.conditions if c.type == "Evicted"] == ["PlacementInvalidated"]
    assert (status.restarts, status.node_losses) == (0, 0)
    assert first.wake_at == 1000.0
    again = engine.reconcile(observed_state((one.model_copy(update={"status": status}),), seen))
    assert created(again) == {"n0", "n1"} - {taken}


def test_a_gang_whose_node_was_cordoned_before_its_first_pod_gets_another_place() -> None:
    one = admitted(submitted(job("a", pods=1)), nodes(2))
    cordoned = one.status.placement[0].nodes[0].node
    seen = [replace(node, cordoned=node.name == cordoned) for node in nodes(2)]
    assert not is_admitted(statuses(Engine().reconcile(observed_state((one,), seen)))["u-a"])


def place(one: spec.TrainingJob) -> str:
    return one.status.placement[0].nodes[0].node


def relabelled(node: NodeView, **labels: str) -> NodeView:
    return replace(node, labels={**node.labels, **labels})


LABELS = {"kind": "gpu", "zone": "a"}
CHANGES: dict[str, Callable[[NodeView], NodeView]] = {
    "cordon": lambda node: replace(node, cordoned=True),
    "not ready": lambda node: replace(node, ready=False, not_ready_since=990.0),
    "NoSchedule": lambda node: replace(node, taints=(NodeTaint("example.com/upkeep"),)),
    "NoExecute": lambda node: replace(node, taints=(NodeTaint("example.com/upkeep", effect="NoExecute"),)),
    "another flavor": lambda node: relabelled(node, kind="cpu"),
    "another zone": lambda node: relabelled(node, zone="b"),
    "resources": lambda node: replace(node, unmanaged_usage=Resources.of({GPUS: 1})),
}
"""What may happen to a node after a gang was placed on it, any of which placement would have heeded."""


def in_zone(one: spec.TrainingJob) -> spec.TrainingJob:
    role = one.spec.roles[0]
    pod = role.template.spec.model_copy(update={"node_selector": {"zone": "a"}})
    template = role.template.model_copy(update={"spec": pod})
    roles = [role.model_copy(update={"template": template})]
    return one.model_copy(update={"spec": one.spec.model_copy(update={"roles": roles})})


def labelled_snapshot(jobs: tuple[spec.TrainingJob, ...], seen: list[NodeView]) -> ObservedState:
    return replace(observed_state(jobs, seen), flavors=(flavor(labels={"kind": "gpu"}),))


def half_created(pods: int = 2, phase: Any = "Running") -> tuple[spec.TrainingJob, list[NodeView], PodView]:
    """A gang with pods on two nodes of which the first exists, as a crash leaves it."""
    seen = [relabelled(node, **LABELS) for node in nodes(3)]
    fresh = in_zone(submitted(job("a", pods=pods)))
    status = statuses(Engine().reconcile(labelled_snapshot((fresh,), seen)))["u-a"]
    one = fresh.model_copy(update={"status": status})
    name = pod_name("a", "u-a", "trainer", 0, 0)
    return one, seen, PodView(name, "u-a", "trainer", 0, 0, place(one), phase, ready=phase == "Running")


def node_of(one: spec.TrainingJob, index: int) -> str:
    return list(pod_slots(one.status.placement))[index].node


def decided(one: spec.TrainingJob, seen: list[NodeView], *pods: PodView) -> CycleResult:
    return Engine().reconcile(replace(labelled_snapshot((one,), seen), pods={"u-a": pods} if pods else {}))


def changed(seen: list[NodeView], name: str, change: str) -> list[NodeView]:
    return [CHANGES[change](node) if node.name == name else node for node in seen]


@pytest.mark.parametrize("change", CHANGES)
def test_a_gang_without_pods_whose_node_would_not_be_chosen_any_more_is_un_admitted(change: str) -> None:
    one, seen, _ = half_created()
    cycle = decided(one, changed(seen, node_of(one, 1), change))
    assert created(cycle) == set()
    status = statuses(cycle)["u-a"]
    assert (is_admitted(status), status.restarts, status.start_retries) == (False, 0, 0)


@pytest.mark.parametrize("change", CHANGES)
def test_a_gang_half_of_whose_pods_exist_is_torn_down_whole_when_the_others_would_not_fit(change: str) -> None:
    one, seen, pod = half_created()
    cycle = decided(one, changed(seen, node_of(one, 1), change), pod)
    assert created(cycle) == set()
    assert [write.name for write in cycle.writes if isinstance(write, DeletePod)] == [pod.name]
    evicted = find_condition(statuses(cycle)["u-a"], "Evicted")
    assert evicted is not None
    assert (evicted.status, evicted.reason) == ("True", "PlacementInvalidated")


@pytest.mark.parametrize("change", sorted(CHANGES.keys() - {"not ready"}))
def test_a_gang_gets_its_other_pods_whatever_happens_to_the_node_of_one_that_is_bound(change: str) -> None:
    one, seen, pod = half_created()
    assert created(decided(one, changed(seen, pod.node, change), pod)) == {node_of(one, 1)}


@pytest.mark.parametrize("change", sorted(CHANGES.keys() - {"not ready"}))
def test_a_gang_that_runs_stays_whatever_would_keep_it_from_starting_there(change: str) -> None:
    one, seen, pod = half_created(pods=1)
    cycle = decided(one, changed(seen, pod.node, change), pod)
    assert statuses(cycle)["u-a"].phase == "Running"
    assert not [write for write in cycle.writes if isinstance(write, DeletePod)]


@pytest.mark.parametrize(
    ("change", "reason"), [*((change, "PlacementInvalidated") for change in CHANGES), (None, None)]
)
def test_a_pod_that_cannot_be_bound_has_its_gang_torn_down_only_if_it_does_not_fit_any_more(
    change: str | None, reason: str | None
) -> None:
    one, seen, first = half_created()
    name = pod_name("a", "u-a", "trainer", 1, 0)
    other = PodView(name, "u-a", "trainer", 1, 0, node_of(one, 1), "Pending", pending_reason="Unschedulable")
    cycle = decided(one, seen if change is None else changed(seen, other.node, change), first, other)
    evicted = find_condition(statuses(cycle).get("u-a", one.status), "Evicted")
    assert (None if evicted is None else evicted.reason) == reason
    assert len([write for write in cycle.writes if isinstance(write, DeletePod)]) == (2 if reason else 0)


def waiting_gang() -> tuple[spec.TrainingJob, list[NodeView], PodView, PodView]:
    """A gang with one bound pod, and one that kube-scheduler has not tried to bind yet."""
    one, seen, first = half_created()
    name = pod_name("a", "u-a", "trainer", 1, 0)
    return one, seen, first, PodView(name, "u-a", "trainer", 1, 0, node_of(one, 1), "Pending", pending_reason="Node")


def cycles(
    one: spec.TrainingJob,
    *observed: tuple[list[NodeView], PodView, PodView],
    refused: tuple[RefusedStatus, ...] = (),
) -> str | None:
    """Why the gang is evicted after an engine has seen these nodes and pods, one after another."""
    engine = Engine()
    for number, (seen, *pods) in enumerate(observed):
        state = replace(
            labelled_snapshot((one,), seen), now=1000.0 + number, pods={"u-a": tuple(pods)}, refused=refused
        )
        status = statuses(engine.reconcile(state)).get("u-a", one.status)
        meta = one.metadata.model_copy(update={"resource_version": str(number + 2)})
        one = one if status is one.status else one.model_copy(update={"status": status, "metadata": meta})
    evicted = find_condition(one.status, "Evicted")
    return None if evicted is None else evicted.reason


@pytest.mark.parametrize("change", CHANGES)
def test_a_node_changes_before_its_pod_is_reported_unschedulable(change: str) -> None:
    one, seen, bound, other = waiting_gang()
    after = changed(seen, other.node, change)
    unschedulable = replace(other, pending_reason="Unschedulable")
    reason = cycles(one, (seen, bound, other), (after, bound, other), (after, bound, unschedulable))
    assert reason == "PlacementInvalidated"


@pytest.mark.parametrize("change", CHANGES)
def test_a_node_changes_in_the_cycle_in_which_its_pod_is_reported_unschedulable(change: str) -> None:
    one, seen, bound, other = waiting_gang()
    unschedulable = replace(other, pending_reason="Unschedulable")
    reason = cycles(one, (seen, bound, other), (changed(seen, other.node, change), bound, unschedulable))
    assert reason == "PlacementInvalidated"


@pytest.mark.parametrize("change", CHANGES)
def test_a_node_changes_after_its_pod_was_reported_unschedulable(change: str) -> None:
    one, seen, bound, other = waiting_gang()
    unschedulable = replace(other, pending_reason="Unschedulable")
    reason = cycles(one, (seen, bound, unschedulable), (changed(seen, other.node, change), bound, unschedulable))
    assert reason == "PlacementInvalidated"


@pytest.mark.parametrize("change", CHANGES)
def test_a_node_changes_of_a_gang_whose_eviction_for_another_job_is_refused(change: str) -> None:
    one, seen, bound, other = waiting_gang()
    unschedulable = replace(other, pending_reason="Unschedulable")
    after = changed(seen, other.node, change)
    refused = (RefusedStatus("u-a", "Eviction", "a is protected", beneficiary="u-b"),)
    reason = cycles(one, (seen, bound, unschedulable), (after, bound, unschedulable), refused=refused)
    assert reason == "PlacementInvalidated"


@pytest.mark.parametrize("change", CHANGES)
def test_a_node_changes_in_the_cycle_that_writes_the_status_for_another_reason(change: str) -> None:
    one, seen, bound, other = waiting_gang()
    unschedulable = replace(other, pending_reason="Unschedulable")
    edited = one.metadata.model_copy(update={"generation": one.metadata.generation + 1})
    engine = Engine()
    engine.reconcile(replace(labelled_snapshot((one,), seen), pods={"u-a": (bound, unschedulable)}))
    state = labelled_snapshot((one.model_copy(update={"metadata": edited}),), changed(seen, other.node, change))
    status = statuses(engine.reconcile(replace(state, pods={"u-a": (bound, unschedulable)})))["u-a"]
    evicted = find_condition(status, "Evicted")
    assert evicted is not None
    assert (status.observed_generation, evicted.reason) == (edited.generation, "PlacementInvalidated")


def test_a_paused_gang_is_evicted_for_a_node_that_changed_once_its_pause_is_over() -> None:
    one, seen, bound, other = waiting_gang()
    pods = {"u-a": (bound, replace(other, pending_reason="Unschedulable"))}
    engine = Engine()
    engine.reconcile(replace(labelled_snapshot((one,), seen), pods=pods))
    state = replace(labelled_snapshot((one,), changed(seen, other.node, "cordon")), pods=pods)
    engine.recheck(["u-a"])
    assert statuses(engine.reconcile(replace(state, paused=frozenset({"u-a"})))) == {}
    engine.recheck(["u-a"])
    evicted = find_condition(statuses(engine.reconcile(state))["u-a"], "Evicted")
    assert evicted is not None
    assert evicted.reason == "PlacementInvalidated"


def test_a_required_domain_that_is_broken_up_keeps_the_gang_from_starting_there() -> None:
    seen = [*nodes(2, rack="r1"), replace(nodes(1, rack="r2")[0], name="n2")]
    fresh = submitted(job("a", pods=2, topology={"required": "rack"}))
    shaped = replace(observed_state((fresh,), seen), flavors=(flavor(levels={"rack": "rack"}),))
    status = statuses(Engine().reconcile(shaped))["u-a"]
    one = fresh.model_copy(update={"status": status})
    moved = [relabelled(node, rack="r2") if node.name == "n1" else node for node in seen]
    assert created(Engine().reconcile(replace(shaped, workloads=adapted([one])))) == {"n0", "n1"}
    assert not is_admitted(
        statuses(Engine().reconcile(replace(shaped, workloads=adapted([one]), nodes=tuple(moved))))["u-a"]
    )


def planned(snapshot: Snapshot) -> PlannerCache:
    return plan(snapshot).cache


def running(name: str, gpus: int, at: float) -> RunningGang:
    role = Role("r", 1, 1, Resources.of({GPUS: gpus}))
    gang = Gang(name, name, "q", 0, 0.0, (role,))
    return RunningGang(gang, (RolePlacement("r", "any", (("n", 1),)),), admitted_at=at)


def test_of_two_that_do_not_fit_beside_each_other_the_later_one_goes() -> None:
    node = NodeInfo("n", Resources.of({GPUS: 8}), Resources.of({GPUS: 1}), flavor="any")
    pair = (running("old", 4, 1.0), running("new", 4, 2.0))
    snapshot = Snapshot(now=5.0, nodes=(node,), flavors=ANY, queues=(), pending=(), running=pair)
    unbound = {one.gang.uid: one.placement for one in pair}
    assert invalid_placements(planned(snapshot), unbound).keys() == {"new"}
    assert invalid_placements(planned(snapshot), {"old": unbound["old"]}).keys() == {"old"}, (
        "one that has its pods stays"
    )


class Unwalkable(tuple[RunningGang, ...]):
    """Running gangs that fail the test when they are walked."""

    def __iter__(self) -> Iterator[RunningGang]:
        raise AssertionError("walks all running gangs")


def test_only_unbound_gangs_are_walked() -> None:
    node = NodeInfo("n", Resources.of({GPUS: 8}), flavor="any")
    pair = (running("old", 4, 1.0), running("new", 5, 2.0))
    cache = planned(Snapshot(now=5.0, nodes=(node,), flavors=ANY, queues=(), pending=(), running=pair))
    cache = replace(cache, snapshot=replace(cache.snapshot, running=Unwalkable(pair)))
    assert invalid_placements(cache, {"new": pair[1].placement}).keys() == {"new"}


@pytest.mark.parametrize(
    ("by_gang", "by_all", "flavors", "fits"),
    [
        ((), (), ANY, True),
        (("n",), (), ANY, False),
        ((), ("n",), ANY, False),
        ((), (), (), False),
        ((), (), (FlavorInfo("other"),), False),
    ],
    ids=["as placed", "avoided by the gang", "avoided by all", "no flavor", "another flavor"],
)
def test_no_gang_starts_on_a_node_that_is_avoided_by_now_or_in_a_flavor_that_is_gone(
    by_gang: tuple[str, ...], by_all: tuple[str, ...], flavors: tuple[FlavorInfo, ...], fits: bool
) -> None:
    one = running("a", 4, 1.0)
    one = replace(one, gang=replace(one.gang, excluded_nodes=frozenset(by_gang)))
    seen = (NodeInfo("n", Resources.of({GPUS: 8}), flavor="any"),)
    avoid = frozenset(by_all)
    snapshot = Snapshot(
        now=5.0, nodes=seen, flavors=flavors, queues=(), pending=(), running=(one,), excluded_nodes=avoid
    )
    assert (invalid_placements(planned(snapshot), {"a": one.placement}) == {}) == fits


RACK = Topology(required="rack")


@pytest.mark.parametrize(
    ("of_gang", "of_role", "fits"),
    [(None, None, True), (RACK, None, False), (None, RACK, False), (RACK, Topology(), True)],
)
def test_a_role_is_held_together_by_its_own_topology_or_else_by_that_of_its_gang(
    of_gang: Topology | None, of_role: Topology | None, fits: bool
) -> None:
    role = Role("r", 2, 2, Resources.of({GPUS: 1}), topology=of_role)
    gang = Gang("a", "a", "q", 0, 0.0, (role,), topology=of_gang)
    apart = (RolePlacement("r", "any", (("n1", 1), ("n2", 1))),)
    seen = tuple(NodeInfo(f"n{i}", Resources.of({GPUS: 8}), flavor="any", domains=(f"rack{i}",)) for i in (1, 2))
    split = (FlavorInfo("any", levels=("rack",)),)
    one = RunningGang(gang, apart, admitted_at=1.0)
    snapshot = Snapshot(now=5.0, nodes=seen, flavors=split, queues=(), pending=(), running=(one,))
    assert (invalid_placements(planned(snapshot), {"a": apart}) == {}) == fits


@given(st.lists(st.integers(0, 6), max_size=6), st.integers(0, 12), st.data())
def test_remaining_gangs_fit_unless_bound_pods_alone_exceed_the_node(
    sizes: list[int], unmanaged: int, data: st.DataObject
) -> None:
    gangs = tuple(running(f"g{number}", gpus, float(number)) for number, gpus in enumerate(sizes))
    requested = {one.gang.uid: one.placement for one in gangs if data.draw(st.booleans())}
    node = NodeInfo("n", Resources.of({GPUS: 8}), Resources.of({GPUS: unmanaged}), flavor="any")
    snapshot = Snapshot(now=9.0, nodes=(node,), flavors=ANY, queues=(), pending=(), running=gangs)
    gone = invalid_placements(planned(snapshot), requested)
    assert gone.keys() <= requested.keys()
    left = unmanaged + sum(one.gang.roles[0].request.get(GPUS) for one in gangs if one.gang.uid not in gone)
    kept_gangs = [one for one in gangs if one.gang.uid in requested.keys() - gone.keys() and one.gang.roles[0].request]
    assert left <= 8 or not kept_gangs
