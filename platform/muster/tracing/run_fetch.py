"""Downloads from the store what a report needs of a run into a local folder.

The folder becomes a run folder with metrics, heartbeats, events, manifests and the traces of the newest attempt and
window of steps. Files with other names are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from muster.errors import ClusterError, InvalidSpec, Refused
from muster.tracing import HOW_TO_TRACE
from muster.tracing.run_sync import EVENTS_FILE
from muster.tracing.trace_files import parse_trace_name
from muster.tracing.trace_store import TraceStore

_RECORD_NAME = re.compile(rf"metrics/rank-\d+\.jsonl|heartbeats/rank-\d+\.json|{re.escape(EVENTS_FILE)}")
_MANIFEST_NAME = re.compile(r"traces/manifest-[A-Za-z0-9.-]+-\d+\.json")
MAX_FETCH_BYTES = 16 << 30
_MAX_FILES = 20_000
_CLIENT_OPTIONS = {"s3": {"config_kwargs": {"connect_timeout": 5, "retries": {"max_attempts": 1}}}}


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
    if total > max_bytes or len(names) > _MAX_FILES:
        raise Refused(
            f"the run in {location} must have at most {_MAX_FILES} files and {max_bytes} bytes (--max-fetch-bytes); "
            f"got {len(names)} files with {total} bytes",
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
