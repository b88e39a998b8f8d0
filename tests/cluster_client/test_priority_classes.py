"""A job's PriorityClass at submit: refused early where the classes may be read, left to the operator where not."""

from __future__ import annotations

import pytest
from tests.cli.objects import job as a_job
from tests.cluster_client.server import CLASSES, Server, forbidden

from muster.errors import NotFound


def test_an_unknown_priority_class_is_refused_before_anything_is_created(cluster: Server) -> None:
    cluster.put(f"{CLASSES}/high", {"metadata": {"name": "high"}, "value": 100})
    with pytest.raises(NotFound, match="did you mean 'high'") as error:
        cluster.client().submit(a_job(priorityClassName="hihg"))
    assert (error.value.reason, error.value.field) == ("PriorityClassNotFound", "spec.priorityClassName")
    assert not any(method == "POST" for method, _ in cluster.requested)


def test_where_classes_may_not_be_read_the_job_is_created(cluster: Server) -> None:
    cluster.fail("GET", CLASSES, forbidden)
    created = cluster.client().submit(a_job(priorityClassName="high"))
    assert created.spec.priority_class_name == "high"


def test_no_classes_are_read_for_a_job_that_names_none(cluster: Server) -> None:
    cluster.client().submit(a_job())
    assert CLASSES not in {path for _, path in cluster.requested}
