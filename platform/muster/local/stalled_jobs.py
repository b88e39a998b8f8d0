"""Where the ranks of jobs are that have made no step for long: asked once for each stall, then an Event.

The launchers answer through the run folder (docs/reference/run-folder.md). A daemon that is killed meanwhile does not
ask again; `muster trace JOB --stacks` does.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.api import spec
from muster.capture.folder import observe
from muster.capture.stacks import (
    STACKS_WITHIN_S,
    describe_stacks,
    expected_ranks,
    read_stacks,
    request_stacks,
)
from muster.kinds.trainingjob.stalls import RANKS_STALLED, describe_stall
from muster.local.store import EventRecord, SqliteStore
from muster.tracing.shared_folder import SharedFolder


@dataclass(frozen=True, slots=True)
class _Request:
    id: str
    attempt: int
    until: float  # monotonic


class StalledJobs:
    """The caller holds the lock of the store."""

    def __init__(self, store: SqliteStore, run_dir: Callable[[spec.TrainingJob], Path]) -> None:
        self._store = store
        self._run_dir = run_dir
        self._requests: dict[str, _Request] = {}  # by job uid

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    def ask(self, uid: str) -> None:
        """The job has stalled: ask its ranks."""
        job = self._store.find_job(uid)
        if job is None:
            return
        request = _Request(f"no-step-{secrets.token_hex(8)}", job.status.attempt, time.monotonic() + STACKS_WITHIN_S)
        with suppress(OSError):
            request_stacks(SharedFolder(self._run_dir(job)), request.id, request.attempt, "muster.daemon")
            self._requests[uid] = request

    def step(self) -> None:
        """Record the Event of each job whose ranks have answered, or did not in time."""
        for uid, request in list(self._requests.items()):
            job = self._store.find_job(uid)
            if job is None:
                del self._requests[uid]
                continue
            run = SharedFolder(self._run_dir(job))
            stacks = read_stacks(run, request.id, request.attempt)
            reports = [one for one in observe(run, time.time()).reports if one.attempt == request.attempt]
            is_complete = expected_ranks(reports, stacks) <= {one.rank for one in stacks}
            if not is_complete and time.monotonic() < request.until:
                continue
            del self._requests[uid]
            message = describe_stall(job.status, describe_stacks(stacks) if stacks else "")
            if message:
                with self._store.transaction():
                    self._store.add_event(EventRecord(uid, time.time(), "Warning", RANKS_STALLED, message))
