"""The sidecar beside a training pod: takes finished traces from the spool, so that no trace is lost and no rank waits.

This is the process: arguments, signals, the rhythm. What it does with a trace is `collect`. It never ends because of
trouble with a trace, a disk or a store, and never touches the job.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from muster.quantity import parse_quantity
from muster.tracing.credentials import disable_process_inspection, load_store_credentials, read_token
from muster.tracing.heartbeat_server import MIN_TOKEN_LENGTH, HeartbeatServer, HeartbeatSource, ListenAddress
from muster.tracing.run_sync import RunSync
from muster.tracing.spool_claims import LOCK_TIMEOUT_S, SPOOL, TRACES, collector_lock
from muster.tracing.spool_collector import MAX_TRACE_BYTES, Collector, CollectorOptions, log, start_collector
from muster.tracing.termination_message import readable_trace_count, write_termination_message


@dataclass(slots=True)
class CollectorState:
    """What others may want to know of a collector that runs, or has."""

    collector: Collector | None = None
    termination_message_path: Path | None = None  # where to say it at the end

    def collected_count(self) -> int:
        """How many traces this pod's collector has brought to safety."""
        return 0 if self.collector is None else readable_trace_count(self.collector.manifest)

    def write_message(self, options: CollectorOptions) -> None:
        """Leave last words; again and again while there is more to do, since the end may be a SIGKILL."""
        if self.termination_message_path is not None:
            write_termination_message(self.termination_message_path, options.run_folder, self.collected_count())


def run_collector(options: CollectorOptions, state: CollectorState, *, follow: bool, poll_s: float) -> int:
    """Collect until told to stop (`follow`) or until nothing finished is left; the exit code."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))  # held back until now by who started us
    with ExitStack() as held:
        collector = None
        while collector is None:
            try:
                with ExitStack() as trying:
                    if not _acquire_lock(options, trying):
                        return 1
                    collector = start_collector(options, time.time())
                    held.push(trying.pop_all())
            except OSError as error:
                log(options, f"cannot start yet: {error}")
                if not follow or stop.wait(5.0):
                    return 0 if follow else 1
        state.collector = collector
        return _collect_until_stopped(state, collector, stop, follow=follow, poll_s=poll_s)


def _collect_until_stopped(
    state: CollectorState, collector: Collector, stop: threading.Event, *, follow: bool, poll_s: float
) -> int:
    duty, keeping = collector.options, None
    if duty.store and duty.sync_metrics:
        keeping = RunSync(duty.run_folder, collector.upload, lambda message: log(duty, message))
    while follow and not stop.is_set():
        collector.collect_finished(time.time())
        if keeping is not None:
            keeping.sync()
        stop.wait(poll_s)
    # Told to stop, or only asked for what is there: take all of it, the postponed ones once more too.
    state.write_message(duty)
    while collector.collect_finished(time.time(), respect_backoff=False):
        state.write_message(duty)
    if keeping is not None:
        keeping.sync(final=True)
    left = collector.finished_traces()
    if left:
        log(collector.options, f"leaves {len(left)} behind: {', '.join(name.spool_name for name in left)}")
    return 1 if left and not follow else 0


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m muster.tracing.collector`; 0 when done, 1 when something is left or another one runs, 2 for usage."""
    parser = _argument_parser()
    args = parser.parse_args(argv)
    duty = CollectorOptions(
        args.run_dir.absolute(),
        args.role,
        args.index,
        args.ranks,
        args.store,
        args.store_metrics,
        args.mount,
        args.max_trace_bytes,
    )
    token = _load_secrets(parser, args)
    if args.open_spool:
        _create_spool(duty)
    with suppress(OSError):
        os.nice(10)  # the job's own processes come first
    watch = CollectorState(termination_message_path=args.termination_message_path)
    try:
        with _heartbeat_server(
            duty, watch, None if args.port is None else ListenAddress(args.address, args.port), token
        ):
            return run_collector(duty, watch, follow=not args.until_idle, poll_s=args.poll_seconds)
    finally:
        watch.write_message(duty)


def _load_secrets(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """Read what is secret from its files; the token ("" without a port). Ends with 2 where that cannot be right."""
    if args.mount is not None and not args.run_dir.absolute().is_relative_to(args.mount):
        parser.error(f"--run-dir must lie below --mount {args.mount}; got {args.run_dir}")
    if args.token_file is not None or args.store_credentials is not None:
        disable_process_inspection()
    token = ""
    try:
        if args.token_file is not None:
            token = read_token(args.token_file)
        if args.store_credentials is not None:
            load_store_credentials(args.store_credentials)
    except (OSError, ValueError) as error:
        parser.error(f"a secret cannot be read: {type(error).__name__}: {getattr(error, 'strerror', '')}")
    if args.port is not None and len(token) < MIN_TOKEN_LENGTH:
        parser.error(
            f"--port {args.port}: --token-file must name a file with a token of {MIN_TOKEN_LENGTH} characters or more"
        )
    return token


@contextmanager
def _heartbeat_server(
    options: CollectorOptions, state: CollectorState, address: ListenAddress | None, token: str
) -> Iterator[None]:
    """Say over HTTP how far the job is, if an address is given."""
    if address is None:
        yield
        return
    subject = HeartbeatSource(
        options.run_folder,
        os.environ.get("MUSTER_JOB_UID", ""),
        os.environ.get("MUSTER_POD", ""),
        state.collected_count,
    )
    endpoint = HeartbeatServer(address, token, subject, lambda message: log(options, message))
    endpoint.start()
    try:
        yield
    finally:
        endpoint.stop()


def _create_spool(options: CollectorOptions) -> None:
    """Make the spool before the ranks do, for ranks of any user; what lies in a folder of ours we may take."""
    try:
        options.run_folder.make_folder(SPOOL, 0o1777)
    except OSError as error:
        log(options, f"cannot open the spool for ranks of other users: {error}")


def _acquire_lock(options: CollectorOptions, stack: ExitStack) -> bool:
    """One collector per pod: False if there is one. Raises OSError if it cannot be found out yet."""
    options.run_folder.make_folder(TRACES)
    locked = stack.enter_context(collector_lock(options.run_folder, options.owner, timeout_s=LOCK_TIMEOUT_S))
    if locked is None:
        log(options, "this file system has no locks, going on without")
    if locked is False:
        log(options, "another collector already serves this pod")
    return locked is not False


def _argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m muster.tracing.collector", description=__doc__.split("\n")[0])
    parser.add_argument("--run-dir", type=Path, required=True, help="the job's run folder (MUSTER_RUN_DIR)")
    parser.add_argument(
        "--mount",
        type=Path,
        metavar="DIR",
        help="the part of --run-dir that the job cannot replace; default: all of it",
    )
    parser.add_argument("--role", required=True, help="the pod's role (MUSTER_ROLE)")
    parser.add_argument("--index", type=int, required=True, help="the pod's index in its role (MUSTER_REPLICA)")
    parser.add_argument(
        "--ranks", type=parse_ranks, default=None, help="the pod's ranks, such as 0-1 or 0,3; default: all"
    )
    parser.add_argument("--store", default=None, metavar="URL", help="also keep traces there, such as s3://bucket/run")
    parser.add_argument(
        "--store-metrics", action="store_true", help="metrics, beats and events there too, now and then and at the end"
    )
    parser.add_argument(
        "--termination-message-path",
        type=Path,
        default=None,
        metavar="FILE",
        help="at the end say there what was collected",
    )
    parser.add_argument(
        "--max-trace-bytes",
        type=_parse_size,
        default=MAX_TRACE_BYTES,
        metavar="SIZE",
        help="set traces aside that unpack to more; default 16Gi",
    )
    parser.add_argument("--poll-seconds", type=float, default=1.0, help="seconds between two looks; default 1")
    parser.add_argument(
        "--port", type=_parse_port, default=None, help="answer GET /heartbeat there; needs --token-file"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="the token that requests are signed with")
    parser.add_argument(
        "--store-credentials", type=Path, metavar="DIR", help="files whose names and contents become variables"
    )
    parser.add_argument(
        "--address", type=_parse_ip, default="127.0.0.1", metavar="IP", help="where to listen; default %(default)s"
    )
    parser.add_argument(
        "--open-spool", action="store_true", help="let ranks of any user write traces: in a folder of the pod's own"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--follow", action="store_true", help="until SIGTERM, then take what is left (the default)")
    mode.add_argument("--until-idle", action="store_true", help="take what is there, then end")
    return parser


def parse_ranks(text: str) -> frozenset[int]:
    """`0-1,4` means ranks 0, 1 and 4; an argparse error names what is wrong."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"{part!r} is no rank or range of ranks; right is 0-1 or 0,3")
        found.update(range(int(first), int(last or first) + 1))
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} names no rank; right is 0-1 or 0,3")
    return frozenset(found)


def _parse_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; right is 29480")
    return int(text)


def _parse_size(text: str) -> int:
    try:
        size = parse_quantity(text, "memory")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more; got {text!r}")
    return size


def _parse_ip(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no IP address; right is 127.0.0.1") from None


if __name__ == "__main__":
    sys.exit(main())
