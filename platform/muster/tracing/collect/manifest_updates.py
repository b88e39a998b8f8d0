"""Changes of a collector's manifest: entries of files, all of them after it was damaged; the oldest are deleted above
limits in bytes and in number; which ranks have no trace of steps that others have traced."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import IO

import msgspec

from muster.text import format_bytes
from muster.tracing.runs.run_folder import RANK_FILE
from muster.tracing.runs.run_store import ContentDigest, content_digest
from muster.tracing.runs.trace_files import (
    MEMORY,
    TRACES,
    ArtifactKind,
    Manifest,
    MissingRanks,
    SpoolClaims,
    TraceEntry,
    TraceName,
    parse_trace_name,
    read_manifests,
)
from muster.tracing.shared_folder import SharedFolder

_FOLDERS: tuple[tuple[ArtifactKind, str], ...] = (("trace", TRACES), ("memory", f"{TRACES}/{MEMORY}"))
MAX_STORED_BYTES = 32 << 30
MAX_ENTRIES = 10_000
"""Of a manifest: about 4 MiB, a quarter of what its readers accept."""
_REQUEST = "capture/request.json"
_MAX_REQUEST_BYTES = 1 << 20


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


def drop_oldest(run: SharedFolder, manifest: Manifest, max_bytes: int, *, in_store: bool) -> Manifest:
    """Delete the oldest files of the manifest until the rest has at most `max_bytes`, except those of the newest steps.

    Returns the manifest, in which a deleted trace is "dropped", unless it is `in_store` too. A trace is deleted before
    the manifest says so; a process that is killed in between finds it missing the next time. Raises OSError.
    """
    entries = sorted(manifest.entries, key=_age)
    if sum(entry.bytes for entry in entries if entry.status != "dropped") <= max_bytes:
        return manifest
    present = {entry.file for entry in entries if run.exists(f"{TRACES}/{entry.file}")}
    total = sum(entry.bytes for entry in entries if entry.file in present)
    newest = _age(entries[-1])[:2]
    for entry in entries:
        if entry.file in present and total > max_bytes and _age(entry)[:2] != newest:
            run.remove(f"{TRACES}/{entry.file}")
            present.discard(entry.file)
            total -= entry.bytes
        if entry.file not in present and entry.status == "ok" and not in_store:
            reason = f"deleted: the stored traces of this pod had more than {format_bytes(max_bytes)}"
            manifest = manifest.with_entry(replace(entry, status="dropped", reason=reason))
    return manifest


def drop_entries(run: SharedFolder, manifest: Manifest, most: int = MAX_ENTRIES) -> Manifest:
    """The manifest with its newest entries, at most `most`; the files of the others in this folder are deleted first,
    those in a store are kept. Raises OSError."""
    surplus = sorted(manifest.entries, key=_age)[: max(0, len(manifest.entries) - most)]
    if not surplus:
        return manifest
    for entry in surplus:
        for file in filter(None, (entry.file, entry.summary)):
            if run.exists(f"{TRACES}/{file}"):
                run.remove(f"{TRACES}/{file}")
    gone = {entry.file for entry in surplus}
    traces, snapshots = (tuple(e for e in part if e.file not in gone) for part in (manifest.traces, manifest.snapshots))
    return replace(manifest, traces=traces, snapshots=snapshots)


def claims_to_drop(run: SharedFolder, claims: SpoolClaims, max_bytes: int) -> list[TraceName]:
    """The oldest claimed files, so that the rest has at most `max_bytes`, except those of the newest steps. A file that
    waits for the store also has its compressed form on the disk. Raises OSError."""
    names = sorted(claims.claimed(), key=lambda name: (name.attempt, name.start_step, name.rank))
    sizes = {name: _size(run, claims.path(name)) + _size(run, f"{TRACES}/{name.archive_name}") for name in names}
    total, dropped = sum(sizes.values()), []
    for name in names:
        if total > max_bytes and (name.attempt, name.start_step) != (names[-1].attempt, names[-1].start_step):
            dropped.append(name)
            total -= sizes[name]
    return dropped


def _size(run: SharedFolder, name: str) -> int:
    return run.stat(name).st_size if run.exists(name) else 0


def _age(entry: TraceEntry) -> tuple[int, int, int, str]:
    return entry.attempt, entry.start_step, entry.rank, entry.file


class _Request(msgspec.Struct):
    """What counts of a request to profile steps (docs/reference/run-folder.md)."""

    attempt: int
    start_step: int
    end_step: int
    ranks: tuple[int, ...] = ()


def with_missing_ranks(run: SharedFolder, manifest: Manifest, own_ranks: frozenset[int] | None) -> Manifest:
    """The manifest with the ranks that lack an entry in all manifests of the run, for each attempt and window of steps
    in order.

    Expected are `own_ranks` (None: those with a heartbeat), of them the ranks that were asked to trace these steps: by
    the request for them, else by the job's configuration (`MUSTER_TRACE_RANKS`).
    """
    others = [other for other in read_manifests(run) if other.name != manifest.name]
    traced: dict[tuple[int, int, int], set[int]] = {}
    for one in (manifest, *others):
        for entry in one.traces:
            traced.setdefault((entry.attempt, entry.start_step, entry.end_step), set()).add(entry.rank)
    if not traced:
        return replace(manifest, missing=())
    pod = _ranks_with_heartbeat(run) if own_ranks is None else own_ranks
    configured = frozenset(
        int(rank) for rank in os.environ.get("MUSTER_TRACE_RANKS", "").split(",") if rank.isdecimal()
    )
    request = _request(run)
    found = []
    for (attempt, start, end), ranks in sorted(traced.items()):
        chosen = configured
        if request is not None and (request.attempt, request.start_step, request.end_step) == (attempt, start, end):
            chosen = frozenset(request.ranks)
        expected = pod & chosen if chosen else pod
        if missing := tuple(sorted(expected - ranks)):
            found.append(MissingRanks(attempt, start, end, missing))
    return replace(manifest, missing=tuple(found))


def _ranks_with_heartbeat(run: SharedFolder) -> frozenset[int]:
    with suppress(OSError):
        names = run.file_names("heartbeats")
        return frozenset(int(match[1]) for name in names if (match := RANK_FILE.fullmatch(name)))
    return frozenset()


def _request(run: SharedFolder) -> _Request | None:
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(run.read(_REQUEST, _MAX_REQUEST_BYTES), type=_Request)
    return None
