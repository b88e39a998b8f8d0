"""Logs of pods through the API server. The kubelets are simulated: every container has written the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from datetime import UTC, datetime

from tests.cluster.conftest import StartControlPlane
from tests.cluster.operator.installing import CRDS, install
from tests.cluster.operator.pools import Pool
from tests.cluster.users.conftest import Muster, kubeconfig

from muster.client import LogOptions
from muster.cluster_client.client import KubernetesClusterClient
from muster.kube.config import KubeContext

LINES = ("step 1 loss 4.0", "step 2 loss 3.5", "saved")


def follower(pool: Pool, *words: str) -> subprocess.Popen[str]:
    """`muster logs -f`, in a process of its own."""
    command = [
        sys.executable,
        "-c",
        "from muster.cli import main; main()",
        "--kubeconfig",
        kubeconfig(pool),
        "logs",
        "-f",
        *words,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_logs_are_merged_searched_and_cut(pool: Pool, muster: Muster) -> None:
    pool.set_up()
    pool.submit("talks", pods=2)
    pool.wait_for_phase("talks", "Running")
    pool.plane.write_log("\n".join(LINES))
    assert muster("logs", "talks", "--index", "1").out.splitlines() == list(LINES)
    assert len(muster("logs", "talks").out.splitlines()) == 2 * len(LINES)
    assert muster("logs", "talks", "-i", "0", "--tail", "1").out == "saved\n"
    assert muster("logs", "talks", "-i", "0", "--regex", "loss 3").out == "step 2 loss 3.5\n"
    assert muster("logs", "talks", "-i", "0", "--since", "1h").out.splitlines() == list(LINES)
    assert muster("logs", "talks", "-i", "0", "--until", "1h").out == ""
    rows = muster("logs", "talks", "-i", "0", "--json").rows
    assert rows[0] == {"role": "worker", "index": 0, "attempt": 0, "line": LINES[0]}
    assert json.loads(muster("logs", "talks", "--role", "no", "--json").err)["error"]["field"] == "--role"


def test_a_log_is_cut_at_the_instant_and_not_at_the_second(pool: Pool) -> None:
    pool.set_up()
    pool.submit("times", pods=1)
    pool.wait_for_phase("times", "Running")
    begin = float(int(time.time()))
    stamps = [datetime.fromtimestamp(begin + part / 10, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") for part in (1, 5, 9)]
    text = "".join(f"{stamp} stdout F line {number}\n" for number, stamp in enumerate(stamps))
    pool.plane._layout.log.write_text(text)
    client = KubernetesClusterClient.connect(KubeContext(kubeconfig(pool)))

    def lines(**cut: float) -> list[str]:
        return list(client.log_lines("times", pool.namespace, "worker", 0, LogOptions(**cut)))  # type: ignore[arg-type]

    assert lines() == ["line 0", "line 1", "line 2"]
    assert lines(since=begin + 0.3) == ["line 1", "line 2"]
    assert lines(since=begin + 0.3, until=begin + 0.7) == ["line 1"]
    assert lines(until=begin + 0.7, tail_lines=1) == ["line 1"]


def test_of_a_job_without_pods_the_log_says_why(pool: Pool, muster: Muster) -> None:
    pool.set_up()
    pool.submit("late", queue="red", pods=4)
    pool.wait_for_phase("late", "Running")
    pool.submit("later", queue="red", pods=8)
    pool.wait("it waits", lambda: bool(pool.waits_for("later")))
    ended = muster("logs", "later")
    assert (ended.code, ended.out) == (0, "")
    assert "has no pods yet: number 1 in queue" in ended.err
    pool.edit("late", suspend=True)
    pool.wait_for_phase("late", "Suspended")
    pool.wait("its pods are gone", lambda: not pool.pods("late"))
    gone = muster("logs", "late", "--attempt", "0", "--json")
    assert (gone.code, json.loads(gone.err)["error"]["reason"]) == (3, "LogUnavailable")


def test_a_followed_log_begins_before_the_pod_does_and_ends_with_the_attempt(pool: Pool) -> None:
    pool.set_up()
    pool.submit("blocker", pods=8)
    pool.wait_for_phase("blocker", "Running")
    pool.submit("follows", pods=1)
    pool.wait("it waits", lambda: bool(pool.waits_for("follows")))
    pool.plane.write_log("\n".join(LINES))
    reader = follower(pool, "follows")
    try:
        assert reader.stderr is not None
        assert "has no pods yet" in reader.stderr.readline()
        pool.delete("blocker")
        pool.wait_for_phase("follows", "Running")
        assert reader.stdout is not None
        lines = [reader.stdout.readline().rstrip("\n") for _ in LINES]
        assert lines == list(LINES), "" if reader.poll() is None else reader.stderr.read()
        assert reader.poll() is None, "the pod still runs"
        pool.annotate("follows", run_seconds=0, exit_code=0)
        pool.wait_for_phase("follows", "Succeeded")
        out, err = reader.communicate()
        assert (reader.returncode, out) == (0, ""), err
    finally:
        reader.kill()
        reader.wait()


def test_a_watched_job_survives_a_restart_of_the_api_server(start_control_plane: StartControlPlane) -> None:
    """The watch continues from its version, and nothing is printed twice."""
    plane = start_control_plane(scheduler=False, kwok=False, crds=CRDS)
    install(plane)
    client = KubernetesClusterClient.connect(KubeContext(str(plane.kubeconfig())))
    path = "/apis/muster.dev/v1alpha1/namespaces/default/trainingjobs"
    template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    body = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "a"}}
    plane.api.create(path, {**body, "spec": {"roles": [{"name": "worker", "template": template}]}})
    seen = client.watch("a")
    assert next(seen).status.phase == "Pending"
    plane.restart_apiserver()
    plane.api.patch(f"{path}/a/status", {"status": {"phase": "Running"}})
    assert next(seen).status.phase == "Running"
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    done = {"type": "Complete", "status": "True", "reason": "Completed", "lastTransitionTime": at}
    plane.api.patch(f"{path}/a/status", {"status": {"phase": "Succeeded", "conditions": [done], "finishedAt": at}})
    assert [job.status.phase for job in seen] == ["Succeeded"]
    assert re.match(r"v1\.\d+", client.status()["kubernetes"])
