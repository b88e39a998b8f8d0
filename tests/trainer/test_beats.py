"""Beats, metrics and events: whole at any moment, throttled, and never a reason to stop."""

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
    """Time that moves when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_beat_has_every_field_of_the_run_folder_page_and_unknown_ones_are_null(tmp_path: Path) -> None:
    Reporter(context(tmp_path), Clock()).write_heartbeat(BEAT)
    beat = json.loads((tmp_path / "heartbeats" / "rank-0.json").read_text())
    assert beat == {
        "rank": 0, "world_size": 2, "attempt": 1, "step": 7, "steps": None, "loss": None, "tokens_per_s": None,
        "step_time_s": None, "eta_s": None, "mfu": None, "peak_memory_bytes": None, "checkpoint_step": None,
        "checkpoint_at": None, "phase": "train", "at": 100.0,
    }  # fmt: skip


def test_a_metrics_line_has_every_field_of_the_run_folder_page(tmp_path: Path) -> None:
    Reporter(context(tmp_path), Clock()).write_metrics(StepMetrics(step=3, step_time_s=0.5, loss=2.5))
    (line,) = (tmp_path / "metrics" / "rank-0.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "step": 3, "attempt": 1, "at": 100.0, "step_time_s": 0.5, "data_time_s": None, "loss": 2.5, "lr": None,
        "grad_norm": None, "tokens": None, "tokens_per_s": None, "mfu": None, "memory_bytes": None,
        "trace_start_s": None, "trace_write_s": None,
    }  # fmt: skip


def test_beats_of_one_phase_are_at_least_a_second_apart_and_a_new_phase_is_told_at_once(tmp_path: Path) -> None:
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


def test_events_are_written_by_rank_0_and_said_by_every_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Reporter(context(tmp_path, rank=1)).record_event("odd", "something happened", step=3)
    assert not (tmp_path / "events.jsonl").exists()
    assert capsys.readouterr().err == "[rank 1] something happened\n"
    Reporter(context(tmp_path), Clock()).record_event("odd", "something happened", step=3)
    assert json.loads((tmp_path / "events.jsonl").read_text()) == {
        "at": 100.0, "attempt": 1, "step": 3, "kind": "odd", "message": "something happened",
    }  # fmt: skip


def test_a_disk_that_refuses_is_said_once_and_raises_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics").write_text("a file where the folder should be")
    reporter = Reporter(context(tmp_path))
    for step in range(3):
        reporter.write_metrics(StepMetrics(step=step, step_time_s=1.0))
    said = capsys.readouterr().err
    assert said.count("cannot write") == 1
    assert "training continues" in said


def test_the_context_names_a_variable_that_is_no_count() -> None:
    with pytest.raises(InputError, match="MUSTER_ATTEMPT must be an integer of at least 0; got 'first'"):
        run_context({"MUSTER_ATTEMPT": "first"})
    with pytest.raises(InputError, match="RANK must be less than WORLD_SIZE=2; got 2"):
        run_context({"RANK": "2", "WORLD_SIZE": "2"})


def test_the_run_folder_is_musters_then_the_users() -> None:
    assert run_context({"MUSTER_RUN_DIR": "/run"}, "/mine").run_dir == Path("/run")
    assert run_context({}, "/mine").run_dir == Path("/mine")
    alone = run_context({})
    assert (alone.run_dir, alone.world_size, alone.rank) == (Path.cwd() / "muster-run", 1, 0)


def test_a_fifo_that_nobody_reads_in_the_place_of_the_metrics_does_not_block_the_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics").mkdir()
    os.mkfifo(tmp_path / "metrics" / "rank-0.jsonl")
    Reporter(context(tmp_path), Clock()).write_metrics(StepMetrics(step=3, step_time_s=1.0))
    assert f"cannot write {tmp_path / 'metrics' / 'rank-0.jsonl'}" in capsys.readouterr().err
