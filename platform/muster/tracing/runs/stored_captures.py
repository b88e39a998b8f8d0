"""What a run folder has of each capture: the ranks with a stored trace, those without one, and how large it is."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from muster.tracing.runs.trace_files import (
    CLAIMED,
    SPOOL,
    TRACES,
    ArtifactKind,
    Manifest,
    TraceEntry,
    parse_trace_name,
    read_manifests,
)
from muster.tracing.shared_folder import SharedFolder

_Window = tuple[ArtifactKind, int, int, int]


@dataclass(slots=True)
class StoredCapture:
    """The traces, or the memory snapshots, of one attempt over the same steps (half-open).

    `ranks` have a stored one, `missing` none although they were asked for it. `lost` is the number of those that are
    corrupt or were deleted for newer ones, `waiting` of those that are written and not stored yet. `bytes` are those on
    disk, `raw_bytes` those of the unpacked text. `collected_at`: of the newest one, Unix seconds; 0 while none is
    stored.
    """

    kind: ArtifactKind
    attempt: int
    start_step: int
    end_step: int
    ranks: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    lost: int = 0
    waiting: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    collected_at: float = 0.0


def stored_captures(run: SharedFolder) -> list[StoredCapture]:
    """The captures of a run folder, the newest first. Files that cannot be read are left out."""
    found: dict[_Window, StoredCapture] = {}

    def capture(kind: ArtifactKind, attempt: int, start: int, end: int) -> StoredCapture:
        return found.setdefault((kind, attempt, start, end), StoredCapture(kind, attempt, start, end))

    manifests = []
    with suppress(OSError):  # a link in place of a folder
        manifests = read_manifests(run)
    for kind, entry in _newest_entries(manifests):
        _add(capture(kind, entry.attempt, entry.start_step, entry.end_step), entry)
    for manifest in manifests:
        for one in manifest.missing:
            of_window = capture("trace", one.attempt, one.start_step, one.end_step)
            of_window.missing += set(one.ranks) - {*of_window.ranks, *of_window.missing}
    for name in _not_stored(run):
        for kind in ("trace", "memory"):
            parsed = parse_trace_name(name.rpartition("/")[2], kind)
            if parsed is not None:
                of_window = capture(kind, parsed.attempt, parsed.start_step, parsed.end_step)
                of_window.waiting += 1
                with suppress(OSError):  # stored meanwhile
                    size = run.stat(name).st_size
                    of_window.bytes += size
                    of_window.raw_bytes += size
    for one_capture in found.values():
        one_capture.ranks.sort()
        one_capture.missing.sort()
    return sorted(found.values(), key=lambda one: (one.attempt, one.end_step, one.start_step, one.kind), reverse=True)


def _newest_entries(manifests: Iterable[Manifest]) -> list[tuple[ArtifactKind, TraceEntry]]:
    """Each trace and snapshot once: what was written again under the same name counts as collected last."""
    newest: dict[tuple[str, int, int, int, int], tuple[ArtifactKind, TraceEntry]] = {}
    for manifest in manifests:
        entries: list[tuple[ArtifactKind, TraceEntry]] = [("trace", entry) for entry in manifest.traces]
        for kind, entry in [*entries, *(("memory", entry) for entry in manifest.snapshots)]:
            key = (kind, entry.rank, entry.attempt, entry.start_step, entry.end_step)
            if key not in newest or newest[key][1].collected_at <= entry.collected_at:
                newest[key] = (kind, entry)
    return list(newest.values())


def _add(capture: StoredCapture, entry: TraceEntry) -> None:
    if entry.status != "ok":
        capture.lost += 1
        return
    capture.ranks.append(entry.rank)
    capture.bytes += entry.bytes
    capture.raw_bytes += entry.raw_bytes
    capture.collected_at = max(capture.collected_at, entry.collected_at)


def _not_stored(run: SharedFolder) -> list[str]:
    """Files in the spool and in the folders of claims."""
    names: list[str] = []
    with suppress(OSError):
        owners = run.folder_names(f"{TRACES}/{CLAIMED}")
        for folder in (SPOOL, *(f"{TRACES}/{CLAIMED}/{owner}" for owner in owners)):
            names += [f"{folder}/{name}" for name in run.file_names(folder)]
    return names
