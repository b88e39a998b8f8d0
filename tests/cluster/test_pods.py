"""Pods on nodes without a kubelet live, end and stop as the annotations of controlplane/stages.py say."""

from __future__ import annotations

import itertools

import pytest
from tests.cluster.conftest import AddNodes
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.pods import Pods, ready, state


@pytest.fixture
def pods(control_plane: ControlPlane, namespace: str, add_nodes: AddNodes) -> Pods:
    add_nodes(1)
    return Pods(control_plane, namespace)


def test_a_pod_is_bound_and_runs_until_it_is_deleted(pods: Pods) -> None:
    pods.create("a")
    pod = pods.reach("a", "Running")
    assert ready(pod) == "True"
    assert pod["spec"]["nodeName"] == "node-0"
    assert pod["status"]["podIP"]
    pods.delete("a")
    pods.until_gone("a")


def test_a_pod_ends_with_its_exit_code(pods: Pods) -> None:
    pods.create("a", run_seconds="0.2", exit_code="42")
    pod = pods.reach("a", "Failed")
    name, details = state(pod)
    assert (name, details["exitCode"], details["reason"]) == ("terminated", 42, "Error")
    assert ready(pod) == "False"


def test_a_pod_without_an_exit_code_succeeds(pods: Pods) -> None:
    pods.create("a", run_seconds="0.2")
    name, details = state(pods.reach("a", "Succeeded"))
    assert (name, details["exitCode"], details["reason"]) == ("terminated", 0, "Completed")


def test_a_list_determines_each_attempt_and_its_last_entry_all_later_ones(pods: Pods) -> None:
    for attempt in range(4):
        pods.create(f"a-{attempt}", attempt=attempt, exit_code="3,137,0", exit_reason=",OOMKilled,")
    ends = [
        state(pods.reach(f"a-{attempt}", phase))[1] for attempt, phase in enumerate(["Failed"] * 2 + ["Succeeded"] * 2)
    ]
    assert [(end["exitCode"], end["reason"]) for end in ends] == [
        (3, "Error"), (137, "OOMKilled"), (0, "Completed"), (0, "Completed"),
    ]  # fmt: skip


def test_a_running_pod_can_be_made_to_fail(pods: Pods) -> None:
    pods.create("a")
    pods.reach("a", "Running")
    pods.steer("a", exit_code="9")
    assert state(pods.reach("a", "Failed"))[1]["exitCode"] == 9


def test_a_stuck_pod_waits_with_its_reason_until_the_annotation_is_removed(pods: Pods) -> None:
    pods.create("a", stuck="ImagePullBackOff")
    pods.plane.wait_for("it waits", lambda: "containerStatuses" in pods.get("a")["status"])
    pod = pods.get("a")
    assert (pod["status"]["phase"], state(pod)) == ("Pending", ("waiting", {"reason": "ImagePullBackOff"}))
    assert ready(pod) == "False"
    pods.steer("a", stuck=None)
    assert ready(pods.reach("a", "Running")) == "True"


def test_a_slow_pod_is_pending_then_running_then_ready(pods: Pods) -> None:
    since = pods.version()
    pods.create("a", start_seconds="0.3", ready_seconds="0.3")
    pods.plane.wait_for("it is ready", lambda: ready(pods.get("a")) == "True")
    seen = [(event["object"]["status"]["phase"], ready(event["object"])) for event in pods.history("a", since)]
    assert list(dict.fromkeys(seen)) == [("Pending", None), ("Running", "False"), ("Running", "True")]


def test_a_deleted_pod_ends_with_sigterms_code_before_it_is_removed(pods: Pods) -> None:
    pods.create("a", stop_seconds="0.3")
    pods.reach("a", "Running")
    since = pods.version()
    pods.delete("a")
    pods.until_gone("a")
    requested, ended, *_, gone = pods.history("a", since)
    assert "deletionTimestamp" in requested["object"]["metadata"]
    assert requested["object"]["status"]["phase"] == "Running"
    assert (ended["object"]["status"]["phase"], state(ended["object"])[1]["exitCode"]) == ("Failed", 143)
    assert gone["type"] == "DELETED"


def test_a_pod_may_stop_with_its_own_exit_code(pods: Pods) -> None:
    pods.create("a", stop_exit_code="0")
    pods.reach("a", "Running")
    since = pods.version()
    pods.delete("a")
    pods.until_gone("a")
    last = pods.history("a", since)[-1]["object"]
    assert (last["status"]["phase"], state(last)[1]["exitCode"]) == ("Succeeded", 0)


def test_a_pod_that_exceeds_its_grace_period_is_killed(pods: Pods) -> None:
    pods.create("a", stop_seconds="3600", grace_s=1)
    pods.reach("a", "Running")
    since = pods.version()
    pods.delete("a")
    pods.until_gone("a")
    assert state(pods.history("a", since)[-1]["object"])[1]["exitCode"] == 137


def test_a_native_sidecar_runs_beside_the_main_container_and_ends_after_it(pods: Pods) -> None:
    since = pods.version()
    pods.create("a", sidecar=True, run_seconds="0.2", sidecar_seconds="0.3", exit_code="5")
    pods.reach("a", "Failed")
    states = [
        tuple(state(event["object"], *which)[0] for which in (("containerStatuses", 0), ("initContainerStatuses", 1)))
        for event in pods.history("a", since)
        if "initContainerStatuses" in event["object"]["status"]
    ]
    assert [one for one, _ in itertools.groupby(states)] == [
        ("running", "running"),
        ("terminated", "running"),
        ("terminated", "terminated"),
    ]
    pod = pods.get("a")
    assert state(pod)[1]["exitCode"] == 5
    assert state(pod, "initContainerStatuses", 0)[1]["exitCode"] == 0


def test_a_pod_with_a_sidecar_stops_both_containers(pods: Pods) -> None:
    pods.create("a", sidecar=True)
    pods.reach("a", "Running")
    since = pods.version()
    pods.delete("a")
    pods.until_gone("a")
    last = pods.history("a", since)[-1]["object"]
    assert state(last)[1]["exitCode"] == 143
    assert state(last, "initContainerStatuses", 1)[0] == "terminated"


def test_nothing_happens_to_the_pods_of_a_stopped_kubelet(pods: Pods, add_nodes: AddNodes) -> None:
    pods.create("a")
    node = pods.reach("a", "Running")["spec"]["nodeName"]
    (other,) = add_nodes(1, prefix="other")
    pods.plane.stop_kubelet(node, witness=other)
    pods.plane.set_ready(node, "Unknown")
    pods.delete("a")
    path = f"/api/v1/nodes/{node}"
    pods.plane.wait_for("the scheduler avoids the node", lambda: "taints" in pods.plane.api.get(path)["spec"])
    # So b lands on the other node, and what stops b would stop a.
    pods.create("b")
    assert pods.reach("b", "Running")["spec"]["nodeName"] == "other-0"
    pods.delete("b")
    pods.until_gone("b")
    assert pods.get("a")["status"]["phase"] == "Running"
    pods.plane.resume_kubelet(node)
    pods.plane.set_ready(node, "True")
    pods.until_gone("a")


def test_the_log_of_a_pod_is_the_text_of_the_test(pods: Pods) -> None:
    pods.create("a")
    pods.reach("a", "Running")
    pods.plane.write_log("step 1\nout of memory\n")
    log = pods.plane.kubectl("logs", "a", "--tail=1", "-n", pods.get("a")["metadata"]["namespace"])
    assert log == "out of memory\n"
