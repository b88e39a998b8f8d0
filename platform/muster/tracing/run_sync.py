"""Uploads what a report needs besides traces, and downloads a run from the store.

Metrics, heartbeats and events of the run folder grow while the job runs, so changed files are uploaded periodically and
at the end: at most the newest `MAX_FILE_BYTES` of each, and at intervals that keep the time for uploads small. Errors
are logged and retried later; they neither end the collector nor delay traces for long.

A download becomes a run folder with these files, the manifests and the traces of the newest attempt and window of
steps. Files with other names are ignored.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from muster.errors import ClusterError, InvalidSpec, Refused
from muster.tracing import HOW_TO_TRACE
from muster.tracing.run_folder import MAX_FILES, RANK_FILE
from muster.tracing.shared_folder import SharedFolder
from muster.tracing.trace_files import parse_trace_name
from muster.tracing.trace_store import TraceStore

SYNC_INTERVAL_S = 60.0
REST_FACTOR = 50.0
"""The interval is at least this multiple of the duration of the last upload."""
MAX_RETRY_S = 600.0
"""Maximum interval after an error; an unreachable store can take long to fail."""
MAX_FILE_BYTES = 16 << 20
EVENTS_FILE = "events.jsonl"
SYNCED_FOLDERS = {"metrics": ".jsonl", "heartbeats": ".json"}

_FileVersion: TypeAlias = tuple[int, int, int]  # modification time in ns, bytes, inode
_RECORD_NAME = re.compile(rf"metrics/rank-\d+\.jsonl|heartbeats/rank-\d+\.json|{re.escape(EVENTS_FILE)}")
_MANIFEST_NAME = re.compile(r"traces/manifest-[A-Za-z0-9.-]+-\d+\.json")
MAX_FETCH_BYTES = 16 << 30
_MAX_FETCHED_FILES = 20_000
_CLIENT_OPTIONS = {"s3": {"config_kwargs": {"connect_timeout": 5, "retries": {"max_attempts": 1}}}}


@dataclass(slots=True)
class RunSync:
    """Calls `upload(name, content)` for changed files, with names relative to the run folder; it may raise anything."""

    run_folder: SharedFolder
    upload: Callable[[str, bytes], None]
    log: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _next_sync_at: float = float("-inf")
    _uploaded: dict[str, _FileVersion] = field(default_factory=dict)
    _last_error: str = ""

    def sync(self, *, final: bool = False) -> int:
        """Upload changed files if the interval is over, or if `final`; returns how many were uploaded."""
        started = self.clock()
        if not final and started < self._next_sync_at:
            return 0
        uploaded = 0
        try:
            for name in synced_files(self.run_folder):
                uploaded += self._sync_file(name)
            self._last_error = ""
        except Exception as error:  # errors of a store or a disk must not end the collector
            message = f"{type(error).__name__}: {error}"
            if message != self._last_error or final:
                retry = "" if final else ", retrying"
                self.log(f"cannot upload metrics, heartbeats and events{retry}: {message}")
            self._last_error = message
        ended = self.clock()
        interval_s = max(SYNC_INTERVAL_S, REST_FACTOR * (ended - started))
        self._next_sync_at = ended + (min(interval_s, MAX_RETRY_S) if self._last_error else interval_s)
        return uploaded

    def _sync_file(self, name: str) -> bool:
        found = _read_changed(self.run_folder, name, self._uploaded.get(name))
        if found is None:
            return False
        version, content = found
        self.upload(name, content)
        self._uploaded[name] = version
        return True


def synced_files(run_folder: SharedFolder) -> list[str]:
    """The files to upload, relative to the run folder: events first, then by rank."""
    ranks = sorted((rank, folder, name) for folder in SYNCED_FOLDERS for rank, name in _rank_files(run_folder, folder))
    found = [f"{folder}/{name}" for rank, folder, name in ranks if rank < MAX_FILES]
    return [*([EVENTS_FILE] if run_folder.exists(EVENTS_FILE) else ()), *found]


def _rank_files(run: SharedFolder, folder: str) -> Iterator[tuple[int, str]]:
    with suppress(NotADirectoryError):
        for name in run.file_names(folder):
            match = RANK_FILE.fullmatch(name)
            if match is not None and name.endswith(SYNCED_FOLDERS[folder]):
                yield int(match[1]), name


def _read_changed(run: SharedFolder, name: str, previous: _FileVersion | None) -> tuple[_FileVersion, bytes] | None:
    """The complete lines within the last `MAX_FILE_BYTES` of a file; None if it is unchanged since `previous`."""
    try:
        file = run.open(name)
    except OSError:
        return None  # removed meanwhile, or a symbolic link
    with file:
        status = os.fstat(file.fileno())
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        if version == previous:
            return None
        skipped_bytes = max(0, status.st_size - MAX_FILE_BYTES)
        file.seek(skipped_bytes)
        content = file.read(MAX_FILE_BYTES)
    if name.endswith(".jsonl"):
        first = content.find(b"\n") + 1 if skipped_bytes else 0
        content = content[first : content.rfind(b"\n") + 1]
    return version, content


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
    with _store_errors(location):
        store = TraceStore(location, **_CLIENT_OPTIONS.get(urlsplit(location).scheme, {}))
        sizes = store.sizes()
    traces, records = select_files(sizes)
    if not traces and not any(name.startswith("metrics/") for name in records):
        raise Refused(
            f"nothing has been collected yet: {location} has no traces and no metrics; {HOW_TO_TRACE}",
            reason="NothingCollected",
        )
    names = (*traces, *records)
    total = sum(sizes[name] for name in names)
    if total > max_bytes or len(names) > _MAX_FETCHED_FILES:
        raise Refused(
            f"the run in {location} must have at most {_MAX_FETCHED_FILES} files and {max_bytes} bytes "
            f"(--max-fetch-bytes); got {len(names)} files with {total} bytes",
            reason="TooLarge",
        )
    for name in names:
        local = folder / name
        if name in traces and local.is_file() and local.stat().st_size == sizes[name]:
            continue
        local.parent.mkdir(parents=True, exist_ok=True)
        with _store_errors(location):
            store.fetch(name, local, sizes[name])
    return FetchedRun(folder, len(traces), len(records))


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


@contextmanager
def _store_errors(location: str) -> Iterator[None]:
    """Translate errors of a store's backend; errors of the local disk pass unchanged."""
    scheme = urlsplit(location).scheme
    try:
        yield
    except ImportError as error:
        how = (
            "run pip install '/path/to/muster[s3]' with the path of a clone of Muster"
            if scheme == "s3"
            else f"install the package that fsspec requires: {error}"
        )
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
