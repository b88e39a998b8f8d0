"""Stores: an uploaded file is complete or absent, also after errors and kills."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from muster.tracing.runs.run_store import TraceStore


class Failing(io.BytesIO):
    """A file that cannot be read to its end."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 0:
            raise OSError("the disk does not answer")
        return super().read(3)


def test_a_file_that_cannot_be_read_completely_is_not_published(tmp_path: Path) -> None:
    store = TraceStore(str(tmp_path / "kept"))
    store.put_file(io.BytesIO(b"before"), "traces/x")
    with pytest.raises(OSError, match="does not answer"):
        store.put_file(Failing(b"0123456789"), "traces/x")
    assert (tmp_path / "kept/traces/x").read_bytes() == b"before"


def test_the_next_upload_removes_leftovers_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TraceStore(str(tmp_path / "kept"))

    def killed(*names: Any) -> None:
        raise SystemExit(137)

    with monkeypatch.context() as patched:
        patched.setattr(store._fs, "mv", killed)
        for _ in range(2):
            with pytest.raises(SystemExit):
                store.put_file(io.BytesIO(b"one"), "traces/x")
    folder = tmp_path / "kept/traces"
    (left,) = folder.iterdir()
    assert left.name.startswith(".x.")
    assert store.sizes() == {}
    store.put_file(io.BytesIO(b"one"), "traces/x")
    assert [path.name for path in folder.iterdir()] == ["x"]


def test_a_folder_is_listed_once_per_name_until_an_upload_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TraceStore(str(tmp_path / "kept"))
    listed: list[str] = []
    ls = store._fs.ls

    def counted(folder: str, **options: Any) -> Any:
        listed.append(folder)
        return ls(folder, **options)

    monkeypatch.setattr(store._fs, "ls", counted)
    for _ in range(3):
        store.put_file(io.BytesIO(b"one"), "traces/x")
    assert len(listed) == 1
    with pytest.raises(OSError, match="does not answer"):
        store.put_file(Failing(b"0123456789"), "traces/x")
    store.put_file(io.BytesIO(b"one"), "traces/x")
    store.put_file(io.BytesIO(b"one"), "traces/y")
    assert len(listed) == 3
