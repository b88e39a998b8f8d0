"""The collector sidecar of a training pod: moves finished traces from the spool to the run folder and the store.

This module has the process: arguments, signals, the polling loop; `spool_collector` processes the traces. Errors of a
trace, a disk or a store are logged and retried; they do not end the process and do not affect the job.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from muster.capture.exchange import PodRanks, exchange, stopped_ranks
from muster.capture.folder import CAPTURE
from muster.cluster import RunTime
from muster.errors import InvalidTrace
from muster.heartbeats.parse import finite_number, run_time_fields
from muster.tracing.collect.collector_arguments import argument_parser
from muster.tracing.collect.heartbeat_server import (
    MIN_TOKEN_LENGTH,
    HeartbeatServer,
    HeartbeatSource,
    ListenAddress,
    read_newest_checkpoint,
)
from muster.tracing.collect.run_sync import RunSync
from muster.tracing.collect.spool_collector import Collector, CollectorOptions, log, start_collector
from muster.tracing.runs.launches import RunRecordReader
from muster.tracing.runs.trace_files import LOCK_TIMEOUT_S, SPOOL, TRACES, Manifest, collector_lock, read_manifest
from muster.tracing.shared_folder import SharedFolder

MAX_SECRET_BYTES = 1 << 20  # of a Secret
MAX_READ_BYTES = 8 << 20
"""Of metrics with each heartbeat: 0.15 s of CPU time."""
_PR_SET_DUMPABLE = 4
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(slots=True)
class CollectorState:
    """State of the process for the heartbeat server and the termination message."""

    options: CollectorOptions
    termination_message_path: Path | None = None
    collector: Collector | None = None
    _hung: Mapping[str, str] | None = None
    _records: RunRecordReader | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def collected_count(self) -> int | None:
        """The number of readable traces that this pod's collectors have collected; None if unknown.

        A collector that has not started, such as one that cannot get the lock, counts those in the pod's manifest.
        """
        if self.collector is not None:
            return readable_trace_count(self.collector.manifest)
        name = Manifest(self.options.role, self.options.index).name
        try:
            return readable_trace_count(read_manifest(self.options.run_folder, name))
        except FileNotFoundError:
            return 0
        except (InvalidTrace, OSError):
            return None

    def run_time(self, now: float, *, final: bool = False) -> RunTime | None:
        """Into what the time of the pods is divided, if this is the lead pod; None before all records have been read,
        a part with each call that is not `final`."""
        if self.options.index != 0 or (self.options.ranks is not None and 0 not in self.options.ranks):
            return None
        with self._reading:
            if self._records is None:
                self._records = RunRecordReader(self.options.run_folder, self.options.role)
            found = self._records.division(now, MAX_READ_BYTES if not final else None)
            return found if self._records.has_read_all else None

    def write_message(self) -> None:
        """Write the termination message, unless the number of traces is unknown; then an earlier message remains.

        Called repeatedly during shutdown, which may end with SIGKILL: so first without the ranks that did not stop,
        whose dumps take time to read.
        """
        traces, path, run_folder = self.collected_count(), self.termination_message_path, self.options.run_folder
        if path is None or traces is None:
            return
        run_time = run_time_fields(self.run_time(time.time(), final=True))
        ranks: dict[str, object] = {} if run_time is None else {"run_time": run_time}
        if self._hung is None:
            write_termination_message(path, run_folder, traces, ranks)
            self._hung = stopped_ranks(run_folder, _attempt(), pod_ranks(self.options))
        write_termination_message(path, run_folder, traces, {**ranks, **self._hung})


def pod_ranks(options: CollectorOptions) -> PodRanks:
    """The ranks of this collector's pod."""
    replicas = os.environ.get("MUSTER_REPLICAS", "")
    return PodRanks(options.ranks, options.index, int(replicas) if replicas.isdecimal() else 1)


def _attempt() -> int:
    attempt = os.environ.get("MUSTER_ATTEMPT", "")
    return int(attempt) if attempt.isdecimal() else 0


def readable_trace_count(manifest: Manifest) -> int:
    """The number of traces with status "ok" in a manifest."""
    return sum(entry.status == "ok" for entry in manifest.traces)


def write_termination_message(path: Path, run: SharedFolder, traces: int, ranks: Mapping[str, object]) -> None:
    """Write {"traces", "checkpoint": {"step", "at"} | null} to the file, in place, since it may be a mount. `ranks`:
    what they spent time on, and those that did not stop, or else were to stop (`muster.capture.exchange`).

    Errors are ignored.
    """
    latest = read_newest_checkpoint(run, [])
    checkpoint = None if latest is None else {name: finite_number(latest.get(name)) for name in ("step", "at")}
    message = {"traces": traces, "checkpoint": checkpoint, **ranks}
    with suppress(OSError):
        path.write_text(json.dumps(message, allow_nan=False))


def stop_event() -> threading.Event:
    """An event that SIGTERM and SIGINT set from now on."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))  # the parent may have blocked them
    return stop


def run_collector(state: CollectorState, stop: threading.Event, *, follow: bool, poll_s: float) -> int:
    """Collect until `stop` is set (`follow`) or until no finished trace is left. Returns the exit code."""
    options = state.options
    with ExitStack() as resources:
        collector = None
        while collector is None:
            try:
                with ExitStack() as attempt:
                    if not _acquire_lock(options, attempt):
                        return 1
                    collector = start_collector(options, time.time())
                    resources.push(attempt.pop_all())
            except OSError as error:
                log(options, f"cannot start, retrying: {error}" if follow else f"cannot start: {error}")
                if not follow or stop.wait(5.0):
                    return 0 if follow else 1
        state.collector = collector
        return _collect_until_stopped(state, collector, stop, follow=follow, poll_s=poll_s)


def _collect_until_stopped(
    state: CollectorState, collector: Collector, stop: threading.Event, *, follow: bool, poll_s: float
) -> int:
    options, run_sync = collector.options, None
    if options.store and options.sync_metrics:
        run_sync = RunSync(options.run_folder, collector.upload, lambda message: log(options, message))
    while follow and not stop.is_set():
        collector.collect_finished(time.time())
        if run_sync is not None:
            run_sync.sync()
        stop.wait(poll_s)
    # Final pass: all finished traces, including those waiting for a retry.
    state.write_message()
    while collector.collect_finished(time.time(), respect_backoff=False):
        state.write_message()
    if run_sync is not None:
        run_sync.sync(final=True)
    remaining = collector.finished_traces()
    if remaining:
        log(options, f"{len(remaining)} finished traces not collected: {', '.join(n.spool_name for n in remaining)}")
    return 1 if remaining and not follow else 0


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m muster.tracing.collector`. Exit codes: 0 done, 1 traces left or another collector runs, 2 usage."""
    parser = argument_parser(__doc__.split("\n")[0])
    args = parser.parse_args(argv)
    options = CollectorOptions(
        args.run_dir.absolute(),
        args.role,
        args.index,
        args.ranks,
        args.store,
        args.store_metrics,
        args.mount,
        args.max_trace_bytes,
        args.max_stored_bytes,
        state_dir=args.state_dir,
    )
    token = _load_secrets(parser, args)
    if args.open_spool:
        _create_spool(options)
    with suppress(OSError):
        os.nice(10)  # lower priority than the job's processes
    state = CollectorState(options, args.termination_message_path)
    address = None if args.port is None else ListenAddress(args.address, args.port)
    stop = stop_event()  # before the server starts: who can connect may also stop the collector
    try:
        with _heartbeat_server(state, address, token):
            return run_collector(state, stop, follow=not args.until_idle, poll_s=args.poll_seconds)
    finally:
        state.write_message()


def _load_secrets(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """Read the secrets from their files; returns the token ("" without a port). Exits with 2 for invalid arguments."""
    if args.mount is not None and not args.run_dir.absolute().is_relative_to(args.mount):
        parser.error(f"--run-dir must be below --mount {args.mount}; got {args.run_dir}")
    if args.token_file is not None or args.store_credentials is not None:
        disable_process_inspection()
    token = ""
    try:
        if args.token_file is not None:
            token = read_token(args.token_file)
        if args.store_credentials is not None:
            load_store_credentials(args.store_credentials)
    except (OSError, ValueError) as error:
        parser.error(f"cannot read a secret: {type(error).__name__}: {getattr(error, 'strerror', '')}")
    if args.port is not None and len(token) < MIN_TOKEN_LENGTH:
        parser.error(f"--port {args.port} requires --token-file with a token of at least {MIN_TOKEN_LENGTH} characters")
    return token


def read_token(path: Path) -> str:
    """The content of the file, stripped. Raises OSError, ValueError."""
    with path.open("rb") as file:
        return file.read(MAX_SECRET_BYTES).decode().strip()


def load_store_credentials(folder: Path) -> tuple[str, ...]:
    """Set a variable for each file whose name is a valid variable name, as `envFrom` does; returns the sorted names.

    fsspec's backends read credentials from the environment. Variables set after the start of the process do not appear
    in `/proc/PID/environ`. A Secret that does not exist is an empty or missing folder. Raises OSError, ValueError.
    """
    with suppress(FileNotFoundError):
        names = sorted(name for name in os.listdir(folder) if _VARIABLE_NAME.fullmatch(name))
        for name in names:
            with (folder / name).open("rb") as file:
                os.environ[name] = file.read(MAX_SECRET_BYTES).decode()
        return tuple(names)
    return ()


def disable_process_inspection() -> None:
    """Deny other processes, also of the same user, access to this process's memory, environment and open files.

    Linux only; no effect elsewhere.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@contextmanager
def _heartbeat_server(state: CollectorState, address: ListenAddress | None, token: str) -> Iterator[None]:
    """Serve heartbeats over HTTP if an address is given."""
    if address is None:
        yield
        return
    own = pod_ranks(state.options)
    source = HeartbeatSource(
        state.options.run_folder,
        os.environ.get("MUSTER_JOB_UID", ""),
        os.environ.get("MUSTER_POD", ""),
        lambda: state.collected_count() or 0,
        state.run_time,
        lambda body, now: exchange(state.options.run_folder, body, now, state.options.owner, own),
    )
    server = HeartbeatServer(address, token, source, lambda message: log(state.options, message))
    server.start()
    try:
        yield
    finally:
        server.stop()


def _create_spool(options: CollectorOptions) -> None:
    """Create the folders before the ranks do, writable for ranks of any user. As its owner the collector may move files
    of other users out of it despite the sticky bit."""
    try:
        for folder in (SPOOL, CAPTURE):
            options.run_folder.make_folder(folder, 0o1777)
    except OSError as error:
        log(options, f"cannot make the spool writable for ranks of other users: {error}")


def _acquire_lock(options: CollectorOptions, stack: ExitStack) -> bool:
    """Ensure one collector per pod; False if another one holds the lock. Raises OSError if the lock cannot be tried."""
    options.run_folder.make_folder(TRACES)
    locked = stack.enter_context(collector_lock(options.run_folder, options.owner, timeout_s=LOCK_TIMEOUT_S))
    if locked is None:
        log(options, "the file system of the run folder does not support locks; continuing without a lock")
    if locked is False:
        log(options, "another collector is already running for this pod")
    return locked is not False


if __name__ == "__main__":
    sys.exit(main())
