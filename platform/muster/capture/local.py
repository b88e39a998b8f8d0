"""A capture on this host: agrees on the steps through the run folder, and stores the traces.

The run folder is read directly, and this process is a collector of its own, since jobs without `spec.trace` have none.
If it is killed, the ranks still write their traces; the next capture, a collector of the job, or the report takes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path

from muster.api.spec.captures import FINISHED_CAPTURE_PHASES, TraceCaptureSpec, TraceCaptureStatus
from muster.capture.agreement import CaptureTarget, advance, cancel_request
from muster.capture.folder import observe, write_request
from muster.errors import Refused
from muster.tracing.collect.spool_collector import Collector, CollectorOptions, start_collector
from muster.tracing.runs.trace_files import LOCK_TIMEOUT_S, TRACES, collector_lock
from muster.tracing.shared_folder import SharedFolder

OWNER_ROLE = "muster.trace"  # roles have no dot
LEAD_S = 1.0
_POLL_S = 0.1
_JOB_CHECK_S = 1.0


def run_capture(
    run_dir: Path, capture_id: str, spec: TraceCaptureSpec, job_problem: Callable[[], str]
) -> Generator[TraceCaptureStatus, None, None]:
    """Yields the status whenever it has changed, until the capture is finished. Closing the iterator withdraws it.

    `job_problem`: why the job does not run; empty while it runs. Raises `Refused` CaptureRunning if another capture of
    the job runs, OSError if the run folder cannot be written.
    """
    run, target = SharedFolder(run_dir), CaptureTarget(capture_id, spec, LEAD_S)
    options = CollectorOptions(run_dir, OWNER_ROLE, 0, quiet=True)  # its process is a user's command
    run.make_folder(TRACES)
    with collector_lock(run, options.owner, timeout_s=LOCK_TIMEOUT_S) as locked:
        if locked is False:
            raise Refused("another capture of this job runs; try again when it has ended", reason="CaptureRunning")
        collector = start_collector(options, time.time())
        status = TraceCaptureStatus(location=str(run_dir))
        problem, checked_at = "", float("-inf")
        try:
            while status.phase not in FINISHED_CAPTURE_PHASES:
                now = time.time()
                if time.monotonic() >= checked_at + _JOB_CHECK_S:
                    problem, checked_at = job_problem(), time.monotonic()
                _collect(collector, status, now)
                progress = advance(target, status, observe(run, now), problem, now)
                if progress.request is not None:
                    write_request(run, progress.request, options.owner)
                if progress.status != status:
                    status = progress.status
                    yield status
                time.sleep(_POLL_S if status.phase not in FINISHED_CAPTURE_PHASES else 0.0)
        finally:
            if status.phase not in FINISHED_CAPTURE_PHASES:
                withdrawn = cancel_request(target, status)
                if withdrawn is not None:
                    write_request(run, withdrawn, options.owner)


def _collect(collector: Collector, status: TraceCaptureStatus, now: float) -> None:
    """Store what the ranks have written, once there may be something."""
    if status.agreed_at is not None:
        collector.collect_finished(now)
