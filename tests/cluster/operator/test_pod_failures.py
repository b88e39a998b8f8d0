"""Pods that fail, never start, or disappear, and the job's failure rules."""

from __future__ import annotations

import pytest
from tests.cluster.operator.pools import Pool


@pytest.mark.smoke
def test_a_failed_gang_is_restarted_and_its_status_has_the_cause(pool: Pool) -> None:
    pool.set_up()
    pool.submit("flaky", pods=3, does={"run_seconds": 0.5, "exit_code": "7,0"})
    pool.wait_for_phase("flaky", "Succeeded")
    status = pool.status("flaky")
    assert (status["restarts"], status.get("attempt", 0)) == (1, 1)
    assert status["lastFailure"]["exitCode"] == 7
    assert status["lastFailure"]["node"] in (pool.node(0), pool.node(1))


def test_restarts_are_bounded(pool: Pool) -> None:
    pool.set_up()
    pool.submit("hopeless", pods=1, does={"exit_code": 1}, failurePolicy={"maxRestarts": 1})
    pool.wait_for_phase("hopeless", "Failed")
    failed = pool.condition("hopeless", "Failed")
    assert failed["reason"] == "TooManyRestarts"
    assert "maxRestarts is 1" in failed["message"]


def test_a_rule_ends_the_job_at_an_exit_code(pool: Pool) -> None:
    pool.set_up()
    rules = [{"onExitCodes": [42], "action": "FailJob"}]
    pool.submit("ruled", does={"exit_code": 42}, failurePolicy={"maxRestarts": 9, "rules": rules})
    pool.wait_for_phase("ruled", "Failed")
    assert pool.condition("ruled", "Failed")["reason"] == "FailurePolicy"
    assert pool.status("ruled").get("restarts", 0) == 0


def test_a_rule_restarts_on_other_nodes(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    rules = [{"onExitCodes": [3], "action": "RestartElsewhere"}]
    pool.submit("moving", pods=1, does={"exit_code": "3,0", "run_seconds": 0.2}, failurePolicy={"rules": rules})
    pool.wait_for_phase("moving", "Succeeded")
    status = pool.status("moving")
    (blamed,) = status["blamedNodes"]
    assert blamed["node"] == status["lastFailure"]["node"]
    assert status["placement"][0]["nodes"][0]["node"] != blamed["node"]


def test_a_gang_that_is_not_ready_in_time_is_deleted_whole_and_its_bad_node_avoided(pool: Pool) -> None:
    """Every pod starts but the ones on a node whose kubelet is asleep."""
    pool.set_up(nodes=2, gpus=2)
    pool.plane.stop_kubelet(pool.node(0), witness=pool.node(1))
    pool.submit("gang", pods=4, startTimeoutSeconds=40)  # in which the pods of the good node have to start
    pool.wait("it is torn down", lambda: pool.condition("gang", "Evicted").get("reason") == "StartTimeout")
    pool.wait("all its pods stop", lambda: all(pod["metadata"].get("deletionTimestamp") for pod in pool.pods("gang")))
    pool.plane.resume_kubelet(pool.node(0))
    pool.wait("it waits again, whole", lambda: pool.attempt("gang") == 1 and not pool.pods("gang"))
    status = pool.status("gang")
    assert [one["node"] for one in status["blamedNodes"]] == [pool.node(0)]
    assert (status.get("restarts", 0), status["startRetries"]) == (0, 1)
    assert status["lastFailure"]["reason"] == "StartTimeout"
    pool.wait_for_event("gang", "StartTimeout")
    pool.add_nodes(1, gpus=2)
    pool.wait_for_phase("gang", "Running")
    assert pool.node(0) not in pool.nodes_of("gang")


def test_a_pod_deleted_by_a_user_causes_a_new_attempt_but_no_restart(pool: Pool) -> None:
    pool.set_up()
    pool.submit("robbed", pods=3)
    pool.wait_for_phase("robbed", "Running")
    victim = pool.pods("robbed")[1]["metadata"]["name"]
    pool.api.delete(f"/api/v1/namespaces/{pool.namespace}/pods/{victim}")
    pool.wait_for_attempt("robbed", 1)
    status = pool.status("robbed")
    assert (status["nodeLosses"], status.get("restarts", 0)) == (1, 0)
    assert len(pool.pods("robbed")) == 3


def test_a_job_that_exceeds_its_maximum_run_time_fails(pool: Pool) -> None:
    pool.set_up()
    pool.submit("endless", pods=1, maxRuntimeSeconds=2)
    pool.wait_for_phase("endless", "Failed")
    assert pool.condition("endless", "Failed")["reason"] == "MaxRuntimeExceeded"
    pool.wait("its pod is gone", lambda: not pool.pods("endless"))


def test_a_cancelled_job_stops_and_keeps_its_record(pool: Pool) -> None:
    pool.set_up()
    pool.submit("unwanted")
    pool.wait_for_phase("unwanted", "Running")
    pool.edit("unwanted", cancel=True)
    pool.wait_for_phase("unwanted", "Cancelled")
    assert pool.condition("unwanted", "Cancelled")["status"] == "True"
    pool.wait("its pods are gone", lambda: not pool.pods("unwanted"))


def test_an_elastic_gang_shrinks_for_a_guarantee(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.submit("elastic", pods=8, queue="red", role={"minReplicas": 4})
    pool.wait_for_phase("elastic", "Running")
    pool.submit("owner", pods=4, queue="blue")
    pool.wait_for_phase("owner", "Running")
    pool.wait(
        "it runs at four", lambda: pool.phase("elastic") == "Running" and pool.status("elastic").get("podsReady") == 4
    )
    assert pool.status("elastic").get("restarts", 0) == 0
