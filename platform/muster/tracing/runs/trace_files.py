"""Files of traces and memory snapshots in a run folder (docs/reference/run-folder.md): their names, claims, manifests.

Several collectors may share one spool, and each trace is collected once. A collector claims a trace by renaming it into
its own folder, `traces/claimed/<role>-<index>/`; rename is atomic, so one of several collectors succeeds. Claims of a
killed collector remain: the next collector of the same pod continues with them, and any other may take them over once
the kernel has released the lock of the killed one. The manifest is a collector's list of collected traces, replaced
atomically.
"""

from __future__ import annotations

import errno
import fcntl
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import msgspec

from muster.errors import InvalidTrace
from muster.tracing.shared_folder import IrregularFile, SharedFolder, is_temporary_of

TRACES = "traces"
ArtifactKind: TypeAlias = Literal["trace", "memory"]
_NAME = r"rank-(\d+)\.attempt-(\d+)\.steps-(\d+)-(\d+)"
_NAMES: Mapping[ArtifactKind, re.Pattern[str]] = {
    "trace": re.compile(rf"{_NAME}\.json(?:\.gz)?"),
    "memory": re.compile(rf"{_NAME}\.pickle(?:\.gz)?"),
}
_SUFFIX: Mapping[ArtifactKind, str] = {"trace": ".json", "memory": ".pickle"}
MANIFEST_NAME = re.compile(r"manifest-(?P<role>.+)-(?P<index>\d+)\.json")
MAX_MANIFEST_BYTES = 16 << 20
"""Limit for reading a manifest."""
SPOOL = f"{TRACES}/spool"
MEMORY = "memory"
"""The folder of memory snapshots in that of the traces."""
SUMMARIES = "summaries"
"""The folder of summaries in that of the traces."""
CLAIMED = "claimed"
LOCK_TIMEOUT_S = 2.0
"""Another collector holds this pod's lock for some milliseconds while it takes over claims of a killed predecessor."""
_POLL_S = 0.05
_LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_ATTEMPTS_SUFFIX = ".tries"


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One trace. `file` is relative to the traces folder; `bytes` and `sha256` are those of that file, `raw_bytes`
    is the size of the JSON text; `collected_at` is in Unix seconds; `reason` is set unless `status` is "ok". `summary`
    is the file with the sums of its events (`event_totals`).
    """

    file: str
    rank: int
    attempt: int
    start_step: int
    end_step: int
    bytes: int
    raw_bytes: int
    sha256: str
    status: Literal["ok", "corrupt", "dropped"]
    reason: str | None
    collected_at: float
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class MissingRanks:
    """Ranks that have no trace of these steps, of an attempt in which others have; the steps are half-open."""

    attempt: int
    start_step: int
    end_step: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaitingTrace:
    """A claimed trace that could not be collected yet and is retried. `file` as in the spool, `since` Unix seconds."""

    file: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """The traces of one pod's collector and its memory snapshots, ordered by file, those that wait, and the ranks of
    the pod without a trace."""

    role: str
    index: int
    traces: tuple[TraceEntry, ...] = ()
    waiting: tuple[WaitingTrace, ...] = ()
    missing: tuple[MissingRanks, ...] = ()
    snapshots: tuple[TraceEntry, ...] = ()

    @property
    def entries(self) -> tuple[TraceEntry, ...]:
        return self.traces + self.snapshots

    @property
    def name(self) -> str:
        return f"manifest-{self.role}-{self.index}.json"

    def entry(self, file: str) -> TraceEntry | None:
        return next((entry for entry in self.entries if entry.file == file), None)

    def with_entry(self, entry: TraceEntry) -> Manifest:
        """A copy with this entry, which replaces an entry of the same file."""
        is_snapshot = entry.file.removesuffix(".gz").endswith(_SUFFIX["memory"])
        listed = self.snapshots if is_snapshot else self.traces
        entries = tuple(sorted([*(e for e in listed if e.file != entry.file), entry], key=lambda e: e.file))
        return replace(self, snapshots=entries) if is_snapshot else replace(self, traces=entries)

    def with_waiting(self, waiting: list[WaitingTrace]) -> Manifest:
        return replace(self, waiting=tuple(sorted(waiting, key=lambda w: w.file)))


def read_manifest(run: SharedFolder, name: str) -> Manifest:
    """Read a manifest of a run folder. Raises InvalidTrace if the file is invalid or names another pod,
    FileNotFoundError if it is missing."""
    path = f"{TRACES}/{name}"
    try:
        manifest = parse_manifest(run.read(path, MAX_MANIFEST_BYTES), str(run.path / path))
    except IrregularFile as error:
        raise InvalidTrace(f"{run.path / path}: {error.strerror}") from error
    if manifest.name != name:  # role and index determine file names
        raise InvalidTrace(f"{run.path / path}: must be the manifest of this pod; got {manifest.name!r}")
    return manifest


def parse_manifest(content: bytes, source: str) -> Manifest:
    """Decode a manifest. Raises InvalidTrace, with `source` in its message."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidTrace(f"{source}: invalid manifest: {error}") from error


def manifest_names(run: SharedFolder) -> list[str]:
    """The files in the traces folder with the name of a manifest."""
    return [name for name in run.file_names(TRACES) if MANIFEST_NAME.fullmatch(name)]


def read_manifests(run: SharedFolder) -> list[Manifest]:
    """The readable manifests of all pods in a run folder."""
    found = []
    for name in manifest_names(run):
        with suppress(InvalidTrace, OSError):
            found.append(read_manifest(run, name))
    return found


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def write_manifest(run: SharedFolder, manifest: Manifest, *, owner: str) -> None:
    """Replace the manifest in the traces folder."""
    run.write(f"{TRACES}/{manifest.name}", encode_manifest(manifest), owner=owner)


@dataclass(frozen=True, slots=True, order=True)
class TraceName:
    """Of a trace or a memory snapshot. `start_step` is the first step in it, `end_step` the first one after it."""

    attempt: int
    start_step: int
    end_step: int
    rank: int
    kind: ArtifactKind = "trace"

    @property
    def spool_name(self) -> str:
        """The name of the finished file in the spool, as the rank writes it."""
        steps = f"steps-{self.start_step}-{self.end_step}"
        return f"rank-{self.rank}.attempt-{self.attempt}.{steps}{_SUFFIX[self.kind]}"

    @property
    def summary_name(self) -> str:
        """The path of its summary in the traces folder, without suffix."""
        return f"{SUMMARIES}/{self.spool_name.removesuffix('.json')}"

    @property
    def archive_name(self) -> str:
        """The name of the collected, compressed file in the traces folder."""
        return f"{self.spool_name}.gz" if self.kind == "trace" else f"{MEMORY}/{self.spool_name}.gz"


def parse_trace_name(name: str, kind: ArtifactKind = "trace") -> TraceName | None:
    """None for any other name, including that of a file still being written (.tmp)."""
    match = _NAMES[kind].fullmatch(name)
    if match is None:
        return None
    rank, attempt, start, end = (int(group) for group in match.groups())
    return TraceName(attempt=attempt, start_step=start, end_step=end, rank=rank, kind=kind)


class SpoolClaims:
    """The claims of one owner (`<role>-<index>`) in one run folder. Paths are relative to the run folder."""

    def __init__(self, run: SharedFolder, owner: str) -> None:
        self._run = run
        self._owner = owner
        self.folder = _claim_folder(owner)

    def prepare(self) -> None:
        """Create the folders, and remove read attempts of traces that are not claimed any more. Raises OSError."""
        self._run.make_folder(SPOOL)
        self._run.make_folder(self.folder)
        current = {_attempts_file(self.path(name)) for name in self.claimed()}
        found = (
            f"{self.folder}/{name}" for name in self._run.file_names(self.folder) if name.endswith(_ATTEMPTS_SUFFIX)
        )
        for stale in set(found) - current:
            self._run.remove(stale)

    def claimed(self) -> list[TraceName]:
        """The traces that this owner has claimed, oldest steps first."""
        return _trace_names(self._run, self.folder)

    def unclaimed(self) -> list[TraceName]:
        """The finished traces in the spool, oldest steps first."""
        return _trace_names(self._run, SPOOL)

    def path(self, name: TraceName) -> str:
        return f"{self.folder}/{name.spool_name}"

    def claim(self, name: TraceName) -> bool:
        """Claim the trace; True also if it is claimed already, False if another owner has it. Raises OSError.

        A trace written again replaces this owner's claim of the earlier one; if another owner has claimed the earlier
        one, the new one stays in the spool until that claim is done.
        """
        source = f"{SPOOL}/{name.spool_name}"
        if self._run.exists(source) and not self._claimed_by_other(name):
            self._run.make_folder(self.folder)
            with suppress(FileNotFoundError):
                self._run.rename(source, self.path(name))
                self.end_read(name)  # new content: earlier read attempts do not count
        return self._run.exists(self.path(name))

    def read_attempts(self, name: TraceName) -> int:
        """How many reads of a claimed trace have begun and not ended. A trace can kill its reader (memory); the reader
        is restarted and finds the trace again."""
        try:
            return self._run.stat(_attempts_file(self.path(name))).st_size
        except OSError:
            return 0

    def begin_read(self, name: TraceName) -> None:
        """Count one read attempt. Best effort: on a full disk it is not counted."""
        with suppress(OSError), self._run.open_to_append(_attempts_file(self.path(name))) as file:
            file.write(b".")

    def end_read(self, name: TraceName) -> None:
        """Reset the count: the reader survived."""
        with suppress(OSError):
            self._run.remove(_attempts_file(self.path(name)))

    def _claimed_by_other(self, name: TraceName) -> bool:
        others = (owner for owner in claim_owners(self._run) if owner != self._owner)
        return any(self._run.exists(f"{_claim_folder(owner)}/{name.spool_name}") for owner in others)

    def take_over_stale(self, only_ranks: Iterable[int] | None) -> list[TraceName]:
        """Take over the claims of terminated collectors of other pods (of these ranks; None: all)."""
        ranks = None if only_ranks is None else frozenset(only_ranks)
        taken: list[TraceName] = []
        for owner in claim_owners(self._run):
            folder = _claim_folder(owner)
            names = [name for name in _trace_names(self._run, folder) if ranks is None or name.rank in ranks]
            if owner == self._owner or not names:
                continue
            with collector_lock(self._run, owner) as locked:
                if locked:  # False: that collector runs; None: without locks this cannot be known
                    remove_temporary_files(self._run, owner)
                    taken += [
                        name for name in names if self._take_claim(f"{folder}/{name.spool_name}", self.path(name))
                    ]
        return taken

    def _take_claim(self, source: str, target: str) -> bool:
        """Move the claim; of two versions of a trace the newer one is kept."""
        try:
            if self._run.exists(target) and self._run.stat(target).st_mtime_ns >= self._run.stat(source).st_mtime_ns:
                self._run.remove(source)
                return False
            self._run.rename(source, target)
            with suppress(FileNotFoundError):
                self._run.rename(_attempts_file(source), _attempts_file(target))
        except FileNotFoundError:  # taken meanwhile
            return False
        return True


@contextmanager
def collector_lock(run: SharedFolder, owner: str, *, timeout_s: float = 0.0) -> Iterator[bool | None]:
    """Hold the lock of `owner`'s collector. Yields True; False if another process holds it; None without lock support.

    The kernel releases the lock when the process ends, also by SIGKILL. Raises OSError if the lock file cannot be made.
    """
    until = time.monotonic() + timeout_s
    with run.open_to_append(f"{TRACES}/.collector-{owner}.lock") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked: bool | None = True
            except BlockingIOError:
                locked = False
            except OSError as error:
                if error.errno not in _LOCKS_UNSUPPORTED:
                    raise
                locked = None
            if locked is not False or time.monotonic() >= until:
                break
            time.sleep(_POLL_S)
        yield locked


def claim_owners(run: SharedFolder) -> list[str]:
    """The owners that have a claim folder."""
    return run.folder_names(f"{TRACES}/{CLAIMED}")


def remove_temporary_files(run: SharedFolder, owner: str) -> None:
    """Remove incomplete files of a killed collector. The caller must hold its lock."""
    for folder in (TRACES, f"{TRACES}/{SUMMARIES}", f"{TRACES}/{MEMORY}"):
        with suppress(OSError):
            for name in run.file_names(folder):
                if is_temporary_of(owner, name):
                    run.remove(f"{folder}/{name}")


def _claim_folder(owner: str) -> str:
    return f"{TRACES}/{CLAIMED}/{owner}"


def _attempts_file(claimed: str) -> str:
    """The file next to a claimed trace that holds one byte per read attempt."""
    folder, _, name = claimed.rpartition("/")
    return f"{folder}/.{name}{_ATTEMPTS_SUFFIX}"


def _trace_names(run: SharedFolder, folder: str) -> list[TraceName]:
    found = (parse_trace_name(name, kind) for name in run.file_names(folder) for kind in _NAMES)
    return sorted(name for name in found if name is not None)
