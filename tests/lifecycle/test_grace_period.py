"""The grace period with which pods are stopped: their own, at most that of the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.lifecycle.cases import (
    BOUNDS,
    NODES,
    NOW,
    JobResult,
    admitted,
    condition,
    created,
    job,
    pods_of,
    reconcile_job,
    running,
    with_status,
)

from muster.api import spec
from muster.cluster import CreatePod, DeletePod, PodView
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.workload import transitions
from muster.workload.observation import Observation
from muster.workload.planning import admission_of, nomination_ttl_s

LIMIT_S = 600.0


def reconcile(
    one: spec.TrainingJob, pods: tuple[PodView, ...], *, now: float = NOW, limit_s: float = LIMIT_S
) -> JobResult:
    return reconcile_job(one, Observation(now, pods, None, NODES, max_grace_s=limit_s), BOUNDS)


def graces(result: JobResult) -> list[float]:
    return [write.grace_s for write in result.writes if isinstance(write, DeletePod)]


def edited(**fields: object) -> Callable[[spec.TrainingJob], spec.TrainingJob]:
    return lambda one: one.model_copy(update={"spec": one.spec.model_copy(update=fields)})


def evicted(reason: str) -> Callable[[spec.TrainingJob], spec.TrainingJob]:
    return lambda one: with_status(one, transitions.evict(one.status, reason, "", NOW))


def deleted(one: spec.TrainingJob) -> spec.TrainingJob:
    return one.model_copy(update={"metadata": one.metadata.model_copy(update={"deletion_timestamp": NOW})})


@pytest.mark.parametrize("own", [86_400, 5])
@pytest.mark.parametrize(
    "stopped",
    [
        edited(cancel=True), edited(suspend=True), edited(max_runtime_seconds=1), deleted,
        evicted("Reclaimed"), evicted("Preempted"), evicted("Drained"), evicted("NodeLost"),
    ],
    ids=["cancel", "suspend", "maxRuntimeSeconds", "deleted", "reclaimed", "preempted", "drained", "node lost"],
)  # fmt: skip
def test_pods_are_stopped_with_the_smaller_of_their_own_grace_period_and_that_of_the_queue(
    stopped: Callable[[spec.TrainingJob], spec.TrainingJob], own: int
) -> None:
    one = running(job(grace=own))
    assert graces(reconcile(stopped(one), pods_of(one), now=NOW + 100)) == [min(own, LIMIT_S)] * 3


@pytest.mark.parametrize(("terminating", "written"), [(86_400.0, [600.0]), (600.0, []), (5.0, []), (None, [])])
def test_a_pod_that_terminates_with_a_longer_grace_period_gets_the_shorter_one(
    terminating: float | None, written: list[float]
) -> None:
    one = evicted("Reclaimed")(running(job(1, grace=86_400)))
    pods = tuple(replace(pod, deleting=True, grace_s=terminating) for pod in pods_of(one)[:1])
    assert graces(reconcile(one, pods)) == written


def test_a_pod_without_a_grace_period_which_is_deleted_with_one_second_is_not_deleted_again() -> None:
    one = evicted("Reclaimed")(running(job(1, grace=0)))
    pods = tuple(replace(pod, deleting=True, grace_s=1.0) for pod in pods_of(one)[:1])
    assert graces(reconcile(one, pods)) == []


def test_a_created_pod_gets_the_grace_period_with_which_it_is_stopped() -> None:
    result = reconcile(admitted(job(grace=86_400)), ())
    assert len(created(result)) == 3
    assert {write.grace_s for write in result.writes if isinstance(write, CreatePod)} == {LIMIT_S}


def test_retained_capacity_and_start_timeout_count_with_the_effective_grace_period() -> None:
    one = evicted("NodeLost")(admitted(job(grace=86_400, startTimeoutSeconds=60)))
    assert nomination_ttl_s(TrainingJobWorkload(one), LIMIT_S) == 660
    admission = admission_of(TrainingJobWorkload(one), NOW, (), LIMIT_S)
    assert admission is not None
    assert admission.retained_until == NOW + 600 + 660
    restarted = admitted(job(grace=86_400, startTimeoutSeconds=60))
    restarted = with_status(restarted, transitions.restart(restarted.status, "Failed", "", NOW, 0.0))
    pods = pods_of(restarted, "Pending")
    assert condition(reconcile(restarted, pods, now=NOW + 659).status, "Evicted")[0] != "True"
    assert condition(reconcile(restarted, pods, now=NOW + 661).status, "Evicted") == ("True", "StartTimeout")
