"""The observer: a process that watches etcd, judges everything it sees, and reports what breaks a promise.

    python -m tests.cluster.chaos.observer --etcd http://127.0.0.1:2379 --report violations.jsonl --record history.gz
    python -m tests.cluster.chaos.observer --replay history.gz --report violations.jsonl

SIGTERM: see everything up to now, judge the end, write the summary (the report's last line), and leave with 1 if there
was a violation, else 0. SIGINT: the same without judging the end. One line of JSON for each violation, with the objects
that show it and their resourceVersions.
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

from tests.cluster.chaos.etcd import Etcd
from tests.cluster.chaos.judge.judge import Judge
from tests.cluster.chaos.judge.violation import Violation
from tests.cluster.chaos.judge.world import Event
from tests.cluster.chaos.records import read, write

TICK_S = 0.5
SETTLE_S = 5.0  # at the end, what is on its way has come by then
BEHIND_S = 2.0  # what should have happened by now is not judged while we are further behind than this


class Observer:
    """Feeds a judge from etcd until told to stop."""

    def __init__(self, etcd: Etcd, report: TextIO, record: TextIO | None = None) -> None:
        self._etcd = etcd
        self._report = report
        self._record = record
        self._events: queue.Queue[Event | Exception] = queue.Queue()
        self._judge = Judge(self._shout)
        self._seen: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()
        self._stop: int | None = None  # the signal that ended it

    def stop(self, number: int, frame: FrameType | None) -> None:
        """See the rest and leave."""
        self._stop = number

    def run(self) -> int:
        """Return the exit code."""
        threading.Thread(target=self._read, daemon=True).start()
        ticked_at = time.time()
        while self._stop is None:
            self._take(time.time() + TICK_S)
            if time.time() - ticked_at >= TICK_S:
                ticked_at = time.time()
                self._tick(ticked_at)
        self._see_until(self._etcd.revision())
        if self._stop == signal.SIGTERM:
            self._judge.end(time.time())
        return self._finish()

    def _read(self) -> None:
        try:
            for event in self._etcd.changes():
                self._events.put(event)
        except Exception as error:
            self._events.put(error)

    def _take(self, until: float) -> None:
        """Judge what comes, until then at most."""
        while (left := until - time.time()) > 0 and self._stop is None:
            try:
                self._see(self._events.get(timeout=left))
            except queue.Empty:
                return

    def _see(self, event: Event | Exception) -> None:
        if isinstance(event, Exception):
            raise event
        self._seen[event.kind] += 1
        if self._record is not None:
            write(event, self._record)
        self._judge.see(event)

    def replay(self, record: TextIO) -> int:
        """Judge a recorded history, the end of which is not the end of the run. Return the exit code."""
        ticked_at = 0.0
        for event in read(record):
            if event.at - ticked_at >= TICK_S:
                ticked_at = event.at
                self._judge.tick(event.at)
            self._see(event)
        return self._finish()

    def _tick(self, now: float) -> None:
        """What was committed until now may still wait to be read, so nothing is late while a lot does."""
        oldest = self._events.queue[0] if self._events.queue else None
        if not isinstance(oldest, Event) or now - oldest.at < BEHIND_S:
            self._judge.tick(now)

    def _see_until(self, revision: int) -> None:
        """Until everything up to a revision was judged. Keys that nobody judges have revisions too: wait a moment."""
        until = time.time() + SETTLE_S
        while self._judge.revision < revision and (left := until - time.time()) > 0:
            try:
                self._see(self._events.get(timeout=left))
                until = time.time() + SETTLE_S
            except queue.Empty:
                return

    def _shout(self, violation: Violation) -> None:
        self._violations[violation.rule] += 1
        print(violation.line(), file=self._report, flush=True)
        print(f"VIOLATION {violation.rule}: {violation.key}: {violation.message}", file=sys.stderr, flush=True)

    def _finish(self) -> int:
        summary = {
            "summary": {
                "revision": str(self._judge.revision),
                "seen": dict(sorted(self._seen.items())),
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
    asked = parser.parse_args()
    with ExitStack() as stack:
        report = stack.enter_context(asked.report.open("w"))
        if asked.replay:
            history = stack.enter_context(gzip.open(asked.replay, "rt"))
            return Observer(Etcd(""), report).replay(history)
        record = stack.enter_context(gzip.open(asked.record, "wt", 1)) if asked.record else None
        observer = Observer(Etcd(asked.etcd), report, record)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, observer.stop)
        return observer.run()


if __name__ == "__main__":
    sys.exit(main())
