"""What is read back: logs by time, beats, rows of the queue tree."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from muster import model, spec
from muster.local.pod_folder import PodFolder
from muster.local.run_folder import (
    TAIL_BYTES,
    HeartbeatReader,
    byte_range,
    rank_heartbeats,
    read_lines,
    tail,
    tail_offset,
)
from muster.tables import queue_rows

NOW = 1000.0
DEEP = "[" * 20_000 + "]" * 20_000
TIMES = [(10.0, 5), (19.0, 5), (20.0, 9), (29.0, 9), (30.0, 14)]  # "earl\n", "mid\n", "late\n"


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [(None, None, (0, None)), (15.0, None, (5, None)), (25.0, None, (9, None)), (40.0, None, (14, None)),
     (None, 5.0, (0, 5)), (None, 15.0, (0, 5)), (None, 25.0, (0, 9)), (15.0, 25.0, (5, 9)), (0.0, 99.0, (0, None))],
)  # fmt: skip
def test_times_become_places_in_a_log(
    since: float | None, until: float | None, expected: tuple[int, int | None]
) -> None:
    assert byte_range(TIMES, since, until) == expected


def test_times_that_a_full_disk_cut_short_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("10.000 5\n17.5\n18.0 x\n19.0 519.000 5\n19.00019.5 5\n20.000 9\n21.000 ")
    assert PodFolder(tmp_path).log_times() == [(10.0, 5), (20.0, 9)]


@pytest.mark.parametrize(
    ("note", "told"),
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
def test_a_noted_failure_counts_only_with_an_exit_code_and_a_time(
    tmp_path: Path, note: str, told: tuple[int, float] | None
) -> None:
    (tmp_path / "failure.json").write_text(note)
    assert PodFolder(tmp_path).first_rank_failure() == told


def test_lines_of_a_part_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\ntw\xff\nthree")
    assert list(read_lines(tmp_path / "log", 0, None, None)) == ["one", "tw�", "three"]
    assert list(read_lines(tmp_path / "log", 4, 8, None)) == ["tw�"]
    assert list(read_lines(tmp_path / "missing", 0, None, None)) == []


@pytest.mark.parametrize("text", [b"", b"one", b"one\n", b"one\ntwo\n", b"one\ntwo\n\n\nfive", b"\n\n\n", b"ab\n" * 9])
@pytest.mark.parametrize("block", [1, 2, 3, 2**18])
def test_the_last_lines_are_those_at_the_end_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, block: int
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"left out\n" + text + b"left out")
    begin, end = len(b"left out\n"), len(b"left out\n") + len(text)
    monkeypatch.setattr("muster.local.run_folder._BLOCK_BYTES", block)
    everything = list(read_lines(log, begin, end, None))
    for count in range(len(everything) + 2):
        last = list(read_lines(log, tail_offset(log, begin, end, count), end, None))
        assert last == everything[max(0, len(everything) - count) :]


def test_the_last_lines_of_no_log_are_none(tmp_path: Path) -> None:
    assert tail_offset(tmp_path / "missing", 0, None, 5) == 0


def test_a_long_log_is_read_in_blocks_and_whole(tmp_path: Path) -> None:
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


def test_what_is_written_until_the_end_is_followed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked: list[int] = []

    def ended() -> bool:
        asked.append(len(asked))
        with log.open("a") as file:
            file.write(f"{asked[-1]}\n")
        return len(asked) == 3

    assert list(read_lines(log, 0, None, ended)) == ["0", "1", "2"]


def test_the_tail_begins_with_a_whole_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(2000)))
    text = tail(tmp_path / "log")
    assert len(text) <= TAIL_BYTES
    assert text.endswith("line 1999\n")
    assert all(line.startswith("line ") for line in text.splitlines())
    assert tail(tmp_path / "missing") == ""


def say(run_dir: Path, name: str, content: dict[str, Any]) -> None:
    path = run_dir / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.with_suffix(".tmp").write_text(json.dumps(content))
    path.with_suffix(".tmp").replace(path)


def test_a_beat_is_parsed_when_it_changed_and_tells_when_the_step_last_moved(tmp_path: Path) -> None:
    beats = HeartbeatReader()
    assert beats.read([("u", tmp_path)], NOW) == {}
    say(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "at": 100.0, "step": 3})
    first = beats.read([("u", tmp_path)], NOW)["u"]
    assert (first.at, first.step, first.step_changed_at, first.checkpoint_step) == (100.0, 3, 100.0, None)
    assert beats.read([("u", tmp_path)], NOW)["u"] is first
    say(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "at": 130.0, "step": 3})
    assert beats.read([("u", tmp_path)], NOW)["u"].step_changed_at == 100.0
    say(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "at": 140.0, "step": 4})
    say(tmp_path, "checkpoints/latest", {"step": 2, "at": 90.0, "attempt": 0, "path": "x"})
    last = beats.read([("u", tmp_path)], NOW)["u"]
    assert (last.step_changed_at, last.checkpoint_step, last.checkpoint_at) == (140.0, 2, 90.0)


def test_a_beat_that_is_no_json_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "heartbeats").mkdir()
    (tmp_path / "heartbeats" / "rank-0.json").write_text('{"rank": 0, "at"')
    assert HeartbeatReader().read([("u", tmp_path)], NOW) == {}
    say(tmp_path, "heartbeats/rank-1.json", {"rank": 1, "step": 5})
    assert rank_heartbeats(tmp_path) == [{"rank": 1, "step": 5}]


@pytest.mark.parametrize("name", ["heartbeats/rank-0.json", "checkpoints/latest"])
@pytest.mark.parametrize("text", ['{"at": 100.0, "odd": ' + DEEP + "}", " " * 100_000, "1" * 5000, None])
def test_a_file_of_a_users_that_no_program_can_read_counts_as_none(tmp_path: Path, name: str, text: str | None) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    if text is None:
        os.mkfifo(path)  # nobody ever writes into it
    else:
        path.write_text(text)
    assert HeartbeatReader().read([("u", tmp_path)], NOW) == {}
    assert rank_heartbeats(tmp_path) == []


@pytest.mark.parametrize("at", [1.7e12, 1e200, -1.0, "soon", True])
def test_a_time_that_no_status_can_hold_is_unknown(tmp_path: Path, at: object) -> None:
    say(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "at": 100.0, "step": 3})
    say(tmp_path, "checkpoints/latest", {"step": 2, "at": at})
    beat = HeartbeatReader().read([("u", tmp_path)], NOW)["u"]
    assert (beat.at, beat.step, beat.checkpoint_step, beat.checkpoint_at) == (100.0, 3, 2, None)


def test_a_figure_of_a_beat_that_is_no_number_is_unknown(tmp_path: Path) -> None:
    said = {"rank": 0, "attempt": "0", "step": 4, "loss": "0.5", "mfu": None, "at": float("-inf"), "phase": "train"}
    say(tmp_path, "heartbeats/rank-0.json", {**said, "host": "n1"})
    unknown = dict.fromkeys(("attempt", "loss", "mfu", "at"))
    assert rank_heartbeats(tmp_path) == [{"rank": 0, "step": 4, "phase": "train", "host": "n1", **unknown}]


@pytest.mark.parametrize("step", [-1, 1e300, "three", None])
def test_a_step_that_cannot_be_true_is_unknown(tmp_path: Path, step: object) -> None:
    say(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "at": 100.0, "step": step, "steps": step})
    beat = HeartbeatReader().read([("u", tmp_path)], NOW)["u"]
    assert (beat.step, beat.total_steps) == (0, None)


def queue(name: str, parent: str | None = None, **words: int) -> spec.Queue:
    entry = {"flavor": "h200", **{word: {"gpu": str(amount)} for word, amount in words.items()}}
    body = {"metadata": {"name": name}, "spec": {"parent": parent, "resources": [entry] if words else []}}
    return spec.Queue.model_validate(body)


def running(uid: str, queue: str, gpus: int) -> model.RunningGang:
    role = model.Role("trainer", gpus, gpus, model.Resources.of({"gpu": 1, "pods": 1}))
    gang = model.Gang(uid, uid, queue, 0, 0.0, (role,))
    return model.RunningGang(gang, (model.RolePlacement("trainer", "h200", (("n1", gpus),)),), 0.0)


def amounts(row: dict[str, Any]) -> dict[str, str]:
    (entry,) = row["resources"]
    return {word: entry[word].get("gpu") for word in ("guaranteed", "limit", "used", "borrowed", "available")}


def test_rows_tell_what_a_queue_uses_borrows_and_may_still_take() -> None:
    tree = [queue("b", "root", guaranteed=8, limit=12), queue("a", "root", guaranteed=8, lend=2), queue("root")]
    jobs = (running("j1", "b", 9), running("j2", "a", 3))
    snapshot = model.Snapshot(0.0, (), (), (), (), jobs, usage=(model.DecayedUsage("b", "h200", "gpu", 160.0),))
    rows = queue_rows(tree, snapshot, {"a": 2})
    assert [(row["name"], row["depth"], row["waiting"], row["admitted"]) for row in rows] == [
        ("root", 0, 2, 2), ("a", 1, 2, 1), ("b", 1, 0, 1),
    ]  # fmt: skip
    root, a, b = rows
    # a keeps 6 for itself and lends 2; b lends all of its 8. The root has 10 to share, of which b uses 9 and a none.
    assert amounts(root) == {"guaranteed": "16", "limit": None, "used": "12", "borrowed": "0", "available": "1"}
    assert amounts(a) == {"guaranteed": "8", "limit": None, "used": "3", "borrowed": "0", "available": "4"}
    assert amounts(b) == {"guaranteed": "8", "limit": "12", "used": "9", "borrowed": "1", "available": "1"}
    assert (b["share"], a["share"]) == (16.0, 0.0)


def test_a_root_with_a_limit_alone_has_all_of_it_and_borrows_nothing() -> None:
    snapshot = model.Snapshot(0.0, (), (), (), (), (running("j", "a", 8),))
    (row,) = queue_rows([queue("a", limit=24)], snapshot, {})
    assert amounts(row) == {"guaranteed": "24", "limit": "24", "used": "8", "borrowed": "0", "available": "16"}


def test_what_is_available_respects_the_limit_of_a_queue_above() -> None:
    tree = [queue("root", guaranteed=100), queue("team", "root", guaranteed=10, limit=10)]
    tree += [queue("keeps", "team", guaranteed=10, lend=0), queue("other", "team")]
    rows = queue_rows(tree, model.Snapshot(0.0, (), (), (), (), (running("j", "other", 8),)), {})
    assert {row["name"]: amounts(row)["available"] for row in rows}["keeps"] == "2"


def test_room_held_for_a_gang_that_backs_off_is_used() -> None:
    one = running("j1", "a", 3)
    hold = model.Nomination("j1", one.placement, (), 100.0, nominated_gang=one.gang)
    (row,) = queue_rows([queue("a", guaranteed=8)], model.Snapshot(0.0, (), (), (), (), (), (hold,)), {})
    assert (amounts(row)["used"], amounts(row)["available"]) == ("3", "5")


def test_a_queue_that_cannot_be_read_whole_is_a_row_that_says_so() -> None:
    (row,) = queue_rows([queue("a", guaranteed=8)], None, {}, {"a": "spec.weight: odd"})
    assert (row["active"], row["reason"], row["message"]) == (
        False,
        "InvalidSpec",
        "it cannot be read: spec.weight: odd",
    )
    assert row["resources"][0]["guaranteed"] == {"gpu": "8"}


def test_queues_in_a_cycle_are_shown_without_numbers() -> None:
    rows = queue_rows([queue("a", "b", guaranteed=1), queue("b", "a"), queue("c", "a")], None, {})
    assert [(row["name"], row["active"], row["reason"], row["resources"]) for row in rows] == [
        ("a", False, "Cycle", []), ("b", False, "Cycle", []), ("c", False, "ParentInactive", []),
    ]  # fmt: skip
