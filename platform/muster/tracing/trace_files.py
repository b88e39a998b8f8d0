"""The files of traces in a run folder (docs/run-folder.md): their names, and the manifest.

The manifest is the collector's list of collected traces, replaced atomically.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from muster.errors import InvalidTrace
from muster.tracing.shared_folder import IrregularFile, SharedFolder

TRACES = "traces"
TRACE_NAME = re.compile(r"rank-(\d+)\.attempt-(\d+)\.steps-(\d+)-(\d+)\.json(?:\.gz)?")
MANIFEST_NAME = re.compile(r"manifest-(?P<role>.+)-(?P<index>\d+)\.json")
MAX_MANIFEST_BYTES = 16 << 20
"""Limit for reading a manifest."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One trace. `file` is relative to the traces folder; `bytes` and `sha256` are those of that file, `raw_bytes`
    is the size of the JSON text; `collected_at` is in Unix seconds; `reason` is set if `status` is "corrupt".
    """

    file: str
    rank: int
    attempt: int
    start_step: int
    end_step: int
    bytes: int
    raw_bytes: int
    sha256: str
    status: Literal["ok", "corrupt"]
    reason: str | None
    collected_at: float


@dataclass(frozen=True, slots=True)
class WaitingTrace:
    """A claimed trace that could not be collected yet and is retried. `file` as in the spool, `since` Unix seconds."""

    file: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """The traces of one pod's collector; both lists are ordered by file."""

    role: str
    index: int
    traces: tuple[TraceEntry, ...] = ()
    waiting: tuple[WaitingTrace, ...] = ()

    @property
    def name(self) -> str:
        return f"manifest-{self.role}-{self.index}.json"

    def entry(self, file: str) -> TraceEntry | None:
        """The entry of this file, or None."""
        return next((entry for entry in self.traces if entry.file == file), None)

    def with_entry(self, entry: TraceEntry) -> Manifest:
        """A copy with this entry, which replaces an entry of the same file."""
        others = [e for e in self.traces if e.file != entry.file]
        return replace(self, traces=tuple(sorted([*others, entry], key=lambda e: e.file)))

    def with_waiting(self, waiting: list[WaitingTrace]) -> Manifest:
        """A copy with this list of waiting traces."""
        return replace(self, waiting=tuple(sorted(waiting, key=lambda w: w.file)))


def read_manifest(run: SharedFolder, name: str) -> Manifest:
    """Read a manifest of a run folder. Raises InvalidTrace if the file is invalid or names another pod,
    FileNotFoundError if it is missing."""
    path = f"{TRACES}/{name}"
    try:
        manifest = parse_manifest(run.read(path, MAX_MANIFEST_BYTES), str(run.path / path))
    except IrregularFile as error:
        raise InvalidTrace(f"{run.path / path}: {error.strerror}") from error
    if manifest.name != name:  # role and index determine file names
        raise InvalidTrace(f"{run.path / path}: must be the manifest of this pod; got {manifest.name!r}")
    return manifest


def parse_manifest(content: bytes, source: str) -> Manifest:
    """Decode a manifest. Raises InvalidTrace, with `source` in its message."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidTrace(f"{source}: invalid manifest: {error}") from error


def manifest_names(run: SharedFolder) -> list[str]:
    """The files in the traces folder with the name of a manifest."""
    return [name for name in run.file_names(TRACES) if MANIFEST_NAME.fullmatch(name)]


def read_manifests(run: SharedFolder) -> list[Manifest]:
    """The readable manifests of all pods in a run folder."""
    found = []
    for name in manifest_names(run):
        with suppress(InvalidTrace, OSError):
            found.append(read_manifest(run, name))
    return found


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def write_manifest(run: SharedFolder, manifest: Manifest, *, owner: str) -> None:
    """Replace the manifest in the traces folder."""
    run.write(f"{TRACES}/{manifest.name}", encode_manifest(manifest), owner=owner)


@dataclass(frozen=True, slots=True, order=True)
class TraceName:
    """`start_step` is the first traced step, `end_step` the first step after the traced ones."""

    attempt: int
    start_step: int
    end_step: int
    rank: int

    @property
    def spool_name(self) -> str:
        """The name of the finished trace in the spool, as the profiler hook writes it."""
        return f"rank-{self.rank}.attempt-{self.attempt}.steps-{self.start_step}-{self.end_step}.json"

    @property
    def archive_name(self) -> str:
        """The name of the collected, compressed trace."""
        return self.spool_name + ".gz"


def parse_trace_name(name: str) -> TraceName | None:
    """None for any other name, including that of a file still being written (.tmp)."""
    match = TRACE_NAME.fullmatch(name)
    if match is None:
        return None
    rank, attempt, start, end = (int(group) for group in match.groups())
    return TraceName(attempt=attempt, start_step=start, end_step=end, rank=rank)
