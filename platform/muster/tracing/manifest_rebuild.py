"""The entries of a manifest: of a file that was collected, and of all files after the manifest was damaged."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from typing import IO

from muster.tracing.run_store import ContentDigest, content_digest
from muster.tracing.shared_folder import SharedFolder
from muster.tracing.trace_files import MEMORY, TRACES, ArtifactKind, Manifest, TraceEntry, TraceName, parse_trace_name

_FOLDERS: tuple[tuple[ArtifactKind, str], ...] = (("trace", TRACES), ("memory", f"{TRACES}/{MEMORY}"))


def trace_entry(
    name: TraceName, file: str, digest: ContentDigest, raw_bytes: int, reason: str | None, now: float
) -> TraceEntry:
    """The entry of `file`, relative to the traces folder; corrupt with a `reason`."""
    return TraceEntry(
        file=file,
        rank=name.rank,
        attempt=name.attempt,
        start_step=name.start_step,
        end_step=name.end_step,
        bytes=digest.bytes,
        raw_bytes=raw_bytes,
        sha256=digest.sha256,
        status="ok" if reason is None else "corrupt",
        reason=reason,
        collected_at=now,
    )


def rebuild_manifest(run: SharedFolder, manifest: Manifest, ranks: Collection[int] | None, now: float) -> Manifest:
    """The manifest with an entry for every compressed file of these ranks (None: all) in the traces folder."""
    for kind, folder in _FOLDERS:
        for file_name in run.file_names(folder):
            name = parse_trace_name(file_name, kind)
            if name is None or not file_name.endswith(".gz") or (ranks is not None and name.rank not in ranks):
                continue
            with suppress(OSError), run.open(f"{folder}/{file_name}") as file:
                found, unpacked = content_digest(file, os.fstat(file.fileno()).st_size), _unpacked_bytes(file)
                manifest = manifest.with_entry(trace_entry(name, name.archive_name, found, unpacked, None, now))
    return manifest


def _unpacked_bytes(file: IO[bytes]) -> int:
    """The uncompressed size from the gzip trailer, modulo 4 GiB."""
    file.seek(-4, os.SEEK_END)
    return int.from_bytes(file.read(4), "little")
