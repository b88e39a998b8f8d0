"""From cached nodes, pods and queues to the ObservedState."""

from __future__ import annotations

import pytest
from tests.operator.caches import new_cache, relist, unmanaged_usage
from tests.operator.objects import job_document, job_seen, name_of, node_seen, pod_seen, read, terminated

from muster.kube.objects import RawCustomObject, V1Namespace, V1Pod
from muster.model import NodeTaint, Resources
from muster_operator.cache.cached_pod import created_pod
from muster_operator.cache.pod_requests import effective_request
from muster_operator.runners.create_pods.pod_owner import pod_owner


def test_a_kubelet_heartbeat_is_no_change_and_the_node_stays_the_same_object() -> None:
    cache, changes = new_cache()
    cache.nodes.on_upsert(node_seen(version=1))
    before = cache.observe().nodes
    assert changes.during(lambda: cache.nodes.on_upsert(node_seen(version=2))) == 0
    assert cache.observe().nodes is before


def test_only_the_node_that_changed_is_another_object() -> None:
    cache, _ = new_cache()
    for name in ("n2", "n1"):
        cache.nodes.on_upsert(node_seen(name))
    before = cache.observe().nodes
    cache.nodes.on_upsert(node_seen("n1", 2, unschedulable=True))
    after = cache.observe().nodes
    assert [view.name for view in after] == ["n1", "n2"]
    assert after[0].cordoned
    assert after[1] is before[1]


@pytest.mark.parametrize(("ready", "since"), [("True", None), ("False", None), ("Unknown", 1795255200.0)])
def test_a_node_is_unreachable_only_while_its_ready_condition_is_unknown(ready: str, since: float | None) -> None:
    cache, _ = new_cache()
    cache.nodes.on_upsert(node_seen(ready=ready))
    (view,) = cache.observe().nodes
    assert (view.ready, view.not_ready_since) == (ready == "True", since)


def test_taints_of_the_control_plane_are_dropped_and_others_kept() -> None:
    cache, _ = new_cache()
    own = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    out_of_service = {"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}
    cache.nodes.on_upsert(node_seen(taints=[own, out_of_service]))
    cache.nodes.on_upsert(node_seen("n2", taints=[{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]))
    first, second = cache.observe().nodes
    assert (first.taints, first.cordoned) == (
        (NodeTaint("node.kubernetes.io/out-of-service", "x", "NoExecute"),),
        False,
    )
    assert (second.taints, second.cordoned) == ((), True)


def test_a_node_without_conditions_or_with_an_invalid_amount_is_still_a_node() -> None:
    cache, _ = new_cache()
    node = node_seen()
    node.status.conditions = []
    node.status.allocatable["odd"] = "many"
    cache.nodes.on_upsert(node)
    (view,) = cache.observe().nodes
    assert not view.ready
    assert view.allocatable == Resources.of({"nvidia.com/gpu": 8, "pods": 100})


def test_a_pod_of_a_job_is_unmanaged_while_the_job_is_not_visible() -> None:
    cache, _ = new_cache()
    cache.nodes.on_upsert(node_seen())
    cache.pods.on_upsert(pod_seen(owner="uid-llama"))
    assert unmanaged_usage(cache.observe()) == {"nvidia.com/gpu": 1, "pods": 1}
    cache.jobs.on_upsert(job_seen())
    observed = cache.observe()
    assert unmanaged_usage(observed) == {}
    assert [pod.name for pod in observed.pods["uid-llama"]] == [name_of()]
    cache.jobs.on_delete(job_seen(version=2))
    observed = cache.observe()
    assert unmanaged_usage(observed) == {"nvidia.com/gpu": 1, "pods": 1}
    assert observed.pods == {}


def test_a_new_list_corrects_everything_that_was_missed() -> None:
    cache, _ = new_cache()
    cache.nodes.on_upsert(node_seen())
    cache.jobs.on_upsert(job_seen())
    cache.pods.on_upsert(pod_seen("gone"))
    cache.pods.on_upsert(pod_seen(owner="uid-llama"))
    relist(cache.pods, [pod_seen("new", 7)], 9)
    observed = cache.observe()
    assert unmanaged_usage(observed) == {"nvidia.com/gpu": 1, "pods": 1}
    assert observed.pods == {}


def test_a_pod_we_created_counts_at_once_and_its_event_changes_nothing() -> None:
    cache, changes = new_cache()
    cache.jobs.on_upsert(job_seen())
    made = pod_seen("", 5, owner="uid-llama")
    cache.pods.on_created(created_pod(made.metadata, pod_owner(made.metadata), "n1", effective_request(made.spec)))
    before = cache.observe().pods["uid-llama"]
    assert (before[0].phase, before[0].node) == ("Pending", "n1")
    event = pod_seen("", 6, owner="uid-llama", phase="Pending")  # bound meanwhile to the node that it is pinned to
    assert changes.during(lambda: cache.pods.on_upsert(event)) == 0
    assert cache.observe().pods["uid-llama"] is before


def test_a_pod_we_created_with_a_scheduling_gate_is_unschedulable_once_its_event_arrives() -> None:
    seen, changes = new_cache()
    seen.jobs.on_upsert(job_seen())
    gated = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    made = pod_seen("", 5, node="", owner="uid-llama", phase="Pending", conditions=gated)
    seen.pods.on_created(created_pod(made.metadata, pod_owner(made.metadata), "n1", effective_request(made.spec)))
    assert seen.observe().pods["uid-llama"][0].pending_reason != "Unschedulable"
    assert changes.during(lambda: seen.pods.on_upsert(made)) > 0
    assert seen.observe().pods["uid-llama"][0].pending_reason == "Unschedulable"
    assert changes.during(lambda: seen.pods.on_upsert(made)) == 0


def test_a_pod_of_a_job_is_unbound_until_it_is_on_a_node_or_goes() -> None:
    cache, _ = new_cache()
    cache.pods.on_upsert(pod_seen("foreign", 1, node=""))
    assert not cache.pods.has_unbound()
    for index in (0, 1):
        cache.pods.on_upsert(pod_seen(version=2 + index, node="", owner="uid-llama", slot=(index, 0)))
    assert not cache.pods.has_unbound(), "their job is not visible yet"
    cache.jobs.on_upsert(job_seen())
    assert cache.pods.has_unbound()
    cache.pods.on_upsert(pod_seen(version=4, owner="uid-llama"))
    assert cache.pods.has_unbound()
    cache.pods.on_delete(pod_seen(version=5, node="", owner="uid-llama", slot=(1, 0)))
    assert not cache.pods.has_unbound()
    assert cache.pods.bound_count == 2


def test_a_pod_we_deleted_is_terminating_at_once() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen())
    cache.pods.on_upsert(pod_seen("", 5, owner="uid-llama"))
    pod = cache.pods.get("uid-llama", name_of())
    assert pod is not None
    cache.pods.on_delete_requested(pod)
    assert cache.observe().pods["uid-llama"][0].deleting


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_deleted_after_its_end_stays_visible_until_its_job_is_decided_on(phase: str) -> None:
    cache, changes = new_cache()
    cache.jobs.on_upsert(job_seen())
    cache.pods.on_upsert(pod_seen("", 5, owner="uid-llama"))
    last = pod_seen("", 6, owner="uid-llama", phase=phase, containerStatuses=[terminated(3)])
    cache.pods.on_upsert(last)
    last.metadata.resource_version, last.metadata.deletion_timestamp = "7", "2026-11-21T10:00:07Z"
    cache.pods.on_upsert(last)  # sent by the API server before the deletion
    cache.pods.on_delete(last)
    (view,) = cache.observe().pods["uid-llama"]
    assert (view.phase, view.exit_code, view.deleting) == (phase, 3, False)
    assert changes.during(lambda: cache.pods.remove_tombstone("uid-llama", view.name)) == 1
    assert cache.observe().pods == {}


def test_an_ended_pod_missing_from_a_new_list_stays_visible_as_it_ended() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen())
    cache.pods.on_upsert(pod_seen("", 5, owner="uid-llama", phase="Succeeded"))
    cache.pods.on_upsert(pod_seen("", 6, owner="uid-llama", slot=(1, 0)))
    relist(cache.pods, [], 9)
    assert [view.name for view in cache.observe().pods["uid-llama"]] == [name_of()]


@pytest.mark.parametrize(("phase", "shown"), [("Failed", []), ("Succeeded", [True, True])])
def test_of_pods_deleted_before_their_end_those_stay_visible_that_succeeded(phase: str, shown: list[bool]) -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen())
    for index in (0, 1):
        cache.pods.on_upsert(pod_seen("", 5 + index, owner="uid-llama", slot=(index, 0)))
    ours = cache.pods.get("uid-llama", name_of())
    assert ours is not None
    cache.pods.on_delete_requested(ours)
    by_us, by_others = (pod_seen("", 8 + i, owner="uid-llama", slot=(i, 0), phase=phase) for i in (0, 1))
    for pod in (by_us, by_others):
        pod.metadata.deletion_timestamp = "2026-11-21T10:00:00Z"
        cache.pods.on_upsert(pod)
        cache.pods.on_delete(pod)
    views = cache.observe().pods.get("uid-llama", ())
    assert [view.tombstone and view.deleting for view in views] == shown
    for view in views:
        cache.pods.remove_tombstone("uid-llama", view.name)
    assert cache.observe().pods == {}


def test_a_pod_that_ends_while_we_delete_it_is_visible_as_it_ended() -> None:
    """The answer to our delete arrives before or after the event of its end."""
    for deleted_first in (False, True):
        cache, _ = new_cache()
        cache.jobs.on_upsert(job_seen())
        cache.pods.on_upsert(pod_seen("", 5, owner="uid-llama"))
        running = cache.pods.get("uid-llama", name_of())
        assert running is not None
        end = pod_seen("", 6, owner="uid-llama", phase="Succeeded")
        steps = [
            lambda cache=cache, running=running: cache.pods.on_delete_requested(running),
            lambda cache=cache, end=end: cache.pods.on_upsert(end),
        ]
        for step in steps if deleted_first else reversed(steps):
            step()
        end.metadata.resource_version, end.metadata.deletion_timestamp = "7", "2026-11-21T10:00:07Z"
        cache.pods.on_upsert(end)
        cache.pods.on_delete(end)
        assert [(view.phase, view.deleting) for view in cache.observe().pods["uid-llama"]] == [("Succeeded", False)]


def test_an_ended_pod_that_we_delete_is_gone_whenever_the_answer_arrives() -> None:
    for answered_first in (False, True):
        cache, _ = new_cache()
        cache.jobs.on_upsert(job_seen())
        end = pod_seen("", 5, owner="uid-llama", phase="Failed")
        cache.pods.on_upsert(end)
        known = cache.pods.get("uid-llama", name_of())
        assert known is not None
        steps = [
            lambda cache=cache, known=known: cache.pods.on_delete_requested(known),
            lambda cache=cache, end=end: cache.pods.on_delete(end),
        ]
        for step in steps if answered_first else reversed(steps):
            step()
        assert cache.observe().pods == {}


def test_an_event_older_than_our_delete_does_not_revive_a_pod() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen())
    cache.pods.on_upsert(pod_seen("", 5, owner="uid-llama", phase="Pending"))
    known = cache.pods.get("uid-llama", name_of())
    assert known is not None
    cache.pods.on_delete_requested(known)
    cache.pods.on_upsert(pod_seen("", 6, owner="uid-llama"))
    (view,) = cache.observe().pods["uid-llama"]
    assert (view.phase, view.deleting) == ("Running", True)


def test_a_pod_that_reappears_is_visible_once() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen())
    first = pod_seen("", 5, owner="uid-llama", phase="Succeeded")
    cache.pods.on_upsert(first)
    cache.pods.on_delete(first)
    cache.pods.on_upsert(pod_seen("", 7, owner="uid-llama"))
    assert [view.phase for view in cache.observe().pods["uid-llama"]] == ["Running"]


def test_tombstones_of_an_attempt_are_dropped_with_the_next_one_and_with_the_job() -> None:
    cache, _ = new_cache()
    for attempt in (0, 1):
        cache.jobs.on_upsert(
            read(RawCustomObject, job_document(version=5 + attempt) | {"status": {"attempt": attempt}})
        )
        pod = pod_seen("", 5 + attempt, owner="uid-llama", slot=(0, attempt), phase="Failed")
        cache.pods.on_upsert(pod)
        cache.pods.on_delete(pod)
    assert [view.attempt for view in cache.observe().pods["uid-llama"]] == [1]
    cache.jobs.on_delete(job_seen(version=10))
    cache.jobs.on_upsert(job_seen(version=11))
    assert cache.observe().pods == {}


def test_a_pod_without_its_labels_is_unmanaged() -> None:
    pod = pod_seen(owner="u")
    pod.metadata.labels = {}
    assert pod_owner(pod.metadata) is None
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen("x"))
    cache.nodes.on_upsert(node_seen())
    cache.pods.on_upsert(read(V1Pod, {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"nodeName": "n1"}}))
    assert unmanaged_usage(cache.observe()) == {"pods": 1}


def test_queues_namespaces_and_their_labels_are_cached() -> None:
    cache, _ = new_cache()
    queue = {"metadata": {"name": "q", "uid": "u", "resourceVersion": "3", "finalizers": ["f"]}, "spec": {"weight": 2}}
    cache.queues.on_upsert(read(RawCustomObject, queue))
    cache.namespaces.on_upsert(read(V1Namespace, {"metadata": {"name": "team", "labels": {"org": "x"}}}))
    observed = cache.observe()
    assert [(queue.metadata.name, queue.spec.weight) for queue in observed.queues] == [("q", 2.0)]
    assert observed.queues[0].metadata.finalizers == ["f"]
    assert observed.namespaces == {"team": {"org": "x"}}
