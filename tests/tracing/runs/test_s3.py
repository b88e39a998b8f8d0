"""Traces in S3, from the collectors beside two pods to `muster report` on a user's machine."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.cli.conftest import Muster, muster
from tests.cli.memory import NOW, MemoryClient
from tests.cli.objects import job, status
from tests.tracing import s3
from tests.tracing.run_folders import metrics_line
from tests.tracing.spool import collector

from muster.tracing.runs.run_store import TraceStore

pytestmark = pytest.mark.slow
__all__ = ["muster"]  # a fixture

SAMPLE = json.loads(gzip.decompress((Path(__file__).parents[1] / "data" / "simple_add.json.gz").read_bytes()))
UID = "0b6f5ab2"
LOCATION = f"s3://{s3.BUCKET}/muster/team/llama-{UID}"


class Distant(MemoryClient):
    """A cluster whose run folders cannot be reached from here."""

    def run_dir(self, name: str, namespace: str = "default") -> Any:
        self.job(name, namespace)


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3.serving() as environment:
        yield environment


@pytest.fixture
def store(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> TraceStore:
    """The run's folder there, empty."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # else it is that of an address of before
    one = TraceStore(LOCATION, skip_instance_cache=True)
    for name in one.sizes():
        one._fs.rm(one._path(name))
    return one


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryClient:
    import muster.cli.options

    client = Distant(tmp_path)
    traces = {"files": 2, "location": LOCATION}
    client.kept_jobs["llama"] = _traced(status("Succeeded", startedAt=NOW, finishedAt=NOW + 9, traces=traces))
    monkeypatch.setattr(muster.cli.options, "_connect_local", lambda start: client)
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    return client


def _traced(of_job: Any, **spec: Any) -> Any:
    made = job(status=of_job, trace={"startStep": 20, "steps": 5}, **spec)
    return made.model_copy(update={"metadata": made.metadata.model_copy(update={"namespace": "team", "uid": UID})})


def pod(folder: Path, rank: int, attempt: int = 0) -> Path:
    """What a pod of one rank leaves in its run folder."""
    for name in ("metrics", "heartbeats", "traces/spool"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / f"metrics/rank-{rank}.jsonl").write_text("".join(metrics_line(i) for i in range(30)))
    heartbeat = {"rank": rank, "world_size": 2, "attempt": attempt, "step": 30, "steps": 30}
    (folder / f"heartbeats/rank-{rank}.json").write_text(json.dumps(heartbeat))
    (folder / f"traces/spool/rank-{rank}.attempt-{attempt}.steps-20-25.json").write_text(_trace(rank))
    (folder / "events.jsonl").write_text('{"kind": "note", "message": "hello", "at": 1.0}\n')
    return folder


def _trace(rank: int) -> str:
    """A trace of a real GPU, as this rank's."""
    return json.dumps({**SAMPLE, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}})


def collect(folder: Path, index: int) -> dict[str, Any]:
    """Run the pod's collector as a process until it is done; its last words."""
    ending, credentials = folder / "ending.json", folder.with_name(f"{folder.name}-credentials")
    credentials.mkdir()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        (credentials / name).write_text(os.environ[name])
    without = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    where = ("--store", LOCATION, "--store-metrics", "--store-credentials", str(credentials))
    with collector(
        folder, "--until-idle", *where, "--termination-message-path", str(ending), pod=index, env=without
    ) as process:
        _, log_text = process.communicate()
    assert process.returncode == 0, log_text
    assert "testing" not in log_text  # neither key
    words: dict[str, Any] = json.loads(ending.read_text())
    return words


@pytest.mark.smoke
def test_muster_report_fetches_the_traces_of_both_ranks_from_s3(
    tmp_path: Path, store: TraceStore, cluster: MemoryClient, muster: Muster
) -> None:
    for rank in (0, 1):
        assert collect(pod(tmp_path / f"pod-{rank}", rank), rank) == {"traces": 1, "checkpoint": None}
    traces = [f"rank-{rank}.attempt-0.steps-20-25.json.gz" for rank in (0, 1)]
    assert tuple(store.sizes()) == (
        "events.jsonl",
        "heartbeats/rank-0.json",
        "heartbeats/rank-1.json",
        "metrics/rank-0.jsonl",
        "metrics/rank-1.jsonl",
        "traces/manifest-trainer-0.json",
        "traces/manifest-trainer-1.json",
        *(f"traces/{name}" for name in traces),
        *(f"traces/summaries/{name.removesuffix('.json.gz')}.parquet" for name in traces),
    )
    ended = muster("report", "llama", "-n", "team")
    assert (ended.code, ended.err) == (0, "")
    page = tmp_path / "home" / "fetched" / "team" / f"llama-{UID}" / "report" / "report.html"
    assert ended.out.splitlines()[-1] == str(page)
    report = json.loads(page.with_name("report.json").read_text())
    assert [row["label"] for row in report["traces"]] == ["rank 0", "rank 1"]
    assert report["summary"]["world_size"] == 2
    assert report["loss"] is not None
    again = muster("report", "llama", "-n", "team", "--out", str(tmp_path / "there"))
    assert again.out.splitlines()[-1] == str(tmp_path / "there" / "report.html")


def test_a_collector_that_is_killed_at_any_call_to_s3_continues_its_upload(tmp_path: Path) -> None:
    """Three parts: before and after it has begun the upload, sent each part, and completed it."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.tracing.killed_at_every_call", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert [int(line) for line in ended.stdout.split()] == [3, 3, 3, 3, 2, 2, 1, 1, 0, 0]


def test_a_new_attempt_without_its_old_folder_keeps_the_entries_in_the_store(tmp_path: Path, store: TraceStore) -> None:
    collect(pod(tmp_path / "first", 0), 0)
    assert collect(pod(tmp_path / "second", 0, attempt=1), 0)["traces"] == 2
    with store.open("traces/manifest-trainer-0.json") as file:
        assert [entry["attempt"] for entry in json.load(file)["traces"]] == [0, 1]


def test_a_report_before_anything_is_collected_is_refused(
    store: TraceStore, cluster: MemoryClient, muster: Muster
) -> None:
    ended = muster("report", "llama", "-n", "team")
    assert (ended.code, ended.out) == (3, "")
    assert f"nothing has been collected yet: {LOCATION} has no traces and no metrics" in ended.err
    assert "NothingCollected" in ended.err


def test_an_unreachable_store_is_reported_with_a_hint(
    store: TraceStore, cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    ended = muster("report", "llama", "-n", "team")
    assert (ended.code, ended.out) == (4, "")
    assert f"cannot read the store {LOCATION}: " in ended.err
    assert "AWS_ENDPOINT_URL_S3" in ended.err
    assert "StoreUnreachable" in ended.err
