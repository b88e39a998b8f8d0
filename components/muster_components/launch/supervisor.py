"""Supervises the ranks of a pod: determines the first failure, stops the other ranks, computes the exit code.

All events (a rank ends, a signal arrives, the store fails) come through one queue, which defines their order. The
engine restarts the gang as a unit; nothing is restarted here.
"""

from __future__ import annotations

import json
import math
import os
import queue
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from muster_components.launch.checkpoints.watcher import find_watcher
from muster_components.launch.kept_checkpoint import write_kept_checkpoint
from muster_components.launch.launch_record import record_launch
from muster_components.launch.rank_layout import (
    RankLayout,
    needs_store,
    rank_environment,
    threads_per_rank,
    usable_cores,
)
from muster_components.launch.rank_process import RankExited, RankProcess, copy_output, start_rank, write_output
from muster_components.launch.rendezvous_store import EXIT_STORE, PortInUse, RendezvousStore, listen
from muster_components.launch.report_relay import ReportRelay
from muster_components.launch.scratch_folder import ScratchFolder, scratch_folder
from muster_components.launch.stack_dumps import RankStacks, StackDumper
from muster_components.launch.trainer_status import TrainerStatusServer
from muster_components.trainer.flight_recorder import REQUESTS_SUFFIX
from muster_components.trainer.regular_files import read_json
from muster_components.trainer.reports import REPORT_FILE_VARIABLE

SIGNAL_REQUEST = "sigterm"
"""Names what was saved of ranks before they got SIGTERM."""
STOP_REQUEST = "stop"
"""Names what was saved of ranks that did not stop, before they are killed."""
FAILURE_GRACE_S = 5.0
"""Time for the other ranks to stop after a failure. They cannot save a checkpoint without the failed rank."""
MAX_HEARTBEAT_BYTES = 64 * 1024
EXIT_CANNOT_START = 126  # as in a shell
EXIT_INVALID_CODE = 78
"""EX_CONFIG: the program has a syntax error, or imports a module that does not exist. A restart fails again."""
_INVALID_CODE = re.compile(r"(SyntaxError|IndentationError|TabError|ModuleNotFoundError): ")
"""The last line of a traceback of such an error. Not ImportError: a library that is missing on one node causes it."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """The launcher received this signal."""

    signum: int


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The rendezvous store cannot be served; `code` is the pod's exit code."""

    code: int
    why: str


@dataclass(frozen=True, slots=True)
class PeersDone:
    """The other pods are done."""


LauncherEvent: TypeAlias = RankExited | SignalReceived | StoreFailed | PeersDone


def launch(layout: RankLayout, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run `command` once per rank of this pod. Returns the exit code of the pod."""
    copy_output(environ)
    events: queue.SimpleQueue[LauncherEvent] = queue.SimpleQueue()
    for signum in SIGNALS:
        signal.signal(signum, lambda number, frame: events.put(SignalReceived(number)))
    try:
        listener = listen(layout) if layout.replica == 0 else None
    except PortInUse as error:
        log(str(error))
        write_failure_file(environ.get("MUSTER_FAILURE_FILE", ""), EXIT_STORE, time.monotonic(), reason="PortInUse")
        return EXIT_STORE
    if listener is not None:
        layout = replace(layout, port=listener.getsockname()[1])
    store = RendezvousStore(layout, listener) if needs_store(layout) else None
    if store is None and listener is not None:
        listener.close()  # rank 0 serves the store itself
    with scratch_folder() as scratch:
        folder = None if scratch is None else scratch.path
        record_launch(layout, environ, "start")
        try:
            relay, variables = _reporting(layout, environ, folder)
            ranks = start_ranks(layout, command, {**environ, **variables}, RankFiles(scratch, relay), events)
        except OSError as error:
            log(f"{command[0]} cannot be started: {error.strerror or error}")
            return EXIT_CANNOT_START
        if store is not None:
            store.open(on_failure=lambda code, why: events.put(StoreFailed(code, why)))
        if relay is not None:
            relay.start(ranks)
        run_dir = environ.get("MUSTER_RUN_DIR", "")
        dumper = StackDumper(ranks, Path(run_dir) if run_dir else None, layout)
        dumper.start()
        watcher = find_watcher(layout, command, environ, log)
        if watcher is not None:
            watcher.start()
        code = supervise(ranks, layout.stop_timeout_s, events, environ.get("MUSTER_FAILURE_FILE", ""), dumper)
        if watcher is not None:
            watcher.stop()
        if relay is not None:
            relay.relay(ranks)
        if code and code - 128 not in SIGNALS:
            failed = (rank.exited_at for rank in ranks.values() if rank.exited_at and rank.process.returncode)
            record_launch(layout, environ, "failure", min(failed, default=None))
        if code:
            write_kept_checkpoint(ranks, layout, environ, log)
        if code == 0 and store is not None and layout.replicas > 1:
            wait_for_peers(store, events)
        if code - 128 in SIGNALS and all(has_finished(rank, run_dir, layout.attempt) for rank in ranks.values()):
            log("all steps had been done when it was to stop")
            code = 0
        record_launch(layout, environ, "end")
    return code


def has_finished(rank: RankProcess, run_dir: str, attempt: int) -> bool:
    """Whether the rank ended with 0 after its last step, by its heartbeat. The exit code alone does not say so: some
    programs save a checkpoint when they get SIGTERM, end with 0, and would go on later."""
    if rank.process.returncode != 0 or not run_dir:
        return False
    try:
        heartbeat = read_json(Path(run_dir) / "heartbeats" / f"rank-{rank.rank}.json", MAX_HEARTBEAT_BYTES)
        phase, step, steps = heartbeat["phase"], heartbeat["step"], heartbeat["steps"]
        return heartbeat["attempt"] == attempt and phase == "done" and steps is not None and step >= steps
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _reporting(
    layout: RankLayout, environ: Mapping[str, str], folder: Path | None
) -> tuple[ReportRelay | None, Mapping[str, str]]:
    """What relays the reports of the ranks, and the variables with which programs find the endpoint for their status;
    none without a run folder."""
    run_dir = environ.get("MUSTER_RUN_DIR", "")
    if not run_dir:
        return None, {}
    relay = ReportRelay(Path(run_dir), layout)
    if folder is None:
        return relay, {}
    try:
        status = TrainerStatusServer(folder, partial(relay.append, layout.rank(0)))
    except OSError as error:
        log(f"no endpoint for training status: {error.strerror or error}")
        return relay, {}
    status.start()
    return relay, status.environment(environ)


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Where the ranks of this pod write for their launcher: errors and stacks in the `scratch` folder (None: nowhere),
    reports where `relay` reads them."""

    scratch: ScratchFolder | None = None
    relay: ReportRelay | None = None

    @property
    def inherited(self) -> tuple[int, ...]:
        """File descriptors that ranks inherit: they keep the folder as long as they run."""
        return () if self.scratch is None else (self.scratch.lock,)

    def variables(self, rank: int) -> dict[str, str]:
        """The variables of a rank that name its files."""
        found = {} if self.relay is None else {REPORT_FILE_VARIABLE: str(self.relay.report_file(rank))}
        if self.scratch is None:
            return found
        folder = self.scratch.path
        stacks_file = str(folder / f"rank-{rank}.stacks")
        with suppress(OSError):
            os.mkfifo(stacks_file + REQUESTS_SUFFIX)
        error_file = str(folder / f"rank-{rank}.json")
        return {**found, "TORCHELASTIC_ERROR_FILE": error_file, "MUSTER_STACKS_FILE": stacks_file}


def start_ranks(
    layout: RankLayout,
    command: Sequence[str],
    environ: Mapping[str, str],
    files: RankFiles,
    events: queue.SimpleQueue[LauncherEvent],
) -> dict[int, RankProcess]:
    """Start every rank of this pod; returns them by global rank. Raises OSError if one cannot be started; then the
    others are killed."""
    threads = threads_per_rank(usable_cores(), layout.nproc)
    ranks: dict[int, RankProcess] = {}
    for local_rank in range(layout.nproc):
        rank = layout.rank(local_rank)
        rank_environ = rank_environment(layout, local_rank, environ, threads=threads) | files.variables(rank)
        try:
            ranks[rank] = start_rank(rank, command, rank_environ, events.put, files.inherited)
        except OSError:
            for started in ranks.values():
                started.kill()
            raise
    return ranks


def supervise(
    ranks: Mapping[int, RankProcess],
    stop_timeout_s: float,
    events: queue.SimpleQueue[LauncherEvent],
    failure_file: str = "",
    dumper: StackDumper | None = None,
) -> int:
    """Wait for every rank to end; the first failure, or a signal, stops the others.

    Returns the pod's exit code: that of the first failed rank (`pod_exit_code`), 128 + signal if a signal came first,
    else 0. A failure is written to `failure_file` at once, since this pod may end later than pods that failed because
    of it. Stacks and collectives are saved before SIGTERM, which ends a program without a handler, and once more of
    ranks that do not stop, before they are killed.
    """
    running = set(ranks)
    started_at = time.monotonic()
    code = 0
    deadline: float | None = None
    stopping = False
    while running:
        event = _next_event(events, deadline)
        match event:
            case RankExited(rank, rank_code, at):
                running.discard(rank)
                if rank_code and code == 0:
                    code = pod_exit_code(ranks[rank], rank_code)
                    write_failure_file(failure_file, code, at)
                    log(
                        f"rank {rank} failed first, after {at - started_at:.1f} s: "
                        f"{describe_failure(ranks[rank], rank_code)}"
                    )
                    _terminate_ranks(ranks, running, dumper)
                    deadline = time.monotonic() + FAILURE_GRACE_S
            case StoreFailed(store_code, reason) if code == 0:
                code = store_code
                write_failure_file(failure_file, code, time.monotonic())
                log(reason)
                _terminate_ranks(ranks, running, dumper)
                deadline = time.monotonic() + FAILURE_GRACE_S
            case SignalReceived(signum) if not stopping:
                stopping = True
                name = signal.Signals(signum).name
                if code == 0:
                    code = 128 + signum
                log(f"got {name}: {_rank_list(running)} may take {stop_timeout_s:g} s to stop")
                stop_at = time.monotonic() + stop_timeout_s
                _terminate_ranks(ranks, running, dumper, limit_s=stop_timeout_s / 4)
                deadline = min(stop_at, deadline or math.inf)
            case SignalReceived() | None:
                if event is None and dumper is not None:  # not after a second signal: a caller waits
                    log_stacks(dumper.dump(STOP_REQUEST, running))
                log(f"killing {_rank_list(running)} that did not stop")
                deadline = None
                for rank in running:
                    ranks[rank].kill()
            case _:
                pass
    for process in ranks.values():
        process.drain(timeout_s=1.0)
    return code


def pod_exit_code(rank: RankProcess, code: int) -> int:
    """The pod's exit code if this rank failed first with `code`: Python ends with 1 for every uncaught exception, so
    that a failure policy cannot tell those that a restart cannot cure."""
    if code != 1:
        return code
    rank.drain(timeout_s=0.5)
    return EXIT_INVALID_CODE if _INVALID_CODE.match(rank.last_line) else code


def log_stacks(stacks: Iterable[RankStacks]) -> None:
    """Write where each rank hangs to the pod's log."""
    for one in stacks:
        where = f"it is in {' < '.join(one.frames[:4])}; all threads: {one.file or 'lost'}"
        log(f"rank {one.rank} did not stop; {where if one.frames else f'no stacks: {one.reason}'}")


def write_failure_file(path: str, code: int, at: float, reason: str = "") -> None:
    """Write exit code and time (`at`: monotonic) of the first failure (docs/reference/run-folder.md)."""
    if not path:
        return
    failure: dict[str, object] = {"exit_code": code, "failed_at": time.time() - (time.monotonic() - at)}
    if reason:
        failure["reason"] = reason
    with suppress(OSError):
        Path(path + ".tmp").write_text(json.dumps(failure))
        os.replace(path + ".tmp", path)


def _next_event(events: queue.SimpleQueue[LauncherEvent], deadline: float | None) -> LauncherEvent | None:
    """The next event; None if the deadline passes first."""
    try:
        return events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return None


def _terminate_ranks(
    ranks: Mapping[int, RankProcess], running: set[int], dumper: StackDumper | None, limit_s: float = math.inf
) -> None:
    """Save where the ranks are, in at most `limit_s`, then send them SIGTERM."""
    if dumper is not None:
        dumper.dump(SIGNAL_REQUEST, running, limit_s)
    for rank in running:
        ranks[rank].terminate()


def wait_for_peers(store: RendezvousStore, events: queue.SimpleQueue[LauncherEvent]) -> None:
    """Wait until the gang is done, or for a signal; this pod has succeeded either way."""
    store.wait_for_peers(on_done=lambda: events.put(PeersDone()))
    while not isinstance(events.get(), PeersDone | SignalReceived):
        pass


def describe_failure(rank: RankProcess, code: int) -> str:
    """A failure's signal or exit code, and the error recorded by `@record`, else the last line of output."""
    end = f"exit code {code}"
    if code > 128 and code - 128 in set(signal.Signals):
        name = signal.Signals(code - 128).name
        end = f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    rank.drain(timeout_s=0.5)
    if recorded := _recorded_error(rank.error_file):
        return f"{end}: {recorded}"
    return f"{end}; its last line: {rank.last_line}" if rank.last_line else end


def _recorded_error(error_file: str) -> str:
    """The message that `torch.distributed.elastic.multiprocessing.errors.record` wrote, or an empty string."""
    try:
        message = json.loads(Path(error_file).read_text())["message"]
        return str(message["message"] if isinstance(message, dict) else message)
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _rank_list(ranks: set[int]) -> str:
    names = ", ".join(str(rank) for rank in sorted(ranks))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def log(text: str) -> None:
    """Write a line of the launcher to the pod's log."""
    write_output(f"muster: {text}\n".encode())
