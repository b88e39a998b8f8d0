"""A collector in a forked process, which a test kills at a point of its choice."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from muster.tracing.collect import spool_collector
from muster.tracing.runs import trace_files


def collect(run_dir: Path, store: str, pod: int = 0, state_dir: Path | None = None) -> None:
    """Collect all traces in the spool, as the collector's process does."""
    options = spool_collector.CollectorOptions(run_dir, "trainer", pod, store=store, state_dir=state_dir)
    with trace_files.collector_lock(options.run_folder, options.owner):
        collector = spool_collector.start_collector(options, time.time())
        while collector.collect_finished(time.time(), respect_backoff=False):
            pass


def is_killed(body: Callable[[], None]) -> bool:
    """Run `body` in a forked process: whether a signal ended it. AssertionError if it raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)
