"""The collector's list of what it has collected: the truth about which traces exist, replaced atomically."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from muster.errors import InvalidTrace
from muster.tracing.shared_folder import IrregularFile, SharedFolder
from muster.tracing.spool_claims import TRACES

MANIFEST_NAME = re.compile(r"manifest-(?P<role>.+)-(?P<index>\d+)\.json")
MAX_MANIFEST_BYTES = 16 << 20
"""Of a manifest that is read."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One trace. `file` is relative to the traces folder; `bytes` and `sha256` are those of that file, `raw_bytes`
    the size of the JSON text; `collected_at` in Unix seconds; `reason` says why a corrupt one is corrupt.
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
    """A finished trace that could not be collected yet; it stays claimed and is tried again. `file` as in the spool."""

    file: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one pod's collector knows; both lists are ordered by file."""

    role: str
    index: int
    traces: tuple[TraceEntry, ...] = ()
    waiting: tuple[WaitingTrace, ...] = ()

    @property
    def name(self) -> str:
        return f"manifest-{self.role}-{self.index}.json"

    def entry(self, file: str) -> TraceEntry | None:
        """The entry of this file, if there is one."""
        return next((entry for entry in self.traces if entry.file == file), None)

    def with_entry(self, entry: TraceEntry) -> Manifest:
        """With this entry instead of any other for the same file."""
        others = [e for e in self.traces if e.file != entry.file]
        return replace(self, traces=tuple(sorted([*others, entry], key=lambda e: e.file)))

    def with_waiting(self, waiting: list[WaitingTrace]) -> Manifest:
        """With this list of what waits."""
        return replace(self, waiting=tuple(sorted(waiting, key=lambda w: w.file)))


def read_manifest(run: SharedFolder, name: str) -> Manifest:
    """A manifest of a run folder. Raises InvalidTrace if the file is none or not this pod's, FileNotFoundError if there
    is none."""
    path = f"{TRACES}/{name}"
    try:
        manifest = parse_manifest(run.read(path, MAX_MANIFEST_BYTES), str(run.path / path))
    except IrregularFile as error:
        raise InvalidTrace(f"{run.path / path}: {error.strerror}") from error
    if manifest.name != name:  # from it follow names of files
        raise InvalidTrace(f"{run.path / path}: is the manifest of another pod: {manifest.name!r}")
    return manifest


def parse_manifest(content: bytes, source: str) -> Manifest:
    """Raises InvalidTrace, which names `where`, if this is no manifest."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidTrace(f"{source}: is no manifest: {error}") from error


def manifest_names(run: SharedFolder) -> list[str]:
    """The files in the traces folder that are manifests by their name."""
    return [name for name in run.file_names(TRACES) if MANIFEST_NAME.fullmatch(name)]


def read_manifests(run: SharedFolder) -> list[Manifest]:
    """The readable manifests of all pods in a run folder."""
    found = []
    for name in manifest_names(run):
        with suppress(InvalidTrace, OSError):
            found.append(read_manifest(run, name))
    return found


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as it is written."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def write_manifest(run: SharedFolder, manifest: Manifest, *, owner: str) -> None:
    """Replace the manifest in the traces folder."""
    run.write(f"{TRACES}/{manifest.name}", encode_manifest(manifest), owner=owner)
