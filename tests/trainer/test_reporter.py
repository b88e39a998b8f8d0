"""Heartbeats, metrics and events: written atomically, at limited rate, and errors do not stop training."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from muster_components.trainer.context import RunContext, run_context
from muster_components.trainer.errors import InputError
from muster_components.trainer.reporter import RankHeartbeat, Reporter, StepMetrics

BEAT = RankHeartbeat(rank=0, world_size=2, attempt=1, step=7, loss=float("nan"), phase="train")


def context(run_dir: Path, rank: int = 0) -> RunContext:
    return RunContext(rank=rank, world_size=2, local_rank=rank, local_world_size=2, attempt=1, job="j", run_dir=run_dir)


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_heartbeat_has_all_documented_fields_and_unknown_ones_are_null(tmp_path: Path) -> None:
    Reporter(context(tmp_path), Clock()).write_heartbeat(BEAT)
    beat = json.loads((tmp_path / "heartbeats" / "rank-0.json").read_text())
    assert beat == {
        "rank": 0, "world_size": 2, "attempt": 1, "step": 7, "steps": None, "loss": None, "tokens_per_s": None,
        "step_time_s": None, "eta_s": None, "mfu": None, "peak_memory_bytes": None, "checkpoint_step": None,
        "checkpoint_at": None, "phase": "train", "at": 100.0,
    }  # fmt: skip


def test_a_metrics_line_has_all_documented_fields(tmp_path: Path) -> None:
    Reporter(context(tmp_path), Clock()).write_metrics(StepMetrics(step=3, step_time_s=0.5, loss=2.5))
    (line,) = (tmp_path / "metrics" / "rank-0.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "step": 3, "attempt": 1, "at": 100.0, "step_time_s": 0.5, "data_time_s": None, "loss": 2.5, "lr": None,
        "grad_norm": None, "tokens": None, "tokens_per_s": None, "mfu": None, "memory_bytes": None,
        "trace_start_s": None, "trace_write_s": None,
    }  # fmt: skip


def test_heartbeats_are_at_least_a_second_apart_except_for_a_new_phase(tmp_path: Path) -> None:
    clock = Clock()
    reporter = Reporter(context(tmp_path), clock)

    def told(beat: RankHeartbeat) -> int:
        reporter.write_heartbeat(beat)
        return int(json.loads((tmp_path / "heartbeats" / "rank-0.json").read_text())["step"])

    assert told(replace(BEAT, step=1)) == 1
    clock.now += 0.9
    assert told(replace(BEAT, step=2)) == 1
    assert told(replace(BEAT, step=3, phase="checkpoint")) == 3
    clock.now += 1.1
    assert told(replace(BEAT, step=4, phase="checkpoint")) == 4
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
        reporter.write_metrics(StepMetrics(step=step, step_time_s=1.0))
    said = capsys.readouterr().err
    assert said.count("cannot write") == 1
    assert "training continues" in said


def test_an_environment_variable_that_must_be_an_integer_is_named() -> None:
    with pytest.raises(InputError, match="MUSTER_ATTEMPT must be an integer of at least 0; got 'first'"):
        run_context({"MUSTER_ATTEMPT": "first"})
    with pytest.raises(InputError, match="RANK must be less than WORLD_SIZE=2; got 2"):
        run_context({"RANK": "2", "WORLD_SIZE": "2"})


def test_the_environment_variable_of_the_run_folder_takes_precedence_over_the_flag() -> None:
    assert run_context({"MUSTER_RUN_DIR": "/run"}, "/mine").run_dir == Path("/run")
    assert run_context({}, "/mine").run_dir == Path("/mine")
    alone = run_context({})
    assert (alone.run_dir, alone.world_size, alone.rank) == (Path.cwd() / "muster-run", 1, 0)


def test_a_fifo_without_reader_in_place_of_the_metrics_does_not_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics").mkdir()
    os.mkfifo(tmp_path / "metrics" / "rank-0.jsonl")
    Reporter(context(tmp_path), Clock()).write_metrics(StepMetrics(step=3, step_time_s=1.0))
    assert f"cannot write {tmp_path / 'metrics' / 'rank-0.jsonl'}" in capsys.readouterr().err
