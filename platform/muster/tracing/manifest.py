"""The collector's list of what it has collected: the truth about which traces exist, replaced atomically."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from muster.errors import InvalidTrace
from muster.tracing.publish import write_atomically

MANIFEST = re.compile(r"manifest-(?P<role>.+)-(?P<index>\d+)\.json")


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
class Waiting:
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
    waiting: tuple[Waiting, ...] = ()

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

    def with_waiting(self, waiting: list[Waiting]) -> Manifest:
        """With this list of what waits."""
        return replace(self, waiting=tuple(sorted(waiting, key=lambda w: w.file)))


def read_manifest(path: Path) -> Manifest:
    """Raises InvalidTrace if the file is not a manifest, FileNotFoundError if there is none."""
    return parse_manifest(path.read_bytes(), str(path))


def parse_manifest(content: bytes, where: str) -> Manifest:
    """Raises InvalidTrace, which names `where`, if this is no manifest."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidTrace(f"{where}: is no manifest: {error}") from error


def manifests(traces: Path) -> list[Manifest]:
    """The readable manifests of all pods in a traces folder."""
    found = []
    for path in sorted(traces.glob("manifest-*.json")):
        with suppress(InvalidTrace, OSError):
            found.append(read_manifest(path))
    return found


def write_manifest(traces: Path, manifest: Manifest, *, owner: str) -> None:
    """Replace the manifest in the traces folder."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_atomically(traces / manifest.name, text + b"\n", owner=owner)
