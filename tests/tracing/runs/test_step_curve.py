"""The curve of a job: which of the steps in its metrics it has."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from muster.tracing.runs import step_curve
from muster.tracing.runs.step_curve import MAX_POINTS, read_step_curve
from muster.tracing.shared_folder import SharedFolder


def write(run: Path, *lines: object, end: str = "") -> SharedFolder:
    (run / "metrics").mkdir(exist_ok=True)
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (run / "metrics" / "rank-0.jsonl").write_text(text + end)
    return SharedFolder(run)


def test_each_step_has_its_loss_and_time_in_order(tmp_path: Path) -> None:
    run = write(tmp_path, {"step": 2, "loss": 4.5}, {"step": 1, "loss": 5, "step_time_s": 0.25}, {"step": 3})
    assert read_step_curve(run) == [(1, 5.0, 0.25), (2, 4.5, None), (3, None, None)]


def test_after_a_restart_the_steps_that_are_repeated_are_those_of_the_newest_attempt(tmp_path: Path) -> None:
    before = [{"step": step, "loss": 5, "attempt": 0} for step in range(1, 6)]
    restarted = {"step": 3, "loss": 4, "attempt": 1}
    late = {"step": 6, "loss": 5, "attempt": 0}  # of a process that was stopped late
    run = write(tmp_path, *before, restarted, late)
    assert read_step_curve(run) == [(1, 5.0, None), (2, 5.0, None), (3, 4.0, None)]


@pytest.mark.parametrize("count", [1, MAX_POINTS, MAX_POINTS + 1, 10_000])
def test_many_steps_are_thinned_out_evenly_and_keep_the_newest(tmp_path: Path, count: int) -> None:
    found = read_step_curve(write(tmp_path, *({"step": n, "loss": n} for n in range(1, count + 1))))
    assert found[-1][0] == count
    assert min(count, MAX_POINTS) / 2 < len(found) <= MAX_POINTS
    assert len({later[0] - earlier[0] for earlier, later in pairwise(found)}) <= 1


def test_lines_that_are_no_steps_and_one_that_is_being_written_are_left_out(tmp_path: Path) -> None:
    wrong = ["", "{", "[1]", '{"step": -1}', '{"step": "x"}', '{"loss": 1}', '{"step": 1, "loss": "x"}', "\x00"]
    run = write(tmp_path, *wrong, {"step": 7, "loss": 1e301}, end='{"step": 8, "lo')
    assert read_step_curve(run) == [(7, None, None)]


def test_of_a_large_file_the_last_whole_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_curve, "MAX_TAIL_BYTES", 100)
    run = write(tmp_path, *({"step": n} for n in range(1000, 1100)))
    assert [point[0] for point in read_step_curve(run)] == list(range(1094, 1100))


def test_without_metrics_there_are_no_points_and_a_link_is_not_followed(tmp_path: Path) -> None:
    assert read_step_curve(SharedFolder(tmp_path)) == []
    (tmp_path / "secret").write_text('{"step": 1, "loss": 3}\n')
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "rank-0.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        read_step_curve(SharedFolder(tmp_path))
