"""Operators killed, frozen and doubled, an API server that goes away: nothing is done twice, nothing forgotten."""

from __future__ import annotations

import hashlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.installing import CRDS, SYSTEM, install
from tests.cluster.operator.pools import Json, Pool
from tests.cluster.operator.process import QUICK, Operator, stopped

from muster.engine import decode_snapshot

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/muster-operator"
LOST = "leadership lost"
Start = Callable[..., Operator]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane on which no other operator runs."""
    with ControlPlane.start(tmp_path_factory.mktemp("crashes"), crds=CRDS) as own:
        install(own)
        yield own


@pytest.fixture
def start(plane: ControlPlane, tmp_path: Path) -> Iterator[Start]:
    """Start operators that are gone when the test ends; the Lease is free at first."""
    started: list[Operator] = []

    def one(name: str = "a", *flags: str) -> Operator:
        started.append(Operator(plane.kubeconfig(), tmp_path / f"{name}.log", "--identity", name, *flags))
        return started[-1]

    yield one
    for operator in started:
        if operator.running:
            operator.thaw()
            operator.kill()
    if not plane.api.gone(LEASE):
        plane.api.delete(LEASE)


@pytest.fixture
def pool(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """A part of the cluster; whether an operator runs is the test's business."""
    name = f"pool-{random.Random(request.node.name).randrange(10**6)}"
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    one = Pool(plane, name, None)
    one.set_up(nodes=4, gpus=4)
    yield one
    for queue in plane.api.items("/apis/muster.dev/v1alpha1/queues"):
        plane.api.patch(
            f"/apis/muster.dev/v1alpha1/queues/{queue['metadata']['name']}", {"metadata": {"finalizers": None}}
        )
    one.tear_down()


def test_a_pod_that_is_deleted_as_soon_as_it_has_done_its_work_does_not_do_it_again(pool: Pool, start: Start) -> None:
    """As the cluster does itself where too many pods have ended; the operator looks only afterwards."""
    operator = start("away", "--no-lease")
    pool.submit("quick", pods=1)
    pool.submit("pair", pods=2)
    for name in ("quick", "pair"):
        pool.wait_for_phase(name, "Running")
    operator.freeze()
    for name in ("quick", "pair"):
        pool.annotate(name, 0, exit_code=0)
        pool.wait(f"{name} is through", lambda name=name: by_index(pool, name)[0]["status"]["phase"] == "Succeeded")  # type: ignore[misc]
        path = f"/api/v1/namespaces/{pool.namespace}/pods/{by_index(pool, name)[0]['metadata']['name']}"
        pool.api.delete(path)
        pool.wait("the pod is gone", lambda path=path: pool.api.gone(path))  # type: ignore[misc]
    operator.thaw()
    pool.wait_for_phase("quick", "Succeeded")
    pool.wait("what is done is written", lambda: bool(pool.status("pair").get("finishedPods")))
    pool.annotate("pair", 1, exit_code=0)
    pool.wait_for_phase("pair", "Succeeded")
    assert (pool.attempt("quick"), pool.attempt("pair")) == (0, 0)


def by_index(pool: Pool, name: str) -> list[Json]:
    """A job's pods."""
    return sorted(pool.pods(name), key=lambda pod: int(pod["metadata"]["labels"]["muster.dev/index"]))


def test_an_operator_that_is_killed_again_and_again_finishes_every_job_once(pool: Pool, start: Start) -> None:
    seed = 20261121
    print(f"seed {seed}")
    chance = random.Random(seed)
    ended, wrong = threading.Event(), list[str]()
    watcher = threading.Thread(target=watch_rules, args=(pool, ended, wrong))
    watcher.start()
    operator = start("k0", "--no-lease")
    try:
        for number in range(24):
            pods = chance.choice([1, 1, 2, 4, 8])
            does = {"run_seconds": round(chance.uniform(0.1, 1.5), 2), "exit_code": chance.choice(["0", "0", "5,0"])}
            pool.submit(f"j{number}", pods=pods, queue=chance.choice(["red", "blue"]), does=does)
            time.sleep(chance.uniform(0.0, 0.2))
            if number % 3 == 2:
                operator.kill()
                operator = start(f"k{number}", "--no-lease")
                time.sleep(chance.uniform(0.5, 4.0))  # at times long enough to get to work
        for number in range(3):
            at_work(operator)
            time.sleep(chance.uniform(0.0, 0.5))
            operator.kill()
            operator = start(f"again{number}", "--no-lease")
        names = [f"j{number}" for number in range(24)]
        pool.wait("every job succeeds", lambda: all(pool.phase(name) == "Succeeded" for name in names), 240)
    finally:
        ended.set()
        watcher.join()
    assert wrong == []
    assert all(not pod["metadata"].get("deletionTimestamp") for pod in pool.pods())


def at_work(operator: Operator) -> None:
    operator.wait("it works", lambda: operator.metric("muster_scheduling_cycles_total") > 0)


def watch_rules(pool: Pool, ended: threading.Event, wrong: list[str]) -> None:
    """Look all the time: no node is overfull, no pod is outside of its job's placement, none is there twice."""
    while not ended.is_set():
        pods = pool.pods()
        used: dict[str, int] = {}
        seats: dict[tuple[str, ...], int] = {}
        for pod in pods:
            labels, node = pod["metadata"]["labels"], pod["spec"].get("nodeName")
            if pod["status"]["phase"] in ("Succeeded", "Failed"):
                continue
            seat = tuple(labels[f"muster.dev/{key}"] for key in ("job", "role", "index", "attempt"))
            seats[seat] = seats.get(seat, 0) + 1
            if node:
                used[node] = used.get(node, 0) + 1
        wrong += [f"{node} has {count} pods of one GPU" for node, count in used.items() if count > 4]
        wrong += [f"{seat} is taken {count} times" for seat, count in seats.items() if count > 1]
        time.sleep(0.1)


def test_a_pod_that_a_user_creates_for_a_job_is_stopped_and_admits_nothing(pool: Pool, start: Start) -> None:
    """Anybody can know its name, labels and owner."""
    operator = start("forged", "--no-lease")
    at_work(operator)
    pool.set_quota("red", 0)
    pool.set_quota("blue", 0)
    pool.edit_queue("all", resources=[{"flavor": pool.namespace, "guaranteed": {GPU: "0"}, "limit": {GPU: "0"}}])
    pool.wait_until_seen(by=operator)
    pool.submit("waits", pods=1)
    pool.wait("it has to wait", lambda: pool.waits_for("waits") == "LargerThanQuota")
    waits = pool.get("waits")
    assert waits is not None
    uid = waits["metadata"]["uid"]
    name = f"waits-worker-0-{hashlib.sha256(f'{uid}/0'.encode()).hexdigest()[:5]}"
    owner = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "name": "waits",
        "uid": uid,
        "controller": True,
    }
    labels = {"job": "waits", "job-uid": uid, "role": "worker", "index": "0", "attempt": "0"}
    pool.api.create(f"/api/v1/namespaces/{pool.namespace}/pods", {
        "metadata": {
            "name": name,
            "labels": {f"muster.dev/{key}": value for key, value in labels.items()},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": pool.node(0), "containers": [{"name": "main", "image": "none"}]},
    })  # fmt: skip
    path = f"/api/v1/namespaces/{pool.namespace}/pods/{name}"
    pool.wait("the pod is stopped", lambda: pool.api.gone(path))
    assert pool.waits_for("waits") == "LargerThanQuota"


def test_work_goes_on_after_the_api_server_was_away(pool: Pool, start: Start, plane: ControlPlane) -> None:
    operator = start()
    pool.submit("before", pods=2)
    pool.wait_for_phase("before", "Running")
    plane.restart_apiserver()
    pool.submit("after", pods=2)
    pool.wait_for_phase("after", "Running")
    pool.end("before")
    pool.wait_for_phase("before", "Succeeded")
    assert operator.running


def test_after_an_outage_no_pod_is_created_for_a_job_that_is_deleted_before_the_watches_are_back(
    pool: Pool, start: Start, plane: ControlPlane
) -> None:
    operator = start()
    taken = [foreign(pool, f"foreign-{number}", pool.node(number), 4) for number in range(4)]
    pool.wait("they are bound", lambda: all(pod["spec"].get("nodeName") for pod in pool.pods()))
    jobs = [f"small-{number}" for number in range(8)]
    for name in jobs:
        pool.submit(name, pods=1)
    pool.wait("they wait for resources", lambda: all(pool.waits_for(name) for name in jobs))
    plane.kill_apiserver()

    def backoffs_are_long() -> bool:
        """Of both watches: each has failed often."""
        counts = [
            [api_calls(operator, verb, resource, "error") for verb in ("GET", "WATCH")]
            for resource in ("pods", "trainingjobs")
        ]
        return all(sum(both) >= 8 for both in counts)

    operator.wait("backoffs are long", backoffs_are_long)
    plane.resume_apiserver()
    for name in jobs:
        pool.delete(name)
    for name in taken:
        pool.api.delete(f"/api/v1/namespaces/{pool.namespace}/pods/{name}", gracePeriodSeconds=0)
    pool.submit("last", pods=1)
    pool.wait_for_phase("last", "Running")
    assert api_calls(operator, "POST", "pods", "201") == 1


def foreign(pool: Pool, name: str, node: str, gpus: int) -> str:
    """A pod of somebody else on a node; its name."""
    limits = {"resources": {"limits": {GPU: str(gpus)}}}
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "none", **limits}]}
    pool.api.create(f"/api/v1/namespaces/{pool.namespace}/pods", {"metadata": {"name": name}, "spec": spec})
    return name


def test_two_operators_take_turns(pool: Pool, start: Start) -> None:
    first = start("first", *QUICK)
    first.wait("the first leads", lambda: first.leads)
    second = start("second", *QUICK)
    second.wait("the second is ready to lead", lambda: second.get("/readyz")[0] == 200)
    pool.submit("one")
    pool.wait_for_phase("one", "Running")
    assert second.metric("muster_scheduling_cycles_total") == 0
    first.kill()
    pool.submit("two")
    pool.wait_for_phase("two", "Running")
    second.wait("the second leads", lambda: second.leads)


def test_an_operator_that_ends_hands_over_at_once(pool: Pool, start: Start) -> None:
    first = start(
        "first", "--lease-duration-seconds", "60", "--renew-deadline-seconds", "40", "--retry-period-seconds", "1"
    )
    first.wait("the first leads", lambda: first.leads)
    second = start(
        "second", "--lease-duration-seconds", "60", "--renew-deadline-seconds", "40", "--retry-period-seconds", "1"
    )
    second.wait("the second is ready", lambda: second.get("/readyz")[0] == 200)
    assert first.stop() == 0
    second.wait("the second leads, long before the lease is over", lambda: second.leads, 45)


def test_a_frozen_operator_that_wakes_late_writes_nothing(pool: Pool, start: Start) -> None:
    first = start("first", *QUICK)
    first.wait("the first leads", lambda: first.leads)
    second = start("second", *QUICK)
    second.wait("the second is ready", lambda: second.get("/readyz")[0] == 200)
    first.freeze()
    for number in range(6):
        pool.submit(f"j{number}", pods=2)
    pool.wait("the second has taken over", lambda: all(pool.phase(f"j{number}") == "Running" for number in range(6)))
    first.thaw()
    first.wait("the first knows that it does not lead", lambda: said(first.log, LOST))
    pool.submit("last", pods=1)
    pool.wait_for_phase("last", "Running")
    assert not first.leads
    second.wait("the second leads", lambda: second.leads)
    assert api_calls(first, "POST", "pods", "201") == 0
    assert {pod["metadata"]["labels"]["muster.dev/attempt"] for pod in pool.pods()} == {"0"}


@pytest.mark.parametrize("frozen", ["the operator", "the API server"])
def test_an_operator_that_could_not_renew_in_time_stands_by_and_leads_again(
    pool: Pool, start: Start, plane: ControlPlane, frozen: str
) -> None:
    """Nobody else took the Lease meanwhile, so nothing is listed anew: a busy API server has enough to do."""
    operator = start(
        "a", "--lease-duration-seconds", "3", "--renew-deadline-seconds", "2", "--retry-period-seconds", "0.4"
    )
    pool.submit("before")
    pool.wait_for_phase("before", "Running")
    listed = api_calls(operator, "GET", "pods", "200")
    for number in range(2):
        losses = operator.log.read_text().count(LOST)

        def knows(losses: int = losses) -> bool:
            return operator.log.read_text().count(LOST) > losses

        if frozen == "the operator":
            operator.freeze()
            time.sleep(2.5)  # longer than its renew deadline
            operator.thaw()
            operator.wait("it knows", knows)
        else:
            with stopped(plane.pid("kube-apiserver")):
                operator.wait("it knows", knows)
        operator.wait("it leads again", lambda: operator.leads)
        pool.submit(f"after-{number}")
        pool.wait_for_phase(f"after-{number}", "Running")
    assert api_calls(operator, "GET", "pods", "200") == listed
    assert [record for record in operator.records() if record["level"] == "error"] == []


def api_calls(operator: Operator, verb: str, resource: str, code: str) -> float:
    return operator.metric("muster_api_calls_total", verb=verb, resource=resource, code=code)


def said(log: Path, message: str) -> bool:
    return message in log.read_text()


def test_what_an_operator_tells_about_itself(pool: Pool, start: Start, tmp_path: Path) -> None:
    operator = start()
    operator.wait("it is ready", lambda: operator.get("/readyz") == (200, "ok"))
    pool.submit("one")
    pool.wait_for_phase("one", "Running")
    assert operator.get("/healthz") == (200, "ok")
    assert operator.get("/snapshot")[0] == 404
    code, snapshot = operator.get("/snapshot", private=True)
    assert code == 200
    assert {one.gang.name for one in decode_snapshot(snapshot.encode()).running} == {f"{pool.namespace}/one"}
    operator.signal(signal.SIGUSR1)
    operator.wait("it has written a snapshot", lambda: said(operator.log, "snapshot written"))
    (path,) = tmp_path.glob("muster-snapshot-*.json")
    assert decode_snapshot(path.read_bytes()).nodes
    queue, space = pool.queue("red"), pool.namespace
    operator.wait(
        "it knows that its last write was taken",
        lambda: operator.metric("muster_queue_jobs", queue=queue, phase="Running") == 1,
    )
    assert operator.metric("muster_admissions_total", queue=queue) == 1
    usage = {"queue": queue, "namespace": space, "resource": "nvidia.com/gpu"}
    operator.wait("GPU-seconds count", lambda: operator.metric("muster_gpu_seconds_total", **usage) > 0)
    assert api_calls(operator, "POST", "pods", "201") == 2
    assert api_calls(operator, "PATCH", "trainingjobs/status", "200") == 2, "admitted, and running"
    records: list[dict[str, Any]] = operator.records()
    assert {"time", "level", "message"} <= records[0].keys()


def test_capacity_that_an_earlier_version_held_for_a_job_stays_nominated_for_it(pool: Pool, start: Start) -> None:
    operator = start("earlier", "--no-lease")
    pool.submit("low", pods=16, does={"stop_seconds": 3600}, pod={"terminationGracePeriodSeconds": 3600})
    pool.wait_for_phase("low", "Running")
    pool.submit("high", pods=16, priority=5)
    pool.wait("capacity is nominated", lambda: "nomination" in pool.status("high"))
    operator.kill()
    job = f"/apis/muster.dev/v1alpha1/namespaces/{pool.namespace}/trainingjobs/high"
    nomination = pool.status("high")["nomination"]
    pool.api.patch(f"{job}/status", {"status": {"hold": nomination, "nomination": None}})
    assert (pool.status("high")["hold"], "nomination" in pool.status("high")) == (nomination, False)

    start("new", "--no-lease")
    pool.submit("other", pods=1, priority=5)
    pool.wait("the other job waits", lambda: bool(pool.waits_for("other")))
    status = pool.status("high")
    assert (status["hold"], "nomination" in status) == (nomination, False), "it was not planned again"
    for pod in pool.pods("low"):
        path = f"/api/v1/namespaces/{pool.namespace}/pods/{pod['metadata']['name']}"
        pool.api.delete(path, gracePeriodSeconds=0)
    pool.wait_for_phase("high", "Running")
    assert {"hold", "nomination"} & pool.status("high").keys() == set()
    assert pool.pods("other") == []
