"""The pods of objects of other kinds are the truth: how many there are, what they request, and until when."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.controlplane.nodes import GPU, KUBELET
from tests.cluster.controlplane.rejecting import RejectingKubelets
from tests.cluster.operator import queued
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import Operator

Json = dict[str, Any]
SLOW = {"stop_seconds": 120}


@pytest.fixture
def three(pool: Pool) -> Pool:
    """Three nodes; the queues own what two of them have."""
    pool.set_up(nodes=2, gpus=4)
    pool.add_nodes(1)
    pool.edit_queue("all", resources=[{"flavor": pool.namespace, "limit": {GPU: "8"}}])
    queued.opt_in(pool)
    return pool


def end_pods(pool: Pool, uid: str) -> None:
    """The pods of this object end at once."""
    for one in queued.pods_of(pool, uid):
        path = f"/api/v1/namespaces/{pool.namespace}/pods/{one['metadata']['name']}"
        pool.api.delete(path, gracePeriodSeconds=0)


def test_pods_of_a_deleted_job_are_charged_to_its_queue_until_none_is_left_and_then_its_workload_goes(
    three: Pool,
) -> None:
    pool = three
    job = queued.create_job(pool, "first", pods=2, does=SLOW, pod={"terminationGracePeriodSeconds": 120})
    uid = job["metadata"]["uid"]
    queued.wait_for_phase(pool, "first", "Running")
    pool.api.delete(f"{queued.jobs_path(pool)}/first", propagationPolicy="Background")
    pool.wait(
        "its pods terminate", lambda: all("deletionTimestamp" in one["metadata"] for one in queued.pods_of(pool, uid))
    )
    pool.submit("next", pods=1, gpus=4, queue="blue")  # the third node is free, the quota is not
    pool.wait("it waits", lambda: pool.waits_for("next") != "")
    assert len(queued.pods_of(pool, uid)) == 2
    assert queued.workload(pool, "first")["spec"]["queue"] == pool.queue("red")
    end_pods(pool, uid)
    pool.wait_for_phase("next", "Running")
    pool.wait("its Workload is deleted", lambda: queued.workload(pool, "first") == {})


def test_a_job_that_lost_its_label_while_it_runs_stays_charged(three: Pool) -> None:
    pool = three
    queued.create_job(pool, "first", pods=2)
    queued.wait_for_phase(pool, "first", "Running")
    pool.api.patch(f"{queued.jobs_path(pool)}/first", {"metadata": {"labels": {"muster.dev/queue": None}}})
    pool.submit("next", pods=1, gpus=4, queue="blue")
    pool.wait("it waits", lambda: pool.waits_for("next") != "")
    pool.api.delete(f"{queued.jobs_path(pool)}/first", propagationPolicy="Background")
    pool.wait_for_phase("next", "Running")


def test_gated_pods_with_more_than_their_template_are_charged_for_it_and_each_is_released_by_one_patch(
    pool: Pool, operator: Operator
) -> None:
    pool.set_up(nodes=2, gpus=4)
    queued.opt_in(pool)
    limits = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]}
    ranges = f"/api/v1/namespaces/{pool.namespace}/limitranges"
    pool.api.create(ranges, {"metadata": {"name": "cpus"}, "spec": limits})
    give_cpus(pool, 1)
    job = queued.create_job(pool, "first", pods=2)  # its template names no CPU
    uid = job["metadata"]["uid"]
    pool.wait("it waits for CPUs", lambda: "cores" in queued.why(pool, "first"))
    assert queued.nodes_of(pool, uid) in ([], ["", ""]), "no pod was bound"
    patches = operator.api_calls("PATCH", "pods", "200")
    reads = operator.api_calls("GET", "pods", "200")
    give_cpus(pool, 2)
    queued.wait_for_phase(pool, "first", "Running")
    assert operator.api_calls("GET", "pods", "200") == reads
    released = operator.api_calls("PATCH", "pods", "200") - patches
    assert released in (0, 2), "pinned by the template, whose pods are known, or one patch each"
    pool.api.delete(f"{queued.jobs_path(pool)}/first", propagationPolicy="Background")
    patches = operator.api_calls("PATCH", "pods", "200")
    queued.create_job(pool, "second", pods=2)
    queued.wait_for_phase(pool, "second", "Running")
    assert operator.api_calls("PATCH", "pods", "200") == patches, "a known template is pinned: no write for a pod"


def give_cpus(pool: Pool, count: int) -> None:
    """All queues together have that many CPUs."""
    share = {"flavor": pool.namespace, "limit": {GPU: "8", "cpu": str(count)}}
    pool.edit_queue("all", resources=[share])


def test_more_pods_than_admitted_stay_gated_and_the_workload_says_so(pool: Pool) -> None:
    """A pod that another controller, such as an autoscaler, makes of the gated template."""
    pool.set_up(nodes=2, gpus=4)
    queued.opt_in(pool)
    created = queued.create_job(pool, "first", pods=1, gpus=3)
    queued.wait_for_phase(pool, "first", "Running")
    (one,) = queued.pods_of(pool, created["metadata"]["uid"])
    meta = {name: one["metadata"][name] for name in ("labels", "ownerReferences")}
    spec = queued.pod(3, schedulingGates=[{"name": "muster.dev/admission"}])
    pool.api.create(f"/api/v1/namespaces/{pool.namespace}/pods", {"metadata": {**meta, "name": "more"}, "spec": spec})
    pool.wait(
        "it is reported", lambda: "stays gated" in queued.condition(pool, "first", "PodsGated").get("message", "")
    )
    pods = f"/api/v1/namespaces/{pool.namespace}/pods/more"
    if not pool.api.gone(pods):  # the Job's controller deletes what is too much
        assert pool.api.get(pods)["spec"].get("nodeName", "") == ""


def test_a_job_of_which_a_kubelet_rejects_a_pod_runs_on_another_node_before_its_backoff_limit(pool: Pool) -> None:
    pool.set_up(nodes=1, gpus=4, labels={KUBELET: "stopped"})
    pool.add_nodes(1)
    pool.set_quota("all", 8)
    queued.opt_in(pool)
    bad = pool.node(0)
    with RejectingKubelets(pool.api, bad):
        queued.create_job(pool, "job", pods=2, backoffLimit=2)  # one on each node
        pool.wait("it avoids the node", lambda: blamed(pool, "job") == [(bad, "PodRejected")])
        pool.add_nodes(1)
        queued.wait_for_phase(pool, "job", "Running")
    assert queued.nodes_of_placement(pool, "job") == [pool.node(1), pool.node(2)]


def blamed(pool: Pool, name: str) -> list[tuple[str, str]]:
    """The nodes that an object avoids, and why."""
    found = queued.workload(pool, name).get("status", {}).get("blamedNodes", [])
    return [(one["node"], one["reason"]) for one in found]
