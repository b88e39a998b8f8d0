"""Ten ways in which systems that queue objects of other kinds went wrong, each tried on the real control plane.

The names of the tests are what Muster does instead; the numbers are those of the list in
docs/tasks/queue-what-you-have.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from tests.cluster.kinds import objects
from tests.cluster.operator import queued
from tests.cluster.operator.experiments import Experiments
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import Operator

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@contextmanager
def always(pool: Pool, path: str, holds: Callable[[Json], bool]) -> Iterator[None]:
    """Fails if an object of this collection did not satisfy it in any of its states meanwhile."""
    listed, wrong, last = pool.api.get(path), list[Json](), "the-end"

    def watch() -> None:
        with closing(pool.api.watch(path, listed["metadata"]["resourceVersion"], seconds=600)) as events:
            for event in events:
                if event["object"]["metadata"]["name"] == last:
                    return
                if event["type"] != "DELETED" and not holds(event["object"]):
                    wrong.append(event["object"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    pod = queued.pod(1)
    body = {"metadata": {"name": last}, "spec": pod}
    if path.endswith("/jobs"):
        body["spec"] = {"suspend": True, "template": {"spec": pod}}
    pool.api.create(path, body)
    watcher.join()
    pool.api.delete(f"{path}/{last}", propagationPolicy="Background")
    assert not wrong, wrong[0]


def is_held_or_placed(job: Json) -> bool:
    """Whether a Job is suspended, or its pods are gated or pinned."""
    pod = job["spec"]["template"]["spec"]
    pinned = pod.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
    gated = any(gate["name"] == "muster.dev/admission" for gate in pod.get("schedulingGates", ()))
    return bool(job["spec"]["suspend"] or pinned or gated)


def job(pool: Pool, name: str) -> Json:
    return pool.api.get(f"{queued.jobs_path(pool)}/{name}")


def annotate(pool: Pool, name: str, **annotations: str | None) -> None:
    named = {f"muster.dev/{key}": value for key, value in annotations.items()}
    pool.api.patch(f"{queued.jobs_path(pool)}/{name}", {"metadata": {"annotations": named}})


def test_1_2_6_a_job_moves_by_one_patch_keeps_nothing_of_its_old_place_and_is_admitted_or_evicted_never_both(
    two: Pool,
) -> None:
    pool = two
    with always(pool, queued.jobs_path(pool), is_held_or_placed):
        queued.create_job(pool, "moves", pods=1, pod={"nodeSelector": {"pool": pool.namespace}})
        queued.wait_for_phase(pool, "moves", "Running")
        annotate(pool, "moves", suspend="true")
        queued.wait_for_phase(pool, "moves", "Suspended")
        pool.wait("no pod is left", lambda: queued.pods_of(pool, job(pool, "moves")["metadata"]["uid"]) == [])
        assert queued.condition(pool, "moves", "Admitted")["status"] == "False"
        assert queued.nodes_of_placement(pool, "moves") == [], "its place is free"
        first = job(pool, "moves")["spec"]["template"]
        blocked = pool.node(0)
        pool.api.patch(f"/api/v1/nodes/{blocked}", {"spec": {"unschedulable": True}})
        pool.wait_until_seen()
        annotate(pool, "moves", suspend=None)
        queued.wait_for_phase(pool, "moves", "Running")
    second = job(pool, "moves")["spec"]["template"]
    assert second["spec"]["nodeSelector"] == {"pool": pool.namespace}, "what the user wrote stays"
    terms = second["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [[pool.node(1)]]
    constants = ({**one["metadata"]["labels"], "muster.dev/attempt": ""} for one in (first, second))
    assert len({str(sorted(labels.items())) for labels in constants}) == 1


@pytest.mark.usefixtures("job_set_controller")
def test_4_9_completed_pods_of_a_job_set_keep_their_place_for_a_restart_and_its_labelled_jobs_do_not_queue(
    two: Pool, operator: Operator
) -> None:
    """3, pods that no template shows, is in test_pods_of_jobs."""
    pool = two
    worker = objects.replicated_job("worker", 2, 4)
    worker["template"]["metadata"] = {"labels": {"muster.dev/queue": pool.queue("blue")}}
    objects.create_job_set(pool, "set", worker, failurePolicy={"maxRestarts": 2})
    queued.wait_for_phase(pool, "set", "Running")

    def kinds() -> list[str]:
        return [one["spec"]["objectRef"]["kind"] for one in queued.workloads(pool)]

    pool.wait("the JobSet alone queues", lambda: kinds() == ["JobSet"])  # its Jobs may be seen before it
    pods = objects.pods_of(pool, "set")
    objects.annotate(pool, pods[:1], exit_code=0)
    pool.wait(
        "one has completed", lambda: "Succeeded" in {one["status"]["phase"] for one in objects.pods_of(pool, "set")}
    )
    pool.submit("waits", pods=1, gpus=4, queue="blue")
    pool.wait("it waits", lambda: pool.waits_for("waits") != "")
    objects.annotate(pool, pods[1:], exit_code=1)
    old = {one["metadata"]["uid"] for one in pods}

    def restarted() -> bool:
        now = objects.pods_of(pool, "set")
        bound = all(one["spec"].get("nodeName") for one in now)
        return len(now) == 2 and bound and not old & {one["metadata"]["uid"] for one in now}

    pool.wait("both run again", restarted)
    assert pool.phase("waits") == "Pending"


def test_5_a_job_that_grows_beyond_its_quota_is_requeued_and_no_pod_more_is_bound(two: Pool) -> None:
    pool = two
    pool.add_nodes(1)
    pool.edit_queue("all", resources=[{"flavor": pool.namespace, "limit": {"nvidia.com/gpu": "8"}}])
    expressions = [{"key": "pool", "operator": "In", "values": [pool.namespace]}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}}
    queued.create_job(pool, "grows", pods=2, completions=3, pod={"affinity": affinity})  # gated, for its own affinity
    queued.wait_for_phase(pool, "grows", "Running")
    uid = job(pool, "grows")["metadata"]["uid"]
    bound = set[str]()

    def at_most_two(pod: Json) -> bool:
        ends = "deletionTimestamp" in pod["metadata"]
        name = pod["metadata"]["name"]
        (bound.discard if ends or not pod["spec"].get("nodeName") else bound.add)(name)
        return len(bound) <= 2

    with always(pool, f"/api/v1/namespaces/{pool.namespace}/pods", at_most_two):
        pool.api.patch(f"{queued.jobs_path(pool)}/grows", {"spec": {"parallelism": 3}})
        pool.wait("it is larger than its quota", lambda: queued.waits_for(pool, "grows") == "LargerThanQuota")
        pool.wait("it is suspended", lambda: queued.pods_of(pool, uid) == [])


def test_7_an_object_of_the_same_name_waits_for_its_own_admission(two: Pool) -> None:
    pool = two
    queued.create_job(pool, "again", pods=1, does={"exit_code": 0}, ttlSecondsAfterFinished=0)
    pool.wait("it ends and is removed", lambda: pool.api.gone(f"{queued.jobs_path(pool)}/again"))
    pool.wait("its Workload too", lambda: queued.workloads(pool) == [])
    pool.submit("first", pods=2, gpus=4)
    pool.wait_for_phase("first", "Running")
    queued.create_job(pool, "again", pods=1, suspend=False)  # as a controller would make it anew
    pool.wait("it is suspended", lambda: job(pool, "again")["spec"]["suspend"])
    pool.wait("it waits", lambda: queued.waits_for(pool, "again") != "")


def test_8_a_job_is_resumed_once_its_old_pods_are_gone_although_other_nodes_are_free(two: Pool) -> None:
    pool = two
    slow = {"terminationGracePeriodSeconds": 120}
    created = queued.create_job(pool, "slow", pods=1, does={"stop_seconds": 120}, pod=slow)
    uid = created["metadata"]["uid"]
    queued.wait_for_phase(pool, "slow", "Running")
    annotate(pool, "slow", suspend="true")
    pool.wait("its pod stops", lambda: "deletionTimestamp" in queued.pods_of(pool, uid)[0]["metadata"])
    annotate(pool, "slow", suspend=None)
    pool.wait("it is queued again", lambda: queued.phase(pool, "slow") == "Pending")
    (old,) = queued.pods_of(pool, uid)
    assert job(pool, "slow")["spec"]["suspend"] is True

    def alone(one: Json) -> bool:
        return bool(one["spec"]["suspend"]) or pool.api.gone(path)

    path = f"/api/v1/namespaces/{pool.namespace}/pods/{old['metadata']['name']}"
    with always(pool, queued.jobs_path(pool), alone):
        pool.api.delete(path, gracePeriodSeconds=0)
        queued.wait_for_phase(pool, "slow", "Running")
    assert old["metadata"]["name"] not in [one["metadata"]["name"] for one in queued.pods_of(pool, uid)]


def test_9_an_object_without_the_label_is_left_alone(two: Pool) -> None:
    pool = two
    spec = {"template": {"spec": queued.pod(1)}}
    pool.api.create(queued.jobs_path(pool), {"metadata": {"name": "free"}, "spec": spec})
    queued.create_job(pool, "held", pods=1)
    queued.wait_for_phase(pool, "held", "Running")
    assert job(pool, "free")["spec"]["suspend"] is False
    assert [one["spec"]["objectRef"]["name"] for one in queued.workloads(pool)] == ["held"]


def test_10_a_place_that_was_tainted_after_the_admission_is_given_up_before_a_pod_is_released_to_it(two: Pool) -> None:
    pool = two
    experiments = Experiments(pool.api, pool.namespace)  # its controller does not run yet
    created = experiments.create("one", pool.queue("blue"), 1, queued.pod())
    pool.wait("it is resumed", lambda: not experiments.get("one")["spec"]["suspend"])
    (before,) = queued.nodes_of_placement(pool, "one")
    taint = {"key": "example.com/broken", "effect": "NoSchedule"}
    pool.api.patch(f"/api/v1/nodes/{before}", {"spec": {"taints": [taint]}})
    pool.wait_until_seen()
    pods = f"/api/v1/namespaces/{pool.namespace}/pods"
    with always(pool, pods, lambda pod: before not in str(pod["spec"].get("affinity"))), experiments.controlled():
        queued.wait_for_phase(pool, "one", "Running")
        assert before not in queued.nodes_of(pool, created["metadata"]["uid"])
