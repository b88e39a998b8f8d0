"""The limits for the stored traces and memory snapshots of one collector, in bytes and in number: above them, the
oldest ones are deleted."""

from __future__ import annotations

from dataclasses import replace

from muster.text import format_bytes
from muster.tracing.shared_folder import SharedFolder
from muster.tracing.trace_files import TRACES, Manifest, SpoolClaims, TraceEntry, TraceName

MAX_STORED_BYTES = 32 << 30
MAX_ENTRIES = 10_000
"""Of a manifest: about 4 MiB, a quarter of what its readers accept."""


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
    sizes = {name: _bytes(run, claims.path(name)) + _bytes(run, f"{TRACES}/{name.archive_name}") for name in names}
    total, dropped = sum(sizes.values()), []
    for name in names:
        if total > max_bytes and (name.attempt, name.start_step) != (names[-1].attempt, names[-1].start_step):
            dropped.append(name)
            total -= sizes[name]
    return dropped


def _bytes(run: SharedFolder, name: str) -> int:
    return run.stat(name).st_size if run.exists(name) else 0


def _age(entry: TraceEntry) -> tuple[int, int, int, str]:
    return entry.attempt, entry.start_step, entry.rank, entry.file
