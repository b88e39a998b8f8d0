"""The folder of checkpoints: only complete ones are used, `latest` never moves back, old ones are removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster_components.trainer.checkpoint_store import CheckpointStore, describe_mismatch, read_description


def store(folder: Path, attempt: int = 0, keep: int = 2, run: str = "") -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints", attempt, keep, run)


def save(owner: CheckpointStore, step: int, content: str = "weights") -> bool:
    temporary = owner.begin(step)
    if temporary is None:
        return False
    (temporary / "part").write_text(content)
    return owner.publish(step, {"step": step, **owner.origin()}, at=step * 10.0)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in (folder / "checkpoints").iterdir())


def test_latest_has_the_path_of_the_newest_complete_checkpoint_in_the_run_folder(tmp_path: Path) -> None:
    owner = store(tmp_path, attempt=3)
    assert save(owner, 40)
    written = json.loads((tmp_path / "checkpoints" / "latest").read_text())
    assert written == {"step": 40, "attempt": 3, "path": "checkpoints/step-00000040", "at": 400.0, "lineage": ""}
    assert (tmp_path / written["path"] / "part").read_text() == "weights"


def test_an_incomplete_checkpoint_is_not_a_candidate(tmp_path: Path) -> None:
    owner = store(tmp_path)
    save(owner, 10)
    owner.begin(20)
    assert [found.step for found in owner.candidates()] == [10]


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    owner = store(tmp_path, keep=2)
    for step in (10, 20, 30, 40):
        save(owner, step)
    assert names(tmp_path) == ["latest", "step-00000030", "step-00000040"]


def test_a_discarded_checkpoint_frees_its_space_and_the_previous_one_remains(tmp_path: Path) -> None:
    owner = store(tmp_path)
    save(owner, 10)
    owner.begin(20)
    owner.discard(20)
    assert names(tmp_path) == ["latest", "step-00000010"]
    assert owner.candidates()[0].step == 10


def test_an_older_attempt_that_still_runs_does_not_move_latest(tmp_path: Path) -> None:
    old, new = store(tmp_path, attempt=0), store(tmp_path, attempt=1)
    save(old, 10)
    save(new, 20)
    assert not save(old, 30)
    latest = new.latest()
    assert latest is not None
    assert (latest.step, latest.attempt) == (20, 1)
    assert names(tmp_path) == ["latest", "step-00000010", "step-00000020"]


def test_a_new_attempt_removes_incomplete_checkpoints_of_earlier_attempts_only(tmp_path: Path) -> None:
    store(tmp_path, attempt=0).begin(10)
    store(tmp_path, attempt=2).begin(10)
    store(tmp_path, attempt=1).begin(5)
    assert names(tmp_path) == [".step-00000005.attempt-1.tmp", ".step-00000010.attempt-2.tmp"]


def test_the_checkpoint_of_a_step_reached_again_replaces_the_earlier_one(tmp_path: Path) -> None:
    for attempt, content in enumerate(("old", "new", "newest")):
        owner = store(tmp_path, attempt)
        save(owner, 10, content)
        latest = owner.latest()
        assert latest is not None
        assert (tmp_path / latest.path / "part").read_text() == content
        assert [found.path for found in owner.candidates()] == [tmp_path / latest.path]
    assert names(tmp_path) == ["latest", "step-00000010.3"]


KILLED_BEFORE = """
import os, signal, sys
from pathlib import Path
from muster_components.trainer.checkpoint_store import CheckpointStore
owner, left = CheckpointStore(Path(sys.argv[1]), 1, 2), int(sys.argv[2])
(owner.begin(10) / "part").write_text("new")
acts = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")

def count(event, args):
    global left
    if event in acts:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
assert owner.publish(10, {"step": 10, **owner.origin()}, at=100.0)
"""


def test_a_kill_at_any_system_call_of_publishing_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path,
) -> None:
    found: list[str] = []
    ended = False
    while not ended:
        acts = len(found)
        folder = tmp_path / str(acts)
        save(store(folder), 10, "old")
        end = subprocess.run([sys.executable, "-c", KILLED_BEFORE, str(folder / "checkpoints"), str(acts)], check=False)
        successor = store(folder, attempt=2)
        found.append(check_whole(folder, successor))
        successor.begin(20)  # clears up
        assert check_whole(folder, successor) == found[-1]
        assert save(successor, 30)
        assert [entry for entry in names(folder) if entry.startswith(".")] == []
        ended = end.returncode == 0
        assert ended or end.returncode == -signal.SIGKILL
    assert found == sorted(found, reverse=True), "old up to some act, new from then on"
    assert (found[0], found[-1]) == ("old", "new")


def check_whole(folder: Path, reader: CheckpointStore) -> str:
    """The content of the checkpoint that a run would resume from; it must be complete and the one in `latest`."""
    latest = reader.latest()
    assert latest is not None
    first = reader.candidates()[0]
    assert first.path == folder / latest.path
    assert json.loads((first.path / "muster.json").read_text())["step"] == 10
    return (first.path / "part").read_text()


def test_after_a_resume_from_an_early_checkpoint_later_ones_are_kept_and_not_latest(tmp_path: Path) -> None:
    first = store(tmp_path, attempt=0, keep=3)
    for step in (10, 20, 30):
        save(first, step)
    save(store(tmp_path, attempt=1, keep=1), 15)
    assert [found.step for found in first.candidates()] == [15, 30, 20]


@pytest.mark.parametrize(
    "content", ['{"step": 2', '{"step": 1e999, "attempt": 0, "path": "", "at": 0}', "[" * 200_000, "3"]
)
def test_an_unreadable_latest_is_an_error_and_the_newest_complete_checkpoint_is_found(
    tmp_path: Path, content: str
) -> None:
    owner = store(tmp_path)
    save(owner, 10)
    save(owner, 20)
    (tmp_path / "checkpoints" / "latest").write_text(content)
    with pytest.raises(ValueError, match="latest cannot be read"):
        owner.latest()
    assert [found.step for found in owner.candidates()] == [20, 10]
    assert save(owner, 30)


def test_an_irregular_or_too_large_latest_is_an_error_and_the_newest_complete_checkpoint_is_found(
    tmp_path: Path,
) -> None:
    makes: list[Callable[[Path], object]] = [os.mkfifo, Path.mkdir, lambda path: path.write_bytes(b" " * 100_000)]
    for number, make in enumerate(makes):
        owner = store(tmp_path / str(number))
        save(owner, 10)
        latest = owner.folder / "latest"
        latest.unlink()
        make(latest)
        with pytest.raises(ValueError, match=r"latest cannot be read.* must "):
            owner.latest()
        assert [found.step for found in owner.candidates()] == [10]


def test_a_fifo_or_a_link_in_place_of_latest_or_the_description_is_replaced_and_not_opened(
    tmp_path: Path,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    makes: list[Callable[[Path], object]] = [os.mkfifo, lambda path: path.symlink_to(elsewhere)]
    for number, make in enumerate(makes):
        owner = store(tmp_path / str(number), attempt=1)
        temporary = owner.begin(10)
        assert temporary is not None
        make(owner.folder / ".latest.attempt-1.tmp")
        make(temporary / "muster.json")
        assert owner.publish(10, {"step": 10, **owner.origin()}, at=1.0)
        assert owner.latest() is not None
        assert read_description(owner.folder / "step-00000010") == {"step": 10, "attempt": 1, "lineage": ""}
    assert elsewhere.read_text() == "untouched"


def test_a_folder_in_place_of_the_temporary_latest_is_an_error_and_latest_is_unchanged(tmp_path: Path) -> None:
    owner = store(tmp_path, attempt=1)
    save(owner, 10)
    owner.begin(20)
    (owner.folder / ".latest.attempt-1.tmp").mkdir()
    with pytest.raises(OSError, match="latest"):
        owner.publish(20, {"step": 20}, at=2.0)
    latest = owner.latest()
    assert latest is not None
    assert latest.step == 10


def test_checkpoints_are_tried_in_the_order_of_attempts(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(store(tmp_path, attempt=0, keep=3), step)
    later = store(tmp_path, attempt=1, keep=3)
    for step in (12, 14):  # 30 and 20 could not be read
        save(later, step)
    (tmp_path / "checkpoints" / "latest").unlink()
    assert [found.step for found in later.candidates()] == [14, 12, 30, 20, 10]


def test_a_run_that_begins_anew_uses_its_own_checkpoints_only_in_all_attempts(tmp_path: Path) -> None:
    for step in (800, 900):
        save(store(tmp_path, attempt=3, run="old"), step)
    store(tmp_path, attempt=0, run="new").begin_lineage()
    for attempt, steps in ((1, (5, 8)), (2, (9,))):
        owner = store(tmp_path, attempt, run="new")
        owner.begin_lineage()
        for step in steps:
            assert save(owner, step)
    assert [found.step for found in store(tmp_path, attempt=3, run="new").candidates()] == [9, 8]
    assert {"step-00000800", "step-00000900"} <= set(names(tmp_path))  # what is not its own is not removed either


def test_a_run_without_an_id_begins_anew_in_its_first_attempt(tmp_path: Path) -> None:
    save(store(tmp_path), 10)
    first, second = store(tmp_path), store(tmp_path, attempt=1)
    first.begin_lineage()
    assert first.candidates() == []
    save(first, 5)
    second.begin_lineage()
    assert [found.step for found in second.candidates()] == [5]
    first.begin_lineage()  # another run
    assert first.candidates() == []


def test_an_attempt_that_is_the_first_to_start_begins_anew(tmp_path: Path) -> None:
    save(store(tmp_path, run="old"), 10)
    owner = store(tmp_path, attempt=1, run="new")  # attempt 0 ended before it began
    owner.begin_lineage()
    assert owner.candidates() == []


@pytest.mark.parametrize("attempt", [0, 3])
def test_a_run_that_still_writes_when_another_begins_anew_saves_nothing_and_removes_nothing(
    tmp_path: Path, attempt: int
) -> None:
    old, new = store(tmp_path, attempt, run="old"), store(tmp_path, run="new")
    assert old.candidates() == []  # restored
    assert save(old, 90)
    writing = old.begin(100)
    new.begin_lineage()
    assert save(new, 5)
    assert new.begin(10) is not None
    assert writing is not None
    writing.mkdir(exist_ok=True)
    assert not old.publish(100, {"step": 100, **old.origin()}, at=1.0)
    assert not save(old, 110)
    assert ".step-00000010.attempt-0.tmp" in names(tmp_path)
    second = store(tmp_path, attempt=1, run="new")
    second.begin_lineage()
    assert [found.step for found in second.candidates()] == [5]
    latest = second.latest()
    assert latest is not None
    assert (latest.step, latest.lineage) == (5, "new")


def test_a_lineage_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    owner = store(tmp_path)
    save(owner, 10)
    (tmp_path / "checkpoints" / "lineage").write_text("[")
    for read in (store(tmp_path).candidates, lambda: save(owner, 20)):
        with pytest.raises(ValueError, match="lineage cannot be read"):
            read()


def test_without_a_folder_there_is_nothing_to_resume_from(tmp_path: Path) -> None:
    assert store(tmp_path).candidates() == []
    assert store(tmp_path).latest() is None


def test_a_mismatch_names_each_field_with_both_values() -> None:
    described: dict[str, object] = {"seq_len": 128, "seed": 0}
    assert describe_mismatch(described, {"seq_len": 64, "seed": 0}) == ["seq_len was 128, is 64"]
    assert describe_mismatch(described, {"seed": 0}) == []
