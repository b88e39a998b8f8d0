"""report: of a folder, of a job, of what cannot be reported on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import NOW, MemoryClient
from tests.cli.objects import job, status
from tests.tracing.kineto import training_steps, write_trace

from muster.tracing.report import load


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


@pytest.mark.parametrize("colours", [False, True])
def test_in_a_pipe_no_line_of_a_report_ends_with_blanks(
    run_dir: Path, muster: Muster, monkeypatch: pytest.MonkeyPatch, colours: bool
) -> None:
    write_trace(run_dir / "traces/spool/rank-0.attempt-0.steps-1-4.json", training_steps(first=1))
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
    lines = muster("report", str(run_dir)).out.splitlines()
    assert "Top operators" in "\n".join(lines)
    assert any("\x1b[" in line for line in lines) == colours
    assert [line for line in lines if re.search(r" (\x1b\[[\d;]*m)*$", line)] == []


def test_the_report_goes_where_it_is_asked_to(run_dir: Path, tmp_path: Path, muster: Muster) -> None:
    ended = muster("report", str(run_dir), "--out", str(tmp_path / "there"))
    assert ended.out.splitlines()[-1] == str(tmp_path / "there" / "report.html")
    assert not (run_dir / "report").exists()


def test_the_report_as_json_is_a_list_of_one(run_dir: Path, muster: Muster) -> None:
    (row,) = muster("report", str(run_dir), "--json").rows
    assert row == json.loads((run_dir / "report" / "report.json").read_text())


def test_the_json_beside_the_page_of_a_trace_keeps_the_dots_of_its_name(run_dir: Path, muster: Muster) -> None:
    trace = write_trace(run_dir / "traces/v1.2.rank-0.attempt-0.steps-1-4.pt.trace.json", training_steps())
    (row,) = muster("report", str(trace), "--json").rows
    page = run_dir / "traces/report/report-of-v1.2.rank-0.attempt-0.steps-1-4.pt.trace.html"
    assert row["page"] == str(page)
    assert row == json.loads(page.with_name(f"{page.name.removesuffix('.html')}.json").read_text())
    assert load(page).page == str(page)


def test_some_traces_have_a_page_of_their_own_whose_path_is_printed_last(
    run_dir: Path, tmp_path: Path, muster: Muster
) -> None:
    of_run = muster("report", str(run_dir)).out.splitlines()[-1]
    before = Path(of_run).read_bytes()
    traces = [
        str(write_trace(run_dir / f"traces/rank-{rank}.attempt-0.steps-1-4.json", training_steps(), rank=rank))
        for rank in (0, 1)
    ]
    one, two, there = (
        muster("report", *words).out.splitlines()[-1]
        for words in (traces[:1], traces, [*traces, "--output", str(tmp_path / "there")])
    )
    assert one == str(run_dir / "traces/report/report-of-rank-0.attempt-0.steps-1-4.html")
    assert all(Path(page).is_file() for page in (one, two, there))
    assert len({of_run, one, two, there}) == 4
    assert Path(there).parent == tmp_path / "there"
    assert Path(of_run).read_bytes() == before
    (row,) = muster("report", traces[0], "--json").rows
    assert row["page"] == one


def test_serving_and_json_exclude_each_other(run_dir: Path, muster: Muster) -> None:
    ended = muster("report", str(run_dir), "--serve", "--json")
    assert (ended.code, ended.error["reason"]) == (2, "Usage")
    assert not (run_dir / "report").exists()


@pytest.mark.parametrize(
    "url", ["ui.perfetto.dev", "javascript:alert(1)", "ftp://host/", "https://", "https://a@b/", "http://x:99999/"]
)
def test_the_address_of_perfetto_must_be_one_of_the_web(run_dir: Path, muster: Muster, url: str) -> None:
    ended = muster("report", str(run_dir), "--serve", "--perfetto-url", url)
    assert ended.code == 2
    assert f"must be an address such as https://ui.perfetto.dev; got '{url}'" in " ".join(ended.err.split())
    assert not (run_dir / "report").exists()


def test_the_report_of_a_job_is_that_of_its_run_folder(run_dir: Path, cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    assert muster("report", "llama").out.splitlines()[-1] == str(run_dir / "report" / "report.html")


def test_the_report_of_an_untraced_job_explains_in_one_short_line_how_traces_are_recorded(
    run_dir: Path, cluster: MemoryClient, muster: Muster
) -> None:
    cluster.kept_jobs["llama"] = job()
    message = muster("report", "llama").err
    assert all(word in message for word in ("muster trace JOB", "muster submit --trace-steps 20:25"))
    assert message.count("\n") == 1
    assert len(message) < 160
    cluster.kept_jobs["llama"] = job(trace={"startStep": 20, "steps": 5})
    assert muster("report", "llama").err == ""
    for left in run_dir.rglob("*.jsonl"):
        left.unlink()
    ended = muster("report", "llama")
    assert ended.code == 2
    assert "muster trace JOB" in ended.err


def test_describe_of_a_traced_job_without_traces_explains_how_they_are_recorded(
    cluster: MemoryClient, muster: Muster
) -> None:
    traced = {"startStep": 20, "steps": 5}
    over = status("Succeeded", traces={"files": 0, "report": ""})
    cluster.kept_jobs = {"a": job("a", over, trace=traced), "b": job("b", status("Running", traces={}), trace=traced)}
    assert "none recorded" in muster("describe", "a").out
    assert "trainer.instrument" in muster("describe", "a").out
    assert "none recorded" not in muster("describe", "b").out


@pytest.mark.parametrize(("step", "before"), [(12, True), (19, True), (20, False)])
def test_describe_names_the_step_at_which_a_run_ended_before_it_could_be_traced(
    cluster: MemoryClient, muster: Muster, step: int, before: bool
) -> None:
    over = status("Succeeded", traces={"files": 0, "report": ""})
    cluster.kept_jobs["a"] = job("a", over, trace={"startStep": 20, "steps": 5})
    cluster.stored_heartbeats = [{"rank": rank, "attempt": 0, "step": step, "phase": "done"} for rank in (0, 1)]
    shown = " ".join(muster("describe", "a").out.split())
    assert (f"the run ended at step {step}, before step 20" in shown) == before
    assert ("trainer.instrument" in shown) != before


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
    cluster.films["llama"] = [status("Cancelled", "Cancelled", "cancelled by the user")]
    ended = muster("watch", "llama")
    assert ended.code == 1
    assert "⊘ Cancelled" in ended.out
    assert "no report: " in ended.err


def test_a_job_that_has_not_started_has_no_report(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    ended = muster("report", "llama", "--json")
    assert (ended.code, ended.error["reason"]) == (3, "NotStarted")


@pytest.mark.parametrize("word", ["missing", "./nowhere"])
def test_what_is_neither_folder_nor_job_is_not_found(cluster: MemoryClient, muster: Muster, word: str) -> None:
    ended = muster("report", word, "--json")
    assert (ended.code, ended.error["reason"], word in ended.error["message"]) == (3, "NotFound", True)


def test_a_folder_with_nothing_to_report_on_is_invalid(tmp_path: Path, muster: Muster) -> None:
    ended = muster("report", str(tmp_path))
    assert (ended.code, "InvalidTrace" in ended.err) == (2, True)
