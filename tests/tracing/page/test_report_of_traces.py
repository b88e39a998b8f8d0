"""Bare traces, a folder of them or some, become a report."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tracing.kineto import DATA, Event, trace_text, training_steps, write_trace
from tests.tracing.run_folders import Page, page_of, text_of

from muster.errors import InvalidTrace
from muster.tracing.report import build, load


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
        assert [row.label for row in report.traces] == ["rank 0", "rank 1"]
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
def test_without_a_job_name_the_folders_name_is_the_title(tmp_path: Path, folder: str, title: str) -> None:
    where = tmp_path / folder
    where.mkdir(parents=True)
    write_trace(where / "some.json", training_steps())
    assert build(where, tmp_path / "out").summary.name == title


def test_traces_of_the_same_rank_are_labelled_with_their_files(tmp_path: Path) -> None:
    for name, wait_us in (("before", 200), ("after", 210)):
        write_trace(tmp_path / f"{name}.json", training_steps(wait_us=wait_us), rank=0)
    assert [row.label for row in build(tmp_path).traces] == ["rank 0 · after", "rank 0 · before"]


def test_of_several_windows_in_one_folder_the_newest_is_analysed_and_the_others_are_named(tmp_path: Path) -> None:
    for rank, attempt, first, end in [(0, 0, 20, 23), (1, 0, 20, 23), (0, 0, 40, 43), (1, 0, 40, 43), (0, 1, 20, 23)]:
        name = f"rank-{rank}.attempt-{attempt}.steps-{first}-{end}.json"
        write_trace(tmp_path / name, training_steps(first=first), rank=rank, world_size=2)
    (tmp_path / "rank-0.attempt-1.steps-20-23.json").unlink()
    report = build(tmp_path)
    assert [row.label for row in report.traces] == ["rank 0", "rank 1"]
    assert [step.step for step in report.traces[0].trace.steps] == [40, 41, 42]
    newest = "steps 40 to 42 (rank-0.attempt-0.steps-40-43.json and 1 other file), is analysed"
    other = "not steps 20 to 22 (rank-0.attempt-0.steps-20-23.json and 1 other file)."
    assert f"These are 2 captures: the newest, {newest}; {other}" in report.notes


def test_files_of_one_name_in_different_folders_are_labelled_with_their_folders(tmp_path: Path) -> None:
    name = "rank-0.attempt-0.steps-20-25.json"
    for folder, wait_us in (("a", 200), ("b", 210)):
        write_trace(tmp_path / folder / name, training_steps(wait_us=wait_us), rank=0)
    assert [row.label for row in build(tmp_path).traces] == [f"rank 0 · a/{name}", f"rank 0 · b/{name}"]


def test_a_single_trace_has_its_own_page(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "one.json", training_steps(), rank=None)
    of_folder, report = build(tmp_path), build(path)
    assert [row.label for row in report.traces] == ["one"]
    assert report.page == str(tmp_path / "report/report-of-one.html")
    assert load(report.page) == report
    assert of_folder.page == str(tmp_path / "report/report.html")
    assert load(of_folder.page) == of_folder


def test_each_set_of_traces_has_its_own_page(tmp_path: Path) -> None:
    traces = [write_trace(tmp_path / f"{rank}.json", training_steps(), rank=rank, world_size=3) for rank in range(3)]
    pages = [build(some).page for some in (traces[:2], traces[1:], traces[:2], traces[1::-1], tmp_path)]
    assert pages[0] == pages[2] == pages[3]
    assert len(set(pages)) == 3
    assert [row.label for row in load(str(pages[0])).traces] == ["rank 0", "rank 1"]
    assert re.fullmatch(r"report-of-2-traces-[0-9a-f]{8}\.html", Path(str(pages[0])).name)


def test_a_trace_with_the_longest_possible_name_has_a_page(tmp_path: Path) -> None:
    path = write_trace(tmp_path / f"{'ä' * 125}.json", training_steps())
    assert Path(str(build(path).page)).is_file()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("folder", "must contain a trace"),
        ("missing.json", "no such file or folder"),
        ("pipe", "must be a file or a folder; a pipe is read as -"),
        ("*.txt", "no file matches"),
    ],
)
def test_an_invalid_path_among_traces_is_rejected_before_anything_is_written(
    tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidTrace, match=f"{re.escape(name)}: {problem}"):
        build([write_trace(tmp_path / "one.json", training_steps()), tmp_path / name])
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
def test_the_page_of_eight_large_traces_is_below_3_mb(tmp_path: Path) -> None:
    text = gzip.decompress((DATA / "control.json.gz").read_bytes())
    for rank in range(8):
        mine = text.replace(b'"rank": 3', b'"rank": %d' % rank, 1)
        (tmp_path / f"rank-{rank}.json.gz").write_bytes(gzip.compress(mine, 1))
    report = build(tmp_path)
    assert [row.label for row in report.traces] == [f"rank {rank}" for rank in range(8)]
    assert len(page_of(report).encode()) < 3_000_000
    assert {row.trace.hta.overlap_percent for row in report.traces if row.trace.hta} == {47.03}


@pytest.mark.slow
def test_several_processes_give_the_same_report_as_one(tmp_path: Path) -> None:
    for name in ("simple_add.json.gz", "ns_resolution.pt.trace.json.gz"):
        (tmp_path / name).symlink_to(DATA / name)
    one, two = (build(tmp_path, tmp_path / f"report-{n}", workers=n) for n in (1, 2))
    assert [row.trace.time_by_category_s for row in one.traces] == [row.trace.time_by_category_s for row in two.traces]


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(any_event, min_size=1, max_size=12))
def test_any_events_give_a_report_whose_parts_sum_to_the_window(tmp_path: Path, events: list[Event]) -> None:
    report = build(write_trace(tmp_path / "any.json", events))
    trace = report.traces[0].trace
    assert sum(trace.time_by_category_s.values()) == pytest.approx(trace.window_s)
    assert all(seconds >= 0 for seconds in trace.time_by_category_s.values())
    assert 0 <= trace.overlapped_s <= trace.communication_s + 1e-12
    assert Page(page_of(report)).open == []
    assert "any" in text_of(report)


def children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def opened_for_reading(pipe: Path, until: float) -> int:
    """The write end of a pipe, once a reader has opened it."""
    while True:
        with suppress(OSError):
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        assert time.monotonic() < until, f"no process reads {pipe}"
        time.sleep(0.02)


@pytest.mark.slow
def test_reader_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """The workers read from pipes without data, so that they cannot finish."""
    pipes = [tmp_path / f"rank-{rank}.json" for rank in range(2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    script = tmp_path / "read.py"
    script.write_text(
        "import pathlib, sys\n"
        "from muster.tracing.analysis import trace_summary as analysis\n"
        "analysis.read_trace = lambda path, limits: path.read_bytes()\n"  # in each process; the real one refuses pipes
        "if __name__ == '__main__':\n"
        "    analysis.summarise_trace_files([pathlib.Path(name) for name in sys.argv[1:]], workers=2)\n"
    )
    reading = subprocess.Popen([sys.executable, str(script), *map(str, pipes)])
    left: list[psutil.Process] = []
    writing: list[int] = []
    try:
        for pipe in pipes:
            writing.append(opened_for_reading(pipe, time.monotonic() + 300))
        left = workers = [p for p in children(reading.pid) if "spawn_main" in " ".join(p.cmdline())]
        assert len(workers) == len(writing)
        reading.kill()
        left = psutil.wait_procs(workers, timeout=300)[1]
        assert left == []
    finally:
        reading.kill()
        reading.wait()
        for process in left:
            process.kill()
        for pipe_end in writing:
            os.close(pipe_end)
