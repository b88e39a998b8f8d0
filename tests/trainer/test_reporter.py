"""Heartbeats, metrics, events and progress lines: written atomically, at limited rate; errors do not stop training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import text
from muster_components.trainer import reporter as reporting
from muster_components.trainer.__main__ import main
from muster_components.trainer.config import parse_trace_config
from muster_components.trainer.context import RunContext, require_run_dir, run_context
from muster_components.trainer.errors import EXIT_BAD_INPUT, InputError
from muster_components.trainer.pace import StepPace
from muster_components.trainer.reporter import (
    RankHeartbeat,
    Reporter,
    StepMetrics,
    TraceWindow,
    first_step_line,
    format_count,
    format_duration,
    print_line,
    progress_line,
)
from muster_components.trainer.reports import ReportReader

from .conftest import events

HEARTBEAT = RankHeartbeat(rank=0, world_size=2, attempt=1, step=7, loss=float("nan"), phase="train")


def context(run_dir: Path, rank: int = 0) -> RunContext:
    return RunContext(rank=rank, world_size=2, local_rank=rank, local_world_size=2, attempt=1, job="j", run_dir=run_dir)


def write_heartbeat(reporter: Reporter, heartbeat: RankHeartbeat) -> dict[str, Any]:
    """Returns the heartbeat that is in the run folder then."""
    reporter.write_heartbeat(heartbeat)
    reporter.flush()
    return dict(json.loads(reporter._context.heartbeat_path.read_text()))


def write_metrics(reporter: Reporter, *metrics: StepMetrics) -> None:
    for one in metrics:
        reporter.write_metrics(one)
    reporter.flush()


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_heartbeat_has_all_documented_fields_and_unknown_ones_are_null(tmp_path: Path) -> None:
    assert write_heartbeat(Reporter(context(tmp_path), Clock()), HEARTBEAT) == {
        "rank": 0, "world_size": 2, "attempt": 1, "step": 7, "steps": None, "loss": None, "tokens_per_s": None,
        "step_time_s": None, "eta_s": None, "mfu": None, "peak_memory_bytes": None, "checkpoint_step": None,
        "checkpoint_at": None, "stage": None, "time_slice": None, "phase": "train", "pace": None, "collectives": {},
        "collectives_per_step": None, "collective_bytes_per_step": None, "at": 100.0,
    }  # fmt: skip


def test_a_heartbeat_has_the_collectives_per_step_since_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, counts = Clock(), {"mesh_fsdp": 100, "default_pg": 4}
    monkeypatch.setattr("muster_components.trainer.reporter.collective_counts", lambda: dict(counts))
    reporter = Reporter(context(tmp_path), clock)

    def per_step(step: int, more: int) -> object:
        clock.now, counts["mesh_fsdp"] = clock.now + 2, counts["mesh_fsdp"] + more
        return write_heartbeat(reporter, replace(HEARTBEAT, step=step))["collectives_per_step"]

    assert per_step(7, 0) is None
    assert per_step(7, 5) is None  # in the same step
    assert per_step(11, 45) == 12.5
    assert per_step(11, 1) == 12.5
    assert per_step(12, 11) == 12


def test_a_heartbeat_has_the_bytes_of_collectives_per_step_read_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, counts, since = Clock(), {"mesh_fsdp": 100}, list[float]()
    monkeypatch.setattr("muster_components.trainer.reporter.collective_counts", lambda: dict(counts))

    def mean_bytes(at: float) -> float:
        since.append(at)
        return 1000.0 * len(since)

    monkeypatch.setattr("muster_components.trainer.reporter.mean_collective_bytes", mean_bytes)
    reporter = Reporter(context(tmp_path), clock)

    def bytes_per_step(step: int, seconds: float) -> object:
        clock.now, counts["mesh_fsdp"] = clock.now + seconds, 100 + 12 * step
        return write_heartbeat(reporter, replace(HEARTBEAT, step=step))["collective_bytes_per_step"]

    assert bytes_per_step(1, 2) is None
    assert bytes_per_step(2, 2) == 12_000
    assert bytes_per_step(3, 59) == 12_000
    assert bytes_per_step(4, 2) == 24_000
    assert since == [102.0, 163.0]


def test_a_metrics_line_has_all_documented_fields(tmp_path: Path) -> None:
    write_metrics(Reporter(context(tmp_path), Clock()), StepMetrics(step=3, step_time_s=0.5, loss=2.5))
    (line,) = (tmp_path / "metrics" / "rank-0.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "step": 3, "attempt": 1, "at": 100.0, "step_time_s": 0.5, "data_time_s": None, "loss": 2.5, "lr": None,
        "grad_norm": None, "tokens": None, "tokens_per_s": None, "mfu": None, "memory_bytes": None,
        "trace_start_s": None, "trace_write_s": None, "checkpoint_wait_s": None,
    }  # fmt: skip


def test_metrics_of_the_steps_between_two_heartbeats_are_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = list[int]()
    monkeypatch.setattr(reporting, "append_line", lambda path, lines: writes.append(lines.count(b"\n")))
    clock = Clock()
    reporter = Reporter(context(tmp_path), clock)
    for step in range(25):
        clock.now += 0.125
        reporter.write_metrics(StepMetrics(step=step, step_time_s=0.1))
        reporter.write_heartbeat(replace(HEARTBEAT, step=step))
    reporter.flush()
    assert writes == [1, 8, 8, 8]


def test_the_last_step_before_a_heartbeat_has_the_newest_loss_that_the_program_reported(tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    reports.write_text('{"step": 90, "loss": 3.5}\n{"step": 91, "loss": 2.5}\n')
    reporter = Reporter(context(tmp_path), Clock(), ReportReader(reports))
    write_metrics(reporter, *(StepMetrics(step=step, step_time_s=0.1) for step in (1, 2, 3)))
    write_metrics(reporter, StepMetrics(step=4, step_time_s=0.1))
    lines = (tmp_path / "metrics" / "rank-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [None, None, 2.5, None]


def test_a_heartbeat_is_written_while_the_training_thread_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = list[str]()
    monkeypatch.setattr(
        reporting, "replace_file", lambda path, content: writers.append(threading.current_thread().name)
    )
    reporter = Reporter(context(tmp_path), Clock())
    reporter.write_heartbeat(HEARTBEAT)
    reporter.flush()
    assert writers == ["muster-writes"]


def test_what_is_not_written_when_a_program_ends_is_written_then_also_in_a_forked_process(tmp_path: Path) -> None:
    source = """
import os, sys
from muster_components.trainer.context import run_context
from muster_components.trainer.reporter import RankHeartbeat, Reporter
reporter = Reporter(run_context({"MUSTER_RUN_DIR": sys.argv[1]}))
reporter.write_heartbeat(RankHeartbeat(rank=0, world_size=1, attempt=0, step=8))
child = os.fork()
if child == 0:
    reporter.write_heartbeat(RankHeartbeat(rank=0, world_size=1, attempt=0, step=9, phase="done"))
    sys.exit(0)
sys.exit(os.waitpid(child, 0)[1] or 3)
"""
    assert subprocess.run([sys.executable, "-c", source, str(tmp_path)], check=False).returncode == 3
    assert json.loads((tmp_path / "heartbeats" / "rank-0.json").read_text())["step"] == 9


def test_a_heartbeat_has_the_pace_of_the_last_10_steps_beside_those_before(tmp_path: Path) -> None:
    reporter = Reporter(context(tmp_path), Clock())
    for step in range(1, 91):
        reporter.write_metrics(StepMetrics(step=step, step_time_s=0.5 if step <= 80 else 0.75))
    assert write_heartbeat(reporter, HEARTBEAT)["pace"] == 1.5


def test_the_newest_step_is_compared_with_the_last_100_and_at_least_20() -> None:
    pace = StepPace()
    for _ in range(20):
        pace.add(0.5)
        assert (pace.newest(), pace.recent()) == (None, None)
    pace.add(1.0)
    assert pace.newest() == 2.0
    for _ in range(100):
        pace.add(1.0)
    assert pace.newest() == 1.0


def test_heartbeats_are_at_least_a_second_apart_except_for_a_new_phase(tmp_path: Path) -> None:
    clock = Clock()
    reporter = Reporter(context(tmp_path), clock)

    def written_step(heartbeat: RankHeartbeat) -> int:
        return int(write_heartbeat(reporter, heartbeat)["step"])

    assert written_step(replace(HEARTBEAT, step=1)) == 1
    clock.now += 0.9
    assert written_step(replace(HEARTBEAT, step=2)) == 1
    assert written_step(replace(HEARTBEAT, step=3, phase="checkpoint")) == 3
    clock.now += 1.1
    assert written_step(replace(HEARTBEAT, step=4, phase="checkpoint")) == 4
    assert [file.name for file in (tmp_path / "heartbeats").iterdir()] == ["rank-0.json"]


def test_events_are_written_by_rank_0_and_logged_by_every_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Reporter(context(tmp_path, rank=1)).record_event("odd", "something happened", step=3)
    assert not (tmp_path / "events.jsonl").exists()
    assert capsys.readouterr().err == "[rank 1] something happened\n"
    Reporter(context(tmp_path), Clock()).record_event("odd", "something happened", step=3)
    assert json.loads((tmp_path / "events.jsonl").read_text()) == {
        "at": 100.0, "attempt": 1, "step": 3, "kind": "odd", "message": "something happened",
    }  # fmt: skip


def test_a_disk_error_is_logged_once_and_does_not_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics").write_text("a file where the folder should be")
    reporter = Reporter(context(tmp_path))
    for step in range(3):
        write_metrics(reporter, StepMetrics(step=step, step_time_s=1.0))
    log_text = capsys.readouterr().err
    assert log_text.count("cannot write") == 1
    assert "training continues" in log_text


def test_an_environment_variable_that_must_be_an_integer_is_named() -> None:
    with pytest.raises(InputError, match="MUSTER_ATTEMPT must be an integer of at least 0; got 'first'"):
        run_context({"MUSTER_ATTEMPT": "first"})
    with pytest.raises(InputError, match="MUSTER_ATTEMPT must be an integer of at least 0; got '999"):
        run_context({"MUSTER_ATTEMPT": "9" * 5000})
    with pytest.raises(InputError, match="RANK must be less than WORLD_SIZE=2; got 2"):
        run_context({"RANK": "2", "WORLD_SIZE": "2"})


def test_the_environment_variable_of_the_run_folder_takes_precedence_over_the_flag() -> None:
    assert run_context({"MUSTER_RUN_DIR": "/run"}, "/mine").run_dir == Path("/run")
    assert run_context({}, "/mine").run_dir == Path("/mine")
    alone = run_context({})
    assert (alone.run_dir, alone.world_size, alone.rank) == (Path.cwd() / "muster-run", 1, 0)


@pytest.mark.parametrize(("folder", "problem"), [("file", "File exists"), ("file/run", "Not a directory")])
def test_a_run_folder_that_cannot_be_written_ends_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str, problem: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MUSTER_RUN_DIR", str(tmp_path / folder))
    assert main(["--model", "gpt:1m", "--data", str(tmp_path)]) == EXIT_BAD_INPUT
    assert f"must be a folder that can be written; got {tmp_path / folder}: {problem}" in capsys.readouterr().err


def test_the_run_folder_is_created(tmp_path: Path) -> None:
    require_run_dir(tmp_path / "new" / "run")
    require_run_dir(tmp_path / "new" / "run")
    assert (tmp_path / "new" / "run").is_dir()


def test_a_fifo_without_reader_in_place_of_the_metrics_does_not_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics").mkdir()
    os.mkfifo(tmp_path / "metrics" / "rank-0.jsonl")
    write_metrics(Reporter(context(tmp_path), Clock()), StepMetrics(step=3, step_time_s=1.0))
    assert f"cannot write {tmp_path / 'metrics' / 'rank-0.jsonl'}" in capsys.readouterr().err


def test_a_link_in_place_of_the_metrics_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "other").write_text("unchanged")
    (tmp_path / "metrics" / "rank-0.jsonl").symlink_to(tmp_path / "other")
    write_metrics(Reporter(context(tmp_path), Clock()), StepMetrics(step=3, step_time_s=1.0))
    assert f"cannot write {tmp_path / 'metrics' / 'rank-0.jsonl'}" in capsys.readouterr().err
    assert (tmp_path / "other").read_text() == "unchanged"


def test_control_characters_and_invalid_file_names_are_printed_escaped(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = "café\n\x1b]52;c;\udcff"
    print_line(text)
    Reporter(context(tmp_path), Clock()).log(text)
    expected = "café\n\\x1b]52;c;\\udcff\n".encode()
    assert tuple(capsysbinary.readouterr()) == (expected, expected)


# ---- planned and missed traces


def window(folder: Path, steps: str, ranks: str = "", rank: int = 0) -> TraceWindow:
    context = run_context({"MUSTER_RUN_DIR": str(folder), "RANK": str(rank), "WORLD_SIZE": "4"})
    return TraceWindow(parse_trace_config(steps, ranks), context, Reporter(context))


def kinds(folder: Path) -> list[str]:
    return [kind for kind in ("trace_planned", "trace_missed") for _ in events(folder, kind)]


@pytest.mark.parametrize(
    ("steps", "ranks", "first", "last", "done", "expected"),
    [
        ("20:25", "", 1, 60, 60, ["trace_planned"]),
        ("20:25", "3", 1, 60, 22, ["trace_planned"]),
        ("58:65", "", 1, 60, 60, ["trace_planned"]),
        ("20:25", "", 22, 60, 60, ["trace_planned"]),
        ("200:205", "", 1, 60, 60, ["trace_missed"]),
        ("200:205", "3", 1, 60, 60, ["trace_missed"]),
        ("20:25", "", 1, 60, 12, ["trace_planned", "trace_missed"]),
        ("200:205", "", 2, None, 60, ["trace_planned", "trace_missed"]),
        ("5:8", "", 2, None, 0, ["trace_planned", "trace_missed"]),
        ("1:2", "", 2, None, 60, ["trace_missed"]),
        ("20:25", "", 31, 60, 60, ["trace_missed"]),
        ("20:25", "4,5", 1, 60, 60, ["trace_missed"]),
        ("", "", 1, 60, 60, []),
    ],
)
def test_planned_and_missed_steps_are_recorded_once(
    tmp_path: Path, steps: str, ranks: str, first: int, last: int | None, done: int, expected: list[str]
) -> None:
    of_run = window(tmp_path, steps, ranks)
    of_run.announce(first, last)
    assert kinds(tmp_path) == expected[:1]
    of_run.finish(first, done, last)
    assert kinds(tmp_path) == expected
    assert all(steps in event["message"] for kind in expected for event in events(tmp_path, kind))


def test_other_ranks_record_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = window(tmp_path, "200:205", rank=3)
    other.announce(1, 60)
    other.finish(1, 60, 60)
    assert (kinds(tmp_path), capsys.readouterr().err) == ([], "")


# ---- progress lines


def test_progress_on_a_cpu() -> None:
    line = progress_line(step=20, steps=60, loss=2.312, speed="12,345 tok/s", step_time_s=0.52, eta_s=20.8)
    assert line == "step 20/60  loss 2.31  12,345 tok/s  0.52 s/step  ETA 21s"
    line = progress_line(
        step=20, steps=60, loss=2.312, speed="12,345 tok/s", step_time_s=0.52, eta_s=20.8, run_speed="9,876 tok/s"
    )
    assert line == "step 20/60  loss 2.31  12,345 tok/s  0.52 s/step  run 9,876 tok/s  ETA 21s"


def test_progress_on_a_gpu_names_mfu_and_memory() -> None:
    line = progress_line(
        step=1,
        steps=2,
        loss=2,
        speed="1,000,000 tok/s",
        step_time_s=0.0316,
        eta_s=4000,
        mfu=0.488,
        peak_memory_bytes=54 * 10**9,
    )
    assert line == "step 1/2  loss 2.00  1,000,000 tok/s  31.6 ms/step  ETA 1h06m  MFU 48.8%  peak 50.3 GiB"


def test_the_line_of_the_first_step_has_no_speed() -> None:
    assert first_step_line(step=1, steps=60, loss=5.6, step_time_s=26.73) == "step 1/60  loss 5.60  first step 26.7 s"


@given(st.floats(-10, 1e8))
def test_durations_are_formatted_as_by_the_command_line(seconds: float) -> None:
    assert format_duration(seconds) == text.format_duration(seconds)


def test_durations_and_counts() -> None:
    assert [format_duration(s) for s in (-1, 0.6, 59.5, 3599, 3600)] == ["0s", "1s", "1m00s", "59m59s", "1h00m"]
    assert [format_count(n) for n in (512, 857_216, 10_800_000, 8_030_000_000)] == ["512", "857k", "10.8M", "8.03B"]
