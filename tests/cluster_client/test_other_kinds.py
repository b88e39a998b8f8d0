"""Lists of jobs where objects of other kinds cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster_client.server import Handler, Server, forbidden

WORKLOADS = "/apis/muster.dev/v1alpha1/namespaces/default/workloads"


def not_served(handler: Handler) -> None:
    """The cluster has no such CRD."""
    handler.say(404, {"kind": "Status", "reason": "NotFound", "message": "404 page not found"})


@pytest.mark.parametrize("fault", [forbidden, not_served])
def test_jobs_are_listed_where_workloads_may_not_be_read_or_do_not_exist(cluster: Server, fault: Any) -> None:
    cluster.fail("GET", WORKLOADS, fault)
    found = cluster.client().job_list("default")
    assert found.objects == []
    assert not cluster.fault("GET", WORKLOADS), "it was asked for"
