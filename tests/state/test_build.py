from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.engine.objects import flavor, nodes, queue
from tests.state.observed_states import NOW, PLACED, admitted, advance, named, observed_state, pod, released, snapshot

from muster.api import spec
from muster.cluster import DRAIN_TAINT, DecodeErrors, NodeView, PodView
from muster.engine import replay
from muster.model import (
    NodeTaint,
    Nomination,
    Placement,
    QueueInfo,
    Quota,
    Resources,
    RolePlacement,
    RunningGang,
    Snapshot,
    Topology,
)
from muster.state import BuildResult, ClusterState, snapshot_of
from muster.workload import transitions
from muster.workload.observed import ObservedState

# ---- nodes, flavors, queues


def test_a_node_that_matches_two_flavors_belongs_to_neither_and_both_say_so() -> None:
    views = (*nodes(1, gpu="h200"), NodeView("both", Resources(), {"gpu": "h200", "spot": "yes"}))
    kinds = (flavor("h200", {"gpu": "h200"}), flavor("spot", {"spot": "yes"}))
    built = snapshot_of(observed_state(nodes=views, flavors=kinds))
    assert [(node.name, node.flavor) for node in built.snapshot.nodes] == [("n0", "h200"), ("both", None)]
    assert built.overlaps == {
        "h200": "1 node also of spot and are counted in neither: both",
        "spot": "1 node also of h200 and are counted in neither: both",
    }


def test_domains_are_paths_and_end_where_a_label_is_missing() -> None:
    levels = {"block": "b", "rack": "r", "host": "h"}
    labels = [{"b": "b1", "r": "r1", "h": "x"}, {"b": "b2", "r": "r1", "h": "y"}, {"b": "b1", "h": "z"}, {"r": "r1"}]
    views = tuple(NodeView(f"n{i}", Resources(), one) for i, one in enumerate(labels))
    found = [node.domains for node in snapshot(nodes=views, flavors=(flavor(levels=levels),)).nodes]
    assert found == [("b1", "b1/r1", "b1/r1/x"), ("b2", "b2/r1", "b2/r1/y"), ("b1", "", ""), ("", "", "")]


def test_only_nodes_that_are_ready_and_neither_cordoned_nor_drained_take_pods() -> None:
    one = nodes(1)[0]
    views = (
        one,
        replace(one, name="down", ready=False),
        replace(one, name="cordoned", cordoned=True),
        replace(one, name="drained", taints=(NodeTaint(DRAIN_TAINT),)),
    )
    assert [node.schedulable for node in snapshot(nodes=views).nodes] == [True, False, False, False]


def test_quotas_tell_absent_from_zero_and_a_flavor_can_be_named_without_any() -> None:
    resources = [{"flavor": "a", "guaranteed": {"nvidia.com/gpu": "0"}, "limit": {"cpu": "2"}}, {"flavor": "b"}]
    body = {"metadata": {"name": "q"}, "spec": {"resources": resources, "weight": 2, "maxPriority": 7}}
    wanted = spec.Queue.model_validate(body)
    quotas = (Quota("a", "cpu", None, 2000, None), Quota("a", "nvidia.com/gpu", 0, None, None), Quota("b", ""))
    assert snapshot(queues=(wanted,)).queues == (QueueInfo("q", None, 2.0, 7, quotas),)


def test_a_queue_in_a_cycle_is_inactive_with_its_reason() -> None:
    ring = (queue("a", parent="b"), queue("b", parent="a"))
    assert [(q.active, "cycle" in q.inactive_reason) for q in snapshot(queues=ring).queues] == [(False, True)] * 2


def test_a_queue_that_cannot_be_read_keeps_its_place_and_admits_nothing() -> None:
    seen = snapshot(queues=(queue("all"), queue("low", parent="all")), decode_errors=DecodeErrors({"all": "spec: odd"}))
    assert [(q.name, q.active, q.inactive_reason) for q in seen.queues] == [
        ("all", False, "it cannot be read: spec: odd"),
        ("low", False, "its parent 'all' is inactive: it cannot be read: spec: odd"),
    ]


# ---- jobs


def test_a_waiting_job_is_a_gang_with_everything_that_placing_needs() -> None:
    fields: dict[str, Any] = {
        "priority": 3, "maxRuntimeSeconds": 60, "startTimeoutSeconds": 9, "flavors": ["any"],
        "topology": {"required": "rack"},
    }  # fmt: skip
    gang = snapshot(named("a", least=1, grace=7, **fields)).pending[0]
    assert (gang.name, gang.queue, gang.priority, gang.submitted_at) == ("default/a", "default", 3, NOW - 10)
    assert (gang.max_runtime_s, gang.grace_s, gang.start_timeout_s) == (60.0, 7.0, 9.0)
    assert (gang.flavors, gang.topology) == (("any",), Topology("rack", None))
    role = gang.roles[0]
    assert (role.replicas, role.min_replicas) == (2, 1)
    assert role.request == Resources.of({"nvidia.com/gpu": 8, "pods": 1})


@pytest.mark.parametrize("fields", [{"suspend": True}, {"cancel": True}], ids=str)
def test_suspended_and_cancelled_jobs_do_not_wait(fields: dict[str, Any]) -> None:
    assert snapshot(named("a", **fields)).pending == ()


def test_finished_and_deleted_jobs_do_not_wait() -> None:
    done = named("a")
    done = done.model_copy(update={"status": transitions.finish(done.status, "Cancelled", "Cancelled", "", NOW)})
    gone = named("b")
    gone = gone.model_copy(update={"metadata": gone.metadata.model_copy(update={"deletion_timestamp": NOW})})
    assert snapshot(done, gone).pending == ()


def test_a_job_that_backs_off_waits_from_its_time_on_and_keeps_its_nomination_meanwhile() -> None:
    hold = spec.NominationStatus(placement=[], expires_at=NOW + 500)
    one = named("a")
    one = one.model_copy(
        update={"status": one.status.model_copy(update={"requeue_after": NOW + 50, "nomination": hold})}
    )
    state = ClusterState()
    built = advance(state, observed_state(one))
    assert built.snapshot.pending == ()
    assert [(h.gang_uid, h.nominated_gang is not None) for h in built.snapshot.nominations] == [("a", True)]
    assert state.timers.next_time() == NOW + 50
    later = advance(state, replace(observed_state(one), now=NOW + 50))
    assert [gang.uid for gang in later.snapshot.pending] == ["a"]


def test_an_expired_nomination_reserves_nothing() -> None:
    hold = spec.NominationStatus(placement=[], expires_at=NOW)
    one = named("a")
    one = one.model_copy(update={"status": one.status.model_copy(update={"nomination": hold})})
    assert snapshot(one).nominations == ()


def test_an_admitted_gang_takes_its_placement_before_its_pods_exist() -> None:
    running = snapshot(admitted("a")).running[0]
    assert (running.placement, running.admitted_at, running.state) == (PLACED, NOW - 5, "admitted")


def test_a_role_that_was_edited_away_under_an_admitted_gang_breaks_no_plan() -> None:
    one, other = admitted("a"), named("b", roles=[named("b").spec.roles[0].model_copy(update={"name": "worker"})])
    seen = snapshot(one.model_copy(update={"spec": other.spec}))
    assert [running.placement for running in seen.running] == [()]
    assert replay(seen) == ()


def test_a_finished_gang_takes_up_what_is_left_of_its_pods() -> None:
    one = admitted("a")
    one = one.model_copy(update={"status": transitions.finish(one.status, "Cancelled", "Cancelled", "", NOW)})
    pods = (pod(one, 0, "n0", phase="Succeeded"), pod(one, 1, "n1"))
    running = snapshot(one, pods={"a": pods}).running[0]
    assert (running.state, running.placement) == ("terminating", (RolePlacement("trainer", "any", (("n1", 1),)),))
    assert running.stopping_since == NOW
    assert snapshot(one, pods={"a": pods[:1]}).running == ()


def test_pods_of_an_evicted_gang_stop_since_its_eviction() -> None:
    one = admitted("a")
    assert snapshot(one).running[0].stopping_since is None
    evicted = transitions.evict(one.status, "Preempted", "", NOW)
    running = snapshot(one.model_copy(update={"status": evicted})).running[0]
    assert (running.state, running.stopping_since) == ("evicting", NOW)


def test_a_suspended_gang_does_not_wait_again_while_a_pod_is_left() -> None:
    one = released("a")
    seen = snapshot(one, pods={"a": (pod(one, 0, "n0"),)})
    assert (seen.pending, [running.state for running in seen.running]) == ((), ["terminating"])


def test_pods_that_stop_count_as_what_they_asked_for_whatever_the_roles_say_by_now() -> None:
    def left(uid: str, *requested: int, role: str = "trainer", gpus: int = 1) -> list[tuple[str, int, int]]:
        """First node, pods there and GPUs of a pod, of each part of the placement."""
        one = released(uid, gpus=gpus)
        wanted = one.spec.roles[0].model_copy(update={"name": role})
        one = one.model_copy(update={"spec": one.spec.model_copy(update={"roles": [wanted]})})
        pods = tuple(
            replace(pod(one, i, f"n{i}"), request=Resources.of({"nvidia.com/gpu": gpus, "pods": 1}))
            for i, gpus in enumerate(requested)
        )
        (running,) = snapshot(one, pods={uid: pods}).running
        request_of = {role.name: role.request.get("nvidia.com/gpu") for role in running.gang.roles}
        return [(*part.nodes[0], request_of[part.role]) for part in running.placement]

    assert left("same", 8, 8, gpus=8) == [("n0", 1, 8)]  # one part, of two nodes
    assert left("smaller", 8, gpus=1) == [("n0", 1, 8)]
    assert left("renamed", 8, role="worker") == [("n0", 1, 8)]
    assert left("larger", 1, gpus=8) == [("n0", 1, 1)]
    assert sorted(left("mixed", 8, 1)) == [("n0", 1, 8), ("n1", 1, 1)]
    assert (
        snapshot(released("a", gpus=4), pods={"a": (pod(named("a"), 0, "n0"),)}).running[0].gang
        == (snapshot(named("a", gpus=4)).pending[0])
    )  # what a pod asks for is not known: its role's request


def test_an_evicted_gang_has_a_preemptor_and_each_of_its_pods_keeps_its_capacity_until_it_has_ended() -> None:
    one = admitted("a")
    eviction = spec.EvictionStatus.model_validate({"for": "b", "deadline": NOW})
    status = transitions.evict(one.status, "Preempted", "", NOW, eviction=eviction)
    evicted = one.model_copy(update={"status": status})

    def placed(*left: PodView) -> tuple[str, str | None, Placement, Placement]:
        running = snapshot(evicted, pods={"a": left}).running[0]
        return running.state, running.preemptor, running.placement, running.retained_placement

    first, second = pod(one, 0, "n0"), pod(one, 1, "n1")
    assert placed(first, second) == ("evicting", "b", PLACED, ())
    second_alone = (RolePlacement("trainer", "any", (("n1", 1),)),)
    assert placed(second) == ("evicting", "b", second_alone, ())
    ended = replace(first, phase="Failed")
    assert placed(ended, second) == ("evicting", "b", second_alone, ()), "a finalizer may keep an ended pod for ever"
    never_bound = replace(first, phase="Pending", deleting=True, never_bound=True)
    assert placed(never_bound, second) == ("evicting", "b", second_alone, ())


@pytest.mark.parametrize(
    ("reason", "blamed", "keeps", "until"),
    [
        ("NodeLost", (), ("n0", "n1"), NOW + 30 + 30 + 600),  # grace; then the hold: grace and start timeout
        ("Drained", ("n0",), ("n1",), NOW + 660),
        ("RestartElsewhere", ("n0",), ("n1",), NOW + 660 + 20),  # its third restart waits 20 s
        ("RestartElsewhere", ("n0", "n1"), (), None),
        ("Preempted", (), (), None),
        ("StartTimeout", (), (), None),
    ],
)
def test_a_gang_that_leaves_keeps_its_good_nodes_only_if_it_comes_back_to_them(
    reason: str, blamed: tuple[str, ...], keeps: tuple[str, ...], until: float | None
) -> None:
    one = admitted("a")
    entries = [spec.BlamedNode(node=name, until=NOW + 100) for name in blamed]
    status = transitions.evict(one.status, reason, "", NOW).model_copy(update={"blamed_nodes": entries, "restarts": 3})
    pods = {"a": (pod(one, 0, "n0"), pod(one, 1, "n1"))}
    running = snapshot(one.model_copy(update={"status": status}), pods=pods).running[0]
    assert (running.state, running.placement, running.retained_until) == ("evicting", PLACED, until)
    assert tuple(node for part in running.retained_placement for node, _ in part.nodes) == keeps
    left = snapshot(one.model_copy(update={"status": status})).running[0]  # once its last pod has ended
    assert left.placement == left.retained_placement


def test_a_shrinking_gang_takes_its_old_and_its_new_places_until_its_old_pods_are_gone() -> None:
    one = admitted("a", least=1)
    smaller: Placement = (RolePlacement("trainer", "any", (("n1", 1),)),)
    eviction = spec.EvictionStatus.model_validate({"for": "b", "deadline": NOW})
    one = one.model_copy(
        update={"status": transitions.resize(one.status, smaller, "Reclaimed", NOW, eviction=eviction)}
    )
    old = (pod(one, 0, "n0"), pod(one, 1, "n1"))
    during = snapshot(one, pods={"a": old}).running[0]
    taken = {node: count for part in during.placement for node, count in part.nodes}
    assert (taken, during.state, during.retained_placement) == ({"n0": 1, "n1": 1}, "evicting", smaller)
    after = snapshot(one, pods={"a": (pod(one, 0, "n1", attempt=1),)}).running[0]
    assert (after.placement, after.state, after.retained_placement) == (smaller, "admitted", ())


def test_blamed_nodes_are_avoided_until_their_time() -> None:
    one = named("a")
    blamed = [spec.BlamedNode(node="n0", until=NOW + 5), spec.BlamedNode(node="n1", until=NOW)]
    one = one.model_copy(update={"status": one.status.model_copy(update={"blamed_nodes": blamed})})
    state = ClusterState()
    assert advance(state, observed_state(one)).snapshot.pending[0].excluded_nodes == {"n0"}
    assert advance(state, replace(observed_state(one), now=NOW + 5)).snapshot.pending[0].excluded_nodes == frozenset()


# ---- identity


def rebuilt(before: ObservedState, after: ObservedState) -> tuple[BuildResult, BuildResult]:
    state = ClusterState()
    return advance(state, before), advance(state, after)


def test_the_same_state_gives_the_same_objects() -> None:
    seen = observed_state(named("a"), admitted("b"))
    first, second = rebuilt(seen, replace(seen, now=NOW + 1))
    for name in ("nodes", "flavors", "queues", "pending", "running", "nominations"):
        assert getattr(first.snapshot, name) is getattr(second.snapshot, name), name


def test_equal_objects_from_a_new_parse_are_still_the_old_ones() -> None:
    first, second = rebuilt(observed_state(named("a"), admitted("b")), observed_state(named("a"), admitted("b")))
    assert first.snapshot.pending[0] is second.snapshot.pending[0]
    assert first.snapshot.running[0] is second.snapshot.running[0]
    assert first.snapshot.nodes is second.snapshot.nodes
    assert first.snapshot.queues is second.snapshot.queues


def test_only_what_changed_is_a_new_object() -> None:
    jobs = [named("a"), named("b"), admitted("c")]
    seen = observed_state(*jobs)
    status = jobs[1].status.model_copy(update={"blamed_nodes": [spec.BlamedNode(node="n0", until=NOW + 99)]})
    changed = replace(seen, workloads=(seen.workloads[0], seen.workloads[1].with_status(status), seen.workloads[2]))
    first, second = rebuilt(seen, changed)
    assert first.snapshot.pending[0] is second.snapshot.pending[0]
    assert first.snapshot.pending[1] is not second.snapshot.pending[1]
    assert first.snapshot.running is second.snapshot.running


def test_pod_changes_without_effect_on_the_planner_keep_the_running_gang() -> None:
    one = admitted("a")
    before = observed_state(one, pods={"a": (pod(one, 0, "n0", phase="Pending"),)})
    first, second = rebuilt(before, replace(before, pods={"a": (pod(one, 0, "n0"),)}))
    assert first.snapshot.running is second.snapshot.running


def in_order(seen: Snapshot) -> Snapshot:
    """What a snapshot says does not depend on the order of its gangs."""
    waiting = tuple(sorted(seen.pending, key=lambda gang: gang.uid))
    running = tuple(sorted(seen.running, key=lambda running: running.gang.uid))
    return replace(
        seen,
        pending=waiting,
        running=running,
        nominations=tuple(sorted(seen.nominations, key=lambda hold: hold.gang_uid)),
    )


def test_jobs_that_are_about_to_be_written_count_already_and_no_longer_once_they_are_not() -> None:
    one, state = named("a"), ClusterState()
    seen = observed_state(one)
    soon = seen.workloads[0].with_status(transitions.admit(one.status, PLACED, NOW))
    assert [one.gang.uid for one in advance(state, seen, updated_jobs={"a": soon}).snapshot.running] == ["a"]
    refused = advance(state, seen).snapshot
    assert ([gang.uid for gang in refused.pending], refused.running) == (["a"], ())


def test_an_incremental_snapshot_equals_one_from_scratch() -> None:
    state = ClusterState()
    one, two = named("a"), admitted("b")
    advance(state, observed_state(one, two))
    evicted = two.model_copy(update={"status": transitions.evict(two.status, "NodeLost", "", NOW)})
    held = one.status.model_copy(update={"nomination": spec.NominationStatus(placement=[], expires_at=NOW + 9)})
    changed = observed_state(one.model_copy(update={"status": held}), evicted, named("c"), nodes=tuple(nodes(3)))
    again, fresh = advance(state, changed).snapshot, snapshot_of(changed).snapshot
    assert in_order(again) == in_order(fresh)
    assert [type(hold) for hold in again.nominations] == [Nomination]
    assert [type(one) for one in again.running] == [RunningGang]
    assert advance(state, observed_state()).snapshot == snapshot_of(observed_state()).snapshot


# ---- what cannot be read


def test_jobs_of_a_queue_that_cannot_be_decoded_wait_with_that_reason_until_it_is_fixed() -> None:
    tree = (queue("all", namespaceSelector=None), queue("low", parent="all", namespaceSelector=None), queue("ok"))
    jobs = (named("a", queue="low"), named("b", queue="all"), named("c", queue="ok"), named("d", queue="none"))
    state = ClusterState()
    built = advance(state, observed_state(*jobs, queues=tree, decode_errors=DecodeErrors({"all": "spec.weight: odd"})))
    assert [gang.uid for gang in built.snapshot.pending] == ["c"]
    assert {wait.gang_uid: (wait.reason, wait.message) for wait in built.rejected} == {
        "a": ("QueueInactive", "queue all, above queue low, cannot be read: spec.weight: odd"),
        "b": ("QueueInactive", "queue all cannot be read: spec.weight: odd"),
        "d": ("QueueNotFound", "queue none does not exist; existing queues: all, low, ok"),
    }
    mended = tuple(queue(name, parent=parent) for name, parent in (("all", None), ("low", "all"), ("ok", None)))
    after = advance(state, observed_state(*jobs, queues=mended))
    assert sorted(gang.uid for gang in after.snapshot.pending) == ["a", "b", "c"]


def test_a_job_waits_for_a_flavor_that_cannot_be_read_only_if_it_may_go_to_no_other() -> None:
    entries = [{"flavor": name, "guaranteed": {"nvidia.com/gpu": 8}} for name in ("h200", "any")]
    jobs = [named("a", flavors=["h200"]), named("b", flavors=["h200", "any"]), named("c")]
    seen = observed_state(
        *jobs, queues=(queue(resources=entries),), decode_errors=DecodeErrors(flavors={"h200": "spec: odd"})
    )
    built = snapshot_of(seen)
    assert [gang.uid for gang in built.snapshot.pending] == ["b", "c"]
    assert [(w.gang_uid, w.reason, w.message) for w in built.rejected] == [
        ("a", "FlavorNotFound", "flavor h200 cannot be read: spec: odd")
    ]
    both = replace(seen, decode_errors=DecodeErrors(flavors={"h200": "spec: odd", "any": "spec: too"}))
    assert [wait.gang_uid for wait in snapshot_of(both).rejected] == ["a", "b", "c"]


def test_gangs_of_a_queue_that_cannot_be_decoded_keep_running_and_stay_charged() -> None:
    one = admitted("a")
    seen = snapshot(one, decode_errors=DecodeErrors({"default": "spec: odd"}, {"any": "spec: odd"}))
    assert [(running.gang.uid, running.state) for running in seen.running] == [("a", "admitted")]
    assert replay(seen) == ()


@pytest.mark.parametrize(
    ("own", "parent", "grace_s"), [(None, None, 600), (None, 60, 60), (90, 60, 90), (90, None, 90)]
)
def test_the_grace_period_of_a_gang_is_limited_by_the_nearest_queue_that_sets_a_limit(
    own: int | None, parent: int | None, grace_s: float
) -> None:
    limits = {"all": parent, "default": own}
    tree = tuple(
        spec.Queue.model_validate(
            {"metadata": {"name": name}, "spec": {"maxGracePeriodSeconds": limit, "namespaceSelector": {}, **above}}
        )
        for (name, limit), above in zip(limits.items(), ({}, {"parent": "all"}), strict=True)
    )
    assert snapshot(named("a", grace=86_400), queues=tree).pending[0].grace_s == grace_s


def test_an_ended_pod_of_a_running_gang_takes_no_capacity() -> None:
    one = admitted("a")
    done, runs = replace(pod(one, 0, "n0", phase="Succeeded"), exit_code=0), pod(one, 1, "n1")
    left = (RolePlacement("trainer", "any", (("n1", 1),)),)
    assert snapshot(one, pods={"a": (done, runs)}).running[0].placement == left
    recorded = one.status.model_copy(update={"finished_pods": [spec.FinishedPods(role="trainer", indexes="0")]})
    gone = one.model_copy(update={"status": recorded})
    running = snapshot(gone, pods={"a": (runs,)}).running[0]
    assert (running.state, running.placement) == ("admitted", left)
    stopped = replace(done, deleting=True)  # it exits because it is stopped
    assert snapshot(one, pods={"a": (stopped, runs)}).running[0].placement == PLACED


def test_an_evicted_gang_that_restarts_on_its_nodes_holds_all_of_them_though_a_pod_ends_by_itself_meanwhile() -> None:
    one = admitted("a")
    evicted = one.model_copy(update={"status": transitions.evict(one.status, "PodLost", "", NOW)})
    done, stops = replace(pod(one, 0, "n0", phase="Succeeded"), exit_code=0), replace(pod(one, 1, "n1"), deleting=True)
    for pods in ((done, stops), (stops,), ()):
        running = snapshot(evicted, pods={"a": pods}).running[0]
        assert (running.state, running.placement, running.retained_placement) == ("evicting", PLACED, PLACED)


def test_a_gang_of_which_pods_have_ended_is_not_resized() -> None:
    one = admitted("a", pods=4, least=1)
    pods = (pod(one, 0, "n0", phase="Succeeded"), pod(one, 1, "n1"))
    (role,) = snapshot(one, pods={"a": pods}).running[0].gang.roles
    assert (role.min_replicas, role.replicas) == (4, 4)


def test_a_resource_that_only_a_device_class_provides_is_named() -> None:
    one, classes = named("a", gpus=1), {"nvidia.com/gpu": "gpu.example.com", "example.com/other": "other"}
    without = tuple(NodeView(f"n{i}", Resources.of({"cpu": 64_000, "pods": 110})) for i in range(2))
    built = snapshot_of(observed_state(one, nodes=without, device_classes=classes))
    (wait,) = built.rejected
    assert wait.reason == "ResourceProvidedByDRA"
    assert "no node lists nvidia.com/gpu; DeviceClass gpu.example.com provides it" in wait.message
    assert not built.snapshot.pending
    listed = snapshot_of(observed_state(one, device_classes=classes))
    assert [gang.uid for gang in listed.snapshot.pending] == ["a"]


def test_jobs_are_read_again_when_device_classes_change() -> None:
    state, one = ClusterState(), named("a", gpus=1)
    without = (NodeView("n0", Resources.of({"cpu": 64_000, "pods": 110})),)
    shared: dict[str, Any] = {"nodes": without, "queues": (queue(),), "flavors": (flavor(),)}
    assert advance(state, observed_state(one, **shared)).rejected == ()
    (wait,) = advance(state, observed_state(one, **shared, device_classes={"nvidia.com/gpu": "gpus"})).rejected
    assert wait.reason == "ResourceProvidedByDRA"
    assert advance(state, observed_state(one, **shared)).rejected == ()
