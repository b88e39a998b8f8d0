"""What is said of a disk that cannot be read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.local.home import log_fault, release_space


def test_a_folder_that_cannot_be_looked_up_is_a_fault_of_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.stat", fails)
    fault = log_fault(tmp_path / "run")
    assert fault is not None
    assert fault[0] == "LogsUnreachable"


def test_a_reserve_that_is_not_there_or_cannot_be_removed_is_not_released(tmp_path: Path) -> None:
    assert not release_space(tmp_path / "reserve")
    (tmp_path / "reserve").mkdir()
    assert not release_space(tmp_path / "reserve")
    (tmp_path / "other").touch()
    assert release_space(tmp_path / "other")
