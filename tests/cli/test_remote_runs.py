"""report, describe and watch of a job in a cluster, whose run folder cannot be reached from here: where the run is
instead, and what reports on it. What is fetched from a store is tested in tests/tracing/runs/test_s3.py."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import NOW, MemoryClient
from tests.cli.objects import job, status
from tests.tracing.flight_recorder import dump, entry
from tests.tracing.memory_snapshots import ModelAllocator, Training, train, write_snapshot
from tests.tracing.run_folders import run_folder

import muster.cli.options
from muster.api.spec import TrainingJob
from muster.tracing.report import json_path

TRACE = {"startStep": 20, "steps": 3}
RAN = {"startedAt": NOW, "finishedAt": NOW + 9}


class Distant(MemoryClient):
    """A cluster whose run folders cannot be reached from here."""

    context_name = "far away"

    def run_dir(self, name: str, namespace: str = "default") -> Any:
        self.job(name, namespace)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryClient:
    client = Distant(tmp_path)
    monkeypatch.setattr(muster.cli.options, "_connect_local", lambda start: client)
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    return client


def traced(location: str | None, trace: dict[str, int] | None = TRACE, **of_status: Any) -> TrainingJob:
    fields = {**RAN, **of_status}
    if location is not None:
        fields["traces"] = {"files": 2, "location": location}
    one = job(status=status("Succeeded", **fields), trace=trace)
    return one.model_copy(update={"metadata": one.metadata.model_copy(update={"uid": "u1", "namespace": "default"})})


@pytest.mark.parametrize(
    ("one", "reason", "named"),
    [
        (job(trace=TRACE), "NotStarted", {"default/llama"}),
        (traced(None, None), "RunNotAccessible", {"default/llama", "--trace-steps"}),
        (traced(None), "RunNotAccessible", {"default/llama", "--collector-image"}),
        (traced(""), "RunNotAccessible", {"default/llama", "--collector-store"}),
        (traced("pvc://runs/default/llama-u1"), "RunNotAccessible", {"default/llama-u1", "claim runs"}),
        (traced("volume://muster-run/default/llama-u1"), "RunNotAccessible", {"default/llama-u1", "muster-run"}),
    ],
)
def test_report_names_the_place_of_a_run_that_is_in_no_store(
    cluster: MemoryClient, muster: Muster, one: TrainingJob, reason: str, named: set[str]
) -> None:
    cluster.kept_jobs["llama"] = one
    ended = muster("report", "llama", "--json")
    assert (ended.code, ended.out, ended.error["reason"]) == (3, "", reason)
    assert all(name in ended.error["message"] for name in named)


def test_an_unknown_store_scheme_is_invalid(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = traced("gopher://bucket/default/llama-u1")
    ended = muster("report", "llama")
    assert (ended.code, "gopher" in ended.err, "InvalidStoreURL" in ended.err) == (2, True, True)


def test_report_downloads_the_run_from_the_store(cluster: MemoryClient, muster: Muster, tmp_path: Path) -> None:
    store = run_folder(tmp_path / "store/default/llama-u1")
    for trace in (store / "traces/spool").iterdir():
        _compressed(trace, store / "traces")
    (store / "checkpoints").mkdir()
    (store / "checkpoints/latest").write_text("{}")
    cluster.kept_jobs["llama"] = traced(store.as_uri())
    lines = muster("report", "llama").out.splitlines()
    page = tmp_path / "home/fetched/default/llama-u1/report/report.html"
    assert lines[-1] == str(page)
    report = json.loads(json_path(page).read_text())
    assert [row["label"] for row in report["traces"]] == ["rank 0", "rank 1"]
    assert not (page.parents[1] / "checkpoints").exists()  # nothing that a report does not read
    trace = next((page.parents[1] / "traces").glob("rank-0*"))
    before = trace.stat().st_mtime_ns
    assert muster("report", "llama").code == 0
    assert trace.stat().st_mtime_ns == before  # it is here already


def test_memory_downloads_the_snapshots_of_the_newest_steps_from_the_store(
    cluster: MemoryClient, muster: Muster, tmp_path: Path
) -> None:
    cluster.kept_jobs["llama"] = traced(f"file://{tmp_path}/store/default/llama-u1")
    memory = tmp_path / "store/default/llama-u1/traces/memory"
    memory.mkdir(parents=True)
    ended = muster("memory", "llama", "--json")
    assert (ended.code, ended.error["reason"]) == (3, "NothingCollected")
    for steps in ("20-23", "40-43"):
        raw = write_snapshot(tmp_path / "raw.pickle", train(ModelAllocator(), 3, Training()).snapshot())
        (memory / f"rank-0.attempt-0.steps-{steps}.pickle.gz").write_bytes(gzip.compress(raw.read_bytes()))
    assert muster("memory", "llama").out.splitlines()[0] == "llama: memory of 1 rank, steps 40 to 42"
    fetched = tmp_path / "home/fetched/default/llama-u1/traces/memory"
    assert [file.name for file in fetched.iterdir()] == ["rank-0.attempt-0.steps-40-43.pickle.gz"]


def test_hang_downloads_the_dumps_of_the_newest_attempt_and_prefers_those_before_the_end(
    cluster: MemoryClient, muster: Muster, tmp_path: Path
) -> None:
    cluster.kept_jobs["llama"] = traced(f"file://{tmp_path}/store/default/llama-u1")
    recorder = tmp_path / "store/default/llama-u1/flight-recorder"
    recorder.mkdir(parents=True)
    ended = muster("trace", "hang", "llama", "--json")
    assert (ended.code, ended.error["reason"]) == (3, "NothingCollected")
    groups = {"1": ("mesh_fsdp", "[0, 1]")}
    for rank, entries in ((0, [entry(8, state="started")]), (1, [entry(7)])):
        for name, content in (("0.stop", dump()), ("1.stop", dump(*entries, groups=groups)), ("1.zz", dump())):
            (recorder / f"rank-{rank}.attempt-{name}.pickle").write_bytes(pickle.dumps(content))
    assert muster("trace", "hang", "llama").out == (
        "rank 1 never entered all-gather 8 of group fsdp; rank 0 waits in it\n"
    )
    fetched = tmp_path / "home/fetched/default/llama-u1/flight-recorder"
    assert len(list(fetched.glob("rank-*.attempt-1.*"))) == len(list(fetched.iterdir())) == 4


def test_a_run_above_the_option_for_fetched_bytes_is_refused(
    cluster: MemoryClient, muster: Muster, tmp_path: Path
) -> None:
    store = run_folder(tmp_path / "store/default/llama-u1")
    cluster.kept_jobs["llama"] = traced(store.as_uri())
    ended = muster("report", "llama", "--max-fetch-bytes", "10", "--json")
    assert (ended.code, ended.error["reason"]) == (3, "TooLarge")


def test_watch_ends_with_the_command_for_the_report(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = one = traced("s3://bucket/default/llama-u1")
    cluster.films["llama"] = [one.status]
    command = "muster report default/llama --context 'far away'"
    assert muster("watch", "llama").out.splitlines()[-1].endswith(command)
    assert "for the report" not in muster("watch", "llama", "--no-report").out


def test_describe_shows_number_and_location_of_traces(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = traced("s3://bucket/default/llama-u1")
    assert "2 files in s3://bucket/default/llama-u1" in muster("describe", "llama").out


def _compressed(trace: Path, folder: Path) -> None:
    import gzip

    (folder / f"{trace.name}.gz").write_bytes(gzip.compress(trace.read_bytes()))
    trace.unlink()
