"""The sidecar beside a training pod: takes finished traces from the spool, so that no trace is lost and no rank waits.

This is the process: arguments, signals, the rhythm. What it does with a trace is `collect`. It never ends because of
trouble with a trace, a disk or a store, and never touches the job.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType

from muster.tracing.claims import LOCK_PATIENCE_S, only_one
from muster.tracing.collect import Collector, Duty, say, start


def run(duty: Duty, *, follow: bool, poll_s: float) -> int:
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
                    if not _lock(duty, trying):
                        return 1
                    collector = start(duty, time.time())
                    held.push(trying.pop_all())
            except OSError as error:
                say(duty, f"cannot start yet: {error}")
                if stop.wait(5.0) or not follow:
                    return 0 if follow else 1
        return _collect(collector, stop, follow=follow, poll_s=poll_s)


def _collect(collector: Collector, stop: threading.Event, *, follow: bool, poll_s: float) -> int:
    while follow and not stop.is_set():
        collector.sweep(time.time())
        stop.wait(poll_s)
    # Told to stop, or only asked for what is there: take all of it, the postponed ones once more too.
    while collector.sweep(time.time(), patient=False):
        pass
    left = collector.finished()
    if left:
        say(collector.duty, f"leaves {len(left)} behind: {', '.join(name.spooled for name in left)}")
    return 1 if left and not follow else 0


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m muster.tracing.collector`; 0 when done, 1 when something is left or another one runs, 2 for usage."""
    args = _parser().parse_args(argv)
    duty = Duty(run_dir=args.run_dir.absolute(), role=args.role, index=args.index, ranks=args.ranks, store=args.store)
    with suppress(OSError):
        os.nice(10)  # the job's own processes come first
    return run(duty, follow=not args.until_idle, poll_s=args.poll_seconds)


def _lock(duty: Duty, held: ExitStack) -> bool:
    """One collector per pod: False if there is one. Raises OSError if it cannot be found out yet."""
    duty.traces.mkdir(parents=True, exist_ok=True)
    locked = held.enter_context(only_one(duty.traces, duty.owner, patience_s=LOCK_PATIENCE_S))
    if locked is None:
        say(duty, "this file system has no locks, going on without")
    if locked is False:
        say(duty, "another collector already serves this pod")
    return locked is not False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m muster.tracing.collector", description=__doc__.split("\n")[0])
    parser.add_argument("--run-dir", type=Path, required=True, help="the job's run folder (MUSTER_RUN_DIR)")
    parser.add_argument("--role", required=True, help="the pod's role (MUSTER_ROLE)")
    parser.add_argument("--index", type=int, required=True, help="the pod's index in its role (MUSTER_REPLICA)")
    parser.add_argument("--ranks", type=ranks, default=None, help="the pod's ranks, such as 0-1 or 0,3; default: all")
    parser.add_argument("--store", default=None, metavar="URL", help="also keep traces there, such as s3://bucket/run")
    parser.add_argument("--poll-seconds", type=float, default=1.0, help="seconds between two looks; default 1")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--follow", action="store_true", help="until SIGTERM, then take what is left (the default)")
    mode.add_argument("--until-idle", action="store_true", help="take what is there, then end")
    return parser


def ranks(text: str) -> frozenset[int]:
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


if __name__ == "__main__":
    sys.exit(main())
