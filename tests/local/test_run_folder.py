"""Logs and heartbeats as read from a run folder."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.local.support import has, shell_job

from muster.api import spec
from muster.client import check_replica
from muster.errors import NotFound, Refused
from muster.local import run_folder
from muster.local.pod_folder import LogSize, PodFolder
from muster.local.run_folder import (
    TAIL_BYTES,
    HeartbeatReader,
    byte_range,
    check_attempt,
    has_log,
    is_complete,
    newest_attempt,
    newest_log_attempts,
    rank_heartbeats,
    read_lines,
    tail,
    tail_offset,
    whole_lines,
)

NOW = 1000.0

DEEP = "[" * 20_000 + "]" * 20_000

# "earl\n", "mid\n", "late\n"; each size was read within a second from the first time.
TIMES = [LogSize(at, at + 1.0, size) for at, size in ((10.0, 5), (18.0, 5), (20.0, 9), (28.0, 9), (30.0, 14))]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [(None, None, (0, None)), (15.0, None, (5, None)), (25.0, None, (9, None)), (40.0, None, (14, None)),
     (20.5, None, (5, None)),
     (None, 5.0, (0, 5)), (None, 15.0, (0, 5)), (None, 25.0, (0, 9)), (None, 20.5, (0, 9)), (15.0, 25.0, (5, 9)),
     (0.0, 99.0, (0, None))],
)  # fmt: skip
def test_times_are_converted_to_offsets_in_a_log(
    since: float | None, until: float | None, expected: tuple[int, int | None]
) -> None:
    assert byte_range(TIMES, since, until) == expected


def test_a_clock_that_was_set_back_or_forward_leaves_out_no_line() -> None:
    back = [LogSize(at, at, size) for at, size in ((10.0, 1), (20.0, 2), (5.0, 3), (15.0, 4), (25.0, 5))]
    assert byte_range(back, 12.0, None) == (1, None)
    assert byte_range(back, 22.0, None) == (4, None)
    assert byte_range(back, None, 12.0) == (0, 4)
    assert byte_range(back, None, 30.0) == (0, None)
    forward = [LogSize(at, at, size) for at, size in ((10.0, 1), (900.0, 2), (11.0, 3), (20.0, 4))]
    assert byte_range(forward, None, 15.0) == (0, 4)


def test_a_byte_range_is_extended_to_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\nthree")
    assert whole_lines(log, 0, None) == (0, None)
    assert whole_lines(log, 4, 8) == (4, 8)
    assert whole_lines(log, 6, 9) == (4, 13)
    assert whole_lines(log, 2, 5) == (0, 8)
    assert whole_lines(log, 10, None) == (8, None)
    assert whole_lines(log, 99, 99) == (99, 99), "the log was truncated"
    assert whole_lines(tmp_path / "missing", 6, 9) == (6, 9)


def test_a_followed_log_is_extended_to_the_beginning_of_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\nepoch 7 lo")
    assert whole_lines(log, 14, None, follow=True) == (4, None)
    assert whole_lines(log, 99, None, follow=True) == (99, None), "the log was truncated"


@pytest.mark.parametrize(("begin", "end"), [(6, 6), (13, 13), (13, None)])
def test_an_empty_byte_range_has_no_line(tmp_path: Path, begin: int, end: int | None) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\nthree")
    assert list(read_lines(log, *whole_lines(log, begin, end), None)) == []


def test_a_progress_bar_without_newlines_is_not_extended_to_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"start\n" + b"\r50%" * 100_000 + b"\nend\n")
    assert whole_lines(log, 200_000, 300_000) == (200_000, 300_000)
    assert whole_lines(log, 390_000, 395_000) == (390_000, 400_007)


def test_a_byte_range_in_the_dropped_part_of_a_log_stays_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.seek(2**20)
        file.write(b"first\nsecond\n")
    assert whole_lines(log, 1000, 2000) == (1000, 2000)
    assert whole_lines(log, 2**20 + 2, 2**20 + 8) == (2**20, 2**20 + 13)


def test_a_follower_at_the_end_of_a_line_shows_no_empty_line_for_a_dropped_part(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n")

    def drop_and_end() -> bool:
        with log.open("wb") as file:
            file.seek(2**20)
            file.write(b"last\n")
        return True

    assert list(read_lines(log, 0, None, drop_and_end)) == ["first", "last"]


def test_truncated_times_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "times").write_text(
        "10.000 10.25 5\n17.5\n17.5 17.75\n18.0 18.0 x\n19.0 19.25 519.000 19.5 5\n19.00019.5 19.75 5\n"
        "19.5 1919.0 19.5 5\n1919.5 19.75 5\n20.000 20.0 9\n21.000 21.5 1"
    )
    assert PodFolder(tmp_path).log_sizes() == [LogSize(10.0, 10.25, 5), LogSize(20.0, 20.0, 9)]


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ('{"exit_code": 42, "failed_at": 5.0}', (42, 5.0)),
        ('{"exit_code": 42}', None),
        ('{"exit_code": 0, "failed_at": 5.0}', None),
        ('{"exit_code": true, "failed_at": 5.0}', None),
        ('{"exit_code": 1000000000000000000000, "failed_at": 5.0}', None),
        ('{"exit_code": 42, "failed_at": 1e999}', None),
        ('{"exit_code": 42, "failed_at": 5.0, "odd": ' + DEEP + "}", None),
        ('[42, 5.0]', None),
        ("no JSON", None),
    ],
)  # fmt: skip
def test_a_recorded_failure_needs_a_valid_exit_code_and_time(
    tmp_path: Path, text: str, failure: tuple[int, float] | None
) -> None:
    (tmp_path / "failure.json").write_text(text)
    assert PodFolder(tmp_path).first_rank_failure() == failure


def test_lines_of_a_byte_range_are_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\ntw\xff\nthree")
    assert list(read_lines(tmp_path / "log", 0, None, None)) == ["one", "tw�", "three"]
    assert list(read_lines(tmp_path / "log", 4, 8, None)) == ["tw�"]
    assert list(read_lines(tmp_path / "missing", 0, None, None)) == []


@pytest.mark.parametrize("text", [b"", b"one", b"one\n", b"one\ntwo\n", b"one\ntwo\n\n\nfive", b"\n\n\n", b"ab\n" * 9])
@pytest.mark.parametrize("block", [1, 2, 3, 2**18])
def test_the_last_lines_are_the_end_of_all_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, block: int
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"excluded\n" + text + b"excluded")
    begin, end = len(b"excluded\n"), len(b"excluded\n") + len(text)
    monkeypatch.setattr("muster.local.run_folder._BLOCK_BYTES", block)
    everything = list(read_lines(log, begin, end, None))
    for count in range(len(everything) + 2):
        last = list(read_lines(log, tail_offset(log, begin, end, count), end, None))
        assert last == everything[max(0, len(everything) - count) :]


def test_the_last_lines_after_an_offset_that_a_truncated_log_no_longer_has(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\n")
    assert list(read_lines(log, tail_offset(log, 1000, None, 1), None, None)) == ["two"]
    assert list(read_lines(log, tail_offset(log, 1000, None, 0), None, None)) == []


def test_a_missing_log_has_no_last_lines(tmp_path: Path) -> None:
    assert tail_offset(tmp_path / "missing", 0, None, 5) == 0


def test_a_long_log_is_read_completely_in_blocks(tmp_path: Path) -> None:
    log, line = tmp_path / "log", "x" * 1022
    log.write_text(f"{line}\n" * 16_384)  # 16 MiB, and no block ends with a line
    tracemalloc.start()
    try:
        count = sum(1 for one in read_lines(log, 0, None, None) if one == line)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 16_384
    assert peak < 4 * 2**20
    assert sum(len(one) + 1 for one in read_lines(log, 1023, 1023 * 10_001, None)) == 1023 * 10_000


def test_a_followed_log_includes_what_is_written_before_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    calls: list[int] = []

    def ended() -> bool:
        calls.append(len(calls))
        with log.open("a") as file:
            file.write(f"{calls[-1]}\n")
        return len(calls) == 3

    assert list(read_lines(log, 0, None, ended)) == ["0", "1", "2"]


def test_the_tail_begins_with_a_whole_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(2000)))
    text = tail(tmp_path / "log")
    assert len(text) <= TAIL_BYTES
    assert text.endswith("line 1999\n")
    assert all(line.startswith("line ") for line in text.splitlines())
    assert tail(tmp_path / "missing") == ""


def write_json(run_dir: Path, name: str, content: dict[str, Any]) -> None:
    path = run_dir / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.with_suffix(".tmp").write_text(json.dumps(content))
    path.with_suffix(".tmp").replace(path)


def test_a_heartbeat_is_parsed_only_if_it_changed_and_has_the_time_of_its_last_step(tmp_path: Path) -> None:
    reader = HeartbeatReader()
    assert reader.read([("u", tmp_path)], NOW) == {}
    write_json(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "at": 100.0, "step": 3})
    first = reader.read([("u", tmp_path)], NOW)["u"]
    assert (first.at, first.step, first.step_changed_at, first.checkpoint_step) == (100.0, 3, 100.0, None)
    assert reader.read([("u", tmp_path)], NOW)["u"] is first
    write_json(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "at": 130.0, "step": 3})
    assert reader.read([("u", tmp_path)], NOW)["u"].step_changed_at == 100.0
    write_json(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "at": 140.0, "step": 4})
    write_json(tmp_path, "checkpoints/latest", {"step": 2, "at": 90.0, "attempt": 0, "path": "x"})
    last = reader.read([("u", tmp_path)], NOW)["u"]
    assert (last.step_changed_at, last.checkpoint_step, last.checkpoint_at) == (140.0, 2, 90.0)


def test_a_heartbeat_that_is_not_json_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "heartbeats").mkdir()
    (tmp_path / "heartbeats" / "rank-0.json").write_text('{"rank": 0, "at"')
    assert HeartbeatReader().read([("u", tmp_path)], NOW) == {}
    write_json(tmp_path, "heartbeats/rank-1.json", {"rank": 1, "step": 5})
    assert rank_heartbeats(tmp_path) == [{"rank": 1, "step": 5}]


@pytest.mark.parametrize("name", ["heartbeats/rank-0.json", "checkpoints/latest"])
@pytest.mark.parametrize("text", ['{"at": 100.0, "odd": ' + DEEP + "}", " " * 100_000, "1" * 5000, None])
def test_an_invalid_file_of_a_user_is_ignored(tmp_path: Path, name: str, text: str | None) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    if text is None:
        os.mkfifo(path)  # without a writer
    else:
        path.write_text(text)
    assert HeartbeatReader().read([("u", tmp_path)], NOW) == {}
    assert rank_heartbeats(tmp_path) == []


@pytest.mark.parametrize("at", [1.7e12, 1e200, -1.0, "soon", True])
def test_a_time_out_of_range_is_unknown(tmp_path: Path, at: object) -> None:
    write_json(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "at": 100.0, "step": 3})
    write_json(tmp_path, "checkpoints/latest", {"step": 2, "at": at})
    heartbeat = HeartbeatReader().read([("u", tmp_path)], NOW)["u"]
    assert (heartbeat.at, heartbeat.step, heartbeat.checkpoint_step, heartbeat.checkpoint_at) == (100.0, 3, 2, None)


def test_an_invalid_number_of_a_heartbeat_is_unknown(tmp_path: Path) -> None:
    fields = {"rank": 0, "attempt": "0", "step": 4, "loss": "0.5", "mfu": None, "at": float("-inf"), "phase": "train"}
    write_json(tmp_path, "heartbeats/rank-0.json", {**fields, "host": "n1", "collectives": {"pp": 3, "tp": "x"}})
    unknown = dict.fromkeys(("attempt", "loss", "mfu", "at"))
    known = {"rank": 0, "step": 4, "phase": "train", "host": "n1", "collectives": {"pp": 3}}
    assert rank_heartbeats(tmp_path) == [known | unknown]


@pytest.mark.parametrize("step", [-1, 1e300, "three", None])
def test_an_invalid_step_is_unknown(tmp_path: Path, step: object) -> None:
    write_json(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "at": 100.0, "step": step, "steps": step})
    heartbeat = HeartbeatReader().read([("u", tmp_path)], NOW)["u"]
    assert (heartbeat.step, heartbeat.total_steps) == (0, None)


def job(attempt: int, phase: str) -> spec.TrainingJob:
    status = spec.TrainingJobStatus.model_validate({"attempt": attempt, "phase": phase})
    return shell_job("a", "true").model_copy(update={"status": status})


@pytest.mark.parametrize(
    ("attempt", "phase", "pods", "complete"),
    [
        (0, "Running", [], False),  # requested before it begins
        (1, "Admitted", [], False),  # its pod does not exist yet
        (1, "Running", ["Running"], False),
        (1, "Running", ["Succeeded"], True),
        (1, "Running", ["Lost"], True),
        (2, "Running", ["Running"], False),  # a newer attempt waits for this one to stop
        (2, "Pending", ["Failed"], True),
        (2, "Pending", [], True),
        (1, "Failed", ["Running"], False),  # it still writes
        (1, "Failed", [], True),
    ],
)
def test_a_log_is_complete_once_the_pod_of_its_attempt_has_ended(
    attempt: int, phase: str, pods: list[str], complete: bool
) -> None:
    assert is_complete(job(attempt, phase), [{"phase": one} for one in pods], 1) is complete


@pytest.mark.parametrize(
    ("phase", "follow", "logs", "newest"),
    [("Running", False, [0, 10, 9], 10), ("Running", True, [0, 1], 12), ("Failed", True, [0, 1], 1),
     ("Running", False, [], 12), ("Running", True, [13], 13)],
)  # fmt: skip
def test_following_an_unfinished_job_reads_its_current_attempt(
    tmp_path: Path, phase: str, follow: bool, logs: list[int], newest: int
) -> None:
    (tmp_path / "logs").mkdir()
    for number in logs:
        (tmp_path / "logs" / f"trainer-0.attempt-{number}.log").touch()
    for name in ("trainer-1.attempt-99.log", "trainer-0.attempt-99.old.log", "trainer-0.attempt-.log"):
        (tmp_path / "logs" / name).touch()
    assert newest_attempt(tmp_path, job(12, phase), "trainer", 0, follow) == newest


def test_the_newest_log_of_every_replica_is_found(tmp_path: Path) -> None:
    other = ("x", "trainer-0.attempt-10.old", "trainer-0.attempt-²", "trainer-0.attempt-")
    for name in (
        "trainer-0.attempt-9",
        "trainer-0.attempt-10",
        "trainer-1.attempt-0",
        "data-reader-12.attempt-3",
        *other,
    ):
        (tmp_path / f"{name}.log").touch()
    assert newest_log_attempts(tmp_path) == {("trainer", 0): 10, ("trainer", 1): 0, ("data-reader", 12): 3}
    assert newest_log_attempts(tmp_path / "missing") == {}


def test_a_removed_replica_has_a_log_in_attempts_that_had_it(tmp_path: Path) -> None:
    for name in ("trainer-1.attempt-0.log", "reader-0.attempt-0.log"):
        (tmp_path / name).touch()
    assert has_log(tmp_path, "trainer", 1, 0)
    assert has_log(tmp_path, "reader", 0, 0)
    for role, index, attempt in (("trainer", 1, 1), ("trainer", -1, 0), ("reader", 0, 1), ("../reader", 0, 0)):
        assert not has_log(tmp_path, role, index, attempt)


def test_a_replica_that_the_job_does_not_have_is_refused() -> None:
    current = job(1, "Running")  # one trainer
    check_replica(current, "trainer", 0)
    for role, index, reason in (
        ("trainer", 1, "ReplicaNotFound"), ("trainer", -1, "ReplicaNotFound"), ("reader", 0, "RoleNotFound"),
    ):  # fmt: skip
        with pytest.raises(NotFound) as refused:
            check_replica(current, role, index)
        assert refused.value.reason == reason


@pytest.mark.parametrize(("newest", "valid"), [(0, "must be 0 for"), (3, "must be 0 to 3 for")])
def test_a_future_attempt_is_refused_with_the_valid_ones(newest: int, valid: str) -> None:
    check_attempt(job(newest, "Running"), newest)
    with pytest.raises(NotFound, check=has(valid, "got 4", reason="AttemptNotFound", field="attempt")):
        check_attempt(job(newest, "Running"), 4)


@pytest.mark.parametrize(
    ("replace", "got"),
    [(os.mkfifo, "a FIFO"), (lambda log: log.symlink_to(log.with_name("secret")), "a symbolic link")],
    ids=["FIFO", "link"],
)
def test_a_log_that_the_job_replaced_is_not_read_and_blocks_no_reader(
    tmp_path: Path, replace: Callable[[Path], None], got: str
) -> None:
    """The reader may have more rights than the job."""
    (tmp_path / "secret").write_text("secret\n")
    log = tmp_path / "trainer-0.attempt-0.log"
    replace(log)
    assert tail(log) == ""
    with pytest.raises(Refused, match=f"must be a regular file; got {got}"):
        tail_offset(log, 0, None, 5)
    with pytest.raises(Refused, match=f"must be a regular file; got {got}"):
        list(read_lines(log, 0, None, None))


class _Block(bytes):
    """A part of a log that cannot be added to what was read before it."""

    def __radd__(self, before: bytes) -> bytes:
        raise AssertionError(f"{len(before)} bytes would be copied for {len(self)} more")


def test_a_long_line_is_not_copied_again_for_each_of_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to read it would grow with the square of its length."""
    log = tmp_path / "trainer-0.attempt-0.log"
    log.write_bytes(b"first\n" + b"x" * 1000 + b"\nlast")
    read = run_folder._read_block

    def read_block(*arguments: Any) -> tuple[int, bytes]:
        start, data = read(*arguments)
        return start, _Block(data)

    monkeypatch.setattr(run_folder, "_BLOCK_BYTES", 7)
    monkeypatch.setattr(run_folder, "_read_block", read_block)
    assert list(read_lines(log, 0, None, None)) == ["first", "x" * 1000, "last"]
