"""report: of a folder, of a job, of what cannot be reported on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import NOW, MemoryClient
from tests.cli.objects import job, status


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """What a run of ten steps left behind."""
    folder = tmp_path / "runs" / "llama"
    (folder / "metrics").mkdir(parents=True)
    lines = [
        {"step": step, "attempt": 0, "at": NOW + step, "step_time_s": 1.0, "loss": 4.0 - step / 10, "tokens": 100}
        for step in range(1, 11)
    ]
    (folder / "metrics" / "rank-0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_the_report_of_a_folder_ends_with_the_path_of_its_page(run_dir: Path, muster: Muster) -> None:
    ended = muster("report", str(run_dir))
    assert (ended.code, ended.err) == (0, "")
    page = run_dir / "report" / "report.html"
    assert ended.out.splitlines()[-1] == str(page)
    assert page.exists()
    assert "10 steps" in ended.out


def test_the_report_goes_where_it_is_asked_to(run_dir: Path, tmp_path: Path, muster: Muster) -> None:
    ended = muster("report", str(run_dir), "--out", str(tmp_path / "there"))
    assert ended.out.splitlines()[-1] == str(tmp_path / "there" / "report.html")
    assert not (run_dir / "report").exists()


def test_the_report_as_json_is_a_list_of_one(run_dir: Path, muster: Muster) -> None:
    (row,) = muster("report", str(run_dir), "--json").rows
    assert row == json.loads((run_dir / "report" / "report.json").read_text())


def test_the_report_of_a_job_is_that_of_its_run_folder(run_dir: Path, cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    assert muster("report", "llama").out.splitlines()[-1] == str(run_dir / "report" / "report.html")


def test_watch_ends_with_the_report_and_its_path_last(run_dir: Path, cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    cluster.films["llama"] = [status("Succeeded", startedAt=NOW, finishedAt=NOW + 10)]
    lines = muster("watch", "llama").out.splitlines()
    assert "✓ Succeeded after 10s" in lines
    assert lines[-1] == str(run_dir / "report" / "report.html")
    assert "report.html" not in muster("watch", "llama", "--no-report").out


def test_a_report_that_cannot_be_built_does_not_hide_how_the_job_ended(
    run_dir: Path, cluster: MemoryClient, muster: Muster
) -> None:
    (run_dir / "report").write_text("a file where a folder should be")
    cluster.kept_jobs["llama"] = job()
    cluster.films["llama"] = [status("Failed", "Cancelled", "cancelled by the user")]
    ended = muster("watch", "llama")
    assert ended.code == 1
    assert "✗ Failed" in ended.out
    assert "no report: " in ended.err


def test_a_job_that_has_not_started_has_no_report(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    ended = muster("report", "llama")
    assert (ended.code, "has not started yet" in ended.err) == (3, True)


@pytest.mark.parametrize(
    ("word", "code", "told"),
    [("nobody", 3, "'nobody' is neither a folder nor a job"), ("./nowhere", 3, "there is no folder ./nowhere")],
)
def test_what_is_neither_folder_nor_job_is_not_found(
    cluster: MemoryClient, muster: Muster, word: str, code: int, told: str
) -> None:
    ended = muster("report", word)
    assert (ended.code, told in ended.err) == (code, True)


def test_a_folder_with_nothing_to_report_on_is_invalid(tmp_path: Path, muster: Muster) -> None:
    ended = muster("report", str(tmp_path))
    assert (ended.code, "InvalidTrace" in ended.err) == (2, True)
