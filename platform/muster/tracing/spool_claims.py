"""Who works on a trace: several collectors may see one spool, and each trace is to be collected once.

A collector claims a trace by renaming it into its own folder, `traces/claimed/<role>-<index>/`; of several that try,
the kernel lets one succeed. What a collector that was killed had claimed is still there: the next one of the same pod
goes on with it, and any other may take it over once the kernel has released the dead one's lock.
"""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from muster.tracing.shared_folder import SharedFolder, is_temporary_of
from muster.tracing.trace_name import TraceName, parse_trace_name

TRACES = "traces"
SPOOL = f"{TRACES}/spool"
CLAIMED = "claimed"
LOCK_TIMEOUT_S = 2.0
"""Another collector holds our lock for some milliseconds when it takes over what a dead predecessor had claimed."""
_POLL_S = 0.05
_LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_ATTEMPTS_SUFFIX = ".tries"


class SpoolClaims:
    """The claims of one owner (`<role>-<index>`) in one run folder. Files are named from the run folder."""

    def __init__(self, run: SharedFolder, owner: str) -> None:
        self._run = run
        self._owner = owner
        self.folder = _claim_folder(owner)

    def prepare(self) -> None:
        """Make the folders, while there is room, and forget tries of what is not ours any more. Raises OSError."""
        self._run.make_folder(SPOOL)
        self._run.make_folder(self.folder)
        here = {_attempts_file(self.path(name)) for name in self.claimed()}
        found = (
            f"{self.folder}/{name}" for name in self._run.file_names(self.folder) if name.endswith(_ATTEMPTS_SUFFIX)
        )
        for tried in set(found) - here:
            self._run.remove(tried)

    def claimed(self) -> list[TraceName]:
        """What is ours already, oldest steps first."""
        return _trace_names(self._run, self.folder)

    def unclaimed(self) -> list[TraceName]:
        """What lies finished in the spool, oldest steps first."""
        return _trace_names(self._run, SPOOL)

    def path(self, name: TraceName) -> str:
        """Where a claimed trace lies."""
        return f"{self.folder}/{name.spool_name}"

    def claim(self, name: TraceName) -> bool:
        """Have it: take it from the spool, or hold it already. False if another one has it. Raises OSError.

        A trace written again replaces the one that we hold; while another one works on the earlier one, it waits.
        """
        source = f"{SPOOL}/{name.spool_name}"
        if self._run.exists(source) and not self._claimed_by_other(name):
            self._run.make_folder(self.folder)
            with suppress(FileNotFoundError):
                self._run.rename(source, self.path(name))
                self.end_read(name)  # another text than was tried before
        return self._run.exists(self.path(name))

    def read_attempts(self, name: TraceName) -> int:
        """How often somebody began to read a trace that we hold and did not come to its end: a trace can kill its
        reader, who is started anew and finds it again."""
        try:
            return self._run.stat(_attempts_file(self.path(name))).st_size
        except OSError:
            return 0

    def begin_read(self, name: TraceName) -> None:
        """It is about to be read. Best effort: on a full disk nobody counts."""
        with suppress(OSError), self._run.open_to_append(_attempts_file(self.path(name))) as file:
            file.write(b".")

    def end_read(self, name: TraceName) -> None:
        """Its reader is alive."""
        with suppress(OSError):
            self._run.remove(_attempts_file(self.path(name)))

    def _claimed_by_other(self, name: TraceName) -> bool:
        others = (owner for owner in claim_owners(self._run) if owner != self._owner)
        return any(self._run.exists(f"{_claim_folder(owner)}/{name.spool_name}") for owner in others)

    def take_over_stale(self, only_ranks: Iterable[int] | None) -> list[TraceName]:
        """Make ours what dead collectors of other pods had claimed (of these ranks; None: all)."""
        ranks = None if only_ranks is None else frozenset(only_ranks)
        taken: list[TraceName] = []
        for owner in claim_owners(self._run):
            folder = _claim_folder(owner)
            names = [name for name in _trace_names(self._run, folder) if ranks is None or name.rank in ranks]
            if owner == self._owner or not names:
                continue
            with collector_lock(self._run, owner) as locked:
                if locked:  # a living collector holds it; without locks nobody can tell who is dead
                    remove_temporary_files(self._run, owner)
                    taken += [
                        name for name in names if self._take_claim(f"{folder}/{name.spool_name}", self.path(name))
                    ]
        return taken

    def _take_claim(self, source: str, target: str) -> bool:
        """Of a trace written twice, the newer one counts."""
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
    """Be the only one who works for `owner`: True; False if there is another one; None where locks do not work.

    However its holder dies, the kernel takes the lock back. Raises OSError if the lock's file cannot be made.
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
    """Who has ever claimed anything."""
    return run.folder_names(f"{TRACES}/{CLAIMED}")


def remove_temporary_files(run: SharedFolder, owner: str) -> None:
    """Remove half-written files of a collector that was killed; its lock must be held."""
    for name in run.file_names(TRACES):
        if is_temporary_of(owner, name):
            with suppress(OSError):
                run.remove(f"{TRACES}/{name}")


def _claim_folder(owner: str) -> str:
    return f"{TRACES}/{CLAIMED}/{owner}"


def _attempts_file(claimed: str) -> str:
    """One byte for each try, beside the claimed trace."""
    folder, _, name = claimed.rpartition("/")
    return f"{folder}/.{name}{_ATTEMPTS_SUFFIX}"


def _trace_names(run: SharedFolder, folder: str) -> list[TraceName]:
    found = (parse_trace_name(name) for name in run.file_names(folder))
    return sorted(name for name in found if name is not None)
