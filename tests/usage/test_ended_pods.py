"""Usage and fair share follow what quota charges: no pod that has completed while others of its gang run."""

from __future__ import annotations

import pytest
from tests.engine.objects import flavor, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster
from tests.usage.histories import gpu_cells

from muster.api import spec
from muster.engine import Engine
from muster.simulate import JobBehavior
from muster.usage.segments import segments_of
from muster.usage.totals import UsageTotals

RUNTIME_S, END_S = 600.0, 3600.0


def test_a_role_that_has_completed_is_not_counted_any_more() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue(gpus=16)])
    pod = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
    roles = [{"name": "worker", "replicas": 6, "template": pod}, {"name": "server", "template": pod}]
    document = {"metadata": {"name": "a"}, "spec": {"roles": roles}}
    uid = cluster.submit(
        spec.TrainingJob.model_validate(document), JobBehavior(RUNTIME_S, endless_roles=frozenset({"server"}))
    )
    settle(Engine(), cluster, until=END_S)
    observed = cluster.observe()
    (one,) = observed.workloads
    assert (one.metadata.uid, one.status.phase) == (uid, "Running")
    found = segments_of(one, END_S)
    assert found is not None
    sums = UsageTotals()
    sums.add_all(found.ended)
    assert found.current is not None
    sums.add(found.current)
    gpu_s = sum(gpu_cells([sums]).values()) / 1000
    assert gpu_s == pytest.approx(6 * RUNTIME_S + END_S, abs=6 * 10.0), "recorded some seconds later"
    share = observed.queues[0].status.fair_share
    assert share is not None
    (usage,) = [entry for entry in share.usage if entry.resource == "nvidia.com/gpu"]
    assert usage.resource_seconds == pytest.approx(6 * RUNTIME_S + END_S, rel=0.05), (
        "it decays, and is written each minute"
    )
