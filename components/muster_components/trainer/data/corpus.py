"""Texts to one array of tokens that all ranks of a host share.

Without a tokenizer a token is a byte, so the vocabulary has 256 entries and needs no download. Byte 0 separates the
files. Files that cannot be read, contain byte 0 or are not UTF-8 are skipped and listed (empty ones silently); data
without text is rejected.

The tokens are written once to a cache file, which every rank maps into memory, since reading thousands of files in
every rank and attempt would take longer. The name of the cache file is a hash of the tokenizer and of the files' names,
sizes and times.
"""

from __future__ import annotations

import codecs
import functools
import glob
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from muster_components.trainer.data.samples import MappedFile, TokenArray
from muster_components.trainer.data.tokenizer import ByteEncoder, Encoder
from muster_components.trainer.errors import InputError
from muster_components.trainer.regular_files import open_regular, replace_file

EMPTY: Final = "empty"
_CHUNK_BYTES: Final = 8 * 1024**2
_CACHED_CORPORA: Final = 8
_FORMAT: Final = "muster-tokens-1"
_IGNORED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class SkippedText:
    """A skipped file, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """The token array of a set of files. `digest` is that of the tokens, equal on all hosts with the same text."""

    tokens_path: Path
    tokens: int
    files: int
    skipped: tuple[SkippedText, ...]
    digest: str
    dtype: str = "uint8"

    def open(self) -> TokenArray:
        """Map the tokens, read-only and shared. Raises TrainerError if the file was shortened."""
        tokens_bytes = self.tokens * np.dtype(self.dtype).itemsize
        file = replace(MappedFile.at(self.tokens_path), size=tokens_bytes)
        file.require_whole()
        tokens = np.memmap(self.tokens_path, dtype=self.dtype, mode="r", shape=(self.tokens,))
        return TokenArray(tokens, files=(file,))


Write = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class TextSource:
    """A file, or the rows of a data set. `append` writes its tokens and returns why it is skipped, or nothing."""

    name: str
    append: Callable[[Write], str]


def find_files(path: str, *, exclude: Path | None = None) -> list[Path]:
    """The regular files of a folder (recursively), a file or a glob, in an order that depends on names alone.

    Hidden files and folders, `__pycache__`, installed packages and everything below `exclude` (the run folder) are
    skipped silently. Raises InputError if there is no file.
    """
    root = Path(path).expanduser()
    if root.is_dir():
        found = sorted(_walk(root, exclude), key=lambda file: file.relative_to(root).as_posix())
    elif root.exists():
        found = [root]
    elif glob.has_magic(path):
        found = sorted(Path(match) for match in glob.iglob(str(root), recursive=True) if os.path.isfile(match))
    else:
        raise InputError(f"--data {path!r} does not exist: give a folder, a file, or a glob such as 'texts/**/*.txt'")
    if not found:
        raise InputError(f"--data {path!r} has no files: give a folder, a file, or a glob with text files")
    return found


def build_corpus(path: str, cache_dir: Path, *, encoder: Encoder | None = None, exclude: Path | None = None) -> Corpus:
    """Write the files' tokens to the cache if they are not there. Raises InputError without text, or if it cannot be
    written."""
    files = find_files(path, exclude=exclude)
    encoder = encoder or ByteEncoder()
    sources = [TextSource(str(file), functools.partial(_append_text, file, encoder)) for file in files]
    return cached_corpus(path, sources, listing_digest(files), cache_dir, encoder)


def cached_corpus(path: str, sources: Sequence[TextSource], identity: str, cache_dir: Path, encoder: Encoder) -> Corpus:
    """The corpus of `sources`, from the cache if it is there under `identity` and the encoder. Raises InputError."""
    key = identity if isinstance(encoder, ByteEncoder) else short_digest(f"{identity} {encoder.identity}")
    tokens_path = cache_dir / f"{key}.tokens"
    cached = _read_cached(tokens_path)
    if cached is not None:
        return cached
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        corpus = _write_tokens(sources, tokens_path, encoder.dtype)
    except OSError as error:
        raise InputError(
            f"cannot write the tokens of --data {path!r} to {cache_dir}: {error.strerror}; "
            "set MUSTER_CACHE_DIR to a folder with free space"
        ) from error
    if corpus.files == 0:
        reasons = "; ".join(f"{file.path}: {file.reason}" for file in corpus.skipped[:3]) or "all are empty"
        raise InputError(f"--data {path!r} has no text in its {len(sources)} files ({reasons})")
    return corpus


def _walk(root: Path, exclude: Path | None) -> Iterator[Path]:
    # Symbolic links to folders are not followed: they may form a cycle.
    for folder, names, files in os.walk(root):
        here = Path(folder)
        names[:] = [
            name
            for name in names
            if not name.startswith(".") and name not in _IGNORED_FOLDERS and (here / name).absolute() != exclude
        ]
        yield from (here / name for name in files if not name.startswith(".") and (here / name).is_file())


def listing_digest(files: Sequence[Path]) -> str:
    """A digest of the files' paths, sizes and times of change."""
    digest = hashlib.sha256(_FORMAT.encode())
    for file in files:
        try:
            status = file.stat()
            digest.update(
                f"{file.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape")
            )
        except OSError as error:
            digest.update(f"{file.absolute()}\0{error.errno}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:24]


def short_digest(text: str) -> str:
    """24 hexadecimal digits that depend on the text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:24]


def _write_tokens(sources: Sequence[TextSource], tokens_path: Path, dtype: np.dtype[Any]) -> Corpus:
    temporary = tokens_path.with_name(f"{tokens_path.name}.{secrets.token_hex(8)}.tmp")  # hosts may share the cache
    skipped: list[SkippedText] = []
    empty = 0
    digest = hashlib.sha256()
    try:
        # For this user alone: a link in the data may lead to a file that others must not read.
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            for source in sources:
                before, trial = out.tell(), digest.copy()
                reason = source.append(functools.partial(_write, out, trial.update))
                if not reason:
                    digest = trial
                else:
                    out.seek(before)
                    out.truncate()
                if reason == EMPTY:
                    empty += 1
                elif reason:
                    skipped.append(SkippedText(source.name, reason))
            tokens = out.tell() // dtype.itemsize
        files = len(sources) - len(skipped) - empty
        corpus = Corpus(tokens_path, tokens, files, tuple(skipped), digest.hexdigest(), dtype.name)
        if corpus.files:
            # The description is written first: the tokens' file marks both as complete.
            description = {**asdict(corpus), "tokens_path": str(tokens_path)}
            replace_file(_description_path(tokens_path), json.dumps(description).encode())
            os.replace(temporary, tokens_path)
            _evict_oldest(tokens_path.parent)
        return corpus
    finally:
        temporary.unlink(missing_ok=True)


def _write(out: BinaryIO, update: Write, tokens: bytes) -> None:
    out.write(tokens)
    update(tokens)


def _append_text(file: Path, encoder: Encoder, write: Write) -> str:
    """Write the tokens of the file and a separator; returns the reason if the file is skipped."""
    try:
        reason = _text_error(file)
        if reason:
            return reason
        with open_regular(file) as source:
            for tokens in encoder.encode(iter(functools.partial(_read, source), b"")):
                write(tokens)
    except _UnreadableError as error:
        return f"cannot be read: {error}"
    except OSError as error:
        if str(error.filename) != str(file):  # an error of the cache, such as a full disk
            raise
        return f"cannot be read: {error.strerror}"
    write(encoder.separator)
    return ""


class _UnreadableError(Exception):
    """An error while reading an opened file."""


def _read(source: BinaryIO) -> bytes:
    try:
        return source.read(_CHUNK_BYTES)
    except OSError as error:
        raise _UnreadableError(error.strerror) from error


def _text_error(file: Path) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    with open_regular(file) as source:
        while chunk := _read(source):
            if (zero := chunk.find(ByteEncoder.separator)) >= 0:
                return f"binary (byte 0 at offset {position + zero})"
            incomplete = len(decoder.getstate()[0])  # bytes of a character that began in the chunk before
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                return f"not UTF-8 (at offset {position - incomplete + error.start})"
            position += len(chunk)
    if incomplete := len(decoder.getstate()[0]):
        return f"not UTF-8 (ends in the middle of the character at offset {position - incomplete})"
    return "" if position else EMPTY


def _description_path(tokens_path: Path) -> Path:
    return tokens_path.with_suffix(".json")


def _evict_oldest(cache_dir: Path) -> None:
    """Keep the newest token files only. A mapped file remains readable after its removal."""
    by_age = sorted(cache_dir.glob("*.tokens"), key=lambda file: (file.stat().st_mtime, file.name), reverse=True)
    for old in by_age[_CACHED_CORPORA:]:
        old.unlink(missing_ok=True)
        _description_path(old).unlink(missing_ok=True)


def _read_cached(tokens_path: Path) -> Corpus | None:
    try:
        with open_regular(_description_path(tokens_path)) as stream:
            described = json.loads(stream.read())
        corpus = Corpus(
            tokens_path,
            int(described["tokens"]),
            int(described["files"]),
            tuple(SkippedText(**file) for file in described["skipped"]),
            str(described["digest"]),
            str(np.dtype(described["dtype"])),
        )
        if tokens_path.stat().st_size != corpus.tokens * np.dtype(corpus.dtype).itemsize:
            return None
        os.utime(tokens_path)  # most recently used
        return corpus
    except (OSError, ValueError, KeyError, TypeError):
        return None
