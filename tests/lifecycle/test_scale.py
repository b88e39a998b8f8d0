"""One number for the one elastic role: what `kubectl scale` and a HorizontalPodAutoscaler write and read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tests.lifecycle.cases import NOW, PLACEMENT, admitted, job, pods_of, reconcile, running, with_status

from muster.api import spec
from muster.api.validation import with_replicas
from muster.kinds.trainingjob.adapter import to_roles
from muster.workload import transitions
from muster.workload.placement import pod_slots


def scaled(one: spec.TrainingJob, number: int | None) -> spec.TrainingJob:
    """The same job with another elasticReplicas."""
    return one.model_copy(update={"spec": one.spec.model_copy(update={"elastic_replicas": number})})


def size(one: spec.TrainingJob) -> tuple[int | None, str | None]:
    return one.status.elastic_replicas, one.status.selector


def test_the_elastic_role_is_planned_with_as_many_pods_at_most_as_elastic_replicas() -> None:
    for number, most in ((None, 4), (2, 2), (3, 3)):
        (role,) = to_roles(job(4, least=1, elasticReplicas=number).spec)
        assert (role.min_replicas, role.replicas) == (1, most)


def test_a_gang_that_is_larger_than_elastic_replicas_restarts_smaller() -> None:
    one = running(job(3, least=1))
    result = reconcile(scaled(one, 2), pods_of(one), now=NOW + 5)
    assert len(list(pod_slots(result.status.placement))) == 2
    assert (result.status.attempt, result.status.restarts, result.status.elastic_replicas) == (1, 0, 2)


def test_the_status_has_the_size_of_the_elastic_role_and_a_selector_of_its_pods() -> None:
    waits = with_status(wanted := job(3, least=1), reconcile(wanted).status)
    selector = "muster.dev/job=a,muster.dev/role=trainer"
    assert size(waits) == (0, selector)
    one = admitted(wanted)
    starts = with_status(one, reconcile(one).status)
    assert size(starts) == (3, selector)
    suspended = reconcile(with_status(job(3, least=1, suspend=True), starts.status), now=NOW + 1)
    assert suspended.status.elastic_replicas == 0


@pytest.mark.parametrize("one", [job(3), job(3, least=3)])
def test_a_job_without_an_elastic_role_has_neither(one: spec.TrainingJob) -> None:
    status = reconcile(with_status(one, transitions.admit(reconcile(one).status, PLACEMENT, NOW))).status
    assert (status.elastic_replicas, status.selector) == (None, None)


def test_elastic_replicas_needs_exactly_one_elastic_role_and_lies_within_it() -> None:
    template: dict[str, Any] = {"spec": {"containers": [{}]}}
    two = [{"name": name, "replicas": 4, "minReplicas": 2, "template": template} for name in "ab"]
    rigid: list[dict[str, Any]] = [{"pods": 4}, {"pods": 4, "least": 4}, {"roles": two}]
    for fields in rigid:
        with pytest.raises(ValidationError, match="requires exactly one elastic role"):
            job(**fields, elasticReplicas=3)
    for number in (1, 5):
        with pytest.raises(ValidationError, match=r"must be from minReplicas \(2\) to replicas \(4\)"):
            job(4, least=2, elasticReplicas=number)


def test_muster_scale_counts_instead_of_elastic_replicas() -> None:
    one = job(4, least=1, elasticReplicas=3)
    after = with_replicas(one, {"trainer": 2})
    assert (after.spec.roles[0].replicas, after.spec.elastic_replicas) == (2, None)
