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

from muster.tracing.names import TraceName, parse_name
from muster.tracing.sharedfolder import SharedFolder, temporary_of

TRACES = "traces"
SPOOL = f"{TRACES}/spool"
CLAIMED = "claimed"
LOCK_PATIENCE_S = 2.0
"""Another collector holds our lock for some milliseconds when it takes over what a dead predecessor had claimed."""
_POLL_S = 0.05
_NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_TRIES = ".tries"


class Claims:
    """The claims of one owner (`<role>-<index>`) in one run folder. Files are named from the run folder."""

    def __init__(self, run: SharedFolder, owner: str) -> None:
        self._run = run
        self._owner = owner
        self.folder = _claimed_by(owner)

    def prepare(self) -> None:
        """Make the folders, while there is room, and forget tries of what is not ours any more. Raises OSError."""
        self._run.make(SPOOL)
        self._run.make(self.folder)
        here = {_tries(self.path(name)) for name in self.held()}
        found = (f"{self.folder}/{name}" for name in self._run.names(self.folder) if name.endswith(_TRIES))
        for tried in set(found) - here:
            self._run.remove(tried)

    def held(self) -> list[TraceName]:
        """What is ours already, oldest steps first."""
        return _names(self._run, self.folder)

    def free(self) -> list[TraceName]:
        """What lies finished in the spool, oldest steps first."""
        return _names(self._run, SPOOL)

    def path(self, name: TraceName) -> str:
        """Where a claimed trace lies."""
        return f"{self.folder}/{name.spooled}"

    def claim(self, name: TraceName) -> bool:
        """Have it: take it from the spool, or hold it already. False if another one has it. Raises OSError.

        A trace written again replaces the one that we hold; while another one works on the earlier one, it waits.
        """
        source = f"{SPOOL}/{name.spooled}"
        if self._run.exists(source) and not self._others_hold(name):
            self._run.make(self.folder)
            with suppress(FileNotFoundError):
                self._run.rename(source, self.path(name))
                self.end_try(name)  # another text than was tried before
        return self._run.exists(self.path(name))

    def tries(self, name: TraceName) -> int:
        """How often somebody began to read a trace that we hold and did not come to its end: a trace can kill its
        reader, who is started anew and finds it again."""
        try:
            return self._run.stat(_tries(self.path(name))).st_size
        except OSError:
            return 0

    def begin_try(self, name: TraceName) -> None:
        """It is about to be read. Best effort: on a full disk nobody counts."""
        with suppress(OSError), self._run.open_to_append(_tries(self.path(name))) as file:
            file.write(b".")

    def end_try(self, name: TraceName) -> None:
        """Its reader is alive."""
        with suppress(OSError):
            self._run.remove(_tries(self.path(name)))

    def _others_hold(self, name: TraceName) -> bool:
        others = (owner for owner in owners(self._run) if owner != self._owner)
        return any(self._run.exists(f"{_claimed_by(owner)}/{name.spooled}") for owner in others)

    def take_over(self, wanted: Iterable[int] | None) -> list[TraceName]:
        """Make ours what dead collectors of other pods had claimed (of these ranks; None: all)."""
        ranks = None if wanted is None else frozenset(wanted)
        taken: list[TraceName] = []
        for owner in owners(self._run):
            folder = _claimed_by(owner)
            names = [name for name in _names(self._run, folder) if ranks is None or name.rank in ranks]
            if owner == self._owner or not names:
                continue
            with only_one(self._run, owner) as locked:
                if locked:  # a living collector holds it; without locks nobody can tell who is dead
                    remove_leftovers(self._run, owner)
                    taken += [name for name in names if self._take(f"{folder}/{name.spooled}", self.path(name))]
        return taken

    def _take(self, theirs: str, ours: str) -> bool:
        """Of a trace written twice, the newer one counts."""
        try:
            if self._run.exists(ours) and self._run.stat(ours).st_mtime_ns >= self._run.stat(theirs).st_mtime_ns:
                self._run.remove(theirs)
                return False
            self._run.rename(theirs, ours)
            with suppress(FileNotFoundError):
                self._run.rename(_tries(theirs), _tries(ours))
        except FileNotFoundError:  # taken meanwhile
            return False
        return True


@contextmanager
def only_one(run: SharedFolder, owner: str, *, patience_s: float = 0.0) -> Iterator[bool | None]:
    """Be the only one who works for `owner`: True; False if there is another one; None where locks do not work.

    However its holder dies, the kernel takes the lock back. Raises OSError if the lock's file cannot be made.
    """
    until = time.monotonic() + patience_s
    with run.open_to_append(f"{TRACES}/.collector-{owner}.lock") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked: bool | None = True
            except BlockingIOError:
                locked = False
            except OSError as error:
                if error.errno not in _NO_LOCKS_HERE:
                    raise
                locked = None
            if locked is not False or time.monotonic() >= until:
                break
            time.sleep(_POLL_S)
        yield locked


def owners(run: SharedFolder) -> list[str]:
    """Who has ever claimed anything."""
    return run.folders(f"{TRACES}/{CLAIMED}")


def remove_leftovers(run: SharedFolder, owner: str) -> None:
    """Remove half-written files of a collector that was killed; its lock must be held."""
    for name in run.names(TRACES):
        if temporary_of(owner, name):
            with suppress(OSError):
                run.remove(f"{TRACES}/{name}")


def _claimed_by(owner: str) -> str:
    return f"{TRACES}/{CLAIMED}/{owner}"


def _tries(claimed: str) -> str:
    """One byte for each try, beside the claimed trace."""
    folder, _, name = claimed.rpartition("/")
    return f"{folder}/.{name}{_TRIES}"


def _names(run: SharedFolder, folder: str) -> list[TraceName]:
    found = (parse_name(name) for name in run.names(folder))
    return sorted(name for name in found if name is not None)
