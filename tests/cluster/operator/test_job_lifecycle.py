"""The life of a job with kubectl, from apply to delete."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from tests.cluster.operator.pools import GROUP, Pool


@pytest.mark.smoke
def test_a_job_is_applied_runs_and_succeeds(pool: Pool) -> None:
    pool.set_up()
    kubectl, space = pool.plane.kubectl, ("-n", pool.namespace)
    document = pool.job("first", pods=3)
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(document))
    kubectl("wait", *space, "tj/first", "--for=condition=PodsReady", "--timeout=600s")
    row = kubectl("get", *space, "tj", "first", "--no-headers").split()
    assert row[:5] == ["first", "Running", pool.queue("red"), "3", "3"]
    assert pool.nodes_of("first").count("") == 0
    pool.end("first")
    kubectl("wait", *space, "tj/first", "--for=condition=Complete", "--timeout=600s")
    status = pool.status("first")
    assert status["phase"] == "Succeeded"
    assert {one["observedGeneration"] for one in status["conditions"]} == {1}
    assert "Admitted" in kubectl("describe", *space, "tj", "first")
    kubectl("delete", *space, "tj", "first", "--timeout=600s")
    pool.wait("its pods and its Service are gone", lambda: not pool.pods() and not services(pool))


def test_pods_carry_owner_labels_and_environment_and_a_service_gives_them_names(pool: Pool) -> None:
    pool.set_up()
    pool.submit("named")
    pool.wait_for_phase("named", "Running")
    first, second = sorted(pool.pods("named"), key=lambda pod: pod["metadata"]["name"])
    assert first["metadata"]["ownerReferences"][0]["kind"] == "TrainingJob"
    (service,) = services(pool)
    assert service["spec"]["publishNotReadyAddresses"]
    assert (first["spec"]["hostname"], second["spec"]["hostname"]) == ("worker-0", "worker-1")
    assert first["spec"]["subdomain"] == service["metadata"]["name"]
    variables = {one["name"]: one.get("value") for one in second["spec"]["containers"][0]["env"]}
    assert variables["MUSTER_RANK0_HOST"] == f"worker-0.{service['metadata']['name']}"
    assert first["spec"].get("nodeName")


def test_a_job_of_one_pod_has_no_service_and_costs_two_writes_until_it_is_bound(pool: Pool) -> None:
    pool.set_up()
    pool.submit("single", pods=1)
    pool.wait_for_phase("single", "Running")
    assert services(pool) == []
    assert len(pool.pods("single")) == 1
    # Status at admission, status when ready; the pod and its binding are others' objects.
    managers = pool.plane.kubectl("get", "tj", "single", "-n", pool.namespace, "--show-managed-fields", "-o", "json")
    assert len(json.loads(managers)["metadata"]["managedFields"]) == 2
    assert json.loads(managers)["metadata"]["generation"] == 1


def test_a_deleted_job_exists_until_its_pods_have_stopped(pool: Pool) -> None:
    pool.set_up()
    pool.submit("leaving", pods=4, does={"stop_seconds": 1})
    pool.submit("next", pods=4)
    pool.wait_for_phase("leaving", "Running")
    pool.wait_for_phase("next", "Running")
    pool.delete("leaving")
    pool.wait("its pods are gone", lambda: not pool.pods("leaving"))


def test_a_job_deleted_in_the_foreground_is_removed_after_its_pods(pool: Pool) -> None:
    pool.set_up()
    pool.submit("leaving", does={"stop_seconds": 1})
    pool.wait_for_phase("leaving", "Running")
    pool.delete("leaving", propagationPolicy="Foreground")
    pool.wait("it is gone", lambda: pool.get("leaving") is None)
    assert pool.pods("leaving") == []


def test_a_deleted_job_with_a_finalizer_is_cancelled_once_its_pods_are_deleted(pool: Pool) -> None:
    pool.set_up()
    pool.submit("kept", pods=2)
    pool.wait_for_phase("kept", "Running")
    path = f"{GROUP}/namespaces/{pool.namespace}/trainingjobs/kept"
    pool.api.patch(path, {"metadata": {"finalizers": ["example.com/hold"]}})
    pool.delete("kept")
    try:
        pool.wait_for_phase("kept", "Cancelled")
        assert pool.pods("kept") == []
        status = pool.status("kept")
        assert (status["reason"], "finishedAt" in status) == ("Deleted", True)
    finally:
        pool.api.patch(path, {"metadata": {"finalizers": None}})
    pool.wait("the job is gone", lambda: pool.get("kept") is None)


def test_a_finished_job_is_removed_after_its_ttl(pool: Pool) -> None:
    pool.set_up()
    pool.submit("kept", does={"run_seconds": 0.1, "exit_code": 0})
    pool.wait_for_phase("kept", "Succeeded")
    pool.edit("kept", ttlSecondsAfterFinished=0)
    pool.wait("the job whose time to live was set after its end is gone", lambda: pool.get("kept") is None)
    pool.submit("brief", does={"run_seconds": 0.1, "exit_code": 0}, ttlSecondsAfterFinished=2)
    pool.wait("it was removed", lambda: pool.get("brief") is None)
    pool.wait_for_event("brief", "Completed")
    pool.wait("its pods too", lambda: not pool.pods("brief"))


def test_a_suspended_job_releases_its_capacity_and_continues_when_it_is_resumed(pool: Pool) -> None:
    pool.set_up()
    pool.submit("paused")
    pool.wait_for_phase("paused", "Running")
    pool.edit("paused", suspend=True)
    pool.wait_for_phase("paused", "Suspended")
    pool.wait("its pods are gone", lambda: not pool.pods("paused"))
    pool.edit("paused", suspend=False)
    pool.wait_for_phase("paused", "Running")
    assert pool.attempt("paused") == 1
    assert pool.status("paused").get("restarts", 0) == 0


def test_every_event_is_recorded_once(pool: Pool) -> None:
    pool.set_up()
    pool.submit("recorded")
    pool.wait_for_event("recorded", "Admitted")  # otherwise the Event of its end would replace it
    pool.wait_for_phase("recorded", "Running")
    pool.end("recorded")
    pool.wait_for_event("recorded", "Completed")
    assert pool.events("recorded") == ["Admitted", "Completed"]


def services(pool: Pool) -> list[dict[str, Any]]:
    return pool.api.items(f"/api/v1/namespaces/{pool.namespace}/services")
