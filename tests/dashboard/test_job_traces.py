"""Traces on the page of a job: the captures of its run folder, their analysis in a process with limits, the report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.serving import ReadStateClient, Response, get, request, serving
from tests.dashboard.traced_runs import collect, later
from tests.state.observed_states import NOW, admitted
from tests.tracing.kineto import GpuRank, gpu_job
from tests.tracing.run_folders import HOSTILE, gpu_run_folder, run_folder
from tests.visibility.states import leader, two_queues

from muster.api.spec import TraceStatus
from muster.dashboard import analyses
from muster.dashboard.analyses import TraceAnalyses, TraceAnalysis
from muster.dashboard.server import DashboardServer
from muster.tracing.report import build
from muster.tracing.runs.stored_captures import StoredCapture, stored_captures
from muster.tracing.shared_folder import SharedFolder

RANKS = [GpuRank(blocked=("load_batch", 30.0 if rank == 1 else 0.5, 1)) for rank in range(4)]


def client(folder: Path, **fields: Any) -> ReadStateClient:
    found = ReadStateClient(run_root=folder, state=leader(two_queues(admitted("a"))), **fields)
    found.kept_jobs = {"a": admitted("a")}
    return found


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def analysed(server: DashboardServer) -> str:
    """The page of the job, once its traces are analysed."""
    while True:
        html = get(server, "/jobs/default/a").text
        if 'id="analysing"' not in html:
            return html
        time.sleep(0.05)


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """The run folder of job a with traces of steps 10 to 14, in which rank 1 is slow."""
    run = gpu_run_folder(tmp_path / "runs" / "a", RANKS, steps=20)
    collect(run)
    return run


@pytest.fixture
def unused(tmp_path: Path) -> Iterator[TraceAnalyses]:
    found = TraceAnalyses()
    yield found
    found.close()


def ended(analyses: TraceAnalyses, run: Path) -> TraceAnalysis:
    """The result for the newest capture of a run folder."""
    (capture,) = stored_captures(SharedFolder(run))
    until = time.monotonic() + 800
    while not (found := analyses.get(run, "a", capture)).done:
        assert time.monotonic() < until, "the analysis does not end"
        time.sleep(0.05)
    return found


def test_the_page_lists_captures_and_shows_the_finding_the_heat_map_and_the_whole_report(traced: Path) -> None:
    with serving(client(traced.parent), later) as server:
        html = analysed(server)
        report = get(server, "/jobs/default/a/report")
    shown = words(html)
    assert re.search(r"10 to 14 trace 4 [\d.]+ KiB", shown)
    assert "because data loading blocks the host" in shown
    assert len(re.findall(r'<rect class="h\d"', html)) == 4 * 5
    assert "rank 1, step 10: " in shown
    assert "style=" not in html
    assert '<svg class="cells few" width="100%"' in html
    assert 'href="/jobs/default/a/report"' in html
    assert (report.status, "Muster report" in report.text) == (200, True)
    assert "because data loading blocks the host" in words(report.text)


def test_the_report_can_neither_run_scripts_nor_load_anything_nor_be_read_without_a_session(traced: Path) -> None:
    with serving(client(traced.parent), later) as server:
        analysed(server)
        report = get(server, "/jobs/default/a/report")
        refused = request(server, "/jobs/default/a/report")
    policy = [part.strip() for part in report.headers["content-security-policy"].split(";")]
    assert policy[:3] == ["sandbox", "default-src 'none'", "style-src 'unsafe-inline'"]
    assert not any(part.startswith("script-src") for part in policy)
    assert (refused.status, "Muster report" in refused.text) == (403, False)


def test_each_capture_is_analysed_once_in_the_background(traced: Path, unused: TraceAnalyses) -> None:
    (capture,) = stored_captures(SharedFolder(traced))
    first = unused.get(traced, "a", capture)
    assert ended(unused, traced) is first
    written = first.page.stat().st_mtime_ns
    assert unused.get(traced, "a", capture) is first
    assert first.page.stat().st_mtime_ns == written
    assert not (traced / "report").exists()
    unused.close()
    assert not first.folder.exists()


def test_a_capture_whose_traces_are_written_again_is_analysed_again(traced: Path, unused: TraceAnalyses) -> None:
    first = ended(unused, traced)
    assert "load_batch" in first.finding
    others = [GpuRank(blocked=("save_all", 30.0 if rank == 1 else 0.5, 1)) for rank in range(4)]
    gpu_job(traced / "traces/spool", others, steps=5, name="rank-{rank}.attempt-0.steps-10-15.json")
    collect(traced)
    assert "save_all" in ended(unused, traced).finding


def test_a_report_that_was_built_since_the_capture_is_used(traced: Path, unused: TraceAnalyses) -> None:
    report = build(traced, name="built-before")
    assert ended(unused, traced).finding == report.headline
    assert "built-before" in ended(unused, traced).page.read_text()


def test_an_older_report_in_the_run_folder_is_not_used(traced: Path, unused: TraceAnalyses) -> None:
    build(traced, name="built-before")
    os.utime(traced / "report/report.json", (0, 0))
    assert "built-before" not in ended(unused, traced).page.read_text()


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"timeout_s": 0.01}, "the analysis was stopped after 0.01 s"),
        ({"memory_bytes": 20 << 20}, "the analysis needs more than 20 MiB of memory"),
    ],
)
def test_an_analysis_that_exceeds_its_limits_is_ended_and_says_so(
    traced: Path, limits: dict[str, Any], error: str
) -> None:
    analyses = TraceAnalyses(**limits)
    try:
        assert ended(analyses, traced).error == error
    finally:
        analyses.close()


def test_an_analysis_that_raises_an_unexpected_error_ends_with_it(
    traced: Path, unused: TraceAnalyses, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise ImportError("no module named numpy")

    monkeypatch.setattr(TraceAnalyses, "_analyse", fail)
    assert ended(unused, traced).error == "the traces could not be analysed: no module named numpy"


def test_an_analysis_whose_modules_cannot_be_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "muster.tracing.report", None)
    monkeypatch.setattr(os, "nice", lambda _: None)
    with pytest.raises(SystemExit):
        analyses.analyse(tmp_path, "a", StoredCapture("trace", 0, 10, 15), tmp_path, 1 << 40)
    assert "import of muster.tracing.report halted" in (tmp_path / "error.txt").read_text()


def test_an_analysis_keeps_a_lower_limit_of_memory_that_the_user_has_set() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "from muster.dashboard.analyses import _limit_this_process; _limit_this_process(8 << 30)\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0] >> 30)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("4\n", "")


def test_traces_that_were_stored_just_now_are_not_analysed_yet(traced: Path) -> None:
    with serving(client(traced.parent), lambda: 0.0) as server:
        shown = words(get(server, "/jobs/default/a").text)
    assert "10 to 14 trace 4" in shown
    assert "analysed" not in shown


def test_traces_that_are_too_large_or_still_being_stored_are_listed_and_not_analysed(
    traced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.dashboard.pages.job.MAX_RAW_BYTES", 10)
    with serving(client(traced.parent), later) as server:
        assert "too large to analyse" in words(get(server, "/jobs/default/a").text)
        monkeypatch.undo()
        (traced / "traces/spool/rank-9.attempt-0.steps-10-15.json").touch()
    with serving(client(traced.parent), later) as server:
        shown = words(get(server, "/jobs/default/a").text)
        report = get(server, "/jobs/default/a/report")
    assert "1 not stored yet" in shown
    assert "analysed" not in shown
    assert report.status == 200
    assert "Its traces are being stored" in words(report.text)


def test_the_first_visit_of_a_report_begins_its_analysis_and_says_that_it_is_being_built(traced: Path) -> None:
    with serving(client(traced.parent), later) as server:
        first = get(server, "/jobs/default/a/report")
        until = time.monotonic() + 800
        while "Muster report" not in (last := get(server, "/jobs/default/a/report").text):
            assert time.monotonic() < until, "the report is not built"
            time.sleep(0.05)
    assert first.status == 200
    assert "The report is being built: the traces of steps 10 to 14 are being analysed." in words(first.text)
    assert 'data-events="/events/jobs/default/a/report"' in first.text
    assert '<noscript><meta http-equiv="refresh"' in first.text
    assert "because data loading blocks the host" in words(last)


def test_a_report_that_this_page_does_not_build_says_which_command_does(
    traced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.dashboard.pages.job.MAX_RAW_BYTES", 10)
    with serving(client(traced.parent), later) as server:
        report = get(server, "/jobs/default/a/report")
    assert report.status == 200
    assert "muster report a" in words(report.text)


def test_traces_that_were_never_stored_are_analysed_once_the_job_has_finished(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a", slow_rank=1)
    started = admitted("a")
    status = started.status.model_copy(update={"phase": "Failed", "started_at": NOW - 60, "finished_at": NOW})
    job = started.model_copy(update={"status": status})
    source = ReadStateClient(run_root=run.parent, state=leader(two_queues(job)))
    source.kept_jobs = {"a": job}
    with serving(source) as server:
        shown = words(analysed(server))
    assert "20 to 22 trace 0 2 not stored yet" in shown
    assert "Whole report" in shown


def test_the_report_of_a_job_without_traces_or_of_no_job_is_an_error_page(tmp_path: Path) -> None:
    with serving(client(tmp_path)) as server:
        found: list[Response] = [get(server, f"/jobs/default/{name}/report") for name in ("a", "absent")]
        page = words(get(server, "/jobs/default/a").text)
    assert [one.status for one in found] == [404, 404]
    assert "no report yet" in words(found[0].text)
    assert "The job has not started yet." in page


def test_of_a_run_in_a_store_the_page_says_where_it_is_and_which_command_reads_it() -> None:
    class InCluster(ReadStateClient):
        def run_dir(self, name: str, namespace: str = "default") -> None:  # type: ignore[override]
            return None

    source = InCluster(state=leader(two_queues(admitted("a"))))
    job = admitted("a")
    traces = TraceStatus(files=8, location="s3://bucket/muster/default/a-1")
    source.kept_jobs = {"a": job.model_copy(update={"status": job.status.model_copy(update={"traces": traces})})}
    with serving(source) as server:
        shown = words(get(server, "/jobs/default/a").text)
        report = get(server, "/jobs/default/a/report")
    assert report.status == 200
    assert "s3://bucket/muster/default/a-1" in words(report.text)
    assert "muster report a" in words(report.text)
    assert "8 traces in s3://bucket/muster/default/a-1 ." in shown
    assert "with the store's credentials in your environment" in shown


def test_hostile_names_in_traces_are_text_on_both_pages(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "a", slow_rank=1)
    for rank in (0, 1):
        trace = run / f"traces/spool/rank-{rank}.attempt-0.steps-20-23.json"
        trace.write_text(trace.read_text().replace("aten::mm", HOSTILE.replace('"', '\\"')))
    collect(run)
    with serving(client(run.parent), later) as server:
        pages = [analysed(server), get(server, "/jobs/default/a/report").text]
    for html in pages:
        assert "<script>alert" not in html
        assert "<img" not in html


def test_the_number_of_analyses_that_wait_and_of_results_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TraceAnalyses, "_analyse", lambda *_: "")
    found = TraceAnalyses(max_analyses=3)
    with found._turn:
        captures = [StoredCapture("trace", 0, step, step + 1) for step in range(5)]
        results = [found.get(tmp_path, "a", capture) for capture in captures]
        assert len(found._results) == 3
    while not all(one.done for one in results[:3]):
        time.sleep(0.01)
    assert found.get(tmp_path, "a", captures[4]) is not results[4]
    assert len(found._results) == 3
    assert [one.folder.exists() for one in results[:3]] == [False, True, True]
    found.close()
