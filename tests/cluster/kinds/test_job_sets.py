"""JobSets queue unchanged, with their real controller."""

from __future__ import annotations

import pytest
from tests.cluster.kinds import objects
from tests.cluster.operator import queued
from tests.cluster.operator.pools import Pool

from muster.cli.app import main

pytestmark = pytest.mark.usefixtures("job_set_controller")


def test_a_job_set_of_two_pod_sets_waits_is_placed_evicted_resumed_and_completes(two: Pool) -> None:
    pool = two
    pool.submit("first", pods=2, gpus=4, queue="red")
    pool.wait_for_phase("first", "Running")
    sets = (objects.replicated_job("leader", 1, 2), objects.replicated_job("worker", 2, 2))
    objects.create_job_set(pool, "set", *sets)
    pool.wait("it waits", lambda: queued.waits_for(pool, "set") != "")
    assert objects.pods_of(pool, "set") == []
    pool.end("first")
    queued.wait_for_phase(pool, "set", "Running")
    placed = queued.workload(pool, "set")["status"]["placement"]
    assert [one["role"] for one in placed] == ["leader", "worker"]
    assert "" not in objects.nodes_of(pool, "set")
    assert all("schedulingGates" not in one["spec"] for one in objects.pods_of(pool, "set"))
    pool.submit("owner", pods=1, gpus=4, queue="red")  # reclaims what the JobSet has borrowed
    pool.wait_for_phase("owner", "Running")
    pool.wait("it is suspended", lambda: pool.api.get(f"{objects.job_sets_path(pool)}/set")["spec"]["suspend"])
    queued.wait_for_phase(pool, "set", "Pending")
    pool.end("owner")
    queued.wait_for_phase(pool, "set", "Running")
    assert queued.workload(pool, "set")["status"]["attempt"] == 1
    objects.annotate(pool, objects.pods_of(pool, "set"), exit_code=0)
    queued.wait_for_phase(pool, "set", "Succeeded")


def test_a_job_set_that_its_controller_restarts_keeps_its_admission_and_its_new_pods_get_the_places_of_the_old(
    two: Pool,
) -> None:
    pool = two
    sets = (objects.replicated_job("worker", 2, 2),)
    objects.create_job_set(pool, "set", *sets, failurePolicy={"maxRestarts": 3})
    queued.wait_for_phase(pool, "set", "Running")
    old = {one["metadata"]["uid"] for one in objects.pods_of(pool, "set")}
    objects.annotate(pool, objects.pods_of(pool, "set")[:1], exit_code=1)

    def replaced() -> bool:
        pods = objects.pods_of(pool, "set")
        bound = all(one["spec"].get("nodeName") for one in pods)
        return len(pods) == 2 and bound and not old & {one["metadata"]["uid"] for one in pods}

    pool.wait("its pods are replaced and bound", replaced)
    status = queued.workload(pool, "set")["status"]
    assert (status.get("attempt", 0), status["phase"]) == (0, "Running")
    assert pool.api.get(f"{objects.job_sets_path(pool)}/set")["status"]["restarts"] == 1


def test_released_before_an_uninstall_a_job_set_that_was_admitted_once_runs_without_muster(
    two: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = two
    path = f"{objects.job_sets_path(pool)}/set"
    objects.create_job_set(pool, "set", objects.replicated_job("worker", 2, 2))
    queued.wait_for_phase(pool, "set", "Running")
    pool.api.patch(path, {"metadata": {"annotations": {"muster.dev/suspend": "true"}}})
    queued.wait_for_phase(pool, "set", "Suspended")
    pool.wait("no pod is left", lambda: objects.pods_of(pool, "set") == [])
    with pytest.raises(SystemExit) as ended:
        main(("--kubeconfig", str(pool.plane.kubeconfig()), "release", "--namespace", pool.namespace))
    assert ended.value.code == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        f"jobset {pool.namespace}/set released",
        *(f"job {pool.namespace}/set-worker-{index} released" for index in (0, 1)),
    ]
    pool.api.patch(path, {"metadata": {"labels": {"muster.dev/queue": None}}, "spec": {"suspend": False}})
    pool.wait("its pods run", lambda: objects.phases_of(pool, "set") == {"Running"})
