"""Pods with the name of a pod of the present attempt that are not in the placement. Any user who may create pods can
create them; they are deleted and count for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lifecycle.cases import NOW, admitted, condition, created, deleted, failed, job, pods_of, reconcile, running

from muster.api import spec
from muster.cluster import PodView
from muster.kinds.trainingjob.pods import pod_name


def stray(one: spec.TrainingJob, role: str = "trainer", index: int = 7) -> PodView:
    meta, attempt = one.metadata, one.status.attempt
    name = pod_name(meta.name, meta.uid, role, index, attempt)
    return PodView(name, meta.uid, role, index, attempt, "n0", "Running", ready=True)


@pytest.mark.parametrize(("role", "index"), [("trainer", 7), ("other", 0)])
def test_it_is_deleted_and_the_gang_runs_on(role: str, index: int) -> None:
    one = running()
    other = stray(one, role, index)
    seen = reconcile(one, (*pods_of(one), other))
    assert (deleted(seen), seen.status) == ([other.name], one.status)


def test_a_pod_on_another_node_than_that_of_its_slot_is_deleted_and_created_again_once_it_is_gone() -> None:
    one = admitted()
    first, *others = pods_of(one)
    seen = reconcile(one, (replace(first, node="n2"), *others))
    assert (deleted(seen), created(seen)) == ([first.name], [])
    assert created(reconcile(one, tuple(others))) == [(first.index, first.node)]


def test_a_pod_whose_node_is_not_known_yet_is_kept() -> None:
    one = admitted()
    first, *others = pods_of(one, "Pending")
    seen = reconcile(one, (replace(first, node=""), *others))
    assert (deleted(seen), created(seen)) == ([], [])


def test_it_does_not_count_as_ready() -> None:
    one = admitted()
    seen = reconcile(one, (*pods_of(one)[:-1], stray(one)))
    assert condition(seen.status, "PodsReady")[0] == "False"


def test_it_does_not_replace_a_lost_pod() -> None:
    one = running()
    seen = reconcile(one, (*pods_of(one)[:-1], stray(one)))
    assert condition(seen.status, "Evicted") == ("True", "PodLost")


def test_its_failure_or_its_end_is_not_that_of_the_gang() -> None:
    one = running(job(failurePolicy={"maxRestarts": 0}))
    succeeded = replace(stray(one), phase="Succeeded", exit_code=0, ready=False, finished_at=NOW)
    for ended in (failed(stray(one)), succeeded):
        seen = reconcile(one, (*pods_of(one), ended), now=NOW + 60)
        assert (seen.status, deleted(seen)) == (one.status, [ended.name])


def test_it_does_not_complete_the_gang() -> None:
    one = running()
    done = (
        replace(pod, phase="Succeeded", exit_code=0, ready=False, finished_at=NOW)
        for pod in (*pods_of(one)[:-1], stray(one))
    )
    seen = reconcile(one, (*done, pods_of(one)[-1]))
    assert condition(seen.status, "Complete")[0] == ""
