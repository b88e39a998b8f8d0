"""JobSets queue unchanged, with their real controller."""

from __future__ import annotations

import pytest
from tests.cluster.controlplane.nodes import GPU
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


def test_pods_of_a_deleted_job_set_that_are_released_and_not_bound_are_charged_and_made_up_ones_are_not(
    two: Pool,
) -> None:
    """A gate of the user's own keeps them from being bound for as long as the user likes."""
    pool = two
    pool.add_nodes(1)
    pool.edit_queue("all", resources=[{"flavor": pool.namespace, "limit": {GPU: "8"}}])
    pods = f"/api/v1/namespaces/{pool.namespace}/pods"
    worker = objects.replicated_job("worker", 2, 4, pod={"schedulingGates": [{"name": "user.example/later"}]})
    objects.create_job_set(pool, "set", worker)

    def released() -> bool:
        found = objects.pods_of(pool, "set")
        gates = [[gate["name"] for gate in one["spec"]["schedulingGates"]] for one in found]
        return gates == [["user.example/later"]] * 2

    pool.wait("they are released", released)
    genuine = objects.pods_of(pool, "set")
    pool.api.delete(f"{objects.job_sets_path(pool)}/set", propagationPolicy="Orphan")
    pool.submit("next", pods=1, gpus=4, queue="blue")  # the third node is free, the quota is not
    pool.wait("it waits", lambda: pool.waits_for("next") == "QuotaExceeded")
    for one in genuine:
        meta = {key: one["metadata"][key] for key in ("labels", "annotations")}
        copy = {"metadata": {**meta, "name": f"{one['metadata']['name']}-copy"}, "spec": one["spec"]}
        pool.api.create(pods, copy)
        pool.api.delete(f"{pods}/{one['metadata']['name']}", gracePeriodSeconds=0)
    pool.wait_for_phase("next", "Running")


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
