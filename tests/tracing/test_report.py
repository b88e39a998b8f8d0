"""A run folder, whole or damaged, or a bare folder of traces, becomes a report: values, page, terminal."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.tracing.kineto import DATA, Event, step, trace_text, training_steps, write_trace

from muster.errors import InvalidTrace
from muster.tracing.collector import main as collect
from muster.tracing.report import Report, build, load, render_terminal

HOSTILE = '<script>alert("1")</script>&\'"><img src=x onerror=y> [bold]'


def metrics_line(number: int, **values: object) -> str:
    line = {"step": number, "attempt": 0, "at": 1.0, "step_time_s": 0.1, "loss": 5.0 - number / 16}
    return json.dumps({**line, "tokens_per_s": 1000.0, **values}) + "\n"


def run_folder(folder: Path, *, ranks: int = 2, steps: int = 40, slow_rank: int | None = None) -> Path:
    """What a job of `ranks` ranks leaves that traced steps 20 to 22; the slow rank computes longer, the others wait."""
    for name in ("metrics", "beats", "traces/spool"):
        (folder / name).mkdir(parents=True)
    for rank in range(ranks):
        lines = [metrics_line(i, step_time_s=2.0 if i == 0 else 0.1) for i in range(steps)]
        (folder / f"metrics/rank-{rank}.jsonl").write_text("".join(lines))
        beat = {
            "rank": rank,
            "world_size": ranks,
            "attempt": 0,
            "step": steps,
            "steps": steps,
            "peak_memory_bytes": 2**31,
        }
        (folder / f"beats/rank-{rank}.json").write_text(json.dumps(beat))
        compute_us, wait_us = (700, 100) if rank == slow_rank else (400, 400)
        events = training_steps(3, compute_us=compute_us, wait_us=wait_us)
        write_trace(
            folder / f"traces/spool/rank-{rank}.attempt-0.steps-20-23.json", events, rank=rank, world_size=ranks
        )
    return folder


def text_of(report: Report, **how: object) -> str:
    out = io.StringIO()
    render_terminal(report, Console(file=out, width=100, **how))  # type: ignore[arg-type]
    return out.getvalue()


def page_of(report: Report) -> str:
    assert report.page is not None
    return Path(report.page).read_text()


class Page(HTMLParser):
    """What a browser would see: tags, texts and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link", "img", "rect", "line", "path", "circle"):
            self.open.append(tag)
        loading = ("src", "href", "xlink:href")
        self.loads += [f"{name}={value}" for name, value in attrs if name in loading or name.startswith("on")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in ("rect", "path", "circle", "line"):
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_run_folder_gives_facts_sentences_page_and_json(tmp_path: Path) -> None:
    report = build(run_folder(tmp_path / "llama-8b", slow_rank=1))
    facts = report.facts
    assert (facts.name, facts.world_size, facts.steps, facts.attempts, facts.device) == ("llama-8b", 2, 40, 1, "CPU")
    assert (facts.loss_from, facts.loss_to) == (5.0, 2.5625)
    assert (facts.step_time_s, facts.tokens_per_s, facts.mfu, facts.peak_memory_bytes) == (0.1, 1000.0, None, 2**31)
    where = "55.0% computing, 25.0% waiting for communication, 12.0% outside of any operator (Python, or waiting)"
    least = "Rank 1 waits least for communication, 10.0% of the time"
    assert report.findings == (
        "The loss fell from 5.00 to 2.56 over 40 steps.",
        "Step 0 took 2.00 s, the median is 100 ms.",
        f"Of the traced time, averaged over ranks: {where} and 8.0% in the optimizer.",
        "Communication runs 30.0% of the time; computation hides 16.7% of it.",
        "Rank 0 waits 40.0% of the time for communication, 100% of that in gloo:all_reduce.",
        f"{least}: all else takes it 50.0% longer than it takes rank 0, so the others wait for it.",
        "Most operator time goes to aten::mm: 90.2%, in 6 calls of 550 µs.",
    )
    saved = json.loads((tmp_path / "llama-8b/report/report.json").read_text())
    assert saved["facts"]["loss_to"] == 2.5625
    assert saved["findings"] == list(report.findings)
    assert [row["label"] for row in saved["rows"]] == ["rank 0", "rank 1"]
    for wanted in ("Loss", "Step time per rank", "Time per kind of work", "Computation and communication in step 21"):
        assert wanted in page_of(report)


def test_the_page_loads_nothing_runs_nothing_and_is_well_formed(tmp_path: Path) -> None:
    text = page_of(build(run_folder(tmp_path / "run")))
    page = Page(text)
    assert page.open == []
    assert page.loads == []
    assert {"script", "link", "iframe", "object"}.isdisjoint(page.tags)
    assert re.search(r"url\(|@import|https?://", text) is None
    assert "prefers-color-scheme: dark" in text


def test_names_from_outside_are_text_and_nothing_else(tmp_path: Path) -> None:
    """The job, its operators, kernels, collectives, files and reasons may hold anything."""
    folder = run_folder(tmp_path / "run")
    events = [
        step(20, 0, 1000),
        Event(HOSTILE, 0, 500),
        Event("gloo:" + HOSTILE, 600, 300, "user_annotation", thread=2),
    ]
    write_trace(folder / "traces/spool/rank-0.attempt-0.steps-20-23.json", events, rank=0, world_size=2)
    kernels = [Event(HOSTILE, 0, 50, "kernel", stream=7, correlation=1)]
    write_trace(folder / "traces/spool/rank-1.attempt-0.steps-20-23.json", kernels, rank=1, world_size=2)
    (folder / "traces/spool/.tmp").mkdir()
    (folder / "traces/spool/.tmp/rank-2.<img>.json").write_text("x")
    report = build(folder, name=HOSTILE)
    page = Page(page_of(report))
    assert page.loads == []
    assert {"script", "img"}.isdisjoint(page.tags)
    assert page.open == []
    shown = "".join(page.texts)
    assert HOSTILE in shown
    assert "<img>" in shown
    assert "[bold]" in text_of(report)


def test_without_colour_no_escape_code_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = build(run_folder(tmp_path / "run"))
    assert "\x1b[3" in text_of(report, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in text_of(report, force_terminal=True)


def test_the_terminal_tells_the_same(tmp_path: Path) -> None:
    report = build(run_folder(tmp_path / "run", slow_rank=1))
    shown = " ".join(text_of(report).split())
    for sentence in report.findings:
        assert sentence in shown
    for wanted in ("40 steps", "loss 5.00 → 2.56", "rank 0", "11.1% hidden", "aten::mm", "▁"):
        assert wanted in shown


def test_collected_traces_and_those_still_in_the_spool_count_alike(tmp_path: Path) -> None:
    spooled = build(run_folder(tmp_path / "a"), tmp_path / "out-a")
    folder = run_folder(tmp_path / "b")
    collect(["--run-dir", str(folder), "--role", "trainer", "--index", "0", "--until-idle", "--ranks", "1"])
    collected = build(folder, tmp_path / "out-b")
    assert [row.trace.work_s for row in collected.rows] == [row.trace.work_s for row in spooled.rows]
    assert collected.rows[1].trace.source.endswith(".json.gz")


def test_damaged_traces_are_named_with_the_reason_and_the_rest_is_reported(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", ranks=4)
    spool = folder / "traces/spool"
    for rank, keep in ((1, 700), (2, 0)):
        path = spool / f"rank-{rank}.attempt-0.steps-20-23.json"
        path.write_bytes(path.read_bytes()[:keep])
    # Rank 1's is found by the collector, rank 2's by the report itself; rank 3's was never finished.
    collect(["--run-dir", str(folder), "--role", "trainer", "--index", "0", "--until-idle", "--ranks", "1"])
    (spool / "rank-3.attempt-0.steps-20-23.json").rename(spool / "rank-3.attempt-0.steps-20-23.json.tmp")
    report = build(folder)
    reasons = {s.file.rpartition("/")[2]: s.reason for s in report.skipped}
    assert set(reasons) == {f"rank-{rank}.attempt-0.steps-20-23.json" for rank in (1, 2, 3)}
    assert re.search(r"truncated.*byte \d+", reasons["rank-1.attempt-0.steps-20-23.json"])
    assert "is empty" in reasons["rank-2.attempt-0.steps-20-23.json"]
    assert "not finished" in reasons["rank-3.attempt-0.steps-20-23.json"]
    assert [row.label for row in report.rows] == ["rank 0"]
    assert "There are traces of 1 of 4 ranks; what is said of ranks is said of those." in report.findings
    assert all(file in page_of(report) for file in reasons)


def test_the_newest_attempt_and_window_is_analysed(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    for attempt, first in ((1, 20), (1, 30), (0, 90)):
        path = folder / f"traces/spool/rank-0.attempt-{attempt}.steps-{first}-{first + 3}.json"
        write_trace(path, training_steps(3, first=first), rank=0, world_size=2)
    report = build(folder)
    assert report.traced == (30, 33)
    assert [number for number, _ in report.rows[0].trace.steps] == [30, 31, 32]


def test_after_a_resume_the_line_of_the_highest_attempt_counts(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    with (folder / "metrics/rank-0.jsonl").open("a") as lines:
        lines.write(metrics_line(38, attempt=1, loss=1.0) + metrics_line(39, attempt=1, loss=1.0))
        lines.write(metrics_line(39, attempt=0, loss=9.0) + '{"step": 40, "att')
    report = build(folder)
    assert report.loss is not None
    assert (report.facts.steps, report.loss.values[-2:]) == (40, (1.0, 1.0))
    assert [(s.file, s.reason) for s in report.skipped] == [("metrics/rank-0.jsonl", "cannot be read: line 44")]


def test_a_run_without_traces_is_reported_by_its_metrics(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    for path in (folder / "traces/spool").iterdir():
        path.unlink()
    report = build(folder)
    assert report.rows == ()
    assert "Loss" in page_of(report)
    assert "Time per kind of work" not in page_of(report)


@pytest.mark.parametrize("left", [[], ["metrics/rank-0.jsonl"]])
def test_a_folder_with_nothing_to_report_on_is_refused_by_name(tmp_path: Path, left: Sequence[str]) -> None:
    for name in left:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    with pytest.raises(InvalidTrace, match="nothing to report on"):
        build(tmp_path)
    assert not (tmp_path / "report").exists()


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match="no such folder"):
        build(tmp_path / "nowhere")


def test_any_folder_of_profiler_traces_is_reported(tmp_path: Path) -> None:
    """As torch.profiler.tensorboard_trace_handler leaves them, other JSON files beside them."""
    write_trace(tmp_path / "logs/host_1.1700.pt.trace.json", training_steps(), rank=0, world_size=2)
    (tmp_path / "logs/host_2.1701.pt.trace.json.gz").write_bytes(
        gzip.compress(trace_text(training_steps(), rank=1, world_size=2))
    )
    (tmp_path / "config.json").write_text('{"lr": 1}')
    (tmp_path / "broken.json").write_bytes(trace_text(training_steps())[:300])
    for _ in range(2):  # the second time, the first report lies beside them
        report = build(tmp_path)
        assert [row.label for row in report.rows] == ["rank 0", "rank 1"]
        assert [s.file for s in report.skipped] == ["broken.json"]
        assert report.loss is None


@pytest.mark.parametrize(
    ("folder", "title"),
    [
        ("my-run", "my-run"),
        ("my-run/traces", "my-run/traces"),
        ("default-llama-8b-0a1b2c3d", "llama-8b"),
        ("team-a-llama-8b-0a1b2c3d", "team-a-llama-8b-0a1b2c3d"),
    ],
)
def test_a_folder_that_does_not_tell_its_job_gives_the_report_its_title(
    tmp_path: Path, folder: str, title: str
) -> None:
    where = tmp_path / folder
    where.mkdir(parents=True)
    write_trace(where / "some.json", training_steps())
    assert build(where, tmp_path / "out").facts.name == title


def test_traces_of_the_same_rank_are_told_apart_by_file(tmp_path: Path) -> None:
    for name in ("before", "after"):
        write_trace(tmp_path / f"{name}.json", training_steps(), rank=0)
    assert [row.label for row in build(tmp_path).rows] == ["rank 0 · after", "rank 0 · before"]


def test_a_single_trace_file_is_reported(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "one.json", training_steps(), rank=None)
    report = build(path)
    assert [row.label for row in report.rows] == ["one"]
    assert report.page == str(tmp_path / "report/report.html")


@pytest.mark.slow
def test_eight_ranks_of_a_large_trace_give_a_page_under_3_mb(tmp_path: Path) -> None:
    text = gzip.decompress((DATA / "control.json.gz").read_bytes())
    for rank in range(8):
        mine = text.replace(b'"rank": 3', b'"rank": %d' % rank, 1)
        (tmp_path / f"rank-{rank}.json.gz").write_bytes(gzip.compress(mine, 1))
    report = build(tmp_path)
    assert [row.label for row in report.rows] == [f"rank {rank}" for rank in range(8)]
    assert len(page_of(report).encode()) < 3_000_000
    assert {row.trace.hta.overlap_percent for row in report.rows if row.trace.hta} == {47.03}


def test_several_processes_find_the_same_as_one(tmp_path: Path) -> None:
    for name in ("simple_add.json.gz", "ns_resolution.pt.trace.json.gz"):
        (tmp_path / name).symlink_to(DATA / name)
    one, two = (build(tmp_path, tmp_path / f"report-{n}", workers=n) for n in (1, 2))
    assert [row.trace.work_s for row in one.rows] == [row.trace.work_s for row in two.rows]


names = st.sampled_from(["aten::mm", "ProfilerStep#1", "ProfilerStep#2", "gloo:all_reduce", "data", "nccl:x", ""])
categories = st.sampled_from(["cpu_op", "user_annotation", "kernel", "gpu_memcpy", "cuda_runtime", "cuda_sync", "else"])
any_event = st.builds(
    Event,
    names,
    st.integers(0, 50),
    st.integers(0, 20),
    categories,
    st.integers(1, 2),
    st.none() | st.integers(0, 2),
    st.none() | st.integers(0, 3),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(any_event, min_size=1, max_size=12))
def test_any_events_at_all_give_a_report_whose_parts_sum_up(tmp_path: Path, events: list[Event]) -> None:
    report = build(write_trace(tmp_path / "any.json", events))
    trace = report.rows[0].trace
    assert sum(trace.work_s.values()) == pytest.approx(trace.window_s)
    assert all(seconds >= 0 for seconds in trace.work_s.values())
    assert 0 <= trace.overlapped_s <= trace.communication_s + 1e-12
    assert Page(page_of(report)).open == []
    assert "any" in text_of(report)


def test_what_is_claimed_but_not_collected_counts_as_well(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    claimed = folder / "traces/claimed/trainer-1"
    claimed.mkdir(parents=True)
    (folder / "traces/spool/rank-1.attempt-0.steps-20-23.json").rename(claimed / "rank-1.attempt-0.steps-20-23.json")
    assert [row.label for row in build(folder).rows] == ["rank 0", "rank 1"]


def test_a_report_is_read_back_as_it_was_built(tmp_path: Path) -> None:
    built = build(run_folder(tmp_path))
    assert built.page is not None
    assert load(built.page) == built
    Path(built.page).with_name("report.json").write_text('{"facts": 1}')
    with pytest.raises(InvalidTrace, match="is no report of this version"):
        load(built.page)


def children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


@pytest.mark.slow
def test_processes_that_read_traces_end_with_the_one_that_was_killed(tmp_path: Path) -> None:
    """They read from pipes into which nobody writes, so that they are in the middle of it."""
    pipes = [tmp_path / f"rank-{rank}.json" for rank in range(2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    script = tmp_path / "read.py"
    script.write_text(
        "import pathlib, sys\n"
        "from muster.tracing.analysis import summarise_files\n"
        "if __name__ == '__main__':\n"
        "    summarise_files([pathlib.Path(name) for name in sys.argv[1:]], workers=2)\n"
    )
    reading = subprocess.Popen([sys.executable, str(script), *map(str, pipes)])
    left: list[psutil.Process] = []
    try:
        until = time.monotonic() + 30
        while len(workers := [p for p in children(reading.pid) if "spawn_main" in " ".join(p.cmdline())]) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(1.0)
        left = workers
        reading.kill()
        left = psutil.wait_procs(workers, timeout=20)[1]
        assert left == []
    finally:
        reading.kill()
        reading.wait()
        for process in left:
            process.kill()
