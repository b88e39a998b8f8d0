"""Logs of pods that are gone, from the store of the run."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Muster
from tests.cluster_client.server import JOBS, Server

ROLE = {"name": "worker", "template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}


def put_job(served: Server, location: str, phase: str = "Succeeded", attempt: int = 1) -> None:
    finished = {
        "type": "Complete",
        "status": "True",
        "reason": "Complete",
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    status = {"phase": phase, "attempt": attempt, "traces": {"location": location}, "conditions": [finished]}
    document = {"metadata": {"name": "llama", "namespace": "default"}, "spec": {"roles": [ROLE]}, "status": status}
    served.put(f"{JOBS}/llama", {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", **document})


def test_logs_of_all_attempts_are_read_from_the_store_when_the_pods_are_gone(
    served: Server, muster: Muster, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    for attempt in (0, 1):
        (tmp_path / "logs" / f"worker-0.attempt-{attempt}.log").write_text(f"first of {attempt}\nlast of {attempt}\n")
    put_job(served, f"file://{tmp_path}")
    ended = muster("logs", "llama")
    assert (ended.code, ended.out) == (0, "first of 1\nlast of 1\n")
    assert muster("logs", "llama", "--attempt", "0", "--index", "0", "--tail", "1").out == "last of 0\n"
    ended = muster("logs", "llama", "--since", "10m", "--json")
    assert (ended.code, ended.error["reason"]) == (3, "TimesUnknown")


def test_without_a_store_or_a_stored_log_the_reason_is_as_before(
    served: Server, muster: Muster, tmp_path: Path
) -> None:
    for location in ("", "pvc://claim/run", f"file://{tmp_path}"):
        put_job(served, location)
        ended = muster("logs", "llama", "--attempt", "0", "--index", "0", "--json")
        assert (ended.code, ended.error["reason"]) == (3, "LogUnavailable")
