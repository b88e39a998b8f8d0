"""Brings what a report needs of a run from the store, where collectors keep it, into a folder of this machine.

The folder becomes a run folder: metrics, beats, events, manifests and the traces of the newest attempt and window of
steps, which is what a report reads. Only files of these names are taken, whatever else lies in the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from muster.errors import ClusterError, InvalidSpec, Refused
from muster.tracing.recording import HOW_TO_TRACE
from muster.tracing.run_sync import EVENTS_FILE
from muster.tracing.trace_name import parse_trace_name
from muster.tracing.trace_store import TraceStore

_RECORD_NAME = re.compile(rf"metrics/rank-\d+\.jsonl|heartbeats/rank-\d+\.json|{re.escape(EVENTS_FILE)}")
_MANIFEST_NAME = re.compile(r"traces/manifest-[A-Za-z0-9.-]+-\d+\.json")
MAX_FETCH_BYTES = 16 << 30
_MAX_FILES = 20_000
_CLIENT_OPTIONS = {"s3": {"config_kwargs": {"connect_timeout": 5, "retries": {"max_attempts": 1}}}}


@dataclass(frozen=True, slots=True)
class FetchedRun:
    """What the folder holds now, in files; `traces` of the newest window of steps."""

    folder: Path
    traces: int
    records: int


def fetch_run(location: str, folder: Path, *, max_bytes: int = MAX_FETCH_BYTES) -> FetchedRun:
    """Copy a run's newest window from its folder in a store; what is here already, of the same size, is not copied
    again.

    Raises `Refused` where there is nothing yet (NothingCollected), the store's package is missing (MissingPackage),
    or there is more than `most_bytes`, before anything is written (TooLarge),
    `InvalidSpec` for what is no store, `ClusterError` where the store is out of reach, OSError if it cannot be written.
    """
    with _store_errors(location):
        store = TraceStore(location, **_CLIENT_OPTIONS.get(urlsplit(location).scheme, {}))
        sizes = store.sizes()
    traces, records = select_files(sizes)
    if not traces and not any(name.startswith("metrics/") for name in records):
        raise Refused(
            f"nothing has been collected yet: {location} holds no trace and no metrics; {HOW_TO_TRACE}",
            reason="NothingCollected",
        )
    names = (*traces, *records)
    total = sum(sizes[name] for name in names)
    if total > max_bytes or len(names) > _MAX_FILES:
        raise Refused(
            f"the run is too large to be fetched: {len(names)} files with {total} bytes in {location}; the limit is "
            f"{_MAX_FILES} files, and {max_bytes} bytes, which --max-fetch-bytes raises",
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
    """Of the names in a run's folder: the traces of the newest window, and all else that a report reads."""
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
    """A store's own errors in words; those of this machine's disk as they are."""
    scheme = urlsplit(location).scheme
    try:
        yield
    except ImportError as error:
        how = (
            "pip install '/path/to/muster[s3]', of a clone of Muster"
            if scheme == "s3"
            else f"install the package that fsspec wants: {error}"
        )
        raise Refused(f"{location} cannot be read here: {how}", reason="MissingPackage") from error
    except ValueError as error:
        raise InvalidSpec(f"{location}: {error}", reason="InvalidStoreURL") from error
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None and str(error.filename).startswith("/"):
            raise
        hint = ""
        if scheme == "s3":
            hint = (
                "; its address and credentials are those of the environment: AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ClusterError(f"the store {location} cannot be read: {told}{hint}", reason="StoreUnreachable") from error
