"""Usage over time is what the history of all statuses says, although operators are killed again and again."""

from __future__ import annotations

import base64
import os
import random
import threading
import time
from datetime import datetime
from typing import Any

from tests.cluster.controlplane.nodes import GPU
from tests.cluster.operator.installing import SYSTEM
from tests.cluster.operator.pools import Json, Pool
from tests.cluster.operator.process import Operator
from tests.cluster.operator.restarts.conftest import Start

from muster.usage.record import decode_totals

_KILLS = 40
_JOBS = "/apis/muster.dev/v1alpha1/trainingjobs"
_CONFIG_MAPS = f"/api/v1/namespaces/{SYSTEM}/configmaps"


class History:
    """Every status of every job, from a watch in a thread, and what they add up to."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        since = pool.api.get(_JOBS)["metadata"]["resourceVersion"]
        self.events: list[Json] = []
        self._thread = threading.Thread(target=self._watch, args=(since,), daemon=True)
        self._thread.start()

    def _watch(self, since: str) -> None:
        for event in self._pool.api.watch(_JOBS, since, 1800):
            if event["object"]["metadata"].get("namespace") == self._pool.namespace:
                self.events.append(event)

    def deleted(self, name: str) -> bool:
        """Whether its deletion was seen."""
        return any(one["type"] == "DELETED" and one["object"]["metadata"]["name"] == name for one in self.events)

    def gpu_ms(self) -> dict[str, int]:
        """GPU-milliseconds by user: from each admission, or change of its placement, to its end; of a pod to when its
        completion is recorded. That is the only time of which the status has no other record than its usage."""
        sums: dict[str, int] = {}
        present: dict[str, tuple[int, int]] = {}  # by uid: since, GPUs
        for event in list(self.events):
            job, status = event["object"], event["object"].get("status", {})
            uid, user = job["metadata"]["uid"], job["metadata"]["labels"]["muster.dev/user"]
            admitted = condition(status, "Admitted")
            gpus, began = 0, 0
            if admitted.get("status") == "True":
                gpus = sum(_count(node["indexes"]) for role in status["placement"] for node in role["nodes"])
                began = max(ms(status["admittedAt"]), ms(status.get("resizedAt", status["admittedAt"])))
                ended = (part for one in status.get("finishedPods", []) for part in one["indexes"].split(","))
                if completed := sum(map(_count, ended)):
                    gpus, began = gpus - completed, ms(status["usage"]["current"]["since"])
            since, before = present.get(uid, (0, 0))
            if gpus != before:
                end = began or ms(admitted["lastTransitionTime"])
                sums[user] = sums.get(user, 0) + before * (end - since)
                present[uid] = began, gpus
        assert all(gpus == 0 for _, gpus in present.values()), "a job still runs"
        return sums


def _count(indexes: str) -> int:
    first, _, last = indexes.partition("-")
    return int(last or first) - int(first) + 1


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def condition(status: Json, kind: str) -> Json:
    return next((one for one in status.get("conditions", []) if one["type"] == kind), {})


def recorded_gpu_ms(pool: Pool) -> dict[str, int]:
    """GPU-milliseconds by user in the ConfigMaps."""
    sums: dict[str, int] = {}
    for item in pool.api.items(_CONFIG_MAPS, labelSelector="muster.dev/usage=muster-operator"):
        totals = decode_totals(base64.b64decode(item["binaryData"]["totals.json.gz"]))
        for key, _, amount in totals.cells():
            if key.resource == GPU and key.namespace == pool.namespace:
                sums[key.user] = sums.get(key.user, 0) + amount
    return sums


def submit(pool: Pool, name: str, pods: int, **more: Any) -> None:
    document = pool.job(name, pods, **more)
    document["metadata"]["labels"] = {"muster.dev/user": name}
    pool.api.create(f"/apis/muster.dev/v1alpha1/namespaces/{pool.namespace}/trainingjobs", document)


def is_admitted(pool: Pool, name: str) -> bool:
    return pool.condition(name, "Admitted").get("status") == "True"


def test_after_40_times_kill_9_the_record_is_exactly_what_the_statuses_say(pool: Pool, start: Start) -> None:
    """Jobs are suspended and resumed, grow and shrink, are preempted, and removed right after their end."""
    rng = random.Random(int(os.environ.get("MUSTER_TEST_SEED") or 20261123))
    history = History(pool)
    submit(pool, "stays", 4, queue="red")
    submit(pool, "elastic", 8, queue="blue", role={"minReplicas": 2})
    quick: list[str] = []
    operator: Operator | None = None
    for kill in range(_KILLS):
        name = f"quick{kill}"
        if kill % 4 == 0:
            quick.append(name)
            submit(pool, name, 2, queue="red", priority=5, ttlSecondsAfterFinished=0, does={"run_seconds": "0.2"})
        operator = start(f"o{kill}", "--no-lease")
        resumed = kill % 2 == 0
        pool.wait(
            "it is admitted, or suspended",
            lambda resumed=resumed: is_admitted(pool, "stays") if resumed else pool.phase("stays") == "Suspended",  # type: ignore[misc]
        )
        time.sleep(rng.uniform(0.0, 1.0))
        operator.kill()
        pool.edit("stays", suspend=resumed)
    operator = start("last", "--no-lease")
    for name in ("stays", "elastic"):
        pool.edit(name, suspend=True)
        pool.wait_for_phase(name, "Suspended")
    pool.wait("quick jobs are removed", lambda: all(history.deleted(name) for name in quick), 240)
    versions = {one["metadata"]["resourceVersion"] for one in pool.api.items(_JOBS)}
    pool.wait(
        "the history is complete",
        lambda: versions <= {event["object"]["metadata"]["resourceVersion"] for event in history.events},
    )
    expected = history.gpu_ms()
    assert set(expected) == {"stays", "elastic", *quick}
    operator.kill()
    operator = start("records", "--no-lease")  # which begins with a write of the record
    pool.wait("everything is recorded", lambda: recorded_gpu_ms(pool) == expected)
    operator.kill()
    operator = start("again", "--no-lease")
    operator.wait("it has read the record", lambda: operator.api_calls("GET", "configmaps", "200") > 0)
    pool.delete("stays")
    pool.delete("elastic")
    submit(pool, "later", 1)
    pool.wait("it is admitted", lambda: is_admitted(pool, "later"))
    pool.delete("later")
    pool.wait("a deletion after those is recorded", lambda: recorded_gpu_ms(pool).get("later", 0) > 0)
    assert {name: sum_ms for name, sum_ms in recorded_gpu_ms(pool).items() if name != "later"} == expected


def test_a_job_deleted_while_it_runs_is_recorded_until_its_deletion(pool: Pool, start: Start) -> None:
    operator = start("deletes", "--no-lease")
    history = History(pool)
    submit(pool, "short", 3)
    pool.wait("it is admitted", lambda: is_admitted(pool, "short"))
    began = ms(pool.status("short")["admittedAt"])
    pool.delete("short")
    pool.wait("its deletion is seen", lambda: history.deleted("short"))
    pool.wait("it is recorded", lambda: recorded_gpu_ms(pool).get("short", 0) > 0)
    assert 0 < recorded_gpu_ms(pool)["short"] <= 3 * (time.time() * 1000 - began)
    assert operator.running
