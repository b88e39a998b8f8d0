"""One poll of the spool: every finished trace is validated, compressed, uploaded and recorded in the manifest.
Memory snapshots too, except that they are not validated: `muster memory` reads them with bounds of its own.

The collector may be killed at any instruction, so each step is idempotent: claim the trace, validate it, compress it
under its final name, upload it, record it in the manifest, and only then delete the original. Until then the claim
keeps the trace, so a restarted collector, or one of another pod that takes over stale claims, starts again with it.
Errors are logged and retried."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from muster.backoff import Backoff
from muster.errors import InvalidTrace
from muster.text import format_bytes
from muster.tracing.collect.event_totals import EventTotals, encode_totals
from muster.tracing.collect.manifest_updates import (
    MAX_ENTRIES,
    MAX_STORED_BYTES,
    claims_to_drop,
    drop_entries,
    drop_oldest,
    rebuild_manifest,
    trace_entry,
    with_missing_ranks,
)
from muster.tracing.reader import validate_trace
from muster.tracing.runs.multipart_upload import UploadStates
from muster.tracing.runs.run_store import ContentDigest, TraceStore, compress, content_digest
from muster.tracing.runs.trace_files import (
    MAX_MANIFEST_BYTES,
    MEMORY,
    SUMMARIES,
    TRACES,
    Manifest,
    SpoolClaims,
    TraceEntry,
    TraceName,
    WaitingTrace,
    claim_owners,
    collector_lock,
    encode_manifest,
    parse_manifest,
    read_manifest,
    read_manifests,
    remove_temporary_files,
    write_manifest,
)
from muster.tracing.shared_folder import IrregularFile, SharedFolder

MAX_BACKOFF_S = 30.0
MAX_TRACE_BYTES = 16 << 30
"""Limit for the uncompressed size of a trace. Validation takes time in proportion to it, but constant memory."""
MAX_READ_ATTEMPTS = 5
"""A trace is quarantined after so many reads that did not end (the reader was killed)."""
TAKE_OVER_INTERVAL_S = 30.0
"""Interval of taking over claims of terminated collectors of other pods; also done at shutdown."""


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """Options of one collector. `ranks` None: all ranks; `store` None: traces are kept in the run folder only.

    `sync_metrics`: also upload metrics, heartbeats and events. `mount`: the part of `run_dir` that the job cannot
    replace, such as the mount point of a volume (None: `run_dir`); symbolic links below it are not followed.
    A trace larger than `max_trace_bytes` (uncompressed) is quarantined. `max_stored_bytes`, `max_entries`: of this
    collector's traces in the run folder; the oldest above are deleted. `quiet`: nothing is logged. `state_dir`: of the
    collector alone, for records of interrupted uploads; None: these begin anew.
    """

    run_dir: Path
    role: str
    index: int
    ranks: frozenset[int] | None = None
    store: str | None = None
    sync_metrics: bool = False
    mount: Path | None = None
    max_trace_bytes: int = MAX_TRACE_BYTES
    max_stored_bytes: int = MAX_STORED_BYTES
    quiet: bool = False
    max_entries: int = MAX_ENTRIES
    state_dir: Path | None = None

    @property
    def run_folder(self) -> SharedFolder:
        """The run folder. Raises ValueError if it is not below `mount`."""
        if self.mount is None:
            return SharedFolder(self.run_dir)
        return SharedFolder(self.mount, str(self.run_dir.relative_to(self.mount)))

    @property
    def owner(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(slots=True)
class Collector:
    """The state between polls: the manifest as written, and the backoff of traces that failed."""

    options: CollectorOptions
    run_folder: SharedFolder
    claims: SpoolClaims
    manifest: Manifest
    next_take_over_at: float = 0.0
    store: TraceStore | None = None
    remote_manifest_loaded: bool = False  # the entries of this pod's earlier attempts in the store
    waiting: dict[str, WaitingTrace] = field(default_factory=dict)
    backoff: dict[str, Backoff] = field(default_factory=dict)  # by name of a trace that could not be collected
    last_list_error: str = ""  # as logged

    def collect_finished(self, now: float, *, respect_backoff: bool = True) -> int:
        """Collect every finished trace; returns how many. Without `respect_backoff` also those waiting for a retry."""
        if not respect_backoff or now >= self.next_take_over_at:
            self._take_over_stale()
            self.next_take_over_at = now + TAKE_OVER_INTERVAL_S
        collected = 0
        # Traces that have killed a reader come last, so that they do not delay the others.
        for name in sorted(self.finished_traces(), key=self.claims.read_attempts):
            if respect_backoff and (retry := self.backoff.get(name.spool_name)) is not None and now < retry.retry_at:
                continue
            try:
                if not self.claims.claim(name):
                    continue
                self._collect(name, now)
            except FileNotFoundError as error:
                if self._is_claimed(name):
                    self._defer(name, now, error)
            except Exception as error:  # an error of one trace must not end the collector
                self._defer(name, now, error)
            else:
                collected += 1
                self._clear_waiting(name)
                self._drop_oldest()
        if self.waiting:
            self._drop_oldest_waiting(now)
        return collected

    def _drop_oldest_waiting(self, now: float) -> None:
        """Delete the oldest traces that cannot be collected, above the limit. A killed collector does it again."""
        limit = self.options.max_stored_bytes
        try:
            for name in claims_to_drop(self.run_folder, self.claims, limit):
                path, archive = self.claims.path(name), f"{TRACES}/{name.archive_name}"
                if self.run_folder.exists(archive):
                    self.run_folder.remove(archive)
                why = self.waiting[name.spool_name].reason if name.spool_name in self.waiting else "not collected yet"
                reason = f"deleted: the traces that wait had more than {format_bytes(limit)} ({why})"[:500]
                size = self.run_folder.stat(path).st_size
                entry = trace_entry(name, name.archive_name, ContentDigest(0, ""), size, reason, now)
                changed = self.manifest.with_entry(replace(entry, status="dropped"))
                write_manifest(self.run_folder, changed, owner=self.options.owner)
                self.manifest = changed
                self.run_folder.remove(path)
                self.claims.end_read(name)
                self._clear_waiting(name)
                log(self.options, f"{name.spool_name}: {reason}")
        except OSError as error:
            log(self.options, f"cannot delete the oldest traces that wait: {error}")

    def _drop_oldest(self) -> None:
        """Delete the oldest traces above the limit."""
        in_store = self.options.store is not None
        try:
            kept = drop_oldest(self.run_folder, self.manifest, self.options.max_stored_bytes, in_store=in_store)
            kept = drop_entries(self.run_folder, kept, self.options.max_entries)
            if kept is not self.manifest:
                write_manifest(self.run_folder, kept, owner=self.options.owner)
                self.manifest = kept
        except OSError as error:  # tried again after the next trace
            log(self.options, f"cannot delete the oldest traces: {error}")

    def finished_traces(self) -> list[TraceName]:
        """Finished traces, claimed or in the spool, of this pod's ranks; oldest steps first."""
        ranks = self.options.ranks
        try:
            free = [name for name in self.claims.unclaimed() if ranks is None or name.rank in ranks]
            found = sorted({*self.claims.claimed(), *free})
        except OSError as error:  # such as a symbolic link in place of a folder
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
            log(self.options, f"cannot take over claims of terminated collectors: {error}")
            return
        if taken:
            log(self.options, f"took over claims of a terminated collector: {', '.join(n.spool_name for n in taken)}")

    def _collect(self, name: TraceName, now: float) -> None:
        """Collect one claimed trace. It is opened once, so that the file validated is the file compressed, even if
        another program replaces it."""
        try:
            source = self.run_folder.open(self.claims.path(name))
        except IrregularFile as error:
            self._quarantine(name, ContentDigest(0, ""), str(error.strerror), now)
            return
        with source:
            size = os.fstat(source.fileno()).st_size
            if size > self.options.max_trace_bytes:
                reason = f"must have at most {self.options.max_trace_bytes} bytes (--max-trace-bytes); got {size}"
                self._quarantine(name, ContentDigest(size, ""), reason, now)
                return
            try:
                totals = self._validate(name, source) if name.kind == "trace" else None
            except InvalidTrace as error:
                reason = str(error).removeprefix(f"{self._display_path(name)}: ")
                self._quarantine(name, content_digest(source, size), reason, now)
                return
            if name.kind == "memory":
                self.run_folder.make_folder(f"{TRACES}/{MEMORY}")
            with self.run_folder.new_file(f"{TRACES}/{name.archive_name}", owner=self.options.owner) as packed:
                published = compress(source, packed.file, size)
                packed.publish()
                entry = trace_entry(name, name.archive_name, published, size, None, now)
                if totals is not None:
                    entry = replace(entry, summary=self._write_summary(name, totals))
                self._record(entry, upload=packed.file)
        self.run_folder.remove(self.claims.path(name))
        log(self.options, f"collected {name.archive_name}: {size} bytes as {published.bytes}")

    def _write_summary(self, name: TraceName, totals: EventTotals) -> str | None:
        """Write the sums of the events beside the trace, and into the store; None where the folder is not writable."""
        content = encode_totals(totals.table())
        file = f"{name.summary_name}.parquet"
        try:
            self.run_folder.make_folder(f"{TRACES}/{SUMMARIES}")
            self.run_folder.write(f"{TRACES}/{file}", content, owner=self.options.owner)
        except OSError as error:  # such as a link in place of the folder
            log(self.options, f"cannot write {file}: {error}")
            return None
        if self.options.store:
            self._open_store().put_bytes(f"{TRACES}/{file}", content)
        return file

    def _display_path(self, name: TraceName) -> Path:
        return self.run_folder.path / self.claims.path(name)

    def _validate(self, name: TraceName, source: IO[bytes]) -> EventTotals:
        """Decode the trace and sum its events. Raises InvalidTrace, also after `MAX_READ_ATTEMPTS` unfinished reads."""
        attempts = self.claims.read_attempts(name)
        if attempts >= MAX_READ_ATTEMPTS:
            raise InvalidTrace(f"{self._display_path(name)}: its reader was killed or failed {attempts} times")
        self.claims.begin_read(name)
        totals = EventTotals()
        try:
            validate_trace(source, self._display_path(name), self.options.max_trace_bytes, totals.add)
        except (InvalidTrace, OSError):
            self.claims.end_read(name)
            raise
        self.claims.end_read(name)
        return totals

    def _quarantine(self, name: TraceName, digest: ContentDigest, reason: str, now: float) -> None:
        """Move a corrupt trace to `traces/corrupt/` and record it in the manifest."""
        target = f"{TRACES}/corrupt/{name.spool_name}"
        self.run_folder.make_folder(f"{TRACES}/corrupt")
        self._record(trace_entry(name, f"corrupt/{name.spool_name}", digest, digest.bytes, reason, now), upload=None)
        self.run_folder.rename(self.claims.path(name), target)
        self.claims.end_read(name)
        log(self.options, f"{name.spool_name} is corrupt, moved to {self.run_folder.path / target}: {reason}")

    def _record(self, entry: TraceEntry, *, upload: IO[bytes] | None) -> None:
        """Upload, then write the manifest, so that every listed file exists."""
        store = self._open_store() if self.options.store else None
        if store is not None:
            self._load_remote_manifest(store)
        if store is not None and upload is not None:
            store.put_file(upload, f"{TRACES}/{entry.file}")
        # The same content is listed already if the earlier collector of this claim was killed after recording it:
        # its entry is kept.
        listed_in = self._find_manifest(entry)
        if listed_in is None:
            changed = with_missing_ranks(self.run_folder, self.manifest.with_entry(entry), self.options.ranks)
            write_manifest(self.run_folder, changed, owner=self.options.owner)
            self.manifest = listed_in = changed
        if store is not None:
            store.put_bytes(f"{TRACES}/{listed_in.name}", encode_manifest(listed_in))

    def _load_remote_manifest(self, store: TraceStore) -> None:
        """Merge the entries that this pod's earlier attempts listed in the store: their volume may be deleted."""
        if self.remote_manifest_loaded:
            return
        try:
            with store.open(f"{TRACES}/{self.manifest.name}") as file:
                earlier = parse_manifest(file.read(MAX_MANIFEST_BYTES), f"{store.url}/{TRACES}/{self.manifest.name}")
        except FileNotFoundError:
            earlier = None
        except InvalidTrace as error:
            log(self.options, f"{error}; replacing it")
            earlier = None
        for entry in earlier.entries if earlier is not None else ():
            if entry.status == "ok" and self.manifest.entry(entry.file) is None:
                self.manifest = self.manifest.with_entry(entry)
        self.remote_manifest_loaded = True

    def upload(self, name: str, content: bytes) -> None:
        """Upload a file of the run folder. Raises the errors of the store's backend."""
        self._open_store().put_bytes(name, content)

    def _find_manifest(self, entry: TraceEntry) -> Manifest | None:
        """The manifest that already lists this file with this content, or None."""
        others = (other for other in read_manifests(self.run_folder) if other.name != self.manifest.name)
        for manifest in (self.manifest, *others):
            known = manifest.entry(entry.file)
            if known is not None and known.sha256 == entry.sha256:
                return manifest
        return None

    def _open_store(self) -> TraceStore:
        if self.store is None:
            place = self.options.state_dir
            states = UploadStates(SharedFolder(place), self.options.owner) if place else None
            self.store = TraceStore(self.options.store or "", states)
        return self.store

    def _defer(self, name: TraceName, now: float, error: Exception) -> None:
        file, reason = name.spool_name, f"{type(error).__name__}: {error}"
        previous = self.waiting.get(file)
        self.backoff.setdefault(file, Backoff(1.0, MAX_BACKOFF_S)).fail(now)
        if previous is None or previous.reason != reason:
            self.waiting[file] = WaitingTrace(file, reason, previous.since if previous else now)
            log(self.options, f"{file} cannot be collected, retrying: {reason}")
            self._write_waiting()

    def _clear_waiting(self, name: TraceName) -> None:
        self.backoff.pop(name.spool_name, None)
        if self.waiting.pop(name.spool_name, None) is not None:
            self._write_waiting()

    def _write_waiting(self) -> None:
        """Write the waiting traces into the manifest. Best effort: on a full disk they are only in the log."""
        changed = self.manifest.with_waiting(list(self.waiting.values()))
        with suppress(OSError):
            write_manifest(self.run_folder, changed, owner=self.options.owner)
            self.manifest = changed


def log(options: CollectorOptions, message: str) -> None:
    """Write one line to stderr; errors are ignored."""
    if options.quiet:
        return
    with suppress(OSError, ValueError):
        print(f"collector {options.owner}: {message}", file=sys.stderr, flush=True)


def start_collector(options: CollectorOptions, now: float) -> Collector:
    """A collector with the manifest of its predecessor; removes incomplete files of a killed one. Raises OSError."""
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
        renamed = f"{path.removesuffix('.json')}.broken"
        run.rename(path, renamed)
        log(options, f"{error}; renamed to {run.path / renamed}, rebuilding the manifest")
        manifest = rebuild_manifest(run, manifest, options.ranks, now)
        write_manifest(run, manifest, owner=options.owner)
    return Collector(options, run, claims, manifest)


def collect_abandoned(run_dir: Path, now: float) -> int:
    """Collect what terminated collectors left, once no pod runs any more; returns how many traces were collected.

    Claims of running collectors are skipped. Raises OSError if the folder cannot be written.
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
