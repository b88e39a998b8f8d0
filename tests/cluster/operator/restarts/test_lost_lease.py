"""Operators that lose the Lease or the API server, and their endpoints."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import QUICK, stopped
from tests.cluster.operator.restarts.conftest import Start

from muster.engine import decode_snapshot

LOST = "leadership lost"


def test_jobs_run_after_the_api_server_was_restarted(pool: Pool, start: Start, plane: ControlPlane) -> None:
    operator = start()
    pool.submit("before", pods=2)
    pool.wait_for_phase("before", "Running")
    plane.restart_apiserver()
    pool.submit("after", pods=2)
    pool.wait_for_phase("after", "Running")
    pool.end("before")
    pool.wait_for_phase("before", "Succeeded")
    assert operator.running


def test_after_an_outage_no_pod_is_created_for_a_job_that_is_deleted_before_the_watches_resume(
    pool: Pool, start: Start, plane: ControlPlane
) -> None:
    operator = start()
    unmanaged = [unmanaged_pod(pool, f"unmanaged-{number}", pool.node(number), 4) for number in range(4)]
    pool.wait("they are bound", lambda: all(pod["spec"].get("nodeName") for pod in pool.pods()))
    jobs = [f"small-{number}" for number in range(8)]
    for name in jobs:
        pool.submit(name, pods=1)
    pool.wait("they wait for resources", lambda: all(pool.waits_for(name) for name in jobs))
    plane.kill_apiserver()

    def backoffs_are_long() -> bool:
        """Of both watches: each has failed often."""
        counts = [
            [operator.api_calls(verb, resource, "error") for verb in ("GET", "WATCH")]
            for resource in ("pods", "trainingjobs")
        ]
        return all(sum(both) >= 8 for both in counts)

    operator.wait("backoffs are long", backoffs_are_long)
    plane.resume_apiserver()
    for name in jobs:
        pool.delete(name)
    for name in unmanaged:
        pool.api.delete(f"/api/v1/namespaces/{pool.namespace}/pods/{name}", gracePeriodSeconds=0)
    pool.submit("last", pods=1)
    pool.wait_for_phase("last", "Running")
    assert operator.api_calls("POST", "pods", "201") == 1


def unmanaged_pod(pool: Pool, name: str, node: str, gpus: int) -> str:
    """A pod that no job owns, on a node; its name."""
    limits = {"resources": {"limits": {GPU: str(gpus)}}}
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "none", **limits}]}
    pool.api.create(f"/api/v1/namespaces/{pool.namespace}/pods", {"metadata": {"name": name}, "spec": spec})
    return name


def test_a_second_operator_leads_after_the_first_was_killed(pool: Pool, start: Start) -> None:
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
        "first", "--lease-duration-seconds", "600", "--renew-deadline-seconds", "400", "--retry-period-seconds", "1"
    )
    first.wait("the first leads", lambda: first.leads)
    second = start(
        "second", "--lease-duration-seconds", "600", "--renew-deadline-seconds", "400", "--retry-period-seconds", "1"
    )
    second.wait("the second is ready", lambda: second.get("/readyz")[0] == 200)
    assert first.stop() == 0
    assert logged(first.log, "leadership released")
    assert not logged(first.log, LOST)
    second.wait("the second leads, long before the lease is over", lambda: second.leads)


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
    first.wait("the first knows that it does not lead", lambda: logged(first.log, LOST))
    pool.submit("last", pods=1)
    pool.wait_for_phase("last", "Running")
    assert not first.leads
    second.wait("the second leads", lambda: second.leads)
    assert first.api_calls("POST", "pods", "201") == 0
    assert {pod["metadata"]["labels"]["muster.dev/attempt"] for pod in pool.pods()} == {"0"}


@pytest.mark.parametrize("frozen", ["the operator", "the API server"])
def test_an_operator_that_could_not_renew_in_time_stands_by_and_leads_again(
    pool: Pool, start: Start, plane: ControlPlane, frozen: str
) -> None:
    """No other operator took the Lease, so nothing is listed again."""
    operator = start(
        "a", "--lease-duration-seconds", "3", "--renew-deadline-seconds", "2", "--retry-period-seconds", "0.4"
    )
    pool.submit("before")
    pool.wait_for_phase("before", "Running")
    listed = operator.api_calls("GET", "pods", "200")
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
    assert operator.api_calls("GET", "pods", "200") == listed
    assert [record for record in operator.records() if record["level"] == "error"] == []


def logged(log: Path, message: str) -> bool:
    return message in log.read_text()


def test_probes_snapshot_metrics_and_logs(pool: Pool, start: Start, tmp_path: Path) -> None:
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
    operator.wait("it has written a snapshot", lambda: logged(operator.log, "snapshot written"))
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
    assert operator.api_calls("POST", "pods", "201") == 2
    assert operator.api_calls("PUT", "trainingjobs/status", "200") == 2, "admitted, and running"
    records: list[dict[str, Any]] = operator.records()
    assert {"time", "level", "message"} <= records[0].keys()
