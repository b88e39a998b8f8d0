"""Files to tokens: order, skipped files with reasons, rejected data, the cache."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest

from muster_components.trainer.data.cache_folder import cache_root
from muster_components.trainer.data.corpus import Corpus, SkippedText, build_corpus, find_files
from muster_components.trainer.data.samples import TokenArray, TokenSamples
from muster_components.trainer.errors import InputError


def text_of(corpus: Corpus) -> bytes:
    return corpus.open().tokens.tobytes()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_a_folder_is_read_recursively_in_the_order_of_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"b.txt": b"2", "a/z.md": b"1", "c": b"3"})
    corpus = build_corpus(str(folder), tmp_path / "cache")
    assert text_of(corpus) == b"1\x002\x003\x00"
    assert (corpus.files, corpus.tokens, corpus.skipped) == (3, 6, ())


def test_a_glob_and_a_single_file_work_the_same(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"a.txt": b"1", "b.md": b"2", "deep/c.txt": b"3"})
    assert text_of(build_corpus(f"{folder}/**/*.txt", tmp_path / "cache")) == b"1\x003\x00"
    assert text_of(build_corpus(str(folder / "b.md"), tmp_path / "cache")) == b"2\x00"


def test_files_other_than_text_are_skipped_with_the_reason(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "text",
        {"binary": b"ELF\x00", "broken": b"caf\xc3", "good": "café".encode(), "latin": b"caf\xe9!", "none": b""},
    )
    (folder / "dangling").symlink_to(folder / "nowhere")
    corpus = build_corpus(str(folder), tmp_path / "cache")
    assert text_of(corpus) == "café\0".encode()
    assert corpus.skipped == (
        SkippedText(str(folder / "binary"), "binary (byte 0 at offset 3)"),
        SkippedText(str(folder / "broken"), "not UTF-8 (ends in the middle of the character at offset 3)"),
        SkippedText(str(folder / "latin"), "not UTF-8 (at offset 3)"),
    )
    assert corpus.files == 1


def test_the_text_behind_a_link_in_the_data_is_cached_for_this_user_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {})
    (tmp_path / "secret").write_bytes(b"key")
    folder.mkdir()
    (folder / "a.txt").symlink_to(tmp_path / "secret")
    corpus = build_corpus(str(folder), tmp_path / "cache")
    assert text_of(corpus) == b"key\0"
    assert stat.S_IMODE(corpus.tokens_path.stat().st_mode) == 0o600


def test_a_character_across_two_chunks_is_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_components.trainer.data.corpus._CHUNK_BYTES", 2)
    folder = write(tmp_path / "text", {"a": "a€b€".encode()})
    assert text_of(build_corpus(str(folder), tmp_path / "cache")) == "a€b€\0".encode()


def test_the_offset_of_an_invalid_character_across_two_chunks_is_that_of_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_components.trainer.data.corpus._CHUNK_BYTES", 2)
    folder = write(tmp_path / "text", {"a": b"abc\xe2\x82!", "b": b"text"})
    assert build_corpus(str(folder), tmp_path / "cache").skipped == (
        SkippedText(str(folder / "a"), "not UTF-8 (at offset 3)"),
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_is_named_and_skipped(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"a": b"1", "b": b"2"})
    (folder / "b").chmod(0)
    assert build_corpus(str(folder), tmp_path / "cache").skipped == (
        SkippedText(str(folder / "b"), "cannot be read: Permission denied"),
    )


def test_a_read_error_skips_the_file_without_a_part_of_its_text(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("before")
    (folder / "b.txt").symlink_to("/proc/self/mem")  # opens, and cannot be read
    (folder / "c.txt").write_text("after")
    corpus = build_corpus(str(folder), tmp_path / "cache")
    assert [(Path(file.path).name, file.reason) for file in corpus.skipped] == [
        ("b.txt", "cannot be read: Input/output error")
    ]
    assert corpus.tokens_path.read_bytes() == b"before\0after\0"


def test_hidden_files_caches_and_the_run_folder_are_skipped(tmp_path: Path) -> None:
    names = (".git/config", ".hidden", "__pycache__/a.pyc", "run/metrics/rank-0.jsonl", "a.txt")
    folder = write(tmp_path / "text", dict.fromkeys(names, b"x"))
    assert find_files(str(folder), exclude=folder / "run") == [folder / "a.txt"]


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"a.txt": b"x"})
    (folder / "again").symlink_to(folder, target_is_directory=True)
    assert find_files(str(folder)) == [folder / "a.txt"]


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ({}, "nowhere", "does not exist: give a folder, a file, or a glob"),
        ({"x": b"1"}, "*.md", "has no files"),
        ({"x": b"\0", "y": b"\xff"}, "", "has no text in its 2 files"),
        ({"x": b""}, "", "all are empty"),
    ],
)
def test_data_without_text_is_rejected_with_the_files_found(
    tmp_path: Path, files: dict[str, bytes], path: str, message: str
) -> None:
    (tmp_path / "text").mkdir()
    folder = write(tmp_path / "text", files)
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        build_corpus(str(folder / path), tmp_path / "cache")


def test_the_cache_is_used_until_a_file_changes(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"a": b"one", "b": b"\0"})
    first = build_corpus(str(folder), tmp_path / "cache")
    assert build_corpus(str(folder), tmp_path / "cache") == first
    write(folder, {"a": b"other"})
    second = build_corpus(str(folder), tmp_path / "cache")
    assert text_of(second) == b"other\0"
    assert second.digest != first.digest


def test_a_truncated_cache_is_written_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"a": b"one"})
    corpus = build_corpus(str(folder), tmp_path / "cache")
    corpus.tokens_path.write_bytes(b"on")
    assert text_of(build_corpus(str(folder), tmp_path / "cache")) == b"one\0"


def test_a_fifo_in_place_of_the_caches_description_is_replaced(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"a": b"one"})
    corpus = build_corpus(str(folder), tmp_path / "cache")
    description = corpus.tokens_path.with_suffix(".json")
    description.unlink()
    os.mkfifo(description)
    assert build_corpus(str(folder), tmp_path / "cache") == corpus
    assert description.is_file()


def test_a_fifo_as_data_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "text")
    with pytest.raises(InputError, match="must be a regular file"):
        build_corpus(str(tmp_path / "text"), tmp_path / "cache")


def test_the_cache_keeps_the_newest_corpora_only(tmp_path: Path) -> None:
    for number in range(12):
        folder = write(tmp_path / str(number), {"a": b"text"})
        build_corpus(str(folder), tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob("*.tokens"))) == 8
    assert len(list((tmp_path / "cache").iterdir())) == 16


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "text", {"a": b"one"})
    (tmp_path / "cache").write_text("a file, no folder")
    with pytest.raises(InputError, match=f"to {tmp_path / 'cache'}"):
        build_corpus(str(folder), tmp_path / "cache")


def test_windows_overlap_by_one_token_so_that_every_token_is_a_target_once() -> None:
    samples = TokenSamples([TokenArray(np.arange(11, dtype=np.uint8))], seq_len=5)
    assert len(samples) == 2
    assert samples.read(np.array([1, 0]))["tokens"].tolist() == [[5, 6, 7, 8, 9, 10], [0, 1, 2, 3, 4, 5]]


def test_a_padding_position_reads_as_padding() -> None:
    samples = TokenSamples([TokenArray(np.arange(11, dtype=np.uint8))], seq_len=5)
    assert samples.read(np.array([-1]))["tokens"].tolist() == [[-1] * 6]


def test_too_little_text_for_one_window_is_rejected_with_both_numbers() -> None:
    with pytest.raises(InputError, match="must have at least 6 bytes of text for --seq_len 5; got 5"):
        TokenSamples([TokenArray(np.arange(5, dtype=np.uint8))], seq_len=5, unit="bytes of text")


@pytest.mark.parametrize("moment", [1, 2])
def test_two_pods_may_write_a_shared_cache_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Their processes have the same id, since each pod has its own process namespace."""
    folder = write(tmp_path / "text", {"a.txt": b"1"})
    replace, replaced = os.replace, 0
    others: list[bytes] = []

    def meanwhile(source: Path, target: Path) -> None:
        nonlocal replaced
        replaced += 1
        if replaced == moment:
            others.append(text_of(build_corpus(str(folder), tmp_path / "cache")))
        replace(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    assert [text_of(build_corpus(str(folder), tmp_path / "cache")), *others] == [b"1\x00", b"1\x00"]
    assert not list((tmp_path / "cache").glob(".*")), "nothing is left behind"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of a user without a home, in the temporary folder; it does not exist yet."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"muster-{os.getuid()}"


def test_a_user_without_a_home_has_a_private_cache_in_the_temporary_folder(temporary: Path) -> None:
    assert cache_root({}) == temporary
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert cache_root({}) == temporary


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o770, 0o740, 0o701])
def test_a_cache_in_the_temporary_folder_that_other_users_can_access_is_rejected(temporary: Path, mode: int) -> None:
    temporary.mkdir()
    temporary.chmod(mode)
    with pytest.raises(InputError, match="mode 700"):
        cache_root({})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_cache_in_the_temporary_folder_that_belongs_to_another_user_is_rejected(temporary: Path) -> None:
    temporary.mkdir(mode=0o700)
    os.chown(temporary, 12345, 12345)
    with pytest.raises(InputError, match="user 12345"):
        cache_root({})


@pytest.mark.parametrize("kind", ["symlink", "file"])
def test_a_cache_in_the_temporary_folder_that_is_not_a_folder_is_rejected(
    temporary: Path, tmp_path: Path, kind: str
) -> None:
    if kind == "symlink":
        (tmp_path / "private").mkdir(mode=0o700)
        temporary.symlink_to(tmp_path / "private")
    else:
        temporary.touch(mode=0o600)
    with pytest.raises(InputError, match="mode 700"):
        cache_root({})
