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
from muster.tracing.claims import TRACES, Claims, only_one, owners, remove_leftovers
from muster.tracing.manifest import (
    LARGEST_BYTES,
    Manifest,
    TraceEntry,
    Waiting,
    encoded,
    manifests,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from muster.tracing.names import TraceName, parse_name
from muster.tracing.publish import Published, compress, fingerprint
from muster.tracing.reader import check
from muster.tracing.sharedfolder import IrregularFile, SharedFolder
from muster.tracing.store import Store

LONGEST_BACKOFF_S = 30.0
MOST_BYTES = 16 << 30
"""Of the text of a trace, unpacked. To check one takes time in proportion, not memory."""
MOST_TRIES = 5
"""A trace whose reader was killed over it so often is set aside."""
LOOK_AROUND_S = 30.0
"""How often a collector looks for what dead collectors of other pods had claimed; at its own end it always does."""


@dataclass(frozen=True, slots=True)
class Duty:
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
    keeps_metrics: bool = False
    mount: Path | None = None
    most_bytes: int = MOST_BYTES

    @property
    def run(self) -> SharedFolder:
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

    duty: Duty
    run: SharedFolder
    claims: Claims
    manifest: Manifest
    look_around_at: float = 0.0
    store: Store | None = None
    caught_up: bool = False  # with what earlier pods of ours have listed in the store
    waiting: dict[str, Waiting] = field(default_factory=dict)
    retry: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> (not before, seconds waited)
    trouble: str = ""  # why the spool could not be listed, as said

    def sweep(self, now: float, *, patient: bool = True) -> int:
        """Collect every finished trace; returns how many. When not `patient`, also those that wait for a later try."""
        if not patient or now >= self.look_around_at:
            self._take_over()
            self.look_around_at = now + LOOK_AROUND_S
        collected = 0
        for name in sorted(
            self.finished(), key=self.claims.tries
        ):  # what has killed a reader does not hold up the rest
            if patient and now < self.retry.get(name.spooled, (0.0, 0.0))[0]:
                continue
            try:
                if not self.claims.claim(name):
                    continue
                self._collect(name, now)
            except FileNotFoundError as error:
                if self._is_held(name):
                    self._postpone(name, now, error)
            except Exception as error:  # whatever goes wrong with one trace must not end the collector
                self._postpone(name, now, error)
            else:
                collected += 1
                self._settle(name)
        return collected

    def finished(self) -> list[TraceName]:
        """Complete traces that are claimed already, or in the spool and of this pod's ranks; oldest steps first."""
        ranks = self.duty.ranks
        try:
            free = [name for name in self.claims.free() if ranks is None or name.rank in ranks]
            found = sorted({*self.claims.held(), *free})
        except OSError as error:  # as where a link stands for a folder: the collector goes on
            if self.trouble != str(error):
                self.trouble = str(error)
                say(self.duty, f"cannot list the finished traces: {error}")
            return []
        self.trouble = ""
        return found

    def _is_held(self, name: TraceName) -> bool:
        with suppress(OSError):
            return self.run.exists(self.claims.path(name))
        return False

    def _take_over(self) -> None:
        try:
            taken = self.claims.take_over(self.duty.ranks)
        except OSError as error:
            say(self.duty, f"cannot look for what others left: {error}")
            return
        if taken:
            say(self.duty, f"takes over what another pod's collector left: {', '.join(n.spooled for n in taken)}")

    def _collect(self, name: TraceName, now: float) -> None:
        """Open the trace once: what is checked, compressed and uploaded is this file, whatever gets its name."""
        try:
            source = self.run.open(self.claims.path(name))
        except IrregularFile as error:
            self._set_aside(name, Published(0, ""), str(error.strerror), now)
            return
        with source:
            size = os.fstat(source.fileno()).st_size
            if size > self.duty.most_bytes:
                reason = f"has {size} bytes, more than the limit of --max-trace-bytes: {self.duty.most_bytes}"
                self._set_aside(name, Published(size, ""), reason, now)
                return
            try:
                self._check(name, source)
            except InvalidTrace as error:
                reason = str(error).removeprefix(f"{self._shown(name)}: ")
                self._set_aside(name, fingerprint(source, size), reason, now)
                return
            with self.run.new_file(f"{TRACES}/{name.collected}", owner=self.duty.owner) as packed:
                published = compress(source, packed.file, size)
                packed.publish()
                self._record(_entry(name, name.collected, published, size, None, now), upload=packed.file)
        self.run.remove(self.claims.path(name))
        say(self.duty, f"collected {name.collected}: {size} bytes as {published.bytes}")

    def _shown(self, name: TraceName) -> Path:
        return self.run.path / self.claims.path(name)

    def _check(self, name: TraceName, source: IO[bytes]) -> None:
        """Read it once. Raises InvalidTrace, also where that has killed or failed its reader too often before."""
        tries = self.claims.tries(name)
        if tries >= MOST_TRIES:
            raise InvalidTrace(f"{self._shown(name)}: whoever read it was killed or failed, {tries} times")
        self.claims.begin_try(name)
        try:
            check(source, self._shown(name), self.duty.most_bytes)
        except (InvalidTrace, OSError):
            self.claims.end_try(name)
            raise
        self.claims.end_try(name)

    def _set_aside(self, name: TraceName, found: Published, reason: str, now: float) -> None:
        """Keep what is broken, out of the way and on record."""
        aside = f"{TRACES}/corrupt/{name.spooled}"
        self.run.make(f"{TRACES}/corrupt")
        self._record(_entry(name, f"corrupt/{name.spooled}", found, found.bytes, reason, now), upload=None)
        self.run.rename(self.claims.path(name), aside)
        self.claims.end_try(name)
        say(self.duty, f"{name.spooled} is corrupt, kept as {self.run.path / aside}: {reason}")

    def _record(self, entry: TraceEntry, *, upload: IO[bytes] | None) -> None:
        """Manifest after upload: what it lists is there."""
        store = self._store() if self.duty.store else None
        if store is not None:
            self._catch_up(store)
        if store is not None and upload is not None:
            store.put(upload, f"{TRACES}/{entry.file}")
        # The same content again means that we, or the dead one whose claim this was, were killed after writing it
        # down: the first record stands.
        listed_in = self._listed_in(entry)
        if listed_in is None:
            changed = self.manifest.with_entry(entry)
            write_manifest(self.run, changed, owner=self.duty.owner)
            self.manifest = listed_in = changed
        if store is not None:
            store.write(f"{TRACES}/{listed_in.name}", encoded(listed_in))

    def _catch_up(self, store: Store) -> None:
        """What a pod of an earlier attempt has listed there stands, though its folder may have gone with it."""
        if self.caught_up:
            return
        try:
            with store.open(f"{TRACES}/{self.manifest.name}") as file:
                earlier = parse_manifest(file.read(LARGEST_BYTES), f"{store.url}/{TRACES}/{self.manifest.name}")
        except FileNotFoundError:
            earlier = None
        except InvalidTrace as error:
            say(self.duty, f"{error}; it is written anew")
            earlier = None
        for entry in earlier.traces if earlier is not None else ():
            if entry.status == "ok" and self.manifest.entry(entry.file) is None:
                self.manifest = self.manifest.with_entry(entry)
        self.caught_up = True

    def keep(self, name: str, content: bytes) -> None:
        """Put a file of the run folder into the store. Raises what the store raises."""
        self._store().write(name, content)

    def _listed_in(self, entry: TraceEntry) -> Manifest | None:
        """The manifest that has this file with this content already."""
        others = (other for other in manifests(self.run) if other.name != self.manifest.name)
        for manifest in (self.manifest, *others):
            known = manifest.entry(entry.file)
            if known is not None and known.sha256 == entry.sha256:
                return manifest
        return None

    def _store(self) -> Store:
        if self.store is None:
            self.store = Store(self.duty.store or "")
        return self.store

    def _postpone(self, name: TraceName, now: float, error: Exception) -> None:
        file, reason = name.spooled, f"{type(error).__name__}: {error}"
        before = self.waiting.get(file)
        waited = min(max(1.0, 2 * self.retry.get(file, (0.0, 0.0))[1]), LONGEST_BACKOFF_S)
        self.retry[file] = (now + waited, waited)
        if before is None or before.reason != reason:
            self.waiting[file] = Waiting(file, reason, before.since if before else now)
            say(self.duty, f"{file} stays as it is and is tried again: {reason}")
            self._note_waiting()

    def _settle(self, name: TraceName) -> None:
        self.retry.pop(name.spooled, None)
        if self.waiting.pop(name.spooled, None) is not None:
            self._note_waiting()

    def _note_waiting(self) -> None:
        """Best effort: on a full disk the log has to do."""
        changed = self.manifest.with_waiting(list(self.waiting.values()))
        with suppress(OSError):
            write_manifest(self.run, changed, owner=self.duty.owner)
            self.manifest = changed


def _entry(
    name: TraceName, file: str, published: Published, raw_bytes: int, reason: str | None, now: float
) -> TraceEntry:
    return TraceEntry(
        file=file,
        rank=name.rank,
        attempt=name.attempt,
        start_step=name.start_step,
        end_step=name.end_step,
        bytes=published.bytes,
        raw_bytes=raw_bytes,
        sha256=published.sha256,
        status="ok" if reason is None else "corrupt",
        reason=reason,
        collected_at=now,
    )


def say(duty: Duty, message: str) -> None:
    """One line on stderr; a log that cannot be written is no reason to stop."""
    with suppress(OSError, ValueError):
        print(f"collector {duty.owner}: {message}", file=sys.stderr, flush=True)


def start(duty: Duty, now: float) -> Collector:
    """A collector that knows what its predecessor had done; half-written files of a killed one are removed."""
    run = duty.run
    claims = Claims(run, duty.owner)
    claims.prepare()
    remove_leftovers(run, duty.owner)
    manifest = Manifest(duty.role, duty.index)
    try:
        manifest = read_manifest(run, manifest.name).with_waiting([])
    except FileNotFoundError:
        pass
    except InvalidTrace as error:
        path = f"{TRACES}/{manifest.name}"
        kept = f"{path.removesuffix('.json')}.broken"
        run.rename(path, kept)
        say(duty, f"{error}; kept as {run.path / kept}, listing the traces anew")
        manifest = _relisted(duty, manifest, now)
        write_manifest(run, manifest, owner=duty.owner)
    return Collector(duty, run, claims, manifest)


def _relisted(duty: Duty, manifest: Manifest, now: float) -> Manifest:
    """What lies in the traces folder, written down again."""
    run = duty.run
    for file_name in run.names(TRACES):
        name = parse_name(file_name)
        if name is None or file_name != name.collected or (duty.ranks is not None and name.rank not in duty.ranks):
            continue
        with suppress(OSError), run.open(f"{TRACES}/{file_name}") as file:
            found, unpacked = fingerprint(file, os.fstat(file.fileno()).st_size), _unpacked_bytes(file)
            manifest = manifest.with_entry(_entry(name, file_name, found, unpacked, None, now))
    return manifest


def _unpacked_bytes(file: IO[bytes]) -> int:
    """Gzip ends with the size of what it holds, modulo 4 GiB."""
    file.seek(-4, os.SEEK_END)
    return int.from_bytes(file.read(4), "little")


def collect_leftovers(run_dir: Path, now: float) -> int:
    """Do the work of collectors that died over it, when no pod runs any more; returns how many traces were collected.

    Whatever a living collector holds is left to it. Raises OSError if the folder cannot be written.
    """
    run = SharedFolder(run_dir)
    collected = 0
    for owner in owners(run):
        role, dash, index = owner.rpartition("-")
        if not dash or not index.isdecimal():
            continue
        with only_one(run, owner) as locked:
            if locked is False:
                continue
            collector = start(Duty(run_dir, role, int(index)), now)
            while found := collector.sweep(now, patient=False):
                collected += found
    return collected
