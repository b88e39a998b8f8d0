"""What the collector does with one look at the spool: every finished trace is checked, packed, kept and written down.

It may be killed at any instruction. Each trace goes through the same steps, of which every one can be done again:
claim it, check it, compress it under its final name, upload it, write it into the manifest, and only then delete the
original. Until that last step the claim holds the trace, so a restart begins with whatever is still there, and so does
a collector of another pod that takes over a dead one's claims. Trouble (a full disk, an unreachable store) is said and
tried again.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from muster.errors import InvalidTrace
from muster.tracing.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    TraceEntry,
    WaitingTrace,
    encode_manifest,
    parse_manifest,
    read_manifest,
    read_manifests,
    write_manifest,
)
from muster.tracing.publish import ContentDigest, compress, content_digest
from muster.tracing.reader import validate_trace
from muster.tracing.shared_folder import IrregularFile, SharedFolder
from muster.tracing.spool_claims import TRACES, SpoolClaims, claim_owners, collector_lock, remove_temporary_files
from muster.tracing.trace_name import TraceName, parse_trace_name
from muster.tracing.trace_store import TraceStore

MAX_BACKOFF_S = 30.0
MAX_TRACE_BYTES = 16 << 30
"""Of the text of a trace, unpacked. To check one takes time in proportion, not memory."""
MAX_READ_ATTEMPTS = 5
"""A trace whose reader was killed over it so often is set aside."""
TAKE_OVER_INTERVAL_S = 30.0
"""How often a collector looks for what dead collectors of other pods had claimed; at its own end it always does."""


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """What one collector looks after. `ranks` None: all; `store` None: the run folder is where traces stay.

    `keeps_metrics`: metrics, beats and events of the run folder go to the store as well. `mount`: the part of `run_dir`
    that the job cannot replace, as the mount point of a volume; below it no link is followed. None: all of it.
    `most_bytes`: a trace that unpacks to more is set aside.
    """

    run_dir: Path
    role: str
    index: int
    ranks: frozenset[int] | None = None
    store: str | None = None
    sync_metrics: bool = False
    mount: Path | None = None
    max_trace_bytes: int = MAX_TRACE_BYTES

    @property
    def run_folder(self) -> SharedFolder:
        """The run folder, which the job writes to. ValueError if it does not lie below `mount`."""
        if self.mount is None:
            return SharedFolder(self.run_dir)
        return SharedFolder(self.mount, str(self.run_dir.relative_to(self.mount)))

    @property
    def owner(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(slots=True)
class Collector:
    """The state between two looks at the spool: the manifest as written, and what is to be tried again when."""

    options: CollectorOptions
    run_folder: SharedFolder
    claims: SpoolClaims
    manifest: Manifest
    next_take_over_at: float = 0.0
    store: TraceStore | None = None
    remote_manifest_loaded: bool = False  # with what earlier pods of ours have listed in the store
    waiting: dict[str, WaitingTrace] = field(default_factory=dict)
    backoff: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> (not before, seconds waited)
    last_list_error: str = ""  # why the spool could not be listed, as said

    def collect_finished(self, now: float, *, respect_backoff: bool = True) -> int:
        """Collect every finished trace; returns how many. When not `patient`, also those that wait for a later try."""
        if not respect_backoff or now >= self.next_take_over_at:
            self._take_over_stale()
            self.next_take_over_at = now + TAKE_OVER_INTERVAL_S
        collected = 0
        for name in sorted(
            self.finished_traces(), key=self.claims.read_attempts
        ):  # what has killed a reader does not hold up the rest
            if respect_backoff and now < self.backoff.get(name.spool_name, (0.0, 0.0))[0]:
                continue
            try:
                if not self.claims.claim(name):
                    continue
                self._collect(name, now)
            except FileNotFoundError as error:
                if self._is_claimed(name):
                    self._defer(name, now, error)
            except Exception as error:  # whatever goes wrong with one trace must not end the collector
                self._defer(name, now, error)
            else:
                collected += 1
                self._clear_waiting(name)
        return collected

    def finished_traces(self) -> list[TraceName]:
        """Complete traces that are claimed already, or in the spool and of this pod's ranks; oldest steps first."""
        ranks = self.options.ranks
        try:
            free = [name for name in self.claims.unclaimed() if ranks is None or name.rank in ranks]
            found = sorted({*self.claims.claimed(), *free})
        except OSError as error:  # as where a link stands for a folder: the collector goes on
            if self.last_list_error != str(error):
                self.last_list_error = str(error)
                log(self.options, f"cannot list the finished traces: {error}")
            return []
        self.last_list_error = ""
        return found

    def _is_claimed(self, name: TraceName) -> bool:
        with suppress(OSError):
            return self.run_folder.exists(self.claims.path(name))
        return False

    def _take_over_stale(self) -> None:
        try:
            taken = self.claims.take_over_stale(self.options.ranks)
        except OSError as error:
            log(self.options, f"cannot look for what others left: {error}")
            return
        if taken:
            log(self.options, f"takes over what another pod's collector left: {', '.join(n.spool_name for n in taken)}")

    def _collect(self, name: TraceName, now: float) -> None:
        """Open the trace once: what is checked, compressed and uploaded is this file, whatever gets its name."""
        try:
            source = self.run_folder.open(self.claims.path(name))
        except IrregularFile as error:
            self._quarantine(name, ContentDigest(0, ""), str(error.strerror), now)
            return
        with source:
            size = os.fstat(source.fileno()).st_size
            if size > self.options.max_trace_bytes:
                reason = f"has {size} bytes, more than the limit of --max-trace-bytes: {self.options.max_trace_bytes}"
                self._quarantine(name, ContentDigest(size, ""), reason, now)
                return
            try:
                self._validate(name, source)
            except InvalidTrace as error:
                reason = str(error).removeprefix(f"{self._display_path(name)}: ")
                self._quarantine(name, content_digest(source, size), reason, now)
                return
            with self.run_folder.new_file(f"{TRACES}/{name.archive_name}", owner=self.options.owner) as packed:
                published = compress(source, packed.file, size)
                packed.publish()
                self._record(_trace_entry(name, name.archive_name, published, size, None, now), upload=packed.file)
        self.run_folder.remove(self.claims.path(name))
        log(self.options, f"collected {name.archive_name}: {size} bytes as {published.bytes}")

    def _display_path(self, name: TraceName) -> Path:
        return self.run_folder.path / self.claims.path(name)

    def _validate(self, name: TraceName, source: IO[bytes]) -> None:
        """Read it once. Raises InvalidTrace, also where that has killed or failed its reader too often before."""
        tries = self.claims.read_attempts(name)
        if tries >= MAX_READ_ATTEMPTS:
            raise InvalidTrace(f"{self._display_path(name)}: whoever read it was killed or failed, {tries} times")
        self.claims.begin_read(name)
        try:
            validate_trace(source, self._display_path(name), self.options.max_trace_bytes)
        except (InvalidTrace, OSError):
            self.claims.end_read(name)
            raise
        self.claims.end_read(name)

    def _quarantine(self, name: TraceName, digest: ContentDigest, reason: str, now: float) -> None:
        """Keep what is broken, out of the way and on record."""
        aside = f"{TRACES}/corrupt/{name.spool_name}"
        self.run_folder.make_folder(f"{TRACES}/corrupt")
        self._record(_trace_entry(name, f"corrupt/{name.spool_name}", digest, digest.bytes, reason, now), upload=None)
        self.run_folder.rename(self.claims.path(name), aside)
        self.claims.end_read(name)
        log(self.options, f"{name.spool_name} is corrupt, kept as {self.run_folder.path / aside}: {reason}")

    def _record(self, entry: TraceEntry, *, upload: IO[bytes] | None) -> None:
        """Manifest after upload: what it lists is there."""
        store = self._open_store() if self.options.store else None
        if store is not None:
            self._load_remote_manifest(store)
        if store is not None and upload is not None:
            store.put_file(upload, f"{TRACES}/{entry.file}")
        # The same content again means that we, or the dead one whose claim this was, were killed after writing it
        # down: the first record stands.
        listed_in = self._find_manifest(entry)
        if listed_in is None:
            changed = self.manifest.with_entry(entry)
            write_manifest(self.run_folder, changed, owner=self.options.owner)
            self.manifest = listed_in = changed
        if store is not None:
            store.put_bytes(f"{TRACES}/{listed_in.name}", encode_manifest(listed_in))

    def _load_remote_manifest(self, store: TraceStore) -> None:
        """What a pod of an earlier attempt has listed there stands, though its folder may have gone with it."""
        if self.remote_manifest_loaded:
            return
        try:
            with store.open(f"{TRACES}/{self.manifest.name}") as file:
                earlier = parse_manifest(file.read(MAX_MANIFEST_BYTES), f"{store.url}/{TRACES}/{self.manifest.name}")
        except FileNotFoundError:
            earlier = None
        except InvalidTrace as error:
            log(self.options, f"{error}; it is written anew")
            earlier = None
        for entry in earlier.traces if earlier is not None else ():
            if entry.status == "ok" and self.manifest.entry(entry.file) is None:
                self.manifest = self.manifest.with_entry(entry)
        self.remote_manifest_loaded = True

    def upload(self, name: str, content: bytes) -> None:
        """Put a file of the run folder into the store. Raises what the store raises."""
        self._open_store().put_bytes(name, content)

    def _find_manifest(self, entry: TraceEntry) -> Manifest | None:
        """The manifest that has this file with this content already."""
        others = (other for other in read_manifests(self.run_folder) if other.name != self.manifest.name)
        for manifest in (self.manifest, *others):
            known = manifest.entry(entry.file)
            if known is not None and known.sha256 == entry.sha256:
                return manifest
        return None

    def _open_store(self) -> TraceStore:
        if self.store is None:
            self.store = TraceStore(self.options.store or "")
        return self.store

    def _defer(self, name: TraceName, now: float, error: Exception) -> None:
        file, reason = name.spool_name, f"{type(error).__name__}: {error}"
        before = self.waiting.get(file)
        waited = min(max(1.0, 2 * self.backoff.get(file, (0.0, 0.0))[1]), MAX_BACKOFF_S)
        self.backoff[file] = (now + waited, waited)
        if before is None or before.reason != reason:
            self.waiting[file] = WaitingTrace(file, reason, before.since if before else now)
            log(self.options, f"{file} stays as it is and is tried again: {reason}")
            self._write_waiting()

    def _clear_waiting(self, name: TraceName) -> None:
        self.backoff.pop(name.spool_name, None)
        if self.waiting.pop(name.spool_name, None) is not None:
            self._write_waiting()

    def _write_waiting(self) -> None:
        """Best effort: on a full disk the log has to do."""
        changed = self.manifest.with_waiting(list(self.waiting.values()))
        with suppress(OSError):
            write_manifest(self.run_folder, changed, owner=self.options.owner)
            self.manifest = changed


def _trace_entry(
    name: TraceName, file: str, digest: ContentDigest, raw_bytes: int, reason: str | None, now: float
) -> TraceEntry:
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


def log(options: CollectorOptions, message: str) -> None:
    """One line on stderr; a log that cannot be written is no reason to stop."""
    with suppress(OSError, ValueError):
        print(f"collector {options.owner}: {message}", file=sys.stderr, flush=True)


def start_collector(options: CollectorOptions, now: float) -> Collector:
    """A collector that knows what its predecessor had done; half-written files of a killed one are removed."""
    run = options.run_folder
    claims = SpoolClaims(run, options.owner)
    claims.prepare()
    remove_temporary_files(run, options.owner)
    manifest = Manifest(options.role, options.index)
    try:
        manifest = read_manifest(run, manifest.name).with_waiting([])
    except FileNotFoundError:
        pass
    except InvalidTrace as error:
        path = f"{TRACES}/{manifest.name}"
        kept = f"{path.removesuffix('.json')}.broken"
        run.rename(path, kept)
        log(options, f"{error}; kept as {run.path / kept}, listing the traces anew")
        manifest = _rebuild_manifest(options, manifest, now)
        write_manifest(run, manifest, owner=options.owner)
    return Collector(options, run, claims, manifest)


def _rebuild_manifest(options: CollectorOptions, manifest: Manifest, now: float) -> Manifest:
    """What lies in the traces folder, written down again."""
    run = options.run_folder
    for file_name in run.file_names(TRACES):
        name = parse_trace_name(file_name)
        if (
            name is None
            or file_name != name.archive_name
            or (options.ranks is not None and name.rank not in options.ranks)
        ):
            continue
        with suppress(OSError), run.open(f"{TRACES}/{file_name}") as file:
            found, unpacked = content_digest(file, os.fstat(file.fileno()).st_size), _unpacked_bytes(file)
            manifest = manifest.with_entry(_trace_entry(name, file_name, found, unpacked, None, now))
    return manifest


def _unpacked_bytes(file: IO[bytes]) -> int:
    """Gzip ends with the size of what it holds, modulo 4 GiB."""
    file.seek(-4, os.SEEK_END)
    return int.from_bytes(file.read(4), "little")


def collect_abandoned(run_dir: Path, now: float) -> int:
    """Do the work of collectors that died over it, when no pod runs any more; returns how many traces were collected.

    Whatever a living collector holds is left to it. Raises OSError if the folder cannot be written.
    """
    run = SharedFolder(run_dir)
    collected = 0
    for owner in claim_owners(run):
        role, dash, index = owner.rpartition("-")
        if not dash or not index.isdecimal():
            continue
        with collector_lock(run, owner) as locked:
            if locked is False:
                continue
            collector = start_collector(CollectorOptions(run_dir, role, int(index)), now)
            while found := collector.collect_finished(now, respect_backoff=False):
                collected += found
    return collected
