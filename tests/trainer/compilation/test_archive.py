"""Archives of compiled code are unpacked within bounds, or not at all."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest

from muster_components.trainer.compilation import archive, store
from muster_components.trainer.compilation.archive import UnusableArchive, pack, unpack
from muster_components.trainer.compilation.store import UnusableEntry, read


def packed(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in files.items():
            made.writestr(name, text)
    return content.getvalue()


def test_the_directory_of_an_archive_with_too_many_files_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 GiB of it would be 40 million entries: more memory than a pod has."""
    content = packed({str(number): b"" for number in range(4)})
    monkeypatch.setattr(archive, "MAX_FILES", 3)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(UnusableArchive, match="it must have at most 3 files; got 4"):
        unpack(content, tmp_path / "to")


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 2), ("MAX_FILE_BYTES", 999), ("MAX_UNPACKED_BYTES", 2999)])
def test_an_archive_that_unpacks_to_more_than_a_limit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    content = packed({f"a/{number}": b"\0" * 1000 for number in range(3)})
    monkeypatch.setattr(archive, limit, value)
    with pytest.raises(UnusableArchive, match=r"it must (unpack to|have at most) "):
        unpack(content, tmp_path / "to")
    assert not (tmp_path / "to").exists()
    monkeypatch.setattr(archive, limit, value + 1)
    assert unpack(content, tmp_path / "to") == 3


def test_a_file_that_has_more_bytes_than_it_claims_is_refused(tmp_path: Path) -> None:
    content = bytearray(packed({"a": b"\0" * 100_000}))
    honest = (100_000).to_bytes(4, "little")
    assert content.count(honest) == 2  # in the header of the file, and in the list of all files
    content = content.replace(honest, (10).to_bytes(4, "little"))
    with pytest.raises(UnusableArchive, match="cannot be unpacked"):
        unpack(bytes(content), tmp_path)
    assert not (tmp_path / "a").exists()


def test_what_is_packed_can_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "from" / "b").mkdir(parents=True)
    (tmp_path / "from" / "b" / "c.so").write_bytes(b"x" * 10_000)
    assert unpack(pack(tmp_path / "from"), tmp_path / "to") == 1
    assert (tmp_path / "to" / "b" / "c.so").read_bytes() == b"x" * 10_000


def test_of_a_large_object_in_a_store_no_more_than_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/cache/entry", b"x" * 1000)
    requested: list[object] = []
    cat_file = type(files).cat_file

    def counted(self: Any, path: str, **more: Any) -> Any:
        requested.append(more["end"])
        return cat_file(self, path, **more)

    monkeypatch.setattr(store, "MAX_BYTES", 10)
    monkeypatch.setattr(type(files), "cat_file", counted)
    with pytest.raises(UnusableEntry, match="must have at most 10 bytes"):
        read("memory://cache/entry", 0)
    assert requested == [11]
