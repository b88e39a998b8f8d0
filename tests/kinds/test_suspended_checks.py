"""Why an admitted object of another kind is requeued although its own controller would let it run."""

from __future__ import annotations

from typing import Any

from tests.kinds.suspended_objects import document, pod, workload

from muster.api.spec import BlamedNode
from muster.cluster import NodeView
from muster.model import Resources
from muster.workload import transitions
from muster.workload.conditions import FAILED, find_condition, is_evicting
from muster.workload.observation import Observation
from muster.workload.placement import from_status
from muster.workload.timeouts import Timeouts

BIG = Resources.of({"nvidia.com/gpu": 8, "pods": 10})
NODES = {name: NodeView(name, BIG) for name in ("n0", "n1", "n2")}
FOUR = {**NODES, "n3": NodeView("n3", BIG)}


def rejected(name: str, reason: str = "UnexpectedAdmissionError", **more: Any) -> Any:
    request = Resources.of({"nvidia.com/gpu": 8, "pods": 1})
    return pod(name, "n0", phase="Failed", rejected=True, reason=reason, message="no GPU", request=request, **more)


def test_one_that_runs_for_longer_than_it_was_admitted_for_is_requeued_although_its_deadline_was_extended() -> None:
    one = workload(document(suspend=False, activeDeadlineSeconds=9000))
    one = one.with_status(transitions.admit(one.status, from_status(one.status.placement), 100.0, 60.0))
    assert one.max_runtime_s == 60.0, "what others were planned by"
    early = one.observe(one.status, Observation(189.0, nodes=NODES), Timeouts()).next
    assert (is_evicting(early.status), 190.0 in early.wake_times) == (False, True)
    late = one.observe(one.status, Observation(190.0, nodes=NODES), Timeouts()).next.status
    assert (is_evicting(late), late.reason) == (True, "RuntimeExtended")
    again = transitions.requeue(late, 191.0, Timeouts(), [], 0.0)
    assert one.with_status(again).max_runtime_s == 9000.0, "it queues with what it asks for now"


def test_one_whose_deadline_was_not_extended_is_ended_by_its_controller_however_late_that_started_it() -> None:
    """Its deadline counts from when it was resumed, such as after an outage, and its pods may take their grace period.
    One that is suspended and resumed has a new deadline each time: that does not go on for ever."""
    one = workload(document(suspend=False, activeDeadlineSeconds=60))
    status = transitions.admit(one.status, from_status(one.status.placement), 100.0, 60.0)
    assert not is_evicting(one.observe(status, Observation(500.0, nodes=NODES), Timeouts()).next.status)
    ready = status.model_copy(update={"started_at": 180.0})
    early = one.observe(ready, Observation(276.0, nodes=NODES), Timeouts()).next
    assert (is_evicting(early.status), 277.0 in early.wake_times) == (False, True)
    late = one.observe(ready, Observation(277.0, nodes=NODES), Timeouts()).next
    assert (is_evicting(late.status), late.status.reason) == (True, "RuntimeExtended")


def test_one_of_which_a_kubelet_rejects_a_pod_is_requeued_and_avoids_the_node() -> None:
    one = workload(document(suspend=False))
    shown = one.observe(one.status, Observation(101.0, (rejected("a"),), nodes=NODES), Timeouts()).next
    assert (is_evicting(shown.status), shown.status.reason, shown.status.rejections) == (True, "PodRejected", 1)
    assert [(entry.node, entry.reason) for entry in shown.status.blamed_nodes] == [("n0", "PodRejected")]
    assert shown.event is not None
    assert "node n0 rejected pod a: UnexpectedAdmissionError: no GPU" in shown.event[2]
    again = one.observe(shown.status, Observation(102.0, (rejected("a"),), nodes=NODES), Timeouts()).next
    assert again.status.rejections == 1, "it counts once"


def test_a_made_up_pod_that_a_kubelet_rejects_is_no_reason_to_requeue_and_no_evidence_against_its_node() -> None:
    """A Job of a user may create pods that name an admitted JobSet, on any node, and request what no kubelet has."""
    one = workload(document(suspend=False))
    observation = Observation(101.0, (rejected("a", "OutOfcpu", charged=Resources()),), nodes=NODES)
    status = one.observe(one.status, observation, Timeouts()).next.status
    assert (is_evicting(status), status.blamed_nodes) == (False, [])


def test_pods_that_three_nodes_reject_are_at_fault_themselves_and_no_evidence_against_these_nodes() -> None:
    one = workload(document(suspend=False))
    earlier = [BlamedNode(node=node, at=90.0, until=3690.0, reason="PodRejected") for node in ("n1", "n2")]
    for rejections, reason in ((1, "PodRejected"), (2, "PodUnsuitable")):
        status = one.status.model_copy(update={"blamed_nodes": earlier, "rejections": rejections})
        shown = one.observe(status, Observation(101.0, (rejected("a"),), nodes=FOUR), Timeouts()).next
        assert {entry.node: entry.reason for entry in shown.status.blamed_nodes} == dict.fromkeys(NODES, reason)


def test_one_that_fails_because_a_kubelet_rejected_a_pod_says_so() -> None:
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
    one = workload(document(suspend=False, status=failed))
    finished = one.observe(one.status, Observation(101.0, (rejected("a"),), nodes=NODES), Timeouts()).finished
    assert finished is not None
    found = find_condition(finished.status, FAILED)
    assert found is not None
    assert found.message == "node n0 rejected pod a: UnexpectedAdmissionError: no GPU"
