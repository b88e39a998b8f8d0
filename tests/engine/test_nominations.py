"""Nominations, their victims, and everything that may happen to either in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.engine.objects import adapted, flavor, job, nodes, queue, settle
from tests.lifecycle.cases import reconcile_job
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
from muster.cluster import DeletePod, PodView, RefusedStatus, Write, WriteStatus
from muster.engine import Engine
from muster.engine.status_updater import StatusUpdater
from muster.model import Nominate, Placement, RolePlacement
from muster.simulate import JobBehavior
from muster.state import JobEntry
from muster.state.projection import MaxGracePeriods
from muster.workload import transitions
from muster.workload.conditions import find_condition, is_evicting
from muster.workload.observation import Observation
from muster.workload.observed import ObservedState
from muster.workload.placement import pod_slots
from muster.workload.related import RelatedWorkloads
from muster.workload.timeouts import Timeouts

NOW = 100.0
NODES_0_AND_1: Placement = (RolePlacement("trainer", "any", (("n0", 1), ("n1", 1))),)
SMALLER: Placement = (RolePlacement("trainer", "any", (("n0", 1),)),)
FOR_HIGH = spec.EvictionStatus.model_validate({"for": "high", "reason": "Preempted", "deadline": NOW + 30})
FOR_OTHER = spec.EvictionStatus.model_validate({"for": "other", "reason": "Reclaimed", "deadline": NOW + 30})


def named(name: str, status: spec.TrainingJobStatus | None = None, *, deleted: bool = False) -> spec.TrainingJob:
    one = job(name, least=1)
    stamp = NOW if deleted else None
    meta = one.metadata.model_copy(update={"uid": name, "generation": 1, "deletion_timestamp": stamp})
    one = one.model_copy(update={"metadata": meta})
    fresh = reconcile_job(one, Observation(0.0), Timeouts()).status
    return one.model_copy(update={"status": fresh if status is None else status})


RUNNING = transitions.admit(named("v").status, NODES_0_AND_1, 0.0)
LEAVING = transitions.evict(RUNNING, "Preempted", "", NOW, eviction=FOR_HIGH)
SHRINKING = transitions.resize(RUNNING, SMALLER, "Preempted", NOW, eviction=FOR_HIGH)
BACK_IN_LINE = transitions.requeue(LEAVING, NOW, Timeouts(), [], 0.0)


def pods(of: spec.TrainingJobStatus) -> tuple[PodView, ...]:
    return tuple(
        PodView(f"v-{slot.index}-{of.attempt}", "v", "trainer", slot.index, of.attempt, slot.node, "Running")
        for slot in pod_slots(of.placement)
    )


# What became of the victim: its status (None: it is removed), its pods, and what becomes of a hold that waits for it
# alone. `void`: the planner decides anew.
VICTIMS: dict[str, tuple[spec.TrainingJobStatus | None, tuple[PodView, ...], str]] = {
    "removed": (None, (), "ready"),
    "requeued": (BACK_IN_LINE, (), "ready"),
    "finished": (transitions.finish(RUNNING, "Complete", "Completed", "", NOW), (), "ready"),
    "cancelled while it left": (transitions.finish(LEAVING, "Cancelled", "Cancelled", "", NOW), pods(RUNNING), "ready"),
    "suspended": (transitions.suspend(RUNNING, NOW), pods(RUNNING), "ready"),
    "leaves for it": (LEAVING, pods(RUNNING), "waits"),
    "leaves for it, its pods are gone": (LEAVING, (), "waits"),
    "is evicted for another gang": (
        transitions.evict(RUNNING, "Reclaimed", "", NOW, eviction=FOR_OTHER), pods(RUNNING), "waits",
    ),
    "leaves by itself": (transitions.evict(RUNNING, "NodeLost", "", NOW), pods(RUNNING), "waits"),
    "shrinks for it": (SHRINKING, pods(RUNNING), "waits"),
    "shrinks for another gang": (
        transitions.resize(RUNNING, SMALLER, "Reclaimed", NOW, eviction=FOR_OTHER), pods(RUNNING), "waits",
    ),
    "has shrunk": (SHRINKING, pods(SHRINKING), "ready"),
    "has shrunk and fails": (transitions.restart(SHRINKING, "Failed", "", NOW, 5.0), pods(SHRINKING), "waits"),
    "was not evicted": (RUNNING, pods(RUNNING), "void"),
    "was not evicted and fails": (transitions.restart(RUNNING, "Failed", "", NOW, 5.0), pods(RUNNING), "void"),
    "was not evicted and was made smaller by its user": (
        transitions.resize(RUNNING, SMALLER, "Edited", NOW, eviction=None), pods(RUNNING), "void",
    ),
    "has left and is admitted again": (transitions.admit(BACK_IN_LINE, NODES_0_AND_1, NOW), (), "void"),
}  # fmt: skip


def settled(
    victim: spec.TrainingJobStatus | None, beside: tuple[PodView, ...], victims: list[str], *, deleted: bool = False
) -> StatusUpdater:
    """The updates after nominations were synced; `high` is nominated and waits for `victims`, `w` leaves for it."""
    waiting = transitions.nominate(
        named("high").status, Nominate("high", NODES_0_AND_1, tuple(victims), NOW + 600), None, NOW
    )
    jobs = [named("high", waiting), named("w", LEAVING)]
    if victim is not None:
        jobs.append(named("v", victim, deleted=deleted))
    observed = ObservedState(NOW, tuple(nodes(2)), (), (), adapted(jobs), {"v": beside})
    updater = StatusUpdater(
        observed,
        {one.metadata.uid: JobEntry(one) for one in adapted(jobs)},
        {node.name: node for node in nodes(2)},
        Timeouts(),
        MaxGracePeriods(()),
        RelatedWorkloads(),
    )
    updater.sync_nominations(["high", "v", "w"] if victim is not None else ["high", "w"])
    return updater


@pytest.mark.parametrize("state", VICTIMS)
def test_a_nomination_follows_the_state_of_its_victim(state: str) -> None:
    status, beside, outcome = VICTIMS[state]
    for others in ([], ["w"]):
        high = settled(status, beside, ["v", *others]).latest_status("high")
        assert high is not None
        wanted = {"ready": others, "waits": ["v", *others], "void": None}[outcome]
        assert (None if high.nomination is None else high.nomination.victims) == wanted


def test_a_victim_that_is_being_deleted_need_not_be_evicted() -> None:
    high = settled(RUNNING, pods(RUNNING), ["v"], deleted=True).latest_status("high")
    assert high is not None
    assert high.nomination is not None
    assert high.nomination.victims == []


@pytest.mark.parametrize("state", VICTIMS)
def test_no_gang_is_evicted_while_nominations_are_synced(state: str) -> None:
    status, beside, _ = VICTIMS[state]
    after = settled(status, beside, ["v", "w"]).latest_status("v")
    if status is not None and after is not status:
        assert state in ("has shrunk",), "only a gang that has shrunk has something to forget"
        assert after == status.model_copy(update={"eviction": None})


@pytest.mark.parametrize(("gone", "revoked"), [(0, True), (1, False)])
def test_an_eviction_is_revoked_only_while_the_gang_has_all_its_pods_since_capacity_without_one_may_be_assigned(
    gone: int, *, revoked: bool
) -> None:
    nominated = transitions.nominate(
        named("high").status, Nominate("high", NODES_0_AND_1, ("v", "w"), NOW + 600), None, NOW
    )
    jobs = [named("high", nominated), named("v", RUNNING), named("w", LEAVING)]
    refused = (RefusedStatus("v", "Eviction", "v is protected", beneficiary="high"),)
    beside = {"v": pods(RUNNING), "w": pods(RUNNING)[gone:]}
    observed = ObservedState(NOW, tuple(nodes(2)), (), (), adapted(jobs), beside, refused=refused)
    entries, views = (
        {one.metadata.uid: JobEntry(one) for one in adapted(jobs)},
        {node.name: node for node in nodes(2)},
    )
    updater = StatusUpdater(observed, entries, views, Timeouts(), MaxGracePeriods(()), RelatedWorkloads())
    updater.sync_nominations(["high", "v", "w"])
    after = updater.latest_status("w")
    assert after is not None
    assert is_evicting(after) is not revoked


# ---- what becomes of those who leave when something happens to the one they leave for


def deleted(cluster: ScenarioCluster, high: str) -> None:
    cluster.delete(high)


def suspended(cluster: ScenarioCluster, high: str) -> None:
    cluster.edit(high, suspend=True)


def cancelled(cluster: ScenarioCluster, high: str) -> None:
    cluster.edit(high, cancel=True)


def moved_to_an_unknown_queue(cluster: ScenarioCluster, high: str) -> None:
    cluster.edit(high, queue="nowhere")


def out_of_bounds(cluster: ScenarioCluster, high: str) -> None:
    cluster.put_queue(queue(maxPriority=3))


def out_of_its_namespace(cluster: ScenarioCluster, high: str) -> None:
    cluster.put_queue(queue(namespaceSelector={"matchLabels": {"team": "x"}}))


def in_a_queue_that_is_deleted(cluster: ScenarioCluster, high: str) -> None:
    old = queue()
    cluster.put_queue(
        old.model_copy(update={"metadata": old.metadata.model_copy(update={"deletion_timestamp": cluster.now})})
    )


LOSSES = [
    deleted,
    suspended,
    cancelled,
    moved_to_an_unknown_queue,
    out_of_bounds,
    out_of_its_namespace,
    in_a_queue_that_is_deleted,
]


def preempting() -> tuple[ScenarioCluster, Engine, list[str], str]:
    """`high` arrives while two gangs run, and needs the capacity of both."""
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    lows = [
        cluster.submit(job("low1", 1), JobBehavior(1000, stop_s=5)),
        cluster.submit(job("low2", 1), JobBehavior(1000, stop_s=5)),
    ]
    settle(engine, cluster, until=100)
    return cluster, engine, lows, cluster.submit(job("high", priority=5), JobBehavior(10))


def carry_out(cluster: ScenarioCluster, engine: Engine, statuses: int, others: int = 0) -> None:
    """The first statuses of a round, and some of what follows; then the engine is killed."""
    writes = engine.reconcile(cluster.observe()).writes
    statuses_written: list[Write] = [write for write in writes if isinstance(write, WriteStatus)]
    stops: list[Write] = [write for write in writes if isinstance(write, DeletePod)]
    for write in [*statuses_written[:statuses], *stops[:others]]:
        cluster.apply_one(write)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("evicted", [0, 1, 2])
def test_a_nomination_of_an_inadmissible_gang_is_withdrawn_at_once(
    loss: Callable[[ScenarioCluster, str], None], evicted: int
) -> None:
    cluster, engine, lows, high = preempting()
    carry_out(cluster, engine, 1 + evicted, evicted)
    leaving = [low for low in lows if cluster.job(low).status.eviction is not None]
    assert len(leaving) == evicted
    loss(cluster, high)
    settle(Engine(), cluster, until=101)
    assert not cluster.has_job(high) or cluster.job(high).status.nomination is None
    settle(Engine(), cluster, until=120)
    for low in lows:
        status = cluster.job(low).status
        assert status.attempt == (low in leaving), "no other gang is evicted"
        if loss not in (out_of_its_namespace, in_a_queue_that_is_deleted):  # these admit no gang
            assert status.phase == "Running"


# ---- a crash between a nomination and the evictions for it


def elastic_borrowers() -> tuple[ScenarioCluster, Engine, list[str], str]:
    """Two elastic gangs of `red` borrow what is guaranteed to `blue`; then a gang of `blue` comes for it."""
    tree = [queue("all", 16), queue("red", 8, "all"), queue("blue", 8, "all")]
    cluster = ScenarioCluster(nodes(2), [flavor()], tree)
    engine = Engine()
    lows = [
        cluster.submit(job(name, 2, 4, least=1, queue="red"), JobBehavior(1000, stop_s=5, checkpoint_every_s=10.0))
        for name in ("red1", "red2")
    ]
    settle(engine, cluster, until=100)
    return cluster, engine, lows, cluster.submit(job("entitled", 2, 4, queue="blue"), JobBehavior(10))


@pytest.mark.parametrize(("statuses", "stops"), [(1, 0), (2, 0), (3, 0), (3, 1)])
def test_a_victim_that_was_to_shrink_shrinks_also_after_a_crash(statuses: int, stops: int) -> None:
    cluster, engine, lows, high = elastic_borrowers()
    carry_out(cluster, engine, statuses, stops)
    assert sum(cluster.job(low).status.eviction is not None for low in lows) == statuses - 1
    settle(Engine(), cluster, until=109)
    assert cluster.job(high).status.phase == "Running"
    for low in lows:
        status = cluster.job(low).status
        assert (status.phase, status.pods_wanted, status.restarts) == ("Running", 1, 0)
        assert find_condition(status, "Evicted") is None, "it was torn down instead"
    reasons = {event.reason for event in cluster.events if event.job_uid in lows}
    assert reasons <= {"Admitted", "Resized", "CheckpointNotSaved"}
    assert all(event.preemptor for event in cluster.events if event.reason == "Resized")


def test_a_victim_that_may_no_longer_be_preempted_is_spared_after_a_crash() -> None:
    cluster, engine, lows, high = preempting()
    carry_out(cluster, engine, 2)
    evicted = next(low for low in lows if cluster.job(low).status.eviction is not None)
    spared = next(low for low in lows if low != evicted)
    cluster.edit(spared, priority=9)
    settle(Engine(), cluster, until=120)
    assert (cluster.job(spared).status.phase, cluster.job(spared).status.attempt) == ("Running", 0)
    assert cluster.job(high).status.phase == "Pending"


def test_the_waiting_time_of_a_preempted_job_counts_from_the_end_of_its_admission() -> None:
    assert transitions.waiting_since(named("v").status, NOW + 50) == 0.0, "since its submit"
    assert transitions.waiting_since(BACK_IN_LINE, NOW + 50) == NOW
    suspended = transitions.suspend(BACK_IN_LINE, NOW + 10)
    assert transitions.waiting_since(transitions.resume(suspended, NOW + 40), NOW + 50) == NOW + 40


def test_a_nomination_for_the_same_capacity_and_victims_keeps_its_expiry_until_that_has_passed() -> None:
    waiting = named("high").status
    before = transitions.nominate(waiting, Nominate("high", NODES_0_AND_1, ("v",), NOW + 10), None, NOW).nomination
    assert before is not None
    again = Nominate("high", NODES_0_AND_1, ("v",), NOW + 600)
    assert transitions.nominate(waiting, again, before, NOW + 9).nomination is before
    for other, now in ((again, NOW + 10), (replace(again, victims=("v", "w")), NOW + 9)):
        renewed = transitions.nominate(waiting, other, before, now).nomination
        assert renewed is not None
        assert renewed.expires_at == NOW + 600
