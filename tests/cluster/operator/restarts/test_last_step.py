"""A gang that does its last step while it is stopped completes, whichever pod is gone first, under any leader."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import QUICK
from tests.cluster.operator.restarts.conftest import Start
from tests.cluster.operator.sidecars import COLLECTORS, any_address, collecting, heartbeat


def test_pods_that_are_gone_before_the_last_step_is_known_and_before_the_next_leader_complete_their_job(
    pool: Pool, start: Start, tmp_path: Path
) -> None:
    flags = (*COLLECTORS, *QUICK)
    operator = start("a", *flags)
    patient = {"terminationGracePeriodSeconds": 3600}
    does = {"ip": any_address(), "stop_seconds": 3600, "stop_exit_code": 0}
    pool.submit("last", pods=3, gpus=4, pod=patient, stallTimeoutSeconds=3600, does=does)
    pool.wait_for_phase("last", "Running")
    lead = next(pod for pod in pool.pods("last") if pod["metadata"]["labels"]["muster.dev/index"] == "0")

    def end(index: int) -> None:
        pool.annotate("last", index, stop_seconds=0)
        left = {str(one) for one in range(index)}
        pool.wait(
            "it is gone", lambda: {p["metadata"]["labels"]["muster.dev/index"] for p in pool.pods("last")} == left
        )

    heartbeat(tmp_path, 59, steps=60)
    with collecting(pool, lead, tmp_path):
        pool.wait("step 59 is known", lambda: pool.status("last").get("progress", {}).get("step") == 59)
        pool.submit("urgent", pods=4, gpus=4, priority=10)
        pool.wait("it is stopped", lambda: all("deletionTimestamp" in pod["metadata"] for pod in pool.pods("last")))
        end(2)
        heartbeat(tmp_path, 60, steps=60)
        pool.wait("it is recorded", lambda: finished(pool) == "2")
        end(1)
        pool.wait("it is recorded", lambda: finished(pool) == "1-2")
    operator.kill()
    second = start("b", *flags)
    second.wait("another one leads", lambda: second.leads)
    pool.wait_until_seen(second)
    end(0)
    pool.wait_for_phase("urgent", "Running")
    assert (pool.phase("last"), pool.attempt("last")) == ("Succeeded", 0)


def finished(pool: Pool) -> str:
    """The indexes of the pods that are recorded to have completed."""
    return ",".join(part["indexes"] for part in pool.status("last").get("finishedPods", []))
