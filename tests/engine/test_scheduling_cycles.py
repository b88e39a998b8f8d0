from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
from muster.cluster import (
    NO_DECODE_ERRORS,
    CreatePod,
    DecodeErrors,
    DeletePod,
    RecordEvent,
    RemoveJob,
    Write,
    WriteQueueStatus,
    WriteStatus,
)
from muster.engine import CycleResult, Engine, run_cycle
from muster.model import Admit, Wait
from muster.simulate import JobBehavior
from muster.state.projection import QueueProjection
from muster.workload.conditions import find_condition
from muster.workload.observed import ObservedState


def statuses(cycle: CycleResult) -> list[str]:
    return [write.job_uid for write in cycle.writes if isinstance(write, WriteStatus)]


def test_a_job_is_admitted_gets_its_pods_and_completes() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    uid = cluster.submit(job("a"), JobBehavior(100, start_delay_s=3))
    writes = run_cycle(cluster, engine).writes
    kinds = [type(write) for write in writes if getattr(write, "job_uid", "") == uid]
    assert kinds == [WriteStatus, RecordEvent, CreatePod, CreatePod]
    assert cluster.job(uid).status.phase == "Admitted"
    assert [(pod.index, pod.node) for pod in cluster.pods(uid)] == [(0, "n0"), (1, "n1")]
    settle(engine, cluster, until=50)
    assert cluster.job(uid).status.phase == "Running"
    settle(engine, cluster, until=200)
    status = cluster.job(uid).status
    assert status.phase == "Succeeded"
    assert status.finished_at == 103


def test_to_running_a_gang_costs_two_status_writes_and_one_event() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    uid = cluster.submit(job("a"), JobBehavior(100, start_delay_s=3))
    cycles = settle(engine, cluster, until=50)
    assert [uid for cycle in cycles for uid in statuses(cycle)] == [uid, uid]
    assert [event.reason for event in cluster.events] == ["Admitted"]


def test_a_cycle_after_which_nothing_changed_writes_nothing() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    cluster.submit(job("a"), JobBehavior(100))
    cluster.submit(job("b"), JobBehavior(100))
    settle(engine, cluster, until=1)
    assert run_cycle(cluster, engine).writes == ()


def test_another_message_of_a_job_error_is_written_five_seconds_after_the_first() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    uid = cluster.submit(job("a"), JobBehavior(100))

    def message_and_wake_at(rejection: str) -> tuple[str, float | None]:
        cycle = engine.reconcile(replace(cluster.observe(), pod_rejections={uid: rejection}))
        cluster.apply(cycle.writes)
        condition = find_condition(cluster.job(uid).status, "Admitted")
        assert condition is not None
        return condition.message, cycle.wake_at

    assert message_and_wake_at("not tried yet")[0] == "not tried yet"
    cluster.advance(1)
    assert message_and_wake_at("image: required") == ("not tried yet", 5.0)
    cluster.advance(5)
    assert message_and_wake_at("image: required")[0] == "image: required"


def test_capacity_of_a_finished_gang_is_reused_in_the_same_cycle() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    cluster.submit(job("a", ttlSecondsAfterFinished=0), JobBehavior(10))
    second = cluster.submit(job("b"), JobBehavior(10))
    settle(engine, cluster, until=5)
    cluster.advance(10)
    cycle = run_cycle(cluster, engine)
    assert [decision.gang_uid for decision in cycle.decisions if isinstance(decision, Admit)] == [second]
    kinds = [type(write).__name__ for write in cycle.writes]
    assert kinds[: kinds.index("CreatePod")] == [
        "WriteStatus",
        "RecordEvent",
        "RemoveJob",
        "WriteStatus",
        "RecordEvent",
    ]
    assert any(isinstance(write, RemoveJob) for write in cycle.writes)


def preemption() -> tuple[ScenarioCluster, Engine, str, str]:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    low = cluster.submit(job("low"), JobBehavior(1000, stop_s=5))
    settle(engine, cluster, until=100)
    high = cluster.submit(job("high", priority=5), JobBehavior(10))
    return cluster, engine, low, high


def test_the_nomination_is_written_before_the_eviction_and_both_before_a_pod_is_stopped() -> None:
    cluster, engine, low, high = preemption()
    cycle = run_cycle(cluster, engine)
    writes = [w for w in cycle.writes if isinstance(w, WriteStatus | DeletePod | CreatePod)]
    assert [(type(w), w.job_uid) for w in writes] == [
        (WriteStatus, high), (WriteStatus, low), (DeletePod, low), (DeletePod, low)
    ]  # fmt: skip
    hold, eviction = cluster.job(high).status.nomination, cluster.job(low).status.eviction
    assert hold is not None
    assert hold.victims == [low]
    assert eviction is not None
    assert (eviction.beneficiary, eviction.reason, eviction.deadline) == (high, "Preempted", 130.0)
    settle(engine, cluster, until=106)
    assert cluster.job(high).status.phase == "Running"
    assert cluster.job(high).status.nomination is None
    settle(engine, cluster, until=120)
    assert cluster.job(low).status.phase == "Running"
    assert (cluster.job(low).status.attempt, cluster.job(low).status.restarts) == (1, 0)


def test_a_guarantee_waits_at_most_the_grace_period_that_the_queue_of_the_victim_allows() -> None:
    cluster = ScenarioCluster(nodes(1), [flavor()], [queue("all"), queue("x", 8, "all"), queue("y", 0, "all")])
    engine = Engine()
    low = cluster.submit(job("low", 1, queue="y", grace=86_400), JobBehavior(1e6, stop_s=86_400))
    settle(engine, cluster, until=100)
    high = cluster.submit(job("high", 1, queue="x"), JobBehavior(10))
    run_cycle(cluster, engine)
    nomination, eviction = cluster.job(high).status.nomination, cluster.job(low).status.eviction
    assert nomination is not None
    assert eviction is not None
    assert (nomination.expires_at, eviction.deadline) == (100 + 600 + 600, 100 + 600)
    settle(engine, cluster, until=699)
    assert cluster.job(high).status.phase == "Pending"
    settle(engine, cluster, until=701)
    assert cluster.job(high).status.phase == "Running"


def test_a_nomination_whose_victims_were_never_evicted_is_dropped() -> None:
    cluster, engine, low, high = preemption()
    first = engine.reconcile(cluster.observe()).writes[0]
    cluster.apply_one(first)  # and then the engine is killed
    cluster.edit(high, cancel=True)
    settle(Engine(), cluster, until=110)
    assert cluster.job(low).status.phase == "Running"
    assert cluster.job(low).status.attempt == 0


def test_after_a_crash_the_remaining_victims_are_evicted() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    lows = [cluster.submit(job(name, 1), JobBehavior(1000, stop_s=5)) for name in ("low1", "low2")]
    settle(engine, cluster, until=100)
    high = cluster.submit(job("high", priority=5), JobBehavior(10))
    statuses_only = [w for w in engine.reconcile(cluster.observe()).writes if isinstance(w, WriteStatus)]
    for write in statuses_only[:2]:  # the hold, and one of two victims
        cluster.apply_one(write)
    evicted = [uid for uid in lows if cluster.job(uid).status.eviction is not None]
    assert len(evicted) == 1
    settle(Engine(), cluster, until=107)
    assert cluster.job(high).status.phase == "Running"


def test_an_edit_of_the_preemptor_does_not_hide_its_nomination() -> None:
    cluster, engine, low, high = preemption()
    first = engine.reconcile(cluster.observe()).writes[0]
    cluster.apply_one(first)
    successor = Engine()
    cluster.edit(high, priority=6)
    run_cycle(cluster, successor)
    eviction = cluster.job(low).status.eviction
    assert eviction is not None
    assert eviction.beneficiary == high
    assert len(cluster.pods(low)) == 2


def test_deleting_the_preemptor_does_not_stop_the_victim_from_restarting() -> None:
    cluster, engine, low, high = preemption()
    run_cycle(cluster, engine)
    cluster.delete(high)
    settle(engine, cluster, until=120)
    assert not cluster.has_job(high)
    assert cluster.job(low).status.phase == "Running"


def test_a_conflict_ends_the_cycle_and_no_change_is_lost() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    first, second = (cluster.submit(job(name, 1), JobBehavior(10)) for name in ("a", "b"))
    observed = cluster.observe()
    cycle = engine.reconcile(observed)
    cluster.edit(first, priority=3)
    assert run_cycle(FixedState(cluster, observed), Engine()).wake_at == cluster.now
    assert cluster.pods(first) == cluster.pods(second) == ()
    assert len(statuses(cycle)) == 2
    settle(Engine(), cluster, until=5)
    assert len(cluster.pods(first)) == len(cluster.pods(second)) == 1


class FixedState:
    """A cluster whose cache is behind."""

    def __init__(self, cluster: ScenarioCluster, observed: ObservedState) -> None:
        self.cluster, self.observed = cluster, observed

    def observe(self) -> ObservedState:
        return self.observed

    def apply(self, writes: Sequence[Write]) -> None:
        self.cluster.apply(writes)


def test_a_first_result_and_a_new_reason_are_written_at_once_and_others_once_a_minute() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    cluster.submit(job("a", priority=9), JobBehavior(1000))
    settle(engine, cluster, until=1)
    late = cluster.submit(job("late"), JobBehavior(10))
    assert late in statuses(run_cycle(cluster, engine))
    position = cluster.job(late).status.queue_position
    cluster.advance(10)
    sooner = cluster.submit(job("sooner", priority=9, pods=4), JobBehavior(10))  # can never run: reported at once
    cycle = run_cycle(cluster, engine)
    assert sooner in statuses(cycle)
    cluster.submit(job("before", priority=5, gpus=4, pods=3), JobBehavior(10))
    cluster.advance(20)
    waits = run_cycle(cluster, engine).waits
    assert waits[late].position != position
    assert cluster.job(late).status.queue_position == position
    settle(engine, cluster, until=75)
    assert cluster.job(late).status.queue_position == waits[late].position


def test_jobs_of_an_unknown_queue_wait_with_a_reason_that_heals_by_itself() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue("red")])
    engine = Engine()
    uid = cluster.submit(job("a", queue="blue"), JobBehavior(10))
    wait = run_cycle(cluster, engine).waits[uid]
    assert wait == Wait(uid, "QueueNotFound", "queue blue does not exist; existing queues: red")
    cluster.put_queue(queue("blue"))
    settle(engine, cluster, until=1)
    assert cluster.job(uid).status.phase == "Running"


def test_a_namespace_that_the_queue_does_not_select_waits() -> None:
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "team-a"}}
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue(namespaceSelector=selector)])
    engine = Engine()
    wanted = job("a")
    outside = cluster.submit(wanted, JobBehavior(10))
    team = wanted.metadata.model_copy(update={"name": "b", "namespace": "team-a"})
    inside = cluster.submit(wanted.model_copy(update={"metadata": team}), JobBehavior(10))
    assert run_cycle(cluster, engine).waits[outside].reason == "QueueNotAllowed"
    assert cluster.job(inside).status.phase == "Admitted"


def test_conditions_of_queues_and_flavors_are_written_when_they_change() -> None:
    labelled = nodes(2, 8, zone="z")
    cluster = ScenarioCluster(
        labelled, [flavor(), flavor("zone", {"zone": "z"})], [queue(), queue("orphan", None, "missing")]
    )
    engine = Engine()
    run_cycle(cluster, engine)
    observed = cluster.observe()
    conditions = {q.metadata.name: {c.type: (c.status, c.reason) for c in q.status.conditions} for q in observed.queues}
    assert conditions["default"]["Active"] == ("True", "Ready")
    assert conditions["orphan"]["Active"] == ("False", "ParentNotFound")
    overlap = [next(c for c in f.status.conditions if c.type == "Overlapping") for f in observed.flavors]
    assert [(c.status, c.reason) for c in overlap] == [("True", "NodesMatchTwoFlavors")] * 2
    assert "n0, n1" in overlap[0].message
    assert not any(isinstance(write, WriteQueueStatus) for write in run_cycle(cluster, engine).writes)


def test_a_queue_with_a_flavor_that_does_not_exist_says_so_until_it_does() -> None:
    cluster = ScenarioCluster(nodes(2, zone="z"), [flavor("other", {"zone": "y"})], [queue()])
    engine = Engine()

    def active() -> tuple[str, str]:
        (found,) = cluster.observe().queues
        return next((line.status, line.reason) for line in found.status.conditions if line.type == "Active")

    run_cycle(cluster, engine)
    assert active() == ("True", "FlavorNotFound")
    cluster.put_flavor(flavor())
    run_cycle(cluster, engine)
    assert active() == ("True", "Ready")


def test_a_flavor_that_cannot_be_decoded_exists() -> None:
    projection, queues, flavors = QueueProjection(), (queue(),), [flavor("other")]
    projection.update(queues, flavors, DecodeErrors(flavors={"any": "spec.topology: must be ..."}))
    assert projection.readiness["default"].reason == "Ready"
    projection.update(queues, flavors, NO_DECODE_ERRORS)
    assert projection.readiness["default"].reason == "FlavorNotFound"


def test_a_node_that_comes_back_changes_what_can_start() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    view = cluster.nodes["n1"]
    cluster.fail_node("n1")
    uid = cluster.submit(job("a"), JobBehavior(10))
    settle(engine, cluster, until=5)
    assert cluster.job(uid).status.phase == "Pending"
    cluster.restore_node(view)
    settle(engine, cluster, until=6)
    assert cluster.job(uid).status.phase == "Running"


def test_a_lost_node_is_replaced_while_the_others_stay_nominated() -> None:
    cluster = ScenarioCluster(nodes(3), [flavor()], [queue(gpus=24)])
    engine = Engine()
    uid = cluster.submit(job("a"), JobBehavior(100, stop_s=1))
    settle(engine, cluster, until=10)
    placed = {share.node for part in cluster.job(uid).status.placement for share in part.nodes}
    lost = sorted(placed)[0]
    spare = (set(cluster.nodes) - placed).pop()
    cluster.fail_node(lost, deleted=True)
    cycles = settle(engine, cluster, until=11)
    assert cycles
    settle(engine, cluster, until=20)
    status = cluster.job(uid).status
    now_on = {share.node for part in status.placement for share in part.nodes}
    assert (status.phase, now_on) == ("Running", {spare} | placed - {lost})
    assert (status.node_losses, status.restarts) == (1, 0)


def test_a_guarantee_of_more_than_all_nodes_have_is_a_condition_of_the_queue() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue("fits", 16), queue("large", 17), queue("limited", None)])
    writes = [write for write in run_cycle(cluster, Engine()).writes if isinstance(write, WriteQueueStatus)]
    found = {
        write.queue: (one.status, one.reason)
        for write in writes
        for one in write.status.conditions
        if one.type == "Overcommitted"
    }
    within = ("False", "WithinGuarantee")
    assert found == {"fits": within, "large": ("True", "ExceedsNodes"), "limited": within}


def test_a_suspended_job_that_is_resumed_in_a_queue_under_deletion_fails() -> None:
    cluster = ScenarioCluster(nodes(1), [flavor()], [queue()])
    engine = Engine()
    uid = cluster.submit(job("a", 1, suspend=True), JobBehavior(10))
    settle(engine, cluster, until=5)
    assert cluster.job(uid).status.phase == "Suspended"

    def observed() -> ObservedState:
        """The observed state, with its queue under deletion."""
        state = cluster.observe()
        (there,) = state.queues
        metadata = there.metadata.model_copy(update={"deletion_timestamp": 5.0})
        return replace(state, queues=(there.model_copy(update={"metadata": metadata}),))

    cluster.apply(engine.reconcile(observed()).writes)
    assert cluster.job(uid).status.phase == "Suspended"
    cluster.edit(uid, suspend=False)
    cluster.apply(engine.reconcile(observed()).writes)
    status = cluster.job(uid).status
    assert (status.phase, status.reason) == ("Failed", "QueueDeleted")
    assert cluster.events[-1].reason == "QueueDeleted"


def test_editing_a_gang_whose_pods_still_stop_gives_nothing_of_their_capacity_away() -> None:
    for name, gpus in (("trainer", 1), ("worker", 8), ("worker", 1)):
        cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
        engine = Engine()
        first = cluster.submit(job("a", grace=100), JobBehavior(1000, stop_s=60))
        settle(engine, cluster, until=5)
        cluster.edit(first, suspend=True)
        second = cluster.submit(job("b", gpus=7), JobBehavior(1000))
        settle(engine, cluster, until=6)
        role = job("a", gpus=gpus).spec.roles[0].model_copy(update={"name": name})
        cluster.edit(first, roles=[role])
        settle(engine, cluster, until=60)
        assert (len(cluster.pods(first)), cluster.pods(second)) == (2, ())
        settle(engine, cluster, until=70)
        assert (len(cluster.pods(first)), len(cluster.pods(second))) == (0, 2)


def test_the_reason_of_a_wait_is_in_the_condition() -> None:
    cluster = ScenarioCluster(nodes(1), [flavor()], [queue()])
    engine = Engine()
    uid = cluster.submit(job("a", 5), JobBehavior(10))
    result = run_cycle(cluster, engine)
    found = find_condition(cluster.job(uid).status, "Admitted")
    assert isinstance(found, spec.Condition)
    assert (found.status, found.reason) == ("False", "LargerThanCluster")
    assert [gang.uid for gang in result.snapshot.pending] == [uid]
