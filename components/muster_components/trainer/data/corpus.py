"""Text files to one array of byte tokens that all ranks of a host share.

A token is a byte, so the vocabulary has 256 entries and needs no download. Byte 0 separates the files. Files that
cannot be read, contain byte 0 or are not UTF-8 are skipped and listed (empty ones silently); data without text
is rejected.

The tokens are written once to a cache file, which every rank maps into memory, since reading thousands of files in
every rank and attempt would take longer. The name of the cache file is a hash of the files' names, sizes and times.
"""

from __future__ import annotations

import codecs
import glob
import hashlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from muster_components.trainer.checkpoint_manifest import open_regular
from muster_components.trainer.errors import InputError
from muster_components.trainer.reporter import replace_file

SEPARATOR: Final = b"\0"
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

    def open(self) -> NDArray[np.uint8]:
        """Map the tokens, read-only and shared."""
        return np.memmap(self.tokens_path, dtype=np.uint8, mode="r", shape=(self.tokens,))


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


def build_corpus(path: str, cache_dir: Path, *, exclude: Path | None = None) -> Corpus:
    """Write the files' tokens to the cache if they are not there. Raises InputError without text, or if it cannot be
    written."""
    files = find_files(path, exclude=exclude)
    tokens_path = cache_dir / f"{_listing_digest(files)}.tokens"
    cached = _read_cached(tokens_path)
    if cached is not None:
        return cached
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        corpus = _write_tokens(files, tokens_path)
    except OSError as error:
        raise InputError(
            f"cannot write the tokens of --data {path!r} to {cache_dir}: {error.strerror}; "
            "set MUSTER_CACHE_DIR to a folder with free space"
        ) from error
    if corpus.files == 0:
        reasons = "; ".join(f"{file.path}: {file.reason}" for file in corpus.skipped[:3]) or "all are empty"
        raise InputError(f"--data {path!r} has no text in its {len(files)} files ({reasons})")
    return corpus


def token_cache_dir(environ: Mapping[str, str]) -> Path:
    """$MUSTER_CACHE_DIR/tokens, or the user's cache folder."""
    return cache_root(environ) / "tokens"


def cache_root(environ: Mapping[str, str]) -> Path:
    """The cache folder for tokens and compiled code. Raises InputError if it would be a folder in /tmp that other users
    can access, since compiled code is loaded from it."""
    chosen = environ.get("MUSTER_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "muster"
    try:
        return Path.home() / ".cache" / "muster"
    except RuntimeError:  # a user without home folder, as in containers
        folder = Path(tempfile.gettempdir()) / f"muster-{os.getuid()}"
        _ensure_private(folder)
        return folder


def _ensure_private(folder: Path) -> None:
    """Create the folder, or check that only this user can access it. Raises InputError."""
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; set MUSTER_CACHE_DIR to a folder you may write to") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InputError(
            f"{folder} must be a folder of user {os.getuid()} with mode 700, and no symbolic link; got mode"
            f" {stat.filemode(status.st_mode)} of user {status.st_uid}; remove it or set MUSTER_CACHE_DIR"
        )


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


def _listing_digest(files: Sequence[Path]) -> str:
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


def _write_tokens(files: Sequence[Path], tokens_path: Path) -> Corpus:
    temporary = tokens_path.with_name(f"{tokens_path.name}.{secrets.token_hex(8)}.tmp")  # hosts may share the cache
    skipped: list[SkippedText] = []
    empty = 0
    digest = hashlib.sha256()
    try:
        with temporary.open("wb") as out:
            for file in files:
                before, trial = out.tell(), digest.copy()
                reason = _append_text(file, out, trial.update)
                if not reason:
                    digest = trial
                else:
                    out.seek(before)
                    out.truncate()
                if reason == EMPTY:
                    empty += 1
                elif reason:
                    skipped.append(SkippedText(str(file), reason))
            tokens = out.tell()
        corpus = Corpus(tokens_path, tokens, len(files) - len(skipped) - empty, tuple(skipped), digest.hexdigest())
        if corpus.files:
            # The description is written first: the tokens' file marks both as complete.
            description = {**asdict(corpus), "tokens_path": str(tokens_path)}
            replace_file(_description_path(tokens_path), json.dumps(description).encode())
            os.replace(temporary, tokens_path)
            _evict_oldest(tokens_path.parent)
        return corpus
    finally:
        temporary.unlink(missing_ok=True)


def _append_text(file: Path, out: BinaryIO, update: Callable[[bytes], None]) -> str:
    """Append the file and a separator; returns the reason if the file is skipped, else an empty string."""
    try:
        reason = _text_error(file)
        if reason:
            return reason
        with open_regular(file) as source:
            while chunk := _read(source):
                out.write(chunk)
                update(chunk)
    except _UnreadableError as error:
        return f"cannot be read: {error}"
    except OSError as error:
        if str(error.filename) != str(file):  # an error of the cache, such as a full disk
            raise
        return f"cannot be read: {error.strerror}"
    out.write(SEPARATOR)
    update(SEPARATOR)
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
            if (zero := chunk.find(SEPARATOR)) >= 0:
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
        )
        if tokens_path.stat().st_size != corpus.tokens:
            return None
        os.utime(tokens_path)  # most recently used
        return corpus
    except (OSError, ValueError, KeyError, TypeError):
        return None
