"""Checkpoints of any engine: complete and undamaged ones only."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_components.parts.checkpoints import Checkpoint, VerifiedCheckpoints
from muster_components.trainer.errors import InputError, TrainerError


def save(folder: Path, step: int, attempt: int = 0, keep: int = 2) -> None:
    with VerifiedCheckpoints(folder, keep=keep, attempt=attempt).saving(step) as path:
        (path / "rank-0").mkdir()
        (path / "rank-0" / "weights").write_bytes(b"w" * step)
        (path / "state").write_text(str(step))


def newest(folder: Path, lines: list[str] | None = None) -> Checkpoint | None:
    return VerifiedCheckpoints(folder, attempt=0, warn=(lines if lines is not None else []).append).newest()


def test_the_newest_checkpoint_is_found_with_files_in_folders_of_it(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    for step in (10, 20, 30):
        save(tmp_path, step)
    found = newest(tmp_path)
    assert found is not None
    assert (found.step, (found.path / "rank-0" / "weights").read_bytes()) == (30, b"w" * 30)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000020", "step-00000030"]


@pytest.mark.parametrize("damage", ["changed", "shorter", "removed"])
def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 10)
    save(tmp_path, 20)
    file = tmp_path / "step-00000020" / "rank-0" / "weights"
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(b"x" * (20 if damage == "changed" else 19))
    lines: list[str] = []
    found = newest(tmp_path, lines)
    assert found is not None
    assert found.step == 10
    (line,) = lines
    assert "step-00000020 is skipped: " in line


def test_without_an_undamaged_checkpoint_it_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, 10)
    (tmp_path / "step-00000010" / "state").write_text("11")
    with pytest.raises(TrainerError, match="none of the 1 checkpoints"):
        newest(tmp_path)


def fail_while_saving(folder: Path) -> None:
    with VerifiedCheckpoints(folder).saving(20) as path:
        (path / "state").write_text("20")
        raise OSError("disk")


def test_a_block_that_raises_leaves_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 10)
    with pytest.raises(OSError, match="disk"):
        fail_while_saving(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000010"]


def test_a_superseded_attempt_saves_nothing(tmp_path: Path) -> None:
    save(tmp_path, 20, attempt=1)
    with pytest.raises(TrainerError, match="newer attempt"):
        save(tmp_path, 30, attempt=0)
    found = newest(tmp_path)
    assert found is not None
    assert found.step == 20


def save_content(folder: Path, content: str) -> None:
    with VerifiedCheckpoints(folder).saving(20) as path:
        if content == "link":
            (path / "state").symlink_to("/etc/hostname")


@pytest.mark.parametrize(("content", "why"), [("nothing", "nothing was written"), ("link", "regular files only")])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: str, why: str) -> None:
    with pytest.raises(TrainerError, match=why):
        save_content(tmp_path, content)
    assert newest(tmp_path) is None


def test_no_checkpoint_to_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keep must be at least 1; got 0"):
        VerifiedCheckpoints(tmp_path, keep=0)
