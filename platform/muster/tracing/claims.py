"""Who works on a trace: several collectors may see one spool, and each trace is to be collected once.

A collector claims a trace by renaming it into its own folder, `traces/claimed/<role>-<index>/`; of several that try,
the kernel lets one succeed. What a collector that was killed had claimed is still there: the next one of the same pod
goes on with it, and any other may take it over once the kernel has released the dead one's lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from muster.tracing.names import TraceName, parse_name

CLAIMED = "claimed"
LOCK_PATIENCE_S = 2.0
"""Another collector holds our lock for some milliseconds when it takes over what a dead predecessor had claimed."""
_POLL_S = 0.05
_NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class Claims:
    """The claims of one owner (`<role>-<index>`) in one traces folder."""

    def __init__(self, traces: Path, owner: str) -> None:
        self._traces = traces
        self._spool = traces / "spool"
        self._owner = owner
        self.folder = traces / CLAIMED / owner

    def prepare(self) -> None:
        """Make the folders, while there is room, and forget tries of what is not ours any more. Raises OSError."""
        self._spool.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        here = {_tries(self.path(name)) for name in self.held()}
        for tried in set(self.folder.glob(".*.tries")) - here:
            tried.unlink(missing_ok=True)

    def held(self) -> list[TraceName]:
        """What is ours already, oldest steps first."""
        return _names(self.folder)

    def free(self) -> list[TraceName]:
        """What lies finished in the spool, oldest steps first."""
        return _names(self._spool)

    def path(self, name: TraceName) -> Path:
        """Where a claimed trace lies."""
        return self.folder / name.spooled

    def claim(self, name: TraceName) -> bool:
        """Have it: take it from the spool, or hold it already. False if another one has it. Raises OSError.

        A trace written again replaces the one that we hold; while another one works on the earlier one, it waits.
        """
        source = self._spool / name.spooled
        if source.exists() and not self._others_hold(name):
            self.folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                source.rename(self.path(name))
                self.end_try(name)  # another text than was tried before
        return self.path(name).exists()

    def tries(self, name: TraceName) -> int:
        """How often somebody began to read a trace that we hold and did not come to its end: a trace can kill its
        reader, who is started anew and finds it again."""
        try:
            return _tries(self.path(name)).stat().st_size
        except OSError:
            return 0

    def begin_try(self, name: TraceName) -> None:
        """It is about to be read. Best effort: on a full disk nobody counts."""
        with suppress(OSError), _tries(self.path(name)).open("ab") as file:
            file.write(b".")

    def end_try(self, name: TraceName) -> None:
        """Its reader is alive."""
        with suppress(OSError):
            _tries(self.path(name)).unlink(missing_ok=True)

    def _others_hold(self, name: TraceName) -> bool:
        others = (owner for owner in owners(self._traces) if owner != self._owner)
        return any((self._traces / CLAIMED / owner / name.spooled).exists() for owner in others)

    def take_over(self, wanted: Iterable[int] | None) -> list[TraceName]:
        """Make ours what dead collectors of other pods had claimed (of these ranks; None: all)."""
        ranks = None if wanted is None else frozenset(wanted)
        taken: list[TraceName] = []
        for owner in owners(self._traces):
            folder = self._traces / CLAIMED / owner
            names = [name for name in _names(folder) if ranks is None or name.rank in ranks]
            if owner == self._owner or not names:
                continue
            with only_one(self._traces, owner) as locked:
                if locked:  # a living collector holds it; without locks nobody can tell who is dead
                    remove_leftovers(self._traces, owner)
                    taken += [name for name in names if self._take(folder / name.spooled)]
        return taken

    def _take(self, theirs: Path) -> bool:
        """Of a trace written twice, the newer one counts."""
        ours = self.folder / theirs.name
        try:
            if ours.exists() and ours.stat().st_mtime_ns >= theirs.stat().st_mtime_ns:
                theirs.unlink()
                return False
            theirs.rename(ours)
            with suppress(FileNotFoundError):
                _tries(theirs).replace(_tries(ours))
        except FileNotFoundError:  # taken meanwhile
            return False
        return True


@contextmanager
def only_one(traces: Path, owner: str, *, patience_s: float = 0.0) -> Iterator[bool | None]:
    """Be the only one who works for `owner`: True; False if there is another one; None where locks do not work.

    However its holder dies, the kernel takes the lock back. Raises OSError if the lock's file cannot be made.
    """
    until = time.monotonic() + patience_s
    with (traces / f".collector-{owner}.lock").open("ab") as lock:
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


def owners(traces: Path) -> list[str]:
    """Who has ever claimed anything."""
    try:
        return sorted(entry.name for entry in os.scandir(traces / CLAIMED) if entry.is_dir())
    except FileNotFoundError:
        return []


def remove_leftovers(traces: Path, owner: str) -> None:
    """Remove half-written files of a collector that was killed; its lock must be held."""
    for leftover in traces.glob(f".*.{owner}.tmp"):
        with suppress(OSError):
            leftover.unlink()


def _tries(claimed: Path) -> Path:
    """One byte for each try, beside the claimed trace."""
    return claimed.with_name(f".{claimed.name}.tries")


def _names(folder: Path) -> list[TraceName]:
    try:
        names = [parse_name(entry.name) for entry in os.scandir(folder) if entry.is_file()]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name is not None)
