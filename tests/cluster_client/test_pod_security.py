"""The podSecurity of a queue at submit."""

from __future__ import annotations

import pytest
from tests.cli.objects import job as a_job
from tests.cluster_client.server import Server

from muster.errors import Refused


def test_a_template_that_the_queue_forbids_is_refused_before_anything_is_created(cluster: Server) -> None:
    cluster.client().submit(a_job())
    research = next(path for path in cluster.objects if path.endswith("/queues/research"))
    there = cluster.objects[research]
    cluster.put(research, {**there, "spec": {**there["spec"], "podSecurity": "restricted"}})
    before = list(cluster.requested)
    with pytest.raises(Refused, match="allowPrivilegeEscalation must be false") as error:
        cluster.client().submit(a_job())
    assert (error.value.reason, error.value.field) == ("PodRejected", "spec.roles[0].template")
    assert not any(method == "POST" for method, _ in cluster.requested[len(before) :])
