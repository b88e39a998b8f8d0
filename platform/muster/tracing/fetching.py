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
from muster.tracing.keeping import EVENTS
from muster.tracing.names import parse_name
from muster.tracing.recording import HOW_TO_TRACE
from muster.tracing.store import Store

_RECORDS = re.compile(rf"metrics/rank-\d+\.jsonl|beats/rank-\d+\.json|{re.escape(EVENTS)}")
_MANIFEST = re.compile(r"traces/manifest-[A-Za-z0-9.-]+-\d+\.json")
MOST_BYTES = 16 << 30
_MOST_FILES = 20_000
_PATIENCE = {"s3": {"config_kwargs": {"connect_timeout": 5, "retries": {"max_attempts": 1}}}}


@dataclass(frozen=True, slots=True)
class Fetched:
    """What the folder holds now, in files; `traces` of the newest window of steps."""

    folder: Path
    traces: int
    records: int


def fetch(location: str, folder: Path, *, most_bytes: int = MOST_BYTES) -> Fetched:
    """Copy a run's newest window from its folder in a store; what is here already, of the same size, is not copied
    again.

    Raises `Refused` where there is nothing yet (NothingCollected), the store's package is missing (NoPackage), or there
    is more than `most_bytes`, before anything is written (TooLarge),
    `InvalidSpec` for what is no store, `ClusterError` where the store is out of reach, OSError if it cannot be written.
    """
    with _reaching(location):
        store = Store(location, **_PATIENCE.get(urlsplit(location).scheme, {}))
        sizes = store.sizes()
    traces, records = wanted(sizes)
    if not traces and not any(name.startswith("metrics/") for name in records):
        raise Refused(
            f"nothing has been collected yet: {location} holds no trace and no metrics; {HOW_TO_TRACE}",
            reason="NothingCollected",
        )
    names = (*traces, *records)
    total = sum(sizes[name] for name in names)
    if total > most_bytes or len(names) > _MOST_FILES:
        raise Refused(
            f"the run is too large to be fetched: {len(names)} files with {total} bytes in {location}; the limit is "
            f"{_MOST_FILES} files, and {most_bytes} bytes, which --max-fetch-bytes raises",
            reason="TooLarge",
        )
    for name in names:
        local = folder / name
        if name in traces and local.is_file() and local.stat().st_size == sizes[name]:
            continue
        local.parent.mkdir(parents=True, exist_ok=True)
        with _reaching(location):
            store.fetch(name, local, sizes[name])
    return Fetched(folder, len(traces), len(records))


def wanted(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of the names in a run's folder: the traces of the newest window, and all else that a report reads."""
    windows: dict[tuple[int, int, int], list[str]] = {}
    records = []
    for name in sorted(names):
        parent, _, last = name.rpartition("/")
        trace = parse_name(last) if parent == "traces" and last.endswith(".gz") else None
        if trace is not None:
            windows.setdefault((trace.attempt, trace.end_step, trace.start_step), []).append(name)
        elif _RECORDS.fullmatch(name) or _MANIFEST.fullmatch(name):
            records.append(name)
    return (windows[max(windows)] if windows else []), records


@contextmanager
def _reaching(location: str) -> Iterator[None]:
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
        raise Refused(f"{location} cannot be read here: {how}", reason="NoPackage") from error
    except ValueError as error:
        raise InvalidSpec(f"{location}: {error}", reason="NoStore") from error
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
        raise ClusterError(f"the store {location} cannot be read: {told}{hint}", reason="StoreOutOfReach") from error
