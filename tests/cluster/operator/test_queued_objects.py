"""Objects of other kinds queue beside TrainingJobs: batch Jobs, and a kind that is one row of a flag."""

from __future__ import annotations

import pytest
from tests.cluster.operator import queued
from tests.cluster.operator.experiments import Experiments
from tests.cluster.operator.pools import Pool


@pytest.mark.smoke
def test_a_batch_job_waits_for_a_training_job_is_admitted_evicted_and_resumed(pool: Pool) -> None:
    """Queue red owns one of two nodes, blue the other."""
    pool.set_up(nodes=2, gpus=4)
    queued.opt_in(pool)
    pool.submit("first", pods=2, gpus=4, queue="red")
    pool.wait_for_phase("first", "Running")
    job = queued.create_job(pool, "batch", pods=2, queue="blue")
    uid = job["metadata"]["uid"]
    pool.wait("it waits", lambda: queued.waits_for(pool, "batch") != "")
    assert queued.pods_of(pool, uid) == []
    pool.end("first")
    queued.wait_for_phase(pool, "batch", "Running")
    assert queued.nodes_of(pool, uid) == sorted((pool.node(0), pool.node(1)))
    pool.submit("owner", pods=1, gpus=4, queue="red")  # reclaims what the Job has borrowed
    pool.wait_for_phase("owner", "Running")
    pool.wait("it is suspended", lambda: pool.api.get(f"{queued.jobs_path(pool)}/batch")["spec"]["suspend"])
    queued.wait_for_phase(pool, "batch", "Pending")
    pool.end("owner")
    queued.wait_for_phase(pool, "batch", "Running")
    assert queued.workload(pool, "batch")["status"]["attempt"] == 1
    for one in queued.pods_of(pool, uid):
        path = f"/api/v1/namespaces/{pool.namespace}/pods/{one['metadata']['name']}"
        pool.api.patch(path, {"metadata": {"annotations": queued.does(exit_code=0)}})
    queued.wait_for_phase(pool, "batch", "Succeeded")


def test_a_kind_that_is_one_row_queues_and_its_gated_pods_get_their_nodes_one_by_one(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    queued.opt_in(pool)
    pool.submit("first", pods=2, gpus=4, queue="red")
    pool.wait_for_phase("first", "Running")
    with Experiments(pool.api, pool.namespace).controlled() as experiments:
        created = experiments.create("one", pool.queue("blue"), 2, queued.pod())
        uid = created["metadata"]["uid"]
        pool.wait("it waits", lambda: queued.waits_for(pool, "one") != "")
        pool.end("first")
        queued.wait_for_phase(pool, "one", "Running")
        assert queued.nodes_of(pool, uid) == sorted((pool.node(0), pool.node(1)))
        assert all("schedulingGates" not in pod["spec"] for pod in queued.pods_of(pool, uid))
        pool.submit("owner", pods=1, gpus=4, queue="red")
        pool.wait_for_phase("owner", "Running")
        queued.wait_for_phase(pool, "one", "Pending")
        assert queued.pods_of(pool, uid) == []
        pool.end("owner")
        queued.wait_for_phase(pool, "one", "Running")
        for pod in queued.pods_of(pool, uid):
            path = f"/api/v1/namespaces/{pool.namespace}/pods/{pod['metadata']['name']}"
            pool.api.patch(path, {"metadata": {"annotations": queued.does(exit_code=0)}})
        queued.wait_for_phase(pool, "one", "Succeeded")


def test_a_job_that_runs_without_an_admission_is_suspended_and_one_without_label_or_in_another_namespace_runs(
    pool: Pool,
) -> None:
    pool.set_up(nodes=2, gpus=4)
    elsewhere = queued.create_job(pool, "elsewhere", pods=1, suspend=False)  # the namespace has not opted in
    pool.wait("it runs", lambda: "" not in (queued.nodes_of(pool, elsewhere["metadata"]["uid"]) or [""]))
    pool.api.delete(f"{queued.jobs_path(pool)}/elsewhere", propagationPolicy="Background")
    queued.opt_in(pool)
    pool.submit("first", pods=2, gpus=4, queue="red")
    pool.wait_for_phase("first", "Running")
    queued.create_job(pool, "leaked", pods=1, queue="blue", suspend=False)
    pool.wait("it is suspended", lambda: pool.api.get(f"{queued.jobs_path(pool)}/leaked")["spec"]["suspend"])
    assert queued.phase(pool, "leaked") == "Pending"
