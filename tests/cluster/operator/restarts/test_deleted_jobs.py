"""Deleting a job frees no quota before its pods have ended, with any cascade and however long they take."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import yaml
from tests.cluster.controlplane.clients import CommandFailed
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.operator import queued
from tests.cluster.operator.pools import GROUP, Json, Pool
from tests.cluster.operator.process import QUICK
from tests.cluster.operator.restarts.conftest import Start

QUOTA = 8
DAY_S = 86_400
SLOW: Json = {"does": {"stop_seconds": DAY_S}, "pod": {"terminationGracePeriodSeconds": DAY_S}}


@pytest.fixture
def small(pool: Pool) -> Pool:
    """With a queue that owns half of the GPUs, and `alice`, who may edit jobs and has no right on pods."""
    pool.add_queue("small", None, QUOTA, namespaceSelector={}, maxGracePeriodSeconds=5)
    rule = {
        "apiGroups": ["muster.dev"],
        "resources": ["trainingjobs"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    }
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{pool.namespace}"
    pool.api.create(f"{roles}/roles", {"metadata": {"name": "jobs-edit"}, "rules": [rule]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "jobs-edit"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}
    pool.api.create(
        f"{roles}/rolebindings", {"metadata": {"name": "alice"}, "roleRef": reference, "subjects": [subject]}
    )
    return pool


def as_alice(pool: Pool, *arguments: str, stdin: str = "") -> None:
    pool.plane.kubectl(*arguments, "-n", pool.namespace, user="alice", stdin=stdin)


def submit_as_alice(pool: Pool, name: str) -> None:
    """A job that fills the queue, and whose pods need a day to stop."""
    as_alice(pool, "create", "-f", "-", stdin=yaml.safe_dump(pool.job(name, 2, 4, "small", **SLOW)))


def used(pods: dict[str, Json]) -> int:
    """GPUs of bound pods that have not ended."""
    return sum(
        int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])
        for pod in pods.values()
        if pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running")
    )


@contextmanager
def quota_is_kept(pool: Pool) -> Iterator[None]:
    """Fails if pods of the namespace used more than the quota at any time meanwhile."""
    path, ended, highest = f"/api/v1/namespaces/{pool.namespace}/pods", threading.Event(), [0]
    listed = pool.api.get(path)
    pods = {pod["metadata"]["name"]: pod for pod in listed["items"]}

    def watch() -> None:
        with closing(pool.api.watch(path, listed["metadata"]["resourceVersion"], seconds=600)) as events:
            for event in events:
                pod = event["object"]
                if pod["metadata"]["name"] == "the-end":
                    return
                pods[pod["metadata"]["name"]] = pod
                if event["type"] == "DELETED":
                    del pods[pod["metadata"]["name"]]
                highest[0] = max(highest[0], used(pods))
        ended.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        last = {"metadata": {"name": "the-end"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
        pool.api.create(path, last)
        watcher.join()
        pool.api.delete(f"{path}/the-end", gracePeriodSeconds=0)
    assert not ended.is_set(), "the watch ended too early"
    assert highest[0] <= QUOTA


@pytest.mark.parametrize("cascade", ["orphan", "background", "foreground"])
def test_a_deleted_job_is_charged_until_its_pods_have_ended_and_these_are_stopped(
    small: Pool, start: Start, cascade: str
) -> None:
    start("a", "--no-lease")
    submit_as_alice(small, "three")
    small.wait_for_phase("three", "Running")
    with quota_is_kept(small):
        as_alice(small, "delete", "trainingjob", "three", f"--cascade={cascade}", "--wait=false")
        submit_as_alice(small, "next")
        small.wait_for_phase("next", "Running")
        assert small.pods("three") == []


def test_pods_that_were_orphaned_while_no_operator_ran_are_charged_and_stopped(small: Pool, start: Start) -> None:
    operator = start("a", "--no-lease")
    submit_as_alice(small, "three")
    small.wait_for_phase("three", "Running")
    before = {pod["metadata"]["uid"] for pod in small.pods("three")}
    operator.kill()
    as_alice(small, "delete", "trainingjob", "three", "--cascade=orphan")
    with quota_is_kept(small):
        submit_as_alice(small, "three")  # another job of that name
        start("b", "--no-lease")
        small.wait_for_phase("three", "Running")
        assert not before & {pod["metadata"]["uid"] for pod in small.pods("three")}


def test_a_suspended_job_is_charged_to_its_queue_until_its_pods_have_ended_whatever_its_user_edits(
    small: Pool, start: Start
) -> None:
    start("a", "--no-lease")
    small.add_queue("other", None, 0)  # for other namespaces
    submit_as_alice(small, "three")
    small.wait_for_phase("three", "Running")

    def edit(**spec: object) -> None:
        as_alice(small, "patch", "trainingjob", "three", "--type=merge", "-p", json.dumps({"spec": spec}))

    with quota_is_kept(small):
        for suspended, phase in ((True, "Suspended"), (False, "Pending"), (True, "Suspended")):
            edit(suspend=suspended)
            small.wait_for_phase("three", phase)
            with pytest.raises(CommandFailed, match="wait until its pods have ended"):
                edit(queue=small.queue("other"))
        submit_as_alice(small, "next")
        small.wait_for_phase("next", "Running")


def test_forged_pods_are_charged_to_no_queue_and_not_deleted(small: Pool, start: Start) -> None:
    start("a", "--no-lease")
    path = f"/api/v1/namespaces/{small.namespace}/pods"
    submit_as_alice(small, "three")
    small.wait_for_phase("three", "Running")
    genuine = small.pods("three")
    as_alice(small, "delete", "trainingjob", "three", "--cascade=background")
    small.wait("its pods are gone", lambda: not small.pods("three"))
    copies = []
    for pod in genuine:
        meta = {key: pod["metadata"][key] for key in ("labels", "annotations")}
        name = pod["metadata"]["name"]
        for changes in (
            {"name": f"{name}-copy"},
            {"name": f"{name}-queue", "annotations": {**meta["annotations"], "muster.dev/queue": small.queue("red")}},
            {"name": f"{name}-unsigned", "annotations": {"muster.dev/queue": small.queue("small")}},
        ):
            spec = {"nodeName": small.node(0), "containers": [{"name": "main", "image": "none"}]}
            copies.append(small.api.create(path, {"metadata": {**meta, **changes}, "spec": spec})["metadata"]["uid"])
    submit_as_alice(small, "next")
    small.wait_for_phase("next", "Running")
    assert {one["metadata"]["uid"] for one in small.api.items(path)} >= set(copies)


def test_a_guarantee_gets_its_capacity_after_the_grace_period_that_the_queue_of_the_victim_allows(
    pool: Pool, start: Start
) -> None:
    start("a", "--no-lease")
    pool.edit_queue("blue", maxGracePeriodSeconds=2)
    pool.submit("borrower", pods=4, gpus=4, queue="blue", **SLOW)
    pool.wait_for_phase("borrower", "Running")
    variables = {one["name"]: one.get("value") for one in pool.pods("borrower")[0]["spec"]["containers"][0]["env"]}
    assert variables["MUSTER_GRACE_SECONDS"] == "2"
    pool.submit("owner", pods=2, gpus=4, queue="red")
    pool.wait_for_phase("owner", "Running")
    assert pool.api.get(f"{GROUP}/queues/{pool.queue('blue')}")["spec"]["maxGracePeriodSeconds"] == 2


def test_pods_of_a_deleted_batch_job_stay_charged_when_the_operator_is_killed_and_started_again(
    small: Pool, start: Start
) -> None:
    pool, flags = small, ("--queued-kinds", '["Job"]')
    queued.opt_in(pool)
    operator = start("a", *QUICK, *flags)
    pod = {"terminationGracePeriodSeconds": DAY_S}
    job = queued.create_job(pool, "first", pods=2, gpus=4, queue="small", does=SLOW["does"], pod=pod)
    queued.wait_for_phase(pool, "first", "Running")
    operator.kill()
    pool.api.delete(f"{queued.jobs_path(pool)}/first", propagationPolicy="Background")
    with quota_is_kept(pool):
        start("b", *QUICK, *flags)
        pool.api.create(f"{GROUP}/namespaces/{pool.namespace}/trainingjobs", pool.job("next", 2, 4, "small"))
        pool.wait("it waits", lambda: pool.waits_for("next") != "")
        for one in queued.pods_of(pool, job["metadata"]["uid"]):
            path = f"/api/v1/namespaces/{pool.namespace}/pods/{one['metadata']['name']}"
            pool.api.delete(path, gracePeriodSeconds=0)
        pool.wait_for_phase("next", "Running")
    pool.wait("its Workload is deleted", lambda: queued.workload(pool, "first") == {})
