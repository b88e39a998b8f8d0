"""From the first rank to the last: who failed first, who has to stop, and which exit code tells it.

All that happens (a rank ends, a signal arrives, the store breaks) comes through one inbox, so the order of events
is the order of the story. The gang restarts whole, by the engine; nothing is restarted here.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from muster_components.launch.place import (
    Place,
    rank_environment,
    shares_store,
    threads_per_rank,
    usable_cores,
)
from muster_components.launch.ranks import Ended, Rank, start_rank, write_out
from muster_components.launch.store import EXIT_STORE, GangStore, PortInUse, listen

AFTER_FAILURE_S = 5.0
"""Ranks that outlive a failed one cannot save a checkpoint without it; they may flush what they hold."""
EXIT_CANNOT_START = 126  # as a shell says it
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Told:
    """The pod was told to stop by this signal."""

    signum: int


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """Ranks cannot meet; the text says why, `code` is what the pod ends with."""

    code: int
    why: str


@dataclass(frozen=True, slots=True)
class MayLeave:
    """The other pods are done too."""


Event: TypeAlias = Ended | Told | StoreFailed | MayLeave


def launch(place: Place, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run `command` once per rank of this pod; the exit code of the pod."""
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for signum in SIGNALS:
        signal.signal(signum, lambda number, frame: inbox.put(Told(number)))
    try:
        listener = listen(place) if place.replica == 0 else None
    except PortInUse as error:
        say(str(error))
        note_failure(environ.get("MUSTER_FAILURE_FILE", ""), EXIT_STORE, time.monotonic(), reason="PortInUse")
        return EXIT_STORE
    if listener is not None:
        place = replace(place, port=listener.getsockname()[1])
    store = GangStore(place, listener) if shares_store(place) else None
    if store is None and listener is not None:
        listener.close()  # rank 0 listens itself
    with _error_folder() as folder:
        try:
            ranks = start_ranks(place, command, environ, folder, inbox)
        except OSError as error:
            say(f"{command[0]} cannot be started: {error.strerror or error}")
            return EXIT_CANNOT_START
        if store is not None:
            store.open(failed=lambda code, why: inbox.put(StoreFailed(code, why)))
        code = watch(ranks, place.patience_s, inbox, environ.get("MUSTER_FAILURE_FILE", ""))
        if code == 0 and store is not None and place.replicas > 1:
            leave_together(store, inbox)
    return code


@contextmanager
def _error_folder() -> Iterator[Path | None]:
    """Where `@record` leaves what failed; None when the disk has no room for it, which is no reason not to train."""
    with ExitStack() as stack:
        folder = None
        with suppress(OSError):
            made = tempfile.TemporaryDirectory(prefix="muster-launch-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        yield folder


def start_ranks(
    place: Place,
    command: Sequence[str],
    environ: Mapping[str, str],
    folder: Path | None,
    inbox: queue.SimpleQueue[Event],
) -> dict[int, Rank]:
    """Start every rank of this pod, by global rank. Raises OSError when one cannot be started; then none runs."""
    threads = threads_per_rank(usable_cores(), place.nproc)
    ranks: dict[int, Rank] = {}
    for local_rank in range(place.nproc):
        rank = place.rank(local_rank)
        error_file = "" if folder is None else str(folder / f"rank-{rank}.json")
        its = rank_environment(place, local_rank, environ, threads=threads, error_file=error_file)
        try:
            ranks[rank] = start_rank(rank, command, its, inbox.put)
        except OSError:
            for started in ranks.values():
                started.kill()
            raise
    return ranks


def watch(ranks: Mapping[int, Rank], patience_s: float, inbox: queue.SimpleQueue[Event], failure_file: str = "") -> int:
    """Wait for every rank to end; the first failure, or a signal, stops the others. Returns the pod's exit code:
    the first failed rank's own, 128 + signal when the pod was told to stop before that, else 0. A failure is noted in
    `failure_file` at once: the pod itself ends only after its other ranks, perhaps later than pods it took along."""
    alive = set(ranks)
    began = time.monotonic()
    code = 0
    deadline: float | None = None
    told = False
    while alive:
        event = _next(inbox, deadline)
        match event:
            case Ended(rank, rank_code, at):
                alive.discard(rank)
                if rank_code and code == 0:
                    code = rank_code
                    note_failure(failure_file, code, at)
                    say(f"rank {rank} failed first, after {at - began:.1f} s: {why(ranks[rank], rank_code)}")
                    deadline = _stop(ranks, alive, AFTER_FAILURE_S)
            case StoreFailed(store_code, reason) if code == 0:
                code = store_code
                note_failure(failure_file, code, time.monotonic())
                say(reason)
                deadline = _stop(ranks, alive, AFTER_FAILURE_S)
            case Told(signum) if not told:
                told = True
                name = signal.Signals(signum).name
                if code == 0:
                    code = 128 + signum
                say(f"got {name}: {_count(alive)} may take {patience_s:g} s to stop")
                deadline = min(_stop(ranks, alive, patience_s), deadline or float("inf"))
            case Told() | None:
                say(f"killing {_count(alive)} that did not stop")
                deadline = None
                for rank in alive:
                    ranks[rank].kill()
            case _:
                pass
    for running in ranks.values():
        running.drain(timeout_s=1.0)
    return code


def note_failure(path: str, code: int, at: float, reason: str = "") -> None:
    """Tell whoever runs the pod when its first rank failed (`at`: monotonic) and how (docs/run-folder.md)."""
    if not path:
        return
    note: dict[str, object] = {"exit_code": code, "failed_at": time.time() - (time.monotonic() - at)}
    if reason:
        note["reason"] = reason
    with suppress(OSError):  # a full disk: the end of the pod has to do
        Path(path + ".tmp").write_text(json.dumps(note))
        os.replace(path + ".tmp", path)


def _next(inbox: queue.SimpleQueue[Event], deadline: float | None) -> Event | None:
    """The next event; None when the deadline passes first."""
    try:
        return inbox.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return None


def _stop(ranks: Mapping[int, Rank], alive: set[int], patience_s: float) -> float:
    for rank in alive:
        ranks[rank].terminate()
    return time.monotonic() + patience_s


def leave_together(store: GangStore, inbox: queue.SimpleQueue[Event]) -> None:
    """Wait until the whole gang is done, or until told to stop: this pod has succeeded either way."""
    store.leave_together(then=lambda: inbox.put(MayLeave()))
    while not isinstance(inbox.get(), MayLeave | Told):
        pass


def why(rank: Rank, code: int) -> str:
    """What is known of a failure: the signal or exit code, the error that `@record` kept, else the last line."""
    end = f"exit code {code}"
    if code > 128 and code - 128 in set(signal.Signals):
        name = signal.Signals(code - 128).name
        end = f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    rank.drain(timeout_s=0.5)
    if recorded := _recorded(rank.error_file):
        return f"{end}: {recorded}"
    return f"{end}; its last line: {rank.last_line}" if rank.last_line else end


def _recorded(error_file: str) -> str:
    """The message that `torch.distributed.elastic.multiprocessing.errors.record` left, or nothing."""
    try:
        message = json.loads(Path(error_file).read_text())["message"]
        return str(message["message"] if isinstance(message, dict) else message)
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _count(alive: set[int]) -> str:
    names = ", ".join(str(rank) for rank in sorted(alive))
    return f"rank {names}" if len(alive) == 1 else f"ranks {names}"


def say(text: str) -> None:
    """One line of the launcher's own in the pod's log."""
    write_out(f"muster: {text}\n".encode())
