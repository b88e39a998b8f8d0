"""Objects that their own controllers run: what is read of them, what is patched, and which pod is which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.kinds.suspended_objects import document, pod, workload

from muster.api.spec import Flavor, NodePods, QueueingStatus, RolePlacementStatus
from muster.cluster import DeletePod, NodeView, PatchObject, PodView, UngatePod
from muster.errors import InvalidSpec
from muster.kinds.suspended.kinds_file import gate_all, read_kinds
from muster.kinds.suspended.numbering import number_pods
from muster.kinds.suspended.read import read_object
from muster.kinds.suspended.table import ATTEMPT_LABEL, BATCH_JOB, GATE
from muster.kinds.suspended.ungate import GatedPod, release_patch
from muster.kinds.suspended.workload import SuspendedWorkload
from muster.model import Resources
from muster.workload import transitions
from muster.workload.conditions import PODS_READY, find_condition, is_condition_true, is_evicting
from muster.workload.observation import Observation
from muster.workload.placement import from_status
from muster.workload.planning import admission_of
from muster.workload.timeouts import Timeouts

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def patch_of(one: SuspendedWorkload, *flavors: Flavor) -> dict[str, Any]:
    named = {flavor.metadata.name: flavor for flavor in flavors}
    (write,) = one.start(one.status, Observation(100.0, flavors=named), Timeouts()).writes
    assert isinstance(write, PatchObject)
    assert isinstance(write.patch, dict)
    assert write.patch["metadata"] == {"resourceVersion": "7"}, "guarded by the version that was decided on"
    return dict(write.patch["spec"])


def numbers(status: QueueingStatus, needed: int, *pods: PodView) -> dict[str, int]:
    return {one.name: one.index for one in number_pods(status, {"pods": needed}, pods)}


def test_a_job_needs_as_many_pods_as_it_may_run_at_once_and_has_still_to_complete() -> None:
    def count(status: dict[str, Any] | None = None, **spec: Any) -> int:
        return read_object(BATCH_JOB, document(status=status, **spec)).pod_sets[0].count

    assert count() == 2
    assert count(completions=1) == 1
    assert count(completions=9) == 2
    assert count(completions=9, status={"succeeded": 8}) == 1
    assert count(parallelism=None) == 1


def test_what_its_pods_ask_for_is_read_from_the_template() -> None:
    one = workload(document(pod={"nodeSelector": {"a": "b"}}), admitted=False)
    (role,) = one.roles()
    assert (role.replicas, role.min_replicas, role.node_selector) == (2, 2, (("a", "b"),))
    assert role.request == Resources.of({"nvidia.com/gpu": 8, "pods": 1})
    assert (one.queue, one.grace_s, one.creates_pods) == ("q", 7.0, False)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (document(pod={"resourceClaims": [{"name": "x"}]}), "resourceClaims must not be set"),
        (document(pod={"nodeName": "n"}), "nodeName must not be set"),
        ({**document(), "metadata": {"annotations": {"muster.dev/priority": "high"}}}, "muster.dev/priority"),
        (document(template=None), "spec.template: must be a pod template"),
    ],
)
def test_what_cannot_queue_says_why(one: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        read_object(BATCH_JOB, one)


def test_it_is_resumed_with_a_term_of_node_affinity_for_each_node_and_again_without_those_of_before() -> None:
    pins = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [n]}]} for n in ("n0", "n1")]
    wanted = {
        "suspend": False,
        "template": {
            "metadata": {"labels": {ATTEMPT_LABEL: "0"}, "annotations": {"muster.dev/queue": "q"}},
            "spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": pins}}}},
        },
    }
    assert patch_of(workload(document())) == wanted
    old = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["old"]}]}]
    again = document(pod={"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": old}}}})
    again["spec"]["template"]["metadata"] = {"labels": {ATTEMPT_LABEL: "0"}}
    assert workload(again).roles()[0].affinity == (), "the user did not ask for that node"
    assert patch_of(workload(again)) == wanted


def test_its_pods_are_gated_where_the_template_has_node_affinity_or_the_flavor_has_tolerations() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    own = document(pod={"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}})
    assert workload(own).roles()[0].affinity != ()
    gated = {"schedulingGates": [{"name": GATE}]}
    assert patch_of(workload(own))["template"]["spec"] == gated
    flavor = Flavor.model_validate({"metadata": {"name": "h"}, "spec": {"tolerations": [{"key": "gpu"}]}})
    assert patch_of(workload(document()), flavor)["template"]["spec"] == gated
    other = document(pod={"schedulingGates": [{"name": "theirs"}, {"name": GATE}]})
    assert patch_of(workload(other))["template"]["spec"]["schedulingGates"] == [{"name": "theirs"}]


def test_a_started_job_is_reset_before_its_template_changes() -> None:
    one = workload(document(status={"startTime": "2026-11-28T10:00:00Z"}))
    (write,) = one.start(one.status, Observation(100.0), Timeouts()).writes
    assert isinstance(write, PatchObject)
    assert isinstance(write.patch, dict)
    assert (write.subresource, write.patch["status"]) == ("status", {"startTime": None})


def test_each_gated_pod_gets_the_node_of_its_place_and_more_pods_than_admitted_stay_gated() -> None:
    one = workload(document(suspend=False))
    pods = number_pods(one.status, one.needed(), [pod(name, phase="Pending", gated=True) for name in "abc"])
    writes = one.start(one.status, Observation(100.0, pods), Timeouts()).writes
    assert writes == (UngatePod("u", "a", "n0", "h"), UngatePod("u", "b", "n1", "h"))


def test_pods_of_a_template_that_the_namespace_has_not_seen_are_gated_until_they_show_what_they_request() -> None:
    assert patch_of(workload(document(), known=False))["template"]["spec"] == {"schedulingGates": [{"name": GATE}]}
    one = workload(document(suspend=False), known=False)
    more = Resources.of({"nvidia.com/gpu": 8, "pods": 1, "cpu": 500})
    pods = (pod("a", phase="Pending", gated=True, request=more),)
    shown = one.observe(one.status, Observation(101.0, pods), Timeouts()).next
    assert is_evicting(shown.status)
    assert shown.event == (
        "Normal",
        "PodsLarger",
        "each of its pods requests cpu 500m more than it was admitted with",
    )
    (seen,) = (replace(one, known_request=more) for one in one.state.pod_sets)
    again = replace(one, state=replace(one.state, pod_sets=(seen,)))
    assert again.roles()[0].request == more
    assert not is_evicting(again.observe(again.status, Observation(101.0, pods), Timeouts()).next.status)


def test_more_pods_than_admitted_are_reported_and_no_longer_once_they_are_gone() -> None:
    one = workload(document(suspend=False))
    pods = number_pods(one.status, one.needed(), [pod(name, phase="Pending", gated=True) for name in "abc"])
    shown = one.record(one.status, Observation(100.0, pods), Timeouts())
    assert shown.event == ("Warning", "MoreThanAdmitted", "1 more than the 2 pods admitted stays gated")
    assert one.record(shown.status, Observation(101.0, pods), Timeouts()).event is None, "reported once"
    after = one.record(shown.status, Observation(102.0, pods[:2]), Timeouts())
    assert (find_condition(after.status, "PodsGated") or shown).status == "False"
    assert one.record(one.status, Observation(100.0, pods[:2]), Timeouts()).status is one.status
    ending = number_pods(one.status, one.needed(), [pod("a", "n0", deleting=True), pod("b", "n1"), pods[2]])
    assert one.record(one.status, Observation(100.0, ending), Timeouts()).event is None, "it replaces another"


def test_a_gated_pod_is_released_by_appending_its_node_to_each_term_and_by_adding_tolerations() -> None:
    pin = {"key": "metadata.name", "operator": "In", "values": ["n0"]}
    guard = {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}
    terms = f"/spec/affinity/nodeAffinity/{REQUIRED}/nodeSelectorTerms"
    held = GatedPod(("other", GATE), 3, ("expressions", "empty", "fields"), ({"key": "own"},))
    assert release_patch(held, "n0", "7", [{"key": "own"}, {"key": "gpu"}]) == [
        guard,
        {"op": "add", "path": f"{terms}/0/matchFields", "value": [pin]},
        {"op": "add", "path": f"{terms}/2/matchFields/-", "value": pin},
        {"op": "add", "path": "/spec/tolerations/-", "value": {"key": "gpu"}},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]
    term = {"nodeSelectorTerms": [{"matchFields": [pin]}]}
    added = {0: ("/affinity", {"nodeAffinity": {REQUIRED: term}}), 1: ("/affinity/nodeAffinity", {REQUIRED: term})}
    for levels, (path, value) in added.items():
        patch = release_patch(GatedPod((GATE,), levels), "n0", "7", [{"key": "gpu"}])
        assert patch[1] == {"op": "add", "path": f"/spec{path}", "value": value}
        assert patch[2] == {"op": "add", "path": "/spec/tolerations", "value": [{"key": "gpu"}]}


def test_pods_count_for_the_places_on_their_nodes_and_others_have_indexes_behind_them() -> None:
    status = workload(document()).status
    assert numbers(status, 2, pod("a", "n1"), pod("b", "n0")) == {"a": 1, "b": 0}
    assert numbers(status, 2, pod("a", "n1"), pod("b", "n1")) == {"a": 1, "b": 0}
    assert numbers(status, 2, pod("a", "n1"), pod("b", "n0"), pod("c", "n0")) == {"a": 1, "b": 0, "c": 2}
    assert numbers(status, 2, pod("old", "n0", attempt=3), pod("b", "n0")) == {"old": 2, "b": 0}


def test_a_pod_that_has_completed_gives_its_place_back_only_if_no_other_follows() -> None:
    status = workload(document()).status
    ended, live = pod("a", "n0", phase="Succeeded"), pod("b", "n1")
    assert numbers(status, 2, ended, live) == {"a": 2, "b": 1}, "its controller creates another pod"
    assert numbers(status, 1, ended, live) == {"a": 0, "b": 1}
    assert numbers(status, 1, ended, live, pod("c", "n0")) == {"a": 2, "b": 1, "c": 0}, "it has created one already"


def test_one_that_needs_more_pods_than_it_was_admitted_with_is_requeued() -> None:
    one = workload(document(suspend=False, parallelism=3))
    assert is_evicting(one.observe(one.status, Observation(101.0), Timeouts()).next.status)
    assert one.roles()[0].replicas == 2, "what it was admitted with"


def test_one_whose_pods_are_not_ready_in_time_is_requeued_with_a_pause() -> None:
    one = workload(document(suspend=False))
    shown = one.observe(one.status, Observation(101.0), Timeouts())
    assert shown.next.wake_times == (700.0,)
    late = one.observe(one.status, Observation(700.0), Timeouts()).next.status
    assert (is_evicting(late), late.start_retries, late.reason) == (True, 1, "StartTimeout")


@pytest.mark.parametrize("left", [(pod("b", "n1", ready=True),), ()])
def test_one_that_needs_fewer_pods_by_now_is_ready_without_those_that_have_completed_and_were_deleted(
    left: tuple[PodView, ...],
) -> None:
    one = workload(document(suspend=False, completions=2, status={"succeeded": 1}))
    shown = one.observe(one.status, Observation(101.0, left), Timeouts()).next.status
    assert is_condition_true(shown, PODS_READY) is bool(left)
    ended = pod("a", "n0", phase="Succeeded")
    shown = one.observe(one.status, Observation(101.0, (ended, *left)), Timeouts()).next.status
    assert is_condition_true(shown, PODS_READY) is bool(left), "it is not counted twice"


def test_it_is_stopped_by_suspending_and_pods_on_a_lost_node_are_deleted() -> None:
    one, lost = workload(document(suspend=False)), pod("a", "n0")
    kept = pod("b", "n1")
    nodes = {"n1": NodeView("n1", Resources())}
    writes = one.stop((lost, kept), Observation(100.0, (lost, kept), nodes=nodes), Timeouts()).writes
    assert [type(write).__name__ for write in writes] == ["PatchObject", "DeletePod"]
    ended = workload(document(suspend=False, status={"conditions": [{"type": "Complete", "status": "True"}]}))
    assert ended.stop((), Observation(100.0), Timeouts()).writes == ()


def test_pods_that_terminate_with_a_longer_grace_period_than_the_queue_allows_get_that_of_the_queue() -> None:
    one = workload(document())  # suspended: its controller has deleted them with their own
    pods = tuple(pod(name, "n0", deleting=True, grace_s=grace) for name, grace in (("a", 86400.0), ("b", 600.0)))
    seen = Observation(100.0, pods, nodes={"n0": NodeView("n0", Resources())}, max_grace_s=600.0)
    writes = one.stop((*pods, pod("c", "n0")), seen, Timeouts()).writes
    assert writes == (DeletePod("u", "a", 600.0),)


def test_a_pod_that_its_controller_does_not_delete_is_deleted_after_a_while() -> None:
    """Such as one that a user has made up, with the owner and the label: it would keep the object's capacity."""
    made_up, nodes = pod("a", phase="Pending"), {"n0": NodeView("n0", Resources())}
    for admitted in (True, False):
        one = workload(document(), admitted=admitted)
        since = max((condition.last_transition_time for condition in one.status.conditions), default=0.0)
        early = one.stop((made_up,), Observation(since + 29.0, nodes=nodes), Timeouts())
        assert (early.writes, early.wake_times) == ((), (since + 30.0,))
        late = one.stop((made_up, pod("b", "n0")), Observation(since + 30.0, nodes=nodes), Timeouts())
        assert late.writes == (DeletePod("u", "a", 7.0), DeletePod("u", "b", 7.0))
        gone = (replace(made_up, deleting=True), replace(made_up, phase="Succeeded"))
        assert one.stop(gone, Observation(since + 30.0, nodes=nodes), Timeouts()).writes == ()


def test_one_that_is_edited_between_its_admission_and_its_resumption_is_requeued() -> None:
    """Otherwise it would run with more than it was admitted with."""
    one = workload(document())
    seen = replace(one, status=one.status.model_copy(update={"observed_generation": 3}))
    for suspended, generation, requeued in ((True, 3, False), (True, 4, True), (False, 4, False)):
        metadata = one.metadata.model_copy(update={"generation": generation})
        edited = replace(seen, metadata=metadata, state=replace(one.state, suspend=suspended))
        shown = edited.observe(edited.status, Observation(101.0), Timeouts()).next.status
        assert is_evicting(shown) is requeued
        assert (shown.reason == "Edited") is requeued


def test_more_pods_at_once_than_the_limit_are_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.parallelism: must be at most 100000 pods at once \(got 100001\)"):
        read_object(BATCH_JOB, document(parallelism=100_001))
    assert read_object(BATCH_JOB, document(parallelism=100_001, completions=4)).pod_sets[0].count == 4


@pytest.mark.parametrize("seconds", ["nan", "10", True, -1, float("inf"), float("nan")])
def test_a_longest_run_time_that_is_no_number_of_seconds_is_refused_by_field(seconds: Any) -> None:
    row = replace(BATCH_JOB, max_runtime="spec.limit")
    with pytest.raises(InvalidSpec, match=r"spec\.limit: must be a finite number"):
        read_object(row, document(limit=seconds))
    assert read_object(row, document(limit=1.5)).max_runtime_s == 1.5


def test_kinds_are_named_or_described_and_errors_name_the_field() -> None:
    (job, own) = read_kinds('["Job", {"group": "x.io", "version": "v1", "plural": "runs", "kind": "Run"}]')
    assert job is BATCH_JOB
    assert (own.kind, own.suspend, own.pod_sets[0].template) == ("Run", "spec.suspend", "spec.template")
    for text, message in (
        ("{", "must be JSON"),
        ('"Job"', "must be a list"),
        ('["Pod"]', "must be one of Job"),
        ('["Job", "Job"]', "named once"),
        ('[{"group": "x.io", "version": "v1", "plural": "runs", "kind": "Run", "suspend": "a b"}]', "suspend"),
    ):
        with pytest.raises(InvalidSpec, match=message):
            read_kinds(text)


def test_where_pods_are_not_trusted_a_job_is_gated_although_pods_of_its_template_were_seen() -> None:
    """Users may have made those up, with less than the API server adds to the pods of the next Job."""
    (row,) = gate_all([BATCH_JOB])
    one = replace(workload(document()), row=row)
    assert patch_of(one)["template"]["spec"]["schedulingGates"] == [{"name": GATE}]


def test_a_job_whose_terminating_pods_were_replaced_more_than_once_each_is_requeued() -> None:
    """A user deletes its pods again and again, which have a long grace period."""
    one = workload(document(suspend=False))
    old = [pod(name, node="n0", deleting=True, grace_s=3600.0) for name in "abc"]
    new = [pod("d", node="n0"), pod("e", node="n1")]

    def evicted(*pods: PodView) -> bool:
        numbered = number_pods(one.status, one.needed(), pods)
        return is_evicting(one.observe(one.status, Observation(101.0, numbered), Timeouts()).next.status)

    waiting = [pod(name, node="n0", phase="Pending", pending_reason="Unschedulable") for name in "fg"]
    gated = [pod(name, phase="Pending", gated=True) for name in "hi"]
    assert not evicted(*old[:2], *new, *waiting, *gated), "each was replaced once"
    assert evicted(*old, *new)


def test_an_evicted_object_keeps_its_capacity_until_it_is_suspended_although_no_pod_of_it_is_seen_yet() -> None:
    """Its controller creates them until then, and they start at once where they are not gated."""

    def held(*, suspend: bool) -> int:
        one = workload(document(suspend=suspend))
        one = one.with_status(transitions.evict(one.status, "Preempted", "", 101.0))
        admission = admission_of(one, 102.0, (), 30.0)
        assert admission is not None
        return sum(count for part in admission.placement for _, count in part.nodes)

    assert held(suspend=False) == 2
    assert held(suspend=True) == 0


@pytest.mark.parametrize("bound", [False, True], ids=["gated", "bound"])
def test_the_work_to_number_pods_grows_with_their_number(bound: bool) -> None:
    """An object may have thousands of pods of a millicore, and they are numbered whenever one of them changes."""
    compared = []

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    nodes = [NodePods(node=f"n{index}", indexes=str(index)) for index in range(500)]
    status = transitions.admit(
        QueueingStatus(), from_status([RolePlacementStatus(role="pods", flavor="h", nodes=nodes)]), 100.0
    )
    names = [Name(f"n{index}" if bound else "") for index in reversed(range(500))]
    pods = [pod(f"p{number:03}", node, attempt=status.attempt) for number, node in enumerate(names)]
    numbered = number_pods(status, {"pods": 500}, pods)
    assert [one.index for one in numbered] == (list(reversed(range(500))) if bound else list(range(500)))
    assert len(compared) <= 2 * 500
