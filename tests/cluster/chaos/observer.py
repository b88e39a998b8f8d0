"""The observer: a process that watches etcd, checks every change, and reports violated guarantees.

    python -m tests.cluster.chaos.observer --etcd http://127.0.0.1:2379 --report violations.jsonl --record history.gz
    python -m tests.cluster.chaos.observer --replay history.gz --report violations.jsonl

SIGTERM: check everything up to now and the end of the run, write the summary (the report's last line), and exit with 1
if there was a violation, else 0. SIGINT: the same without checking the end. The report has a line of JSON for each
violation, with the objects that show it and their resourceVersions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import queue
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TextIO

from tests.cluster.chaos.checker.invariants import InvariantChecker
from tests.cluster.chaos.checker.model import Event
from tests.cluster.chaos.checker.violation import Violation
from tests.cluster.chaos.etcd import Etcd
from tests.cluster.chaos.records import read, write

TICK_S = 0.5
SETTLE_S = 5.0  # at the end, changes in transit have arrived by then
BEHIND_S = 2.0  # deadlines are not checked while events are processed later than this


class Observer:
    """Feeds a checker from etcd until `stop`."""

    def __init__(self, etcd: Etcd, report: TextIO, record: TextIO | None = None) -> None:
        self._etcd = etcd
        self._report = report
        self._record = record
        self._events: queue.Queue[Event | Exception] = queue.Queue()
        self._checker = InvariantChecker(self._write_violation)
        self._counts: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()
        self._stop: int | None = None  # the signal that ended it

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Check the remaining events and exit."""
        self._stop = number

    def run(self) -> int:
        """Return the exit code."""
        threading.Thread(target=self._read, daemon=True).start()
        ticked_at = time.time()
        while self._stop is None:
            self._apply_queued(time.time() + TICK_S)
            if time.time() - ticked_at >= TICK_S:
                ticked_at = time.time()
                self._tick(ticked_at)
        self._apply_until(self._etcd.revision())
        if self._stop == signal.SIGTERM:
            self._checker.end(time.time())
        return self._finish()

    def _read(self) -> None:
        try:
            for event in self._etcd.changes():
                self._events.put(event)
        except Exception as error:
            self._events.put(error)

    def _apply_queued(self, until: float) -> None:
        """Check events as they arrive, until then."""
        while (left := until - time.time()) > 0 and self._stop is None:
            try:
                self._apply(self._events.get(timeout=left))
            except queue.Empty:
                return

    def _apply(self, event: Event | Exception) -> None:
        if isinstance(event, Exception):
            raise event
        self._counts[event.kind] += 1
        if self._record is not None:
            write(event, self._record)
        self._checker.apply(event)

    def replay(self, record: TextIO) -> int:
        """Check a recorded history, without its end. Return the exit code."""
        ticked_at = 0.0
        for event in read(record):
            if event.at - ticked_at >= TICK_S:
                ticked_at = event.at
                self._checker.tick(event.at)
            self._apply(event)
        return self._finish()

    def _tick(self, now: float) -> None:
        """Check deadlines, unless many events that were committed before now are still queued."""
        oldest = self._events.queue[0] if self._events.queue else None
        if not isinstance(oldest, Event) or now - oldest.at < BEHIND_S:
            self._checker.tick(now)

    def _apply_until(self, revision: int) -> None:
        """Check all events up to a revision, or until none arrives for a while: ignored keys have revisions, too."""
        until = time.time() + SETTLE_S
        while self._checker.revision < revision and (left := until - time.time()) > 0:
            try:
                self._apply(self._events.get(timeout=left))
                until = time.time() + SETTLE_S
            except queue.Empty:
                return

    def _write_violation(self, violation: Violation) -> None:
        self._violations[violation.rule] += 1
        print(violation.line(), file=self._report, flush=True)
        print(f"VIOLATION {violation.rule}: {violation.key}: {violation.message}", file=sys.stderr, flush=True)

    def _finish(self) -> int:
        summary = {
            "summary": {
                "revision": str(self._checker.revision),
                "events": dict(sorted(self._counts.items())),
                "violations": dict(sorted(self._violations.items())),
            }
        }
        print(json.dumps(summary), file=self._report, flush=True)
        return 1 if self._violations else 0


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos.observer", description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--etcd", metavar="URL")
    source.add_argument("--replay", type=Path, metavar="FILE", help="a recorded history")
    parser.add_argument("--report", required=True, type=Path, metavar="FILE")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep everything that is seen, compressed")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        report = stack.enter_context(arguments.report.open("w"))
        if arguments.replay:
            history = stack.enter_context(gzip.open(arguments.replay, "rt"))
            return Observer(Etcd(""), report).replay(history)
        record = stack.enter_context(gzip.open(arguments.record, "wt", 1)) if arguments.record else None
        observer = Observer(Etcd(arguments.etcd), report, record)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, observer.stop)
        return observer.run()


if __name__ == "__main__":
    sys.exit(main())
