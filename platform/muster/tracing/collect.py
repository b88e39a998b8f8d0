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

from muster.errors import InvalidTrace
from muster.tracing.claims import Claims, only_one, owners, remove_leftovers
from muster.tracing.manifest import (
    Manifest,
    TraceEntry,
    Waiting,
    manifests,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from muster.tracing.names import TraceName, parse_name
from muster.tracing.publish import Published, compress_atomically, fingerprint
from muster.tracing.reader import check
from muster.tracing.store import Store

LONGEST_BACKOFF_S = 30.0
MOST_TRIES = 5
"""A trace whose reader was killed over it so often is set aside."""
LOOK_AROUND_S = 30.0
"""How often a collector looks for what dead collectors of other pods had claimed; at its own end it always does."""


@dataclass(frozen=True, slots=True)
class Duty:
    """What one collector looks after. `ranks` None: all; `store` None: the run folder is where traces stay.

    `keeps_metrics`: metrics, beats and events of the run folder go to the store as well.
    """

    run_dir: Path
    role: str
    index: int
    ranks: frozenset[int] | None = None
    store: str | None = None
    keeps_metrics: bool = False

    @property
    def traces(self) -> Path:
        return self.run_dir / "traces"

    @property
    def owner(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(slots=True)
class Collector:
    """The state between two looks at the spool: the manifest as written, and what is to be tried again when."""

    duty: Duty
    claims: Claims
    manifest: Manifest
    look_around_at: float = 0.0
    store: Store | None = None
    caught_up: bool = False  # with what earlier pods of ours have listed in the store
    waiting: dict[str, Waiting] = field(default_factory=dict)
    retry: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> (not before, seconds waited)

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
                if self.claims.path(name).exists():
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
        free = [name for name in self.claims.free() if ranks is None or name.rank in ranks]
        return sorted({*self.claims.held(), *free})

    def _take_over(self) -> None:
        try:
            taken = self.claims.take_over(self.duty.ranks)
        except OSError as error:
            say(self.duty, f"cannot look for what others left: {error}")
            return
        if taken:
            say(self.duty, f"takes over what another pod's collector left: {', '.join(n.spooled for n in taken)}")

    def _collect(self, name: TraceName, now: float) -> None:
        source = self.claims.path(name)
        raw_bytes = source.stat().st_size
        try:
            self._check(name, source)
        except InvalidTrace as error:
            self._set_aside(name, source, str(error).removeprefix(f"{source}: "), now)
            return
        published = compress_atomically(source, self.duty.traces / name.collected, owner=self.duty.owner)
        self._record(_entry(name, name.collected, published, raw_bytes, None, now), upload=name.collected)
        source.unlink()
        say(self.duty, f"collected {name.collected}: {raw_bytes} bytes as {published.bytes}")

    def _check(self, name: TraceName, source: Path) -> None:
        """Read it once. Raises InvalidTrace, also where that has killed or failed its reader too often before."""
        tries = self.claims.tries(name)
        if tries >= MOST_TRIES:
            raise InvalidTrace(f"{source}: whoever read it was killed or failed, {tries} times")
        self.claims.begin_try(name)
        try:
            check(source)
        except (InvalidTrace, OSError):
            self.claims.end_try(name)
            raise
        self.claims.end_try(name)

    def _set_aside(self, name: TraceName, source: Path, reason: str, now: float) -> None:
        """Keep what is broken, out of the way and on record."""
        aside = self.duty.traces / "corrupt" / name.spooled
        aside.parent.mkdir(exist_ok=True)
        found = fingerprint(source)
        self._record(_entry(name, f"corrupt/{name.spooled}", found, found.bytes, reason, now), upload=None)
        source.replace(aside)
        self.claims.end_try(name)
        say(self.duty, f"{name.spooled} is corrupt, kept as {aside}: {reason}")

    def _record(self, entry: TraceEntry, *, upload: str | None) -> None:
        """Manifest after upload: what it lists is there."""
        traces = self.duty.traces
        store = self._store() if self.duty.store else None
        if store is not None:
            self._catch_up(store)
        if store is not None and upload is not None:
            store.put(traces / upload, f"traces/{upload}")
        # The same content again means that we, or the dead one whose claim this was, were killed after writing it
        # down: the first record stands.
        listed_in = self._listed_in(entry)
        if listed_in is None:
            changed = self.manifest.with_entry(entry)
            write_manifest(traces, changed, owner=self.duty.owner)
            self.manifest = changed
        if store is not None:
            name = listed_in or self.manifest.name
            store.put(traces / name, f"traces/{name}")

    def _catch_up(self, store: Store) -> None:
        """What a pod of an earlier attempt has listed there stands, though its folder may have gone with it."""
        if self.caught_up:
            return
        try:
            with store.open(f"traces/{self.manifest.name}") as file:
                earlier = parse_manifest(file.read(), f"{store.url}/traces/{self.manifest.name}")
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

    def _listed_in(self, entry: TraceEntry) -> str | None:
        """The name of the manifest that has this file with this content already."""
        others = (other for other in manifests(self.duty.traces) if other.name != self.manifest.name)
        for manifest in (self.manifest, *others):
            known = manifest.entry(entry.file)
            if known is not None and known.sha256 == entry.sha256:
                return manifest.name
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
            write_manifest(self.duty.traces, changed, owner=self.duty.owner)
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
    claims = Claims(duty.traces, duty.owner)
    claims.prepare()
    remove_leftovers(duty.traces, duty.owner)
    manifest = Manifest(duty.role, duty.index)
    path = duty.traces / manifest.name
    try:
        manifest = read_manifest(path).with_waiting([])
    except FileNotFoundError:
        pass
    except InvalidTrace as error:
        kept = path.with_suffix(".broken")
        path.replace(kept)
        say(duty, f"{error}; kept as {kept}, listing the traces anew")
        manifest = _relisted(duty, manifest, now)
        write_manifest(duty.traces, manifest, owner=duty.owner)
    return Collector(duty, claims, manifest)


def _relisted(duty: Duty, manifest: Manifest, now: float) -> Manifest:
    """What lies in the traces folder, written down again."""
    for path in sorted(duty.traces.glob("rank-*.json.gz")):
        name = parse_name(path.name)
        if name is None or (duty.ranks is not None and name.rank not in duty.ranks):
            continue
        manifest = manifest.with_entry(_entry(name, path.name, fingerprint(path), _unpacked_bytes(path), None, now))
    return manifest


def _unpacked_bytes(path: Path) -> int:
    """Gzip ends with the size of what it holds, modulo 4 GiB."""
    with path.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(4), "little")


def collect_leftovers(run_dir: Path, now: float) -> int:
    """Do the work of collectors that died over it, when no pod runs any more; returns how many traces were collected.

    Whatever a living collector holds is left to it. Raises OSError if the folder cannot be written.
    """
    traces = run_dir / "traces"
    collected = 0
    for owner in owners(traces):
        role, dash, index = owner.rpartition("-")
        if not dash or not index.isdecimal():
            continue
        with only_one(traces, owner) as locked:
            if locked is False:
                continue
            collector = start(Duty(run_dir, role, int(index)), now)
            while found := collector.sweep(now, patient=False):
                collected += found
    return collected
