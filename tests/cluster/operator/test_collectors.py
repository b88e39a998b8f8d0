"""Heartbeats on Kubernetes: which jobs have a collector, what it reports, and what follows."""

from __future__ import annotations

import base64
import json
import pickle
import signal
import time
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.operator.installing import SYSTEM
from tests.cluster.operator.pools import GROUP, Pool
from tests.cluster.operator.process import Operator
from tests.cluster.operator.sidecars import (
    LAST_WORDS,
    any_address,
    checkpoint,
    collecting,
    heartbeat,
    listens,
    replaced,
    sidecar,
    tell_last_words,
)
from tests.tracing.flight_recorder import dump, entry

from muster.cluster_client.client import KubernetesClusterClient
from muster.kube.config import KubeContext
from muster_operator.collectors.tokens import derive_token

KEPT = {"volumes": [{"name": "muster-run", "hostPath": {"path": "/runs"}}]}  # outlives the pods


def steered(address: str, **more: Any) -> dict[str, Any]:
    return {"does": {"ip": address}, **more}


def the_pod(pool: Pool, name: str) -> dict[str, Any]:
    pool.wait_for_phase(name, "Running")
    (pod,) = pool.pods(name)
    return pod


def keep_beating(run_dir: Path) -> None:
    heartbeat(run_dir, 1 + time.time_ns() // 10**8)


def test_a_stalled_job_is_restarted_by_its_rule(pool: Pool, tmp_path: Path) -> None:
    pool.set_up()
    pool.submit("hung", pods=1, stallTimeoutSeconds=4, **steered(any_address()))
    pod = the_pod(pool, "hung")
    heartbeat(tmp_path, 5)
    with collecting(pool, pod, tmp_path):
        pool.wait("it stalls", lambda: pool.status("hung").get("restarts") == 1)
    status = pool.status("hung")
    assert status["lastFailure"]["reason"] == "Stalled"
    assert status["lastFailure"]["logTail"] == "no step for 4 s after step 5"
    pool.wait_for_event("hung", "Restarting")
    pool.wait_for_attempt("hung", 1)


def test_the_rank_that_the_others_waited_for_is_in_the_status_after_a_stall(pool: Pool, tmp_path: Path) -> None:
    pool.set_up(nodes=2, gpus=1)
    patient = {"terminationGracePeriodSeconds": 3600}
    trace = {"startStep": 1000, "steps": 1}  # so that every pod has a collector
    does = {"ip": any_address(), "stop_seconds": 3600}
    pool.submit("stuck", pods=2, pod=patient, stallTimeoutSeconds=4, trace=trace, does=does)
    pool.wait_for_phase("stuck", "Running")
    pods = sorted(pool.pods("stuck"), key=lambda pod: str(pod["metadata"]["labels"]["muster.dev/index"]))
    folders = [tmp_path / str(rank) for rank in range(2)]
    folders[1].mkdir()
    heartbeat(folders[0], 5, world_size=2)
    messages = []
    with ExitStack() as running:
        lead = running.enter_context(collecting(pool, pods[0], folders[0]))
        pool.wait("its collector listens", lambda: listens(pods[0]))  # both pods have one address here
        other = running.enter_context(collecting(pool, pods[1], folders[1]))
        pool.wait("the other collector handles signals", lambda: "cannot listen on " in collector_log(folders[1]))
        pool.wait("it stalls", lambda: pool.status("stuck").get("restarts") == 1)
        groups = {"1": ("mesh_fsdp", "[0, 1]")}
        stop_answer(folders[0], 0, "wait (threading.py:10)", dump(entry(7, state="started"), groups=groups))
        stop_answer(folders[1], 1, "sleep (data.py:3)", dump(entry(6), groups=groups))
        for process, folder in ((lead, folders[0]), (other, folders[1])):
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=300) == 0
            messages.append((folder / LAST_WORDS).read_text())
    for pod, words in zip(pods, messages, strict=True):
        assert len(words) < 4096
        tell_last_words(pool, pod, words)
        path = f"/api/v1/namespaces/{pool.namespace}/pods/{pod['metadata']['name']}"
        pool.api.delete(path, gracePeriodSeconds=0)
    pool.wait_for_event("stuck", "RanksDidNotStop")
    first, sentence = pool.status("stuck")["lastFailure"]["logTail"].splitlines()
    assert first == "no step for 4 s after step 5"
    where = f"in pod {pods[1]['metadata']['name']} on node {pods[1]['spec']['nodeName']}"
    blamed = f"rank 1 {where} never entered all-gather 7 of group fsdp; rank 0 waits in it"
    assert sentence.startswith(blamed)
    assert f"rank 1 {where} is in sleep (data.py:3)" in sentence


def collector_log(run_dir: Path) -> str:
    return (run_dir / "collector.log").read_text()


def stop_answer(run_dir: Path, rank: int, frame: str, recorded: dict[str, Any]) -> None:
    """What the launcher writes before it kills a rank that did not stop."""
    recorder = f"flight-recorder/rank-{rank}.attempt-0.stop.pickle"
    (run_dir / recorder).parent.mkdir(parents=True)
    (run_dir / recorder).write_bytes(pickle.dumps(recorded))
    answer = {"id": "stop", "attempt": 0, "rank": rank, "frames": [frame], "world_size": 2, "recorder": recorder}
    replaced(run_dir / "capture" / f"stacks-rank-{rank}.json", answer)


def test_a_job_that_progresses_or_whose_collector_is_unreachable_does_not_stall(
    pool: Pool, tmp_path: Path, operator: Operator
) -> None:
    pool.set_up()
    pool.submit("busy", pods=1, stallTimeoutSeconds=30, **steered(any_address()))
    pool.submit("mute", pods=1, stallTimeoutSeconds=30, **steered(any_address()))
    the_pod(pool, "mute")

    def unanswered() -> float:
        return operator.metric("muster_heartbeats_total", outcome="unreachable")

    before = unanswered()
    with collecting(pool, the_pod(pool, "busy"), tmp_path):

        def steps() -> bool:
            keep_beating(tmp_path)
            was_asked = pool.status("busy").get("progress", {}).get("attempt") == 0
            return was_asked and unanswered() > before + 10 and time.monotonic() > until

        until = time.monotonic() + 45.0  # more than what would be a stall
        pool.wait("some time passes", steps)
        for name in ("busy", "mute"):
            assert (pool.phase(name), pool.status(name).get("restarts", 0)) == ("Running", 0)


@pytest.mark.smoke
def test_progress_and_checkpoint_of_a_job_are_in_its_status(pool: Pool, tmp_path: Path, operator: Operator) -> None:
    pool.set_up()
    pool.submit("busy-step", pods=1, pod=KEPT, **steered(any_address()))
    pod = the_pod(pool, "busy-step")
    heartbeat(
        tmp_path,
        40,
        loss=2.5,
        steps=60,
        tokens_per_s=1234.5,
        collectives_per_step=12.5,
        collective_bytes_per_step=2**31,
    )
    checkpoint(tmp_path, 30, time.time())
    with collecting(pool, pod, tmp_path):
        pool.wait(
            "the heartbeat is in its status", lambda: pool.status("busy-step").get("progress", {}).get("step") == 40
        )
        progress = pool.status("busy-step")["progress"]
        assert (progress["steps"], progress["loss"], progress["tokensPerSecond"]) == (60, 2.5, 1234.5)
        assert (progress["collectivesPerStep"], progress["collectiveBytesPerStep"]) == (12.5, 2**31)
        labels = {"namespace": pool.namespace, "job": "busy-step"}
        pool.wait(
            "the operator exports it",
            lambda: operator.metric("muster_job_collective_bytes_per_step", **labels) == 2**31,
        )
        (seen,) = KubernetesClusterClient.connect(KubeContext(str(pool.plane.kubeconfig()))).heartbeats(
            "busy-step", pool.namespace
        )
        assert (seen["step"], seen["loss"]) == (40, 2.5)
        pool.wait(
            "its checkpoint is known", lambda: pool.status("busy-step").get("lastCheckpoint", {}).get("step") == 30
        )


def test_the_time_of_its_pods_is_divided_by_its_steps_in_its_status(pool: Pool, tmp_path: Path) -> None:
    pool.set_up()
    pool.submit("counted", pods=1, stallTimeoutSeconds=600, **steered(any_address()))
    pod = the_pod(pool, "counted")
    began = time.time() - 30
    steps = [{"attempt": 0, "step": n, "at": began + 10 + n, "step_time_s": 1.0} for n in range(1, 11)]
    role = pod["metadata"]["labels"]["muster.dev/role"]
    for name, lines in (
        (f"launches/{role}-0.jsonl", [{"attempt": 0, "at": began, "kind": "start"}]),
        ("metrics/rank-0.jsonl", steps),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    heartbeat(tmp_path, 10)

    def runs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pool.status("counted")["timeSpent"].get("runs", [])
        return found

    with collecting(pool, pod, tmp_path) as collector:
        pool.wait("its time is divided", lambda: bool(runs()))
        (run,) = runs()
        assert (run["attempt"], run["firstStep"], run["lastStep"]) == (0, 1, 10)
        assert (run["milliseconds"]["start"], run["milliseconds"]["productive"]) == (10_000, 10_000)
        collector.send_signal(signal.SIGTERM)
        assert collector.wait(timeout=300) == 0
    words = json.loads((tmp_path / LAST_WORDS).read_text())
    assert words["run_time"]["milliseconds"]["productive"] == 10_000
    tell_last_words(pool, pod, json.dumps({**words, "run_time": {**words["run_time"], "last_step": 12}}))
    pool.wait("the division of the end is in its status", lambda: runs()[0]["lastStep"] == 12)
    path = f"/api/v1/namespaces/{pool.namespace}/pods/{pod['metadata']['name']}"
    pool.api.delete(path, gracePeriodSeconds=0)


def test_checkpoints_in_a_folder_that_is_deleted_with_the_pod_do_not_count(pool: Pool, tmp_path: Path) -> None:
    pool.set_up()
    pool.submit("lossy", pods=1, stallTimeoutSeconds=600, **steered(any_address()))
    pod = the_pod(pool, "lossy")
    heartbeat(tmp_path, 40)
    checkpoint(tmp_path, 30, time.time())
    with collecting(pool, pod, tmp_path):
        pool.wait("the heartbeat is in its status", lambda: pool.status("lossy").get("progress", {}).get("step") == 40)
    assert "lastCheckpoint" not in pool.status("lossy")


def test_the_job_with_the_newest_checkpoint_is_preempted_before_the_one_that_started_last(
    pool: Pool, tmp_path: Path, operator: Operator
) -> None:
    """Both have run for an hour: without the checkpoint they would lose the same work, and the one that started last
    would be preempted. The checkpoint that a job writes when it is stopped is known too."""
    pool.set_up(nodes=2, gpus=4)
    patient = {**KEPT, "terminationGracePeriodSeconds": 3600}
    pool.submit("older", pods=1, gpus=4, pod=patient, does={"ip": any_address(), "stop_seconds": 3600})
    pod = the_pod(pool, "older")
    pool.submit("younger", pods=1, gpus=4)
    for name in ("older", "younger"):
        pool.wait_for_phase(name, "Running")
        version = date_back(pool, name, timedelta(hours=1))
        pool.wait("the operator sees it", lambda version=version: operator.has_seen("trainingjobs") >= version)  # type: ignore[misc]
    checkpoint(tmp_path, 100, time.time())
    with collecting(pool, pod, tmp_path):
        pool.wait("the news is there", lambda: pool.status("older").get("lastCheckpoint", {}).get("step") == 100)
        pool.submit("urgent", pods=1, gpus=4, priority=10)
        pool.wait("it is stopped", lambda: "deletionTimestamp" in pool.pods("older")[0]["metadata"])
        checkpoint(tmp_path, 200, time.time())
        answered = operator.metric("muster_heartbeats_total", outcome="ok")
        pool.wait(
            "it was asked since", lambda: operator.metric("muster_heartbeats_total", outcome="ok") >= answered + 2
        )
        pool.annotate("older", stop_seconds=0)
        pool.wait_for_phase("urgent", "Running")
        pool.wait("the last news is there", lambda: pool.status("older")["lastCheckpoint"]["step"] == 200)
    pool.wait_for_event("older", "Preempted")
    assert (pool.phase("younger"), pool.attempt("younger")) == ("Running", 0)


def date_back(pool: Pool, name: str, by: timedelta) -> int:
    """Let a job have run for longer; the resource version after that."""
    status = pool.status(name)
    dates = {key: (datetime.fromisoformat(status[key]) - by).isoformat() for key in ("admittedAt", "startedAt")}
    path = f"{GROUP}/namespaces/{pool.namespace}/trainingjobs/{name}/status"
    return int(pool.api.patch(path, {"status": dates})["metadata"]["resourceVersion"])


def test_the_sidecar_satisfies_the_restricted_pod_security_standard_and_its_secret_is_deleted_with_the_job(
    pool: Pool,
) -> None:
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    pool.api.patch(f"/api/v1/namespaces/{pool.namespace}", {"metadata": {"labels": enforced}})
    pool.set_up()
    strict = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1234, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "image": "none", "securityContext": strict}],
    }
    pool.submit("strict", pods=2, pod=pod, trace={"startStep": 2, "steps": 3})
    pool.wait_for_phase("strict", "Running")
    ours = [sidecar(one) for one in pool.pods("strict")]
    assert all(one is not None and one["restartPolicy"] == "Always" for one in ours)
    secrets = f"/api/v1/namespaces/{pool.namespace}/secrets"
    (secret,) = (one for one in pool.api.items(secrets) if one["metadata"]["name"].endswith("-collector"))
    assert secret["immutable"] is True
    key = pool.api.get(f"/api/v1/namespaces/{SYSTEM}/secrets/muster-operator-collector-key")["data"]["key"]
    uid = (pool.get("strict") or {})["metadata"]["uid"]
    token = derive_token(base64.b64decode(key), uid)  # what any operator knows that comes after this one
    assert base64.b64decode(secret["data"]["token"]).decode() == token
    pool.delete("strict")
    path = f"{secrets}/{secret['metadata']['name']}"
    pool.wait("its Secret is gone", lambda: pool.api.gone(path))


def test_a_job_without_traces_has_neither_sidecar_nor_secret(pool: Pool) -> None:
    pool.set_up()
    pool.submit("plain", pods=1)
    pod = the_pod(pool, "plain")
    assert sidecar(pod) is None
    assert pool.api.items(f"/api/v1/namespaces/{pool.namespace}/secrets") == []


def test_a_container_with_the_sidecars_name_is_refused_before_admission(pool: Pool) -> None:
    pool.set_up()
    containers = [{"name": "main", "image": "none"}, {"name": "muster-collector", "image": "none"}]
    pool.submit("clash", pods=1, pod={"containers": containers}, stallTimeoutSeconds=60)
    assert "reserved for the sidecar that Muster adds" in pool.wait_for_reason("clash", "PodRejected")
    assert pool.pods() == []


def test_the_requests_of_the_sidecar_count(pool: Pool) -> None:
    """Two such pods do not fit a core with what the sidecars ask for, and do without."""
    pool.set_up(nodes=1, gpus=4, cpu="1")
    half = {"containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "500m"}}}]}
    pool.submit("traced", pods=2, gpus=0, pod=half, trace={"startStep": 2, "steps": 3})
    assert "core" in pool.wait_for_reason("traced", "LargerThanCluster")
    pool.submit("bare", pods=2, gpus=0, pod=half)
    pool.wait_for_phase("bare", "Running")
