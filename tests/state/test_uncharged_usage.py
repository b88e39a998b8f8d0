"""Pods of a running gang that its placement does not account for: what they use counts as unmanaged usage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.engine.objects import nodes, queue
from tests.state.observed_states import admitted, advance, named, observed_state, pod, snapshot

from muster.api import spec
from muster.cluster import PodView
from muster.model import Resources, Snapshot
from muster.state import ClusterState

GPU = "nvidia.com/gpu"
ONE = Resources.of({GPU: 1, "pods": 1})


def gang() -> spec.TrainingJob:
    """Two pods of one GPU, one on n0 and one on n1."""
    template = {"spec": {"containers": [{"resources": {"limits": {GPU: "1"}}}]}}
    return admitted("a", roles=[{"name": "trainer", "replicas": 2, "template": template}])


def pods_of(one: spec.TrainingJob) -> tuple[PodView, ...]:
    return tuple(replace(pod(one, i, f"n{i}"), request=ONE) for i in range(2))


def requesting(view: PodView, gpus: int, **fields: Any) -> PodView:
    return replace(view, request=Resources.of({GPU: gpus, "pods": 1}), **fields)


def unmanaged(seen: Snapshot) -> dict[str, dict[str, int]]:
    return {node.name: dict(node.unmanaged_usage.items) for node in seen.nodes if node.unmanaged_usage}


def used(one: spec.TrainingJob, *pods: PodView) -> dict[str, dict[str, int]]:
    seen = snapshot(one, pods={"a": pods})
    assert [running.state for running in seen.running] == ["admitted"]
    return unmanaged(seen)


def test_the_pods_of_a_placement_use_nothing_else() -> None:
    one = gang()
    assert used(one) == used(one, *pods_of(one)) == used(one, *(replace(p, request=Resources()) for p in pods_of(one)))


@pytest.mark.parametrize("role", ["trainer", "other"])
def test_a_pod_outside_the_placement_is_unmanaged_usage(role: str) -> None:
    one = gang()
    stray = replace(pod(one, 7, "n0"), role=role, request=ONE)
    assert used(one, *pods_of(one), stray) == {"n0": dict(ONE.items)}
    assert used(one, stray, *pods_of(one)) == {"n0": dict(ONE.items)}


def test_a_pod_on_another_node_than_that_of_its_slot_is_unmanaged_usage() -> None:
    one = gang()
    first, second = pods_of(one)
    two = snapshot(one, pods={"a": (first, replace(second, node="n2"))}, nodes=tuple(nodes(3)))
    assert unmanaged(two) == {"n2": dict(ONE.items)}


def test_a_pod_that_requests_more_than_its_role_uses_the_difference() -> None:
    one = gang()
    first, second = pods_of(one)
    assert used(one, requesting(first, 8), second) == {"n0": {GPU: 7}}
    assert used(one, replace(first, request=Resources.of({"pods": 1})), second) == {}


def test_pods_that_ended_or_are_not_bound_use_nothing() -> None:
    one = gang()
    first, second = pods_of(one)
    ended = requesting(pod(one, 7, "n0"), 8, phase="Succeeded")
    unbound = requesting(pod(one, 8, "n0"), 8, phase="Pending", pending_reason="Unschedulable")
    assert used(one, first, second, ended, unbound) == {}


def test_a_pod_outside_the_placement_uses_nothing_more_while_a_pod_of_the_placement_is_missing() -> None:
    """The missing pod is created once the other is gone."""
    one = gang()
    stray = replace(pod(one, 7, "n0"), request=ONE)
    assert used(one, stray) == {}
    assert used(one, requesting(stray, 3)) == {"n0": {GPU: 2}}


def test_a_pod_of_an_older_attempt_uses_what_its_gang_is_not_charged_for() -> None:
    one = gang()
    one = one.model_copy(update={"status": one.status.model_copy(update={"attempt": 1})})
    stale = pods_of(one)
    assert used(one, *stale) == {}
    assert used(one, requesting(stale[0], 3), stale[1]) == {"n0": {GPU: 2}}


def test_it_adds_up_over_jobs_and_ends_with_the_pods_and_the_jobs() -> None:
    jobs = [gang(), gang()]
    jobs[1] = jobs[1].model_copy(update={"metadata": jobs[1].metadata.model_copy(update={"uid": "b", "name": "b"})})
    strays: dict[str, tuple[PodView, ...]] = {
        one.metadata.uid: (*pods_of(one), replace(pod(one, 7, "n0"), request=ONE)) for one in jobs
    }
    there = tuple(nodes(2))
    state = ClusterState()
    first = advance(state, observed_state(*jobs, pods=strays, nodes=there))
    assert unmanaged(first.snapshot) == {"n0": {GPU: 2, "pods": 2}}
    same = advance(state, observed_state(*jobs, named("c"), pods=strays, nodes=there))
    assert same.snapshot.nodes is first.snapshot.nodes
    one_left = advance(state, observed_state(*jobs, pods={"a": strays["a"]}, nodes=there))
    assert unmanaged(one_left.snapshot) == {"n0": {GPU: 1, "pods": 1}}
    assert unmanaged(advance(state, observed_state(jobs[1], nodes=there)).snapshot) == {}


def test_pods_of_a_job_that_its_queue_does_not_select_are_charged_to_no_queue_and_use_their_nodes() -> None:
    """Any user can create a job that names any queue, and pods with the names that its own would have."""
    one = named("a")
    made_up = requesting(pod(one, 0, "n0"), 5)
    never = requesting(pod(one, 1, "n0", phase="Pending"), 1000, pending_reason="Unschedulable")
    closed = queue().model_copy(update={"spec": queue().spec.model_copy(update={"namespace_selector": None})})
    seen = snapshot(one, pods={"a": (made_up, never)}, queues=(closed,))
    assert (seen.running, seen.pending) == ((), ())
    assert unmanaged(seen) == {"n0": {GPU: 5, "pods": 1}}
