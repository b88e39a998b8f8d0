"""Pods that a kubelet rejects: no container has started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.lifecycle.cases import (
    NODES,
    NOW,
    admitted,
    condition,
    deleted,
    events,
    failed,
    job,
    pods_of,
    reconcile,
    reconcile_job,
    with_status,
)  # fmt: skip

from muster.api import spec
from muster.cluster import NodeView, PodView
from muster.model import Resources, RolePlacement
from muster.workload.blame import avoided_nodes
from muster.workload.conditions import find_condition
from muster.workload.observation import Observation
from muster.workload.placement import nodes_of
from muster.workload.timeouts import Timeouts

WHY = "Pod was rejected: Allocate failed due to no healthy devices present"
TWO_TENANTS = {"u1": ("red",), "u2": ("blue",)}
EIGHT = {f"n{index}": NodeView(f"n{index}", Resources.of({"pods": 10})) for index in range(8)}


def rejected(pod: PodView, reason: str = "UnexpectedAdmissionError") -> PodView:
    return replace(failed(pod, None, reason=reason), finished_at=None, rejected=True, message=WHY)


def single(node: str = "n0", **fields: Any) -> spec.TrainingJob:
    """A job of one pod that was admitted to this node."""
    return at_node(job(1, **fields), node)


def at_node(one: spec.TrainingJob, node: str) -> spec.TrainingJob:
    """The job as it is once it was admitted to this node, with what it remembers."""
    fresh = admitted(one, placement=(RolePlacement("trainer", "h200", ((node, 1),)),)).status
    remembered = {name: getattr(one.status, name) for name in ("rejections", "blamed_nodes")}
    return with_status(one, fresh.model_copy(update=remembered))


def reject(one: spec.TrainingJob, reason: str = "UnexpectedAdmissionError") -> spec.TrainingJob:
    """The job once its only pod was rejected, and deleted."""
    (pod,) = pods_of(one, "Pending")
    evicted = with_status(one, reconcile(one, (rejected(pod, reason),), nodes=EIGHT).status)
    return with_status(evicted, reconcile(evicted, nodes=EIGHT).status)


def test_a_made_up_pod_that_a_kubelet_rejects_is_evidence_against_its_node_for_its_job_only() -> None:
    """Names of pods can be computed: a user may have created it first, on that node, with any request."""
    one = admitted(job())
    pods = pods_of(one, "Pending")
    status = reconcile(one, (replace(rejected(pods[0]), charged=Resources()), *pods[1:])).status
    assert [(entry.node, entry.reason) for entry in status.blamed_nodes] == [("n0", "PodUnsuitable")]


def test_a_rejected_pod_excludes_its_node_and_is_neither_a_failure_nor_a_loss() -> None:
    one = admitted(job(failurePolicy={"maxRestarts": 0, "maxStartRetries": 0}))
    pods = pods_of(one, "Pending")
    result = reconcile(one, (rejected(pods[0]), *pods[1:]))
    status = result.status
    evicted = find_condition(status, "Evicted")
    assert evicted is not None
    assert (evicted.reason, evicted.message) == (
        "PodRejected",
        f"node n0 rejected pod {pods[0].name}: UnexpectedAdmissionError: {WHY}; starts again after 10 s",
    )
    assert (status.restarts, status.node_losses, status.start_retries, status.rejections) == (0, 0, 0, 1)
    assert [(entry.node, entry.reason) for entry in status.blamed_nodes] == [("n0", "PodRejected")]
    failure = status.last_failure
    assert failure is not None
    assert (failure.pod, failure.node, failure.reason, failure.log_tail) == (
        pods[0].name,
        "n0",
        "UnexpectedAdmissionError",
        WHY,
    )
    assert events(result) == ["PodRejected"]
    assert deleted(result) == [pod.name for pod in pods], "no partial gang"
    gone = reconcile(with_status(one, status)).status
    assert gone.requeue_after == NOW + 10
    assert gone.nomination is not None
    assert nodes_of(gone.nomination.placement) == {"n1"}, "the others are retained"


def test_rejections_back_off_as_start_timeouts_do_until_the_gang_is_ready() -> None:
    patient, one, waits = Timeouts(backoff_s=10), single(), []
    nodes = {"n0": EIGHT["n0"]}
    for _ in range(4):
        (pod,) = pods_of(one, "Pending")
        evicted = with_status(one, reconcile_job(one, Observation(NOW, (rejected(pod),), None, nodes), patient).status)
        gone = reconcile_job(evicted, Observation(NOW, (), None, nodes), patient).status
        assert gone.requeue_after is not None
        waits.append(gone.requeue_after - NOW)
        one = at_node(with_status(one, gone), "n0")
    assert waits == [10, 20, 40, 80]
    assert reconcile(one, pods_of(one), nodes=nodes).status.rejections == 0


def test_the_only_node_that_is_large_enough_is_tried_again() -> None:
    (pod,) = pods_of(single(), "Pending")
    wanted = replace(rejected(pod), request=Resources.of({"nvidia.com/gpu": 4, "pods": 1}))
    small = NodeView("n1", Resources.of({"nvidia.com/gpu": 2, "pods": 10}))
    nodes = {"n0": NodeView("n0", Resources.of({"nvidia.com/gpu": 8, "pods": 10})), "n1": small}
    assert reconcile(single(), (wanted,), nodes=nodes).status.blamed_nodes == []
    large = nodes | {"n1": replace(small, allocatable=Resources.of({"nvidia.com/gpu": 8, "pods": 10}))}
    assert [entry.node for entry in reconcile(single(), (wanted,), nodes=large).status.blamed_nodes] == ["n0"]
    cordoned = large | {"n1": replace(large["n1"], cordoned=True)}
    assert reconcile(single(), (wanted,), nodes=cordoned).status.blamed_nodes == []


def test_a_pod_that_three_nodes_reject_is_at_fault_itself() -> None:
    one = reject(at_node(reject(single("n0"), "OutOfcpu"), "n1"))
    assert one.status.phase == "Pending"
    one = at_node(one, "n2")
    (pod,) = pods_of(one, "Pending")
    result = reconcile(one, (rejected(pod, "NodeAffinity"),), nodes=EIGHT)
    assert condition(result.status, "Failed") == ("True", "PodRejected")
    end = find_condition(result.status, "Failed")
    assert end is not None
    assert end.message == (
        f"node n2 rejected pod {pod.name}: NodeAffinity: {WHY}; 3 nodes have rejected its pods: n0, n1, n2"
    )
    assert events(result) == ["Failed"]
    assert result.status.blamed_nodes == [], "no evidence against the nodes: other jobs use them"


@pytest.mark.parametrize(
    ("reason", "all_avoid"),
    [
        ("OutOfnvidia.com/gpu", True),
        ("OutOfpods", True),
        ("UnexpectedAdmissionError", True),
        ("SysctlForbidden", False),
        ("PodOSNotSupported", False),
        ("NodeAffinity", False),
        ("SomethingNew", False),
    ],
)
def test_what_a_pod_itself_causes_is_no_evidence_against_the_node_for_other_jobs(
    reason: str, *, all_avoid: bool
) -> None:
    one = reject(single("n0"), reason)
    assert one.status.nomination is None, "the job itself avoids the node"
    assert [entry.node for entry in one.status.blamed_nodes] == ["n0"]
    blamed = {"u1": one.status.blamed_nodes, "u2": one.status.blamed_nodes}
    avoided = avoided_nodes(blamed, TWO_TENANTS, {}, NOW, len(EIGHT))
    assert set(avoided) == ({"n0"} if all_avoid else set())
    one = reject(at_node(one, "n1"), reason)
    one = at_node(one, "n2")
    result = reconcile(one, (rejected(pods_of(one, "Pending")[0], reason),), nodes=EIGHT)
    assert condition(result.status, "Failed") == ("True", "PodRejected")
    assert result.status.blamed_nodes == []


def test_of_the_nodes_that_reject_a_gang_all_jobs_avoid_those_at_fault() -> None:
    wide = admitted(job(3))
    pods = pods_of(wide, "Pending")
    pods = (rejected(pods[0]), pods[1], rejected(pods[2], "SysctlForbidden"))
    blamed = reconcile(wide, pods, nodes=EIGHT).status.blamed_nodes
    assert {entry.node for entry in blamed} == {"n0", "n1"}
    avoided = avoided_nodes({"u1": blamed, "u2": blamed}, TWO_TENANTS, {}, NOW, len(EIGHT))
    assert set(avoided) == {"n0"}


def test_one_node_that_rejects_a_pod_three_times_does_not_make_it_at_fault() -> None:
    one, nodes = single(), {"n0": EIGHT["n0"]}
    for _ in range(5):
        (pod,) = pods_of(one, "Pending")
        status = reconcile(one, (rejected(pod),), nodes=nodes).status
        assert condition(status, "Evicted") == ("True", "PodRejected")
        one = at_node(with_status(one, status), "n0")


def test_a_gang_of_which_other_nodes_accept_pods_is_never_at_fault() -> None:
    """Many nodes without healthy devices, such as during an upgrade of their driver."""
    one = reject(at_node(reject(single("n5")), "n6"))
    wide = admitted(job(3))
    wide = with_status(
        wide,
        wide.status.model_copy(update={name: getattr(one.status, name) for name in ("rejections", "blamed_nodes")}),
    )
    pods = pods_of(wide, "Pending")
    for other in (replace(pods[1], accepted=True), pods_of(wide)[1]):
        status = reconcile(wide, (rejected(pods[0]), other, pods[2]), nodes=EIGHT).status
        assert condition(status, "Evicted") == ("True", "PodRejected")
        assert status.rejections == 3
    assert condition(reconcile(wide, (rejected(pods[0]), *pods[1:]), nodes=EIGHT).status, "Failed")[1] == "PodRejected"


def test_a_rule_for_the_reason_of_a_rejection_decides() -> None:
    rules = [{"onPodConditions": ["UnexpectedAdmissionError"], "action": "FailJob"}]
    one = single(failurePolicy={"rules": rules})
    (pod,) = pods_of(one, "Pending")
    assert condition(reconcile(one, (rejected(pod),), nodes=NODES).status, "Failed") == ("True", "FailurePolicy")


def test_a_node_that_is_lost_meanwhile_is_not_retained() -> None:
    one = admitted()
    pods = pods_of(one, "Pending")
    status = reconcile(one, (rejected(pods[0]), *pods[1:])).status
    left = {"n2": NODES["n2"]}
    gone = reconcile(with_status(one, status), nodes=left).status
    assert gone.nomination is None
