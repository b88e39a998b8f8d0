"""What programs report, from the line to the heartbeat and the metrics of their rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from muster_components.trainer.reports import MAX_READ_BYTES, Reported, ReportReader

from .conftest import Pod

Start = Callable[..., Pod]


def reader_of(path: Path, *lines: str) -> ReportReader:
    path.write_text("".join(line + "\n" for line in lines))
    return ReportReader(path)


def test_the_newest_value_of_each_field_counts(tmp_path: Path) -> None:
    reader = reader_of(
        tmp_path / "r.jsonl",
        '{"step": 10, "steps": 100, "loss": 3.5, "tokens": 4096, "at": 1000}',
        '{"step": 12, "at": 1001}',
        '{"step": 12, "checkpoint": "out/step-12", "at": 1003}',
        '{"step": 13, "loss": 2.5, "at": 1002}',
    )
    assert reader.read(2000.0)
    assert reader.newest == Reported(
        step=13, steps=100, loss=2.5, tokens=4096, checkpoint_step=12, checkpoint_at=1003.0, step_time_s=0.75
    )
    assert reader.take_losses() == {10: (3.5, 1000.0), 13: (2.5, 1002.0)}
    assert reader.take_losses() == {}
    assert not reader.read(2000.0)
    fields = reader.newest.heartbeat_fields(0.5)
    assert (fields["eta_s"], fields["tokens_per_s"]) == (43.5, 8192.0)


@pytest.mark.parametrize(
    "line",
    ["", "x", "[1]", "[" * 5000, '{"step": -1}', '{"step": true}', '{"step": 1e300}', '{"loss": "x"}', '{"loss": NaN}'],
)
def test_lines_and_values_that_are_not_valid_are_ignored(tmp_path: Path, line: str) -> None:
    reader = reader_of(tmp_path / "r.jsonl", line)
    reader.read(5.0)
    assert reader.newest == Reported()


def test_a_line_counts_once_it_has_ended_and_of_many_the_newest_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    reader = reader_of(path, *(f'{{"step": {step}}}' for step in range(MAX_READ_BYTES // 10)))
    with path.open("a") as file:
        file.write('{"step": 7')
        file.flush()
        assert reader.read(5.0)
        assert reader.newest.step == MAX_READ_BYTES // 10 - 1
        file.write("00000}\n")
    assert reader.read(6.0)
    assert reader.newest.step == 700_000


def test_a_large_file_is_replaced_by_the_newest_values_which_other_readers_and_writers_do_not_notice(
    tmp_path: Path,
) -> None:
    path = tmp_path / "r.jsonl"
    launcher = reader_of(path, '{"step": 40, "checkpoint": "out", "at": 900}')
    rank = ReportReader(path)
    with path.open("ab", buffering=0) as writer:  # as muster.report has it
        for step in range(50, 150):
            writer.write(f'{{"step": {step}, "steps": 1000, "loss": {step}, "at": {900 + step}}}\n'.encode())
        for reader in (launcher, rank):
            reader.read(2000.0)
            reader.take_losses()
        writer.write(b'{"step": 150, "at": 1050}\n')
        launcher.compact(1000)  # has not read it yet
        assert path.stat().st_size > 1000
        launcher.read(2000.0)
        launcher.compact(1000)
        assert path.stat().st_size < 300
        writer.write(b'{"step": 151, "loss": 1.5, "at": 1051}\n')
    for reader in (launcher, rank, late := ReportReader(path)):
        assert reader.read(2000.0)
        newest = reader.newest
        assert (newest.step, newest.steps, newest.checkpoint_step, newest.checkpoint_at) == (151, 1000, 40, 900)
        assert reader.take_losses() == {151: (1.5, 1051.0)}
    assert late.own_fields == {"step", "loss"}


def test_a_remaining_time_is_that_of_its_report(tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "r.jsonl", '{"step": 10, "steps": 20, "eta_s": 500, "at": 1000}')
    reader.read(2000.0)
    assert reader.newest.heartbeat_fields(2.0)["eta_s"] == 500
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"steps": 20, "at": 1001}\n{"loss": 1, "step": 10, "source": "tag"}\n')
        file.flush()
        reader.read(2000.0)
        assert reader.newest.heartbeat_fields(2.0)["eta_s"] == 500
        file.write('{"step": 15, "at": 1005}\n')
    reader.read(2000.0)
    assert reader.newest.heartbeat_fields(2.0)["eta_s"] == 10


def test_a_link_or_a_fifo_in_place_of_the_file_is_not_read(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("fifo", "link", "missing"):
        assert not ReportReader(tmp_path / name).read(5.0)


def test_a_program_of_any_language_reports_by_lines_of_json(start: Start, tmp_path: Path) -> None:
    pod = start(
        """
        import subprocess
        line = '{"step": %d, "steps": 50, "loss": 1.5, "checkpoint": "out", "at": 1000}' % (40 + rank)
        subprocess.run(["sh", "-c", 'echo "$0" >> "$MUSTER_REPORT_FILE"', line], check=True)
        while not os.path.exists("end"):
            time.sleep(0.05)
        """,
        "--nproc", "2", MUSTER_RUN_DIR=str(tmp_path / "run"), MUSTER_ATTEMPT="3",
    )  # fmt: skip
    for rank in range(2):
        file = tmp_path / "run" / "heartbeats" / f"rank-{rank}.json"
        pod.await_file(file)
        heartbeat = json.loads(file.read_text())
        assert (heartbeat["step"], heartbeat["steps"], heartbeat["loss"]) == (40 + rank, 50, 1.5)
        assert (heartbeat["rank"], heartbeat["world_size"], heartbeat["attempt"]) == (rank, 2, 3)
        assert (heartbeat["checkpoint_step"], heartbeat["phase"]) == (40 + rank, "train")
        metrics = tmp_path / "run" / "metrics" / f"rank-{rank}.jsonl"
        pod.await_file(metrics)
        while not metrics.read_text().endswith("\n"):  # made, and not written yet
            assert pod.process.poll() is None, pod.log_text()
        (line,) = metrics.read_text().splitlines()
        assert (json.loads(line)["step"], json.loads(line)["loss"], json.loads(line)["at"]) == (40 + rank, 1.5, 1000.0)
    (tmp_path / "end").touch()
    assert pod.end()[0] == 0


def test_a_program_reports_with_muster_report(start: Start, tmp_path: Path) -> None:
    pod = start(
        """
        import muster
        for step in range(1, 6):
            muster.report(step=step, steps=5, loss=1 / step)
        while not os.path.exists("end"):
            time.sleep(0.05)
        muster.report(step=5, checkpoint="out")
        """,
        MUSTER_RUN_DIR=str(tmp_path / "run"),
    )
    file = tmp_path / "run" / "heartbeats" / "rank-0.json"
    pod.await_file(file)
    assert json.loads(file.read_text())["steps"] == 5
    (tmp_path / "end").touch()
    assert pod.end()[0] == 0
    lines = (tmp_path / "run" / "reports" / "rank-0.attempt-0.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["checkpoint"] == "out"
