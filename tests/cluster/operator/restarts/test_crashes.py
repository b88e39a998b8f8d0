"""Operators that are killed: no work is done twice, and no job is forgotten."""

from __future__ import annotations

import hashlib
import random
import threading
import time

from tests.cluster.controlplane.nodes import GPU
from tests.cluster.operator.pools import Json, Pool
from tests.cluster.operator.process import Operator
from tests.cluster.operator.restarts.conftest import Start


def test_the_work_of_a_pod_that_is_deleted_right_after_its_end_is_not_repeated(pool: Pool, start: Start) -> None:
    """As the garbage collection of ended pods does; the operator resumes only afterwards."""
    operator = start("away", "--no-lease")
    pool.submit("quick", pods=1)
    pool.submit("pair", pods=2)
    for name in ("quick", "pair"):
        pool.wait_for_phase(name, "Running")
    operator.freeze()
    for name in ("quick", "pair"):
        pool.annotate(name, 0, exit_code=0)
        pool.wait(f"{name} has ended", lambda name=name: by_index(pool, name)[0]["status"]["phase"] == "Succeeded")  # type: ignore[misc]
        path = f"/api/v1/namespaces/{pool.namespace}/pods/{by_index(pool, name)[0]['metadata']['name']}"
        pool.api.delete(path)
        pool.wait("the pod is gone", lambda path=path: pool.api.gone(path))  # type: ignore[misc]
    operator.thaw()
    pool.wait_for_phase("quick", "Succeeded")
    pool.wait("the ended pod is recorded", lambda: bool(pool.status("pair").get("finishedPods")))
    pool.annotate("pair", 1, exit_code=0)
    pool.wait_for_phase("pair", "Succeeded")
    assert (pool.attempt("quick"), pool.attempt("pair")) == (0, 0)


def by_index(pool: Pool, name: str) -> list[Json]:
    """A job's pods."""
    return sorted(pool.pods(name), key=lambda pod: int(pod["metadata"]["labels"]["muster.dev/index"]))


def test_an_operator_that_is_killed_again_and_again_finishes_every_job_once(pool: Pool, start: Start) -> None:
    seed = 20261121
    print(f"seed {seed}")
    rng = random.Random(seed)
    ended, wrong = threading.Event(), list[str]()
    watcher = threading.Thread(target=watch_rules, args=(pool, ended, wrong))
    watcher.start()
    operator = start("k0", "--no-lease")
    try:
        for number in range(24):
            pods = rng.choice([1, 1, 2, 4, 8])
            behaviour = {"run_seconds": round(rng.uniform(0.1, 1.5), 2), "exit_code": rng.choice(["0", "0", "5,0"])}
            pool.submit(f"j{number}", pods=pods, queue=rng.choice(["red", "blue"]), does=behaviour)
            time.sleep(rng.uniform(0.0, 0.2))
            if number % 3 == 2:
                operator.kill()
                operator = start(f"k{number}", "--no-lease")
                time.sleep(rng.uniform(0.5, 4.0))  # sometimes long enough for a cycle
        for number in range(3):
            at_work(operator)
            time.sleep(rng.uniform(0.0, 0.5))
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
    """Poll pods: no node has more than fit, no slot has two pods."""
    while not ended.is_set():
        pods = pool.pods()
        used: dict[str, int] = {}
        slots: dict[tuple[str, ...], int] = {}
        for pod in pods:
            labels, node = pod["metadata"]["labels"], pod["spec"].get("nodeName")
            if pod["status"]["phase"] in ("Succeeded", "Failed"):
                continue
            slot = tuple(labels[f"muster.dev/{key}"] for key in ("job", "role", "index", "attempt"))
            slots[slot] = slots.get(slot, 0) + 1
            if node:
                used[node] = used.get(node, 0) + 1
        wrong += [f"{node} has {count} pods of one GPU" for node, count in used.items() if count > 4]
        wrong += [f"{slot} has {count} pods" for slot, count in slots.items() if count > 1]
        time.sleep(0.1)


def test_a_pod_that_a_user_creates_for_a_job_is_stopped_and_admits_nothing(pool: Pool, start: Start) -> None:
    """Any user can know its name, labels and owner."""
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
