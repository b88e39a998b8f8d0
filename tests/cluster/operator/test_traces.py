"""What collectors report at the end: traces, and the last checkpoint of a suspended job."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from tests.cluster.operator.pools import Pool
from tests.cluster.operator.sidecars import LAST_WORDS, any_address, checkpoint, collecting, tell_last_words
from tests.tracing.spool import spooled

from muster.capture.exchange import encode_ranks
from muster.capture.protocol import HungRank

KEPT = {"volumes": [{"name": "muster-run", "hostPath": {"path": "/runs"}}]}  # outlives the pods


def last_words(pool: Pool, pod: dict[str, Any], run_dir: Path) -> str:
    """Of the pod's collector, after it has collected what lies in the folder."""
    run_dir.mkdir(exist_ok=True)
    with collecting(pool, pod, run_dir) as process:
        taken = run_dir / "traces" / "manifest-worker-0.json"
        name = pod["metadata"]["labels"]["muster.dev/index"]
        taken = taken.with_name(f"manifest-worker-{name}.json")
        pool.wait("its trace is collected", taken.exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 0
    return (run_dir / LAST_WORDS).read_text()


def test_the_status_has_the_location_of_traces_while_the_job_runs_and_their_number_at_its_end(
    pool: Pool, tmp_path: Path
) -> None:
    pool.set_up()
    pool.submit("traced", pods=2, pod=KEPT, trace={"startStep": 20, "steps": 5}, does={"ip": any_address()})
    pool.wait_for_phase("traced", "Running")
    uid = (pool.get("traced") or {})["metadata"]["uid"]
    location = f"volume://muster-run/{pool.namespace}/traced-{uid}"
    assert pool.status("traced")["traces"]["location"] == location  # written along with that it runs
    pods = sorted(pool.pods("traced"), key=lambda pod: str(pod["metadata"]["labels"]["muster.dev/index"]))
    words = []
    for rank, pod in enumerate(pods):
        spooled(tmp_path / str(rank), rank)
        words.append(last_words(pool, pod, tmp_path / str(rank)))
    for index in range(2):
        pool.annotate("traced", index, exit_code=0)
    pool.wait_for_phase("traced", "Succeeded")
    for pod, message in zip(pods, words, strict=True):
        tell_last_words(pool, pod, message)
    pool.wait("all are counted", lambda: pool.status("traced")["traces"].get("files") == 2)
    assert pool.status("traced")["traces"]["location"] == location


def test_a_job_without_traces_has_none_in_its_status(pool: Pool) -> None:
    pool.set_up()
    pool.submit("plain", pods=1, pod=KEPT, does={"exit_code": 0})
    pool.wait_for_phase("plain", "Succeeded")
    assert "traces" not in pool.status("plain")


def test_the_checkpoint_that_a_job_writes_when_it_is_suspended_is_in_its_status(pool: Pool, tmp_path: Path) -> None:
    pool.set_up()
    patient = {**KEPT, "terminationGracePeriodSeconds": 3600}
    pool.submit("asked", pods=1, pod=patient, does={"ip": any_address(), "stop_seconds": 3600})
    pool.wait_for_phase("asked", "Running")
    (pod,) = pool.pods("asked")
    with collecting(pool, pod, tmp_path):
        pool.edit("asked", suspend=True)
        pool.wait("it is stopped", lambda: "deletionTimestamp" in pool.pods("asked")[0]["metadata"])
        assert pool.status("asked")["phase"] == "Suspended"
        checkpoint(tmp_path, 200, time.time())
        pool.wait("it is known", lambda: pool.status("asked").get("lastCheckpoint", {}).get("step") == 200)
    pool.annotate("asked", stop_seconds=0)
    pool.wait("its pod is gone", lambda: pool.pods("asked") == [])
    assert pool.status("asked")["lastCheckpoint"]["step"] == 200
    pool.wait_for_event("asked", "CheckpointSaved")
    stop = pool.status("asked")["lastStop"]
    assert (stop["reason"], stop["saved"], stop["checkpointStep"]) == ("Suspended", True, 200)


def test_where_the_ranks_were_of_a_job_that_was_stopped_without_a_checkpoint_is_in_its_status(pool: Pool) -> None:
    pool.set_up()
    pool.submit("unsaved", pods=1, pod={**KEPT, "terminationGracePeriodSeconds": 3600}, does={"stop_seconds": 3600})
    pool.wait_for_phase("unsaved", "Running")
    (pod,) = pool.pods("unsaved")
    pool.edit("unsaved", suspend=True)
    pool.wait("it is stopped", lambda: "deletionTimestamp" in pool.pods("unsaved")[0]["metadata"])
    where = encode_ranks([HungRank(0, ("train_batch (train.py:7)",))])
    tell_last_words(pool, pod, json.dumps({"traces": 0, "signalled": where}))
    path = f"/api/v1/namespaces/{pool.namespace}/pods/{pod['metadata']['name']}"
    pool.api.delete(path, gracePeriodSeconds=0)
    pool.wait("its ranks are known", lambda: pool.status("unsaved").get("lastStop", {}).get("ranks"))
    stop = pool.status("unsaved")["lastStop"]
    assert (stop["attempt"], stop["reason"], stop.get("saved", False)) == (0, "Suspended", False)
    assert "is in train_batch (train.py:7)" in stop["ranks"]
    pool.wait_for_event("unsaved", "CheckpointNotSaved")


def test_the_termination_message_has_a_checkpoint_that_no_heartbeat_reported(pool: Pool) -> None:
    pool.set_up()
    pool.submit("brief", pods=1, pod={**KEPT, "terminationGracePeriodSeconds": 3600}, does={"stop_seconds": 3600})
    pool.wait_for_phase("brief", "Running")
    (pod,) = pool.pods("brief")
    pool.edit("brief", suspend=True)
    pool.wait("it is stopped", lambda: "deletionTimestamp" in pool.pods("brief")[0]["metadata"])
    tell_last_words(pool, pod, f'{{"traces": 0, "checkpoint": {{"step": 70, "at": {time.time()}}}}}')
    pool.wait("it is known", lambda: pool.status("brief").get("lastCheckpoint", {}).get("step") == 70)
