"""TrainJobs queue unchanged, with the real controllers of TrainJobs and JobSets."""

from __future__ import annotations

import pytest
from tests.cluster.kinds import objects
from tests.cluster.operator import queued
from tests.cluster.operator.pools import Pool

pytestmark = pytest.mark.usefixtures("train_job_controller")


def test_a_train_job_is_charged_for_its_job_set_waits_is_evicted_resumed_and_completes(two: Pool) -> None:
    pool = two
    objects.create_runtime(pool, "plain", gpus=4)
    pool.submit("first", pods=2, gpus=4, queue="red")
    pool.wait_for_phase("first", "Running")
    objects.create_train_job(pool, "train", "plain", pods=2)
    pool.wait("it waits for GPUs", lambda: queued.waits_for(pool, "train") not in ("", "PodRejected"))
    assert pool.api.get(f"{objects.job_sets_path(pool)}/train")["spec"]["suspend"] is True
    pool.end("first")
    queued.wait_for_phase(pool, "train", "Running")
    assert objects.nodes_of(pool, "train") == sorted((pool.node(0), pool.node(1)))
    records = pool.api.items(f"/apis/muster.dev/v1alpha1/namespaces/{pool.namespace}/workloads")
    assert [one["spec"]["objectRef"]["kind"] for one in records] == ["TrainJob"], "its JobSet is not managed too"
    pool.submit("owner", pods=1, gpus=4, queue="red")
    pool.wait_for_phase("owner", "Running")
    queued.wait_for_phase(pool, "train", "Pending")
    assert objects.pods_of(pool, "train") == []
    pool.end("owner")
    queued.wait_for_phase(pool, "train", "Running")
    assert queued.workload(pool, "train")["status"]["attempt"] == 1
    patches = pool.api.get(f"{objects.trainer_path(pool)}/train")["spec"]["runtimePatches"]
    assert [one["manager"] for one in patches] == ["muster.dev/operator"], "one entry, whatever was admitted before"
    objects.annotate(pool, objects.pods_of(pool, "train"), exit_code=0)
    queued.wait_for_phase(pool, "train", "Succeeded")
