"""A day with `muster --context`: the verbs of this host against a real control plane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.pools import Pool
from tests.cluster.users.conftest import Muster, file_of, let_read_queues

SCALED_S = 180.0  # where the CRDs are newer than the controller manager, it learns of new kinds every 30 s


@pytest.mark.smoke
def test_a_job_is_submitted_listed_described_and_watched_to_its_end(pool: Pool, muster: Muster, tmp_path: Path) -> None:
    pool.set_up()
    document = pool.job("first", pods=3, does={"run_seconds": 1, "exit_code": 0})
    del document["metadata"]["namespace"]
    ended = muster("submit", file_of(tmp_path, document), "--wait")
    assert (ended.code, ended.err) == (0, "")
    first, then, *waited, last = ended.out.splitlines()
    assert first == f"trainingjob {pool.namespace}/first submitted to queue {pool.queue('red')}"
    assert then == f"to follow it: muster watch {pool.namespace}/first"
    assert waited == [] or waited[0].startswith(f"{pool.namespace}/first in queue {pool.queue('red')}"), "why it waits"
    assert last == f"{pool.namespace}/first Succeeded"
    (row,) = muster("jobs", "--json").rows
    assert (row["metadata"]["namespace"], row["status"]["phase"]) == (pool.namespace, "Succeeded")
    assert "first" in muster("jobs").out
    pool.wait_for_event("first", "Completed")
    page = muster("describe", "first").out
    assert "Succeeded" in page
    assert "Completed" in page, "its Events"
    assert "run folder" not in page
    watched = muster("watch", "first")
    assert (watched.code, watched.err) == (0, "")
    again = muster("submit", file_of(tmp_path, document), "--json")
    error = json.loads(again.err)["error"]
    assert (again.code, error["reason"]) == (3, "AlreadyExists")
    assert f"(Succeeded); use another name, or delete it: muster delete job {pool.namespace}/first" in error["message"]


def test_what_could_never_start_is_refused_before_anything_is_created(
    pool: Pool, muster: Muster, tmp_path: Path
) -> None:
    pool.set_up()
    good = file_of(tmp_path, pool.job("good"))
    for bad, reason, message in (
        (pool.job("unknown", queue="rde"), "QueueNotFound", f"did you mean '{pool.queue('red')}'"),
        (pool.job("wide", pods=1, gpus=5), "LargerThanCluster", ", has 4 nvidia.com/gpu"),
        (pool.job("urgent", priorityClassName="none-such"), "PriorityClassNotFound", "'none-such' does not exist"),
    ):
        ended = muster("submit", good, file_of(tmp_path, bad), "--json")
        error = json.loads(ended.err)["error"]
        assert (ended.code, error["reason"]) == (3, reason)
        assert message in error["message"]
    assert pool.api.items(pool._jobs()) == []


def test_rejections_of_the_api_server_name_the_field(pool: Pool, muster: Muster, tmp_path: Path) -> None:
    pool.set_up()
    document = pool.job("labelled")
    document["metadata"]["labels"] = {"no label at all!": "x"}
    ended = muster("submit", file_of(tmp_path, document), "--json")
    error = json.loads(ended.err)["error"]
    assert ended.code == 2
    assert "metadata.labels" in error["field"]


def test_where_queues_may_not_be_read_the_operator_reports_the_error(
    pool: Pool, muster: Muster, alice: str, tmp_path: Path
) -> None:
    pool.set_up()
    document = file_of(tmp_path, pool.job("early", queue="rde"))
    assert muster("submit", document, user=alice).code == 0
    created = pool.get("early")
    assert created is not None
    assert created["metadata"]["labels"] == {"muster.dev/user": "alice"}
    pool.wait_for_reason("early", "QueueNotFound")
    assert muster("delete", "job", "early", user=alice).out == f"trainingjob {pool.namespace}/early deleted\n"
    pool.wait("it is gone", lambda: pool.get("early") is None)
    undo = let_read_queues(pool, alice)
    try:
        pool.wait(
            "users who may read queues get the error at once",
            lambda: muster("submit", document, "--dry-run", user=alice).code == 3,
        )
    finally:
        undo()


def test_a_right_that_is_missing_is_named(pool: Pool, muster: Muster, alice: str) -> None:
    pool.set_up()
    assert muster("jobs", "--json", user=alice).rows == []
    everywhere = muster("jobs", "-A", "--json", user=alice)
    error = json.loads(everywhere.err)["error"]
    assert (everywhere.code, error["reason"]) == (3, "Forbidden")
    assert 'User "alice" cannot list resource "trainingjobs"' in error["message"]
    assert "which you may not list" in muster("queues", user=alice).err
    assert muster("drain", pool.node(0), user=alice).code == 3


def test_jobs_are_cancelled_suspended_and_resumed(pool: Pool, muster: Muster) -> None:
    pool.set_up()
    pool.submit("one")
    pool.wait_for_phase("one", "Running")
    assert muster("suspend", "one").out == f"trainingjob {pool.namespace}/one suspended\n"
    pool.wait_for_phase("one", "Suspended")
    assert muster("resume", "one").code == 0
    pool.wait_for_phase("one", "Running")
    assert muster("cancel", "one").code == 0
    pool.wait_for_phase("one", "Cancelled")
    assert pool.condition("one", "Cancelled")["status"] == "True"
    assert not {pod["status"]["phase"] for pod in pool.pods("one")} & {"Pending", "Running"}
    assert muster("cancel", "one").code == 0, "to cancel again is no error"
    assert "already ended in phase" in muster("resume", "one").err
    missing = muster("cancel", "on")
    assert missing.code == 3
    assert "did you mean 'one'?" in missing.err


def test_a_running_job_is_replaced_by_one_of_the_same_name(pool: Pool, muster: Muster, tmp_path: Path) -> None:
    pool.set_up()
    before = pool.submit("same")
    pool.wait_for_phase("same", "Running")
    document = pool.job("same", does={"run_seconds": 1, "exit_code": 0})
    ended = muster("submit", "--replace", file_of(tmp_path, document), "--wait")
    assert (ended.code, ended.err) == (0, "")
    after = pool.get("same")
    assert after is not None
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["status"]["phase"] == "Succeeded"


def test_of_several_jobs_to_cancel_one_that_has_succeeded_is_named_and_the_other_cancelled(
    pool: Pool, muster: Muster
) -> None:
    pool.set_up()
    for name in ("done", "runs"):
        pool.submit(name)
        pool.wait_for_phase(name, "Running")
    pool.end("done")
    pool.wait_for_phase("done", "Succeeded")
    cancelled = muster("cancel", "done", "runs")
    assert (cancelled.code, cancelled.out) == (
        0,
        f"trainingjob {pool.namespace}/done has already ended\ntrainingjob {pool.namespace}/runs is being cancelled\n",
    )
    pool.wait_for_phase("runs", "Cancelled")
    assert "already ended in phase Succeeded" in muster("cancel", "done").err


def test_queues_and_flavors_are_applied_and_the_tree_shows_their_use(
    pool: Pool, muster: Muster, tmp_path: Path
) -> None:
    pool.set_up()
    child = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": pool.queue("green")},
        "spec": {"parent": pool.queue("all"), "weight": 2},
    }
    path = file_of(tmp_path, child)
    pool._queues.append(pool.queue("green"))
    assert muster("apply", path, "--json").rows[0]["result"] == "created"
    assert muster("apply", path, "--json").rows[0]["result"] == "unchanged"
    child["spec"] = {"parent": pool.queue("all"), "weight": 3}
    assert muster("apply", file_of(tmp_path, child), "--json").rows[0]["result"] == "configured"
    child["spec"] = {"parent": pool.queue("nowhere")}
    orphan = muster("apply", file_of(tmp_path, child), "--json")
    assert (orphan.code, json.loads(orphan.err)["error"]["reason"]) == (3, "ParentNotFound")
    pool.submit("one", pods=3)
    pool.wait_for_phase("one", "Running")
    rows = {row["name"]: row for row in muster("queues", "--json").rows}
    red = rows[pool.queue("red")]
    assert (red["admitted"], red["resources"][0]["used"]) == (1, {"nvidia.com/gpu": "3"})
    assert rows[pool.queue("green")]["weight"] == 3.0
    nodes = [row for row in muster("nodes", "--json").rows if row["name"].startswith(pool.namespace)]
    assert sum(int(row["used"].get("nvidia.com/gpu", "0")) for row in nodes) == 3
    assert sorted(name for row in nodes for name in row["pods"]) == sorted(
        pod["metadata"]["name"] for pod in pool.pods("one")
    )
    pool.delete("one")
    assert muster("delete", "queue", pool.queue("green")).code == 0
    pool.wait("the queue is gone", lambda: pool.queue("green") not in muster("queues").out)


def test_a_refusal_of_one_of_several_jobs_in_a_file_names_file_line_and_job(
    pool: Pool, muster: Muster, tmp_path: Path
) -> None:
    pool.set_up()
    several = tmp_path / "several.yaml"
    documents = [pool.job("good"), pool.job("huge", pods=9), pool.job("lost", queue="rde")]
    several.write_text("\n---\n".join(yaml.safe_dump(one) for one in documents))
    lines = several.read_text().splitlines()
    ended = muster("submit", str(several), "--json")
    error = json.loads(ended.err)["error"]
    line = lines.index("---") + 2 + documents_field(documents[1], "  roles:")
    assert (ended.code, error["reason"], error["field"]) == (3, "LargerThanQuota", "spec.roles")
    assert error["message"].startswith(f"{several}:{line}: job huge: role worker needs 9 nvidia.com/gpu")
    pool.submit("huge")
    documents[1]["spec"]["roles"][0]["replicas"] = 2
    several.write_text("\n---\n".join(yaml.safe_dump(one) for one in documents[:2]))
    taken = muster("submit", str(several))
    assert taken.code == 3
    assert f"job huge: job 'huge' already exists in namespace '{pool.namespace}'" in taken.err
    assert "delete" not in taken.err, "it waits"
    assert str(several) in taken.err
    assert pool.get("good") is None


def documents_field(document: dict[str, Any], text: str) -> int:
    """Which line of the document, from 0, starts like this."""
    lines = yaml.safe_dump(document).splitlines()
    return next(number for number, line in enumerate(lines) if line.startswith(text))


def test_queues_with_queues_below_them_and_flavors_in_use_are_not_deleted(pool: Pool, muster: Muster) -> None:
    pool.set_up()
    above = muster("delete", "queue", pool.queue("all"), "--json")
    error = json.loads(above.err)["error"]
    assert (above.code, error["reason"]) == (3, "HasChildren")
    assert f"has queues below it: {pool.queue('blue')}, {pool.queue('red')};" in error["message"]
    pool.submit("one")
    pool.wait_for_phase("one", "Running")
    used = muster("delete", "flavor", pool.namespace, "--json")
    error = json.loads(used.err)["error"]
    assert (used.code, error["reason"]) == (3, "FlavorInUse")
    assert f"{pool.namespace}/one" in error["message"]
    answered = muster("delete", "queue", pool.queue("red"), "--json")
    assert (answered.code, json.loads(answered.err)["error"]["reason"]) == (3, "QueueInUse")
    leaving = muster("delete", "queue", pool.queue("red"), "--yes")
    assert leaving.out.splitlines() == [
        f"queue {pool.queue('red')} deleting",
        f"  it is removed when these jobs have ended: {pool.namespace}/one; to end one: muster cancel JOB",
    ]
    assert muster("delete", "queue", pool.queue("all"), pool.queue("blue")).code == 0
    missing = muster("delete", "queue", "nowhere", "--json")
    assert (missing.code, json.loads(missing.err)["error"]["reason"]) == (3, "NotFound")


def test_of_several_jobs_none_is_deleted_when_one_does_not_exist(pool: Pool, muster: Muster) -> None:
    pool.set_up()
    pool.submit("one")
    pool.submit("two")
    ended = muster("delete", "job", "one", "nosuch", "two")
    assert (ended.code, ended.out, "nothing was deleted" in ended.err) == (3, "", True)
    kept = [pool.get("one"), pool.get("two")]
    assert all(job is not None and "deletionTimestamp" not in job["metadata"] for job in kept)


def test_a_job_is_scaled_down_and_up_without_a_failure(pool: Pool, muster: Muster) -> None:
    pool.set_up()
    pool.submit("elastic", pods=4, failurePolicy={"maxRestarts": 0})
    pool.wait_for_phase("elastic", "Running")
    assert muster("scale", "elastic", "2").out == f"trainingjob {pool.namespace}/elastic: role worker has 2 replicas\n"
    pool.wait("it runs with 2", lambda: pool.phase("elastic") == "Running" and len(pool.pods("elastic")) == 2)
    assert muster("scale", "elastic", "worker=3").code == 0
    pool.wait("it runs with 3", lambda: pool.phase("elastic") == "Running" and len(pool.pods("elastic")) == 3)
    status = pool.status("elastic")
    assert (status.get("restarts", 0), status.get("nodeLosses", 0), status.get("lastFailure")) == (0, 0, None)
    ended = muster("scale", "elastic", "worker=90", "--json")
    assert (ended.code, json.loads(ended.err)["error"]["reason"]) == (3, "LargerThanQuota")


def test_kubectl_scales_the_elastic_role_of_a_running_job_and_muster_scale_takes_over(
    pool: Pool, control_plane: ControlPlane, muster: Muster
) -> None:
    pool.set_up()
    role = {**pool.job("x", pods=4)["spec"]["roles"][0], "minReplicas": 1}
    pool.submit("grows", roles=[role], failurePolicy={"maxRestarts": 0})

    def runs_with(number: int) -> bool:
        target = pool.status("grows").get("elasticReplicas")
        return pool.phase("grows") == "Running" and len(pool.pods("grows")) == target == number

    pool.wait("it runs with 4", lambda: runs_with(4))
    control_plane.kubectl("-n", pool.namespace, "scale", "tj/grows", "--replicas=2")
    pool.wait("it runs with 2", lambda: runs_with(2))
    selector = pool.status("grows")["selector"]
    names = control_plane.kubectl("-n", pool.namespace, "get", "pods", "-l", selector, "-o", "name").split()
    assert len(names) == 2
    assert muster("scale", "grows", "3").code == 0
    wanted = (pool.get("grows") or {})["spec"]
    assert ("elasticReplicas" in wanted, wanted["roles"][0]["replicas"]) == (False, 3)
    status = pool.status("grows")
    assert (status.get("restarts", 0), status.get("lastFailure")) == (0, None)


def test_a_horizontal_pod_autoscaler_scales_a_job_to_its_minimum_and_maximum(
    pool: Pool, control_plane: ControlPlane
) -> None:
    """By the autoscaler of the controller manager, which needs no metrics for that. A job that runs grows after ten
    minutes only, so this one grows while it is suspended, and shrinks while it runs."""
    pool.set_up()
    role = {**pool.job("x", pods=4)["spec"]["roles"][0], "minReplicas": 1}
    pool.submit("sized", roles=[role], elasticReplicas=1, suspend=True, failurePolicy={"maxRestarts": 0})
    target = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": "sized"}
    path = f"/apis/autoscaling/v2/namespaces/{pool.namespace}/horizontalpodautoscalers"
    wanted = {"scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 4}
    pool.api.create(path, {"metadata": {"name": "sized"}, "spec": wanted})

    def scaled_to(number: int) -> bool:
        status = pool.api.get(f"{path}/sized").get("status", {})
        able = [one for one in status.get("conditions") or () if one["type"] == "AbleToScale"]
        return [one["status"] for one in able] == ["True"] and status.get("desiredReplicas") == number

    def runs_with(number: int) -> bool:
        return pool.phase("sized") == "Running" and len(pool.pods("sized")) == number

    pool.wait("it was scaled up", lambda: scaled_to(3), SCALED_S)
    assert (pool.get("sized") or {})["spec"]["elasticReplicas"] == 3
    pool.edit("sized", suspend=False)
    pool.wait("it runs with 3", lambda: runs_with(3))
    pool.api.patch(f"{path}/sized", {"spec": {"minReplicas": 1, "maxReplicas": 2}})
    pool.wait("it was scaled down", lambda: scaled_to(2), SCALED_S)
    pool.wait("it runs with 2", lambda: runs_with(2))
    status = pool.status("sized")
    assert (status["elasticReplicas"], status.get("restarts", 0), status.get("lastFailure")) == (2, 0, None)
    expected = {
        "New size: 3; reason: Current number of replicas below Spec.MinReplicas",
        "New size: 2; reason: Current number of replicas above Spec.MaxReplicas",
    }

    def notes() -> set[str]:
        events = pool.api.items(f"/api/v1/namespaces/{pool.namespace}/events")
        return {one["message"] for one in events if one["reason"] == "SuccessfulRescale"}

    pool.wait("the Events of both changes are written", lambda: notes() == expected)


def test_a_drained_node_loses_its_jobs_without_a_failure_and_gets_none_until_it_is_undrained(
    pool: Pool, muster: Muster, tmp_path: Path
) -> None:
    pool.set_up(nodes=3, gpus=4)
    pool.set_quota("red", 12)
    pool.submit("gang", pods=2, gpus=4, failurePolicy={"maxRestarts": 0}, does={"stop_seconds": 0.5})
    pool.wait_for_phase("gang", "Running")
    drained = pool.nodes_of("gang")[1]
    lines = muster("drain", drained, "--wait").out.splitlines()
    assert lines == [
        f"node {drained} is being drained; jobs to move: {pool.namespace}/gang",
        f"no job is left on node {drained}",
    ]
    pool.wait_for_phase("gang", "Running")
    assert drained not in pool.nodes_of("gang")
    status = pool.status("gang")
    assert (status["attempt"], status.get("restarts", 0), status.get("nodeLosses", 0)) == (1, 0, 0)
    pool.wait_for_event("gang", "Drained")
    state = next(line for line in muster("nodes").out.splitlines() if line.startswith(f"{drained} "))
    assert state.split()[-1] == "draining"
    submitted = muster("submit", file_of(tmp_path, pool.job("next", pods=3, gpus=4)), "--dry-run")
    assert submitted.code == 0, "a drained node comes back, so nothing is too large for good"
    pool.submit("next", pods=1, gpus=4)
    pool.wait("it waits", lambda: bool(pool.waits_for("next")))
    assert muster("undrain", drained).out == f"node {drained} is schedulable again\n"
    pool.wait_for_phase("next", "Running")
    assert pool.nodes_of("next") == [drained]
    assert muster("drain", f"{pool.namespace}-n99").code == 3
