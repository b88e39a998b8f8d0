"""The store of runs outside the pod: any fsspec backend, with the same names as in the run folder.

Traces are compressed, and uploaded once; `run_sync` uploads what grows while the job runs.

A download becomes a run folder with these files, the manifests and the traces of the newest attempt and window of
steps. Files with other names are ignored.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

from fsspec.core import url_to_fs
from fsspec.spec import AbstractBufferedFile

from muster.errors import ClusterError, InvalidSpec, Refused, install_extra
from muster.tracing import HOW_TO_TRACE
from muster.tracing.read.flight_recorder import FLIGHT_RECORDER, RECORDER_NAME
from muster.tracing.runs import multipart_upload
from muster.tracing.runs.multipart_upload import UploadStates
from muster.tracing.runs.trace_files import MEMORY, TRACES, parse_trace_name
from muster.tracing.shared_folder import SharedFolder

# Backends that write in place but rename atomically. In object stores an object is visible only once it is complete,
# and a rename is a copy.
RENAME_PROTOCOLS = frozenset({"file", "local", "memory", "sftp", "ssh", "hdfs", "webhdfs", "smb", "arrow_hdfs"})
_UPLOAD_SUFFIX = ".upload.tmp"
BLOCK_BYTES = 1 << 20
# zlib's default: 30% smaller than level 1 in twice the time, still over 150 MB/s.
GZIP_LEVEL = 6
MAX_FILE_BYTES = 16 << 20
EVENTS_FILE = "events.jsonl"

_RECORD_NAME = re.compile(rf"metrics/rank-\d+\.jsonl|heartbeats/rank-\d+\.json|{re.escape(EVENTS_FILE)}")
_MANIFEST_NAME = re.compile(r"traces/manifest-[A-Za-z0-9.-]+-\d+\.json")
MAX_FETCH_BYTES = 16 << 30
_MAX_FETCHED_FILES = 20_000
_CLIENT_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 5, "retries": {"max_attempts": 1}}}
}


class TraceStore:
    """A folder or bucket prefix given by URL: `s3://bucket/run`, `gs://...`, `file:///...` or a plain path.

    fsspec's backends read credentials from the environment; `options` are passed to the backend. With `states`, an
    upload of a large file to S3 that was interrupted continues. The constructor raises
    ValueError for an unknown protocol and ImportError if the backend's package is not installed.
    """

    def __init__(self, url: str, states: UploadStates | None = None, **options: object) -> None:
        self.url = url
        self._states = states
        filesystem, root = url_to_fs(url, **options)
        self._fs: Any = filesystem
        self._root: str = root.rstrip("/")
        protocol = filesystem.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self._uses_rename = bool(names & RENAME_PROTOCOLS)
        self._cleaned_targets: set[str] = set()  # paths without leftovers of a killed upload

    def put_file(self, source: IO[bytes], name: str) -> None:
        """Upload an open file as `name`, atomically: backends that write in place use a temporary name first.

        Idempotent. Raises OSError if the size after the upload differs.
        """
        target = self._path(name)
        self._make_folder(target)
        self._publish(target, lambda place: self._upload_stream(source, place, name))
        self._verify_size(name, source.tell())

    def put_bytes(self, name: str, data: bytes) -> None:
        """Upload these bytes as `name`; see `put_file`."""
        target = self._path(name)
        self._make_folder(target)
        self._publish(target, lambda place: self._fs.pipe_file(place, data))
        self._verify_size(name, len(data))

    def _upload_stream(self, source: IO[bytes], place: str, name: str) -> None:
        if (
            self._states is not None
            and hasattr(self._fs, "call_s3")
            and source.seek(0, os.SEEK_END) > multipart_upload.PART_BYTES
        ):
            sha256 = content_digest(source).sha256
            multipart_upload.upload_in_parts(self._fs, place, source, self._states, name, sha256=sha256)
            source.seek(0, os.SEEK_END)
            return
        source.seek(0)
        out = self._fs.open(place, "wb", block_size=multipart_upload.PART_BYTES)
        try:
            shutil.copyfileobj(source, out, multipart_upload.PART_BYTES)
        except BaseException:
            if isinstance(out, AbstractBufferedFile):  # close() would publish the part uploaded so far
                with suppress(Exception):
                    out.discard()
                out.closed = True
            else:
                out.close()
            raise
        out.close()

    def _make_folder(self, target: str) -> None:
        """Create the folder. Credentials limited to a prefix may not query the bucket; then the upload decides."""
        with suppress(PermissionError):
            self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)

    def _publish(self, target: str, send: Callable[[str], object]) -> None:
        if not self._uses_rename:
            send(target)
            return
        folder, _, last = target.rpartition("/")
        if target not in self._cleaned_targets:  # listing a large folder takes long
            self._remove_leftovers(folder, last)
        self._cleaned_targets.discard(target)
        temporary = f"{folder}/.{last}.{secrets.token_hex(8)}{_UPLOAD_SUFFIX}"
        send(temporary)
        self._fs.mv(temporary, target)
        self._cleaned_targets.add(target)

    def _remove_leftovers(self, folder: str, last: str) -> None:
        """Remove temporary files of killed uploads of the same file; only one collector at a time uploads a file."""
        for found in self._fs.ls(folder, detail=False):
            name = str(found).rpartition("/")[2]
            if name.startswith(f".{last}.") and name.endswith(_UPLOAD_SUFFIX):
                self._fs.rm_file(found)

    def _verify_size(self, name: str, expected: int) -> None:
        self._fs.invalidate_cache()
        found = self._fs.size(self._path(name))
        if found != expected:
            raise OSError(f"{self.url}: {name} must have {expected} bytes after the upload; got {found}")

    def sizes(self) -> dict[str, int]:
        """The size in bytes of each file, sorted by name, without temporary files."""
        self._fs.invalidate_cache()
        if not self._fs.exists(self._root):
            return {}
        found = self._fs.find(self._root, detail=True)
        details = {str(path)[len(self._root) :].lstrip("/"): info for path, info in found.items()}
        names = sorted(name for name in details if not name.rpartition("/")[2].startswith("."))
        return {name: int(details[name]["size"] or 0) for name in names}

    def fetch(self, name: str, local: Path, max_bytes: int) -> None:
        """Download one file, atomically. Raises FileNotFoundError, and OSError if it is larger than `max_bytes`."""
        local.parent.mkdir(parents=True, exist_ok=True)
        with SharedFolder(local.parent).new_file(local.name, owner="download") as new, self.open(name) as source:
            remaining = max_bytes
            while block := source.read(min(remaining + 1, multipart_upload.PART_BYTES)):
                if len(block) > remaining:
                    raise OSError(f"{self.url}: {name} must have at most {max_bytes} bytes; it has grown")
                new.file.write(block)
                remaining -= len(block)
            new.publish()

    def open(self, name: str) -> IO[bytes]:
        """Open for reading. Raises FileNotFoundError."""
        return cast(IO[bytes], self._fs.open(self._path(name), "rb"))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


@dataclass(frozen=True, slots=True)
class ContentDigest:
    """Size and SHA-256 of a published file."""

    bytes: int
    sha256: str


def compress(source: IO[bytes], target: IO[bytes], size: int) -> ContentDigest:
    """Gzip the first `size` bytes of `source` into `target`, which must be empty, readable and writable.

    Deterministic: the same content gives the same bytes.
    """
    source.seek(0)
    with gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=GZIP_LEVEL, mtime=0) as packed:
        while size > 0 and (block := source.read(min(size, BLOCK_BYTES))):
            packed.write(block)
            size -= len(block)
    target.flush()
    return content_digest(target)


def content_digest(file: IO[bytes], size: int | None = None) -> ContentDigest:
    """Size and SHA-256 of an open file, or of its first `size` bytes."""
    file.seek(0)
    digest, left = hashlib.sha256(), sys.maxsize if size is None else size
    while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
        digest.update(block)
        left -= len(block)
    return ContentDigest(bytes=file.tell(), sha256=digest.hexdigest())


@dataclass(frozen=True, slots=True)
class FetchedRun:
    """The local folder, and the numbers of traces (of the newest window of steps) and of other files in it."""

    folder: Path
    traces: int
    records: int


def fetch_run(location: str, folder: Path, *, max_bytes: int = MAX_FETCH_BYTES) -> FetchedRun:
    """Download a run's newest window from a store; traces that exist locally with the same size are skipped.

    Raises, before anything is written, `Refused` if the run has no traces and metrics (NothingCollected), if the
    store's package is missing (MissingPackage) or if the run is larger than `max_bytes` (TooLarge), and `InvalidSpec`
    for an invalid URL. Raises `ClusterError` if the store cannot be read, OSError if the folder cannot be written.
    """
    store, sizes = _open_run(location)
    traces, records = select_files(sizes)
    if not traces and not any(name.startswith("metrics/") for name in records):
        raise Refused(
            f"nothing has been collected yet: {location} has no traces and no metrics; {HOW_TO_TRACE}",
            reason="NothingCollected",
        )
    _fetch_files(store, {name: sizes[name] for name in (*traces, *records)}, frozenset(traces), folder, max_bytes)
    return FetchedRun(folder, len(traces), len(records))


def fetch_snapshots(location: str, folder: Path) -> int:
    """Download the memory snapshots of the newest steps of a run; returns how many. Raises as `fetch_run` does."""
    missing = "has no memory snapshot; muster trace JOB --memory records them"
    return _fetch_selected(location, folder, select_snapshots, missing)


def fetch_recorder_dumps(location: str, folder: Path) -> int:
    """Download the dumps of flight recorders of a run; returns how many. Raises as `fetch_run` does."""
    missing = "has no dump of a flight recorder; they are saved of ranks that hang, and by muster trace JOB --stacks"
    return _fetch_selected(location, folder, select_recorder_dumps, missing)


def _fetch_selected(location: str, folder: Path, select: Callable[[Iterable[str]], list[str]], missing: str) -> int:
    store, sizes = _open_run(location)
    names = select(sizes)
    if not names:
        raise Refused(f"{location} {missing}", reason="NothingCollected")
    _fetch_files(store, {name: sizes[name] for name in names}, frozenset(names), folder, MAX_FETCH_BYTES)
    return len(names)


def _open_run(location: str) -> tuple[TraceStore, dict[str, int]]:
    """The store of a run, and the size in bytes of each file in it."""
    with _store_errors(location):
        store = TraceStore(location, **_CLIENT_OPTIONS.get(urlsplit(location).scheme, {}))
        return store, store.sizes()


def _fetch_files(
    store: TraceStore, sizes: Mapping[str, int], unchanging: Collection[str], folder: Path, max_bytes: int
) -> None:
    """Download these files, of the `unchanging` ones those that the folder does not have with this size."""
    total = sum(sizes.values())
    if total > max_bytes or len(sizes) > _MAX_FETCHED_FILES:
        raise Refused(
            f"the run in {store.url} must have at most {_MAX_FETCHED_FILES} files and {max_bytes} bytes "
            f"(--max-fetch-bytes); got {len(sizes)} files with {total} bytes",
            reason="TooLarge",
        )
    for name, size in sizes.items():
        local = folder / name
        if name in unchanging and local.is_file() and local.stat().st_size == size:
            continue
        local.parent.mkdir(parents=True, exist_ok=True)
        with _store_errors(store.url):
            store.fetch(name, local, size)


def read_stored_log(location: str, name: str) -> list[str] | None:
    """The lines of a log in the store of a run; None if there is none. Raises as `fetch_run` does."""
    with _store_errors(location):
        store = TraceStore(location, **_CLIENT_OPTIONS.get(urlsplit(location).scheme, {}))
        try:
            with store.open(f"logs/{name}") as file:
                content = file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
    return content.decode(errors="replace").splitlines()


def select_files(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The names of the traces of the newest window, and of the other files that a report reads."""
    windows: dict[tuple[int, int, int], list[str]] = {}
    records = []
    for name in sorted(names):
        parent, _, last = name.rpartition("/")
        trace = parse_trace_name(last) if parent == "traces" and last.endswith(".gz") else None
        if trace is not None:
            windows.setdefault((trace.attempt, trace.end_step, trace.start_step), []).append(name)
        elif _RECORD_NAME.fullmatch(name) or _MANIFEST_NAME.fullmatch(name):
            records.append(name)
    return (windows[max(windows)] if windows else []), records


def select_snapshots(names: Iterable[str]) -> list[str]:
    """The names of the memory snapshots of the newest attempt and steps."""
    windows: dict[tuple[int, int], list[str]] = {}
    for name in sorted(names):
        parent, _, last = name.rpartition("/")
        found = parse_trace_name(last, "memory") if parent == f"{TRACES}/{MEMORY}" and last.endswith(".gz") else None
        if found is not None:
            windows.setdefault((found.attempt, found.start_step), []).append(name)
    return windows[max(windows)] if windows else []


def select_recorder_dumps(names: Iterable[str]) -> list[str]:
    """The names of the dumps of flight recorders of the newest attempt."""
    attempts: dict[int, list[str]] = {}
    for name in sorted(names):
        folder, _, last = name.rpartition("/")
        if folder == FLIGHT_RECORDER and (match := RECORDER_NAME.fullmatch(last)):
            attempts.setdefault(int(match["attempt"]), []).append(name)
    return attempts[max(attempts)] if attempts else []


@contextmanager
def _store_errors(location: str) -> Iterator[None]:
    """Translate errors of a store's backend; errors of the local disk pass unchanged."""
    scheme = urlsplit(location).scheme
    try:
        yield
    except ImportError as error:
        how = install_extra("s3") if scheme == "s3" else f"install the package that fsspec requires: {error}"
        raise Refused(f"{location} requires a package that is not installed: {how}", reason="MissingPackage") from error
    except ValueError as error:
        raise InvalidSpec(f"{location}: {error}", reason="InvalidStoreURL") from error
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None and str(error.filename).startswith("/"):
            raise
        hint = ""
        if scheme == "s3":
            hint = (
                "; check the address and credentials in the environment: AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ClusterError(f"cannot read the store {location}: {cause}{hint}", reason="StoreUnreachable") from error
