"""Requests to profile steps of a running job, read from the run folder (docs/reference/run-folder.md).

A collector writes `capture/request.json`, and each rank answers in `capture/rank-<r>.json`. A rank looks at the file
between two steps, at most ten times per second, so that the cost does not depend on the length of a step. All ranks
profile the same steps because the request names them, and names them early enough for every rank to answer before.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

from muster_components.trainer.context import RunContext
from muster_components.trainer.regular_files import read_regular
from muster_components.trainer.reporter import Reporter

CaptureState = Literal["armed", "recording", "written", "rejected", "failed"]

POLL_INTERVAL_S: Final = 0.1
MAX_REQUEST_BYTES: Final = 65_536
MAX_STEPS: Final = 1000
OPTIONS: Final = frozenset({"stacks", "shapes", "memory", "flops", "modules", "snapshot"})


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Profile the steps `start` <= k < `end` on `ranks` (empty: all). A later `proposal` of the same `id` replaces an
    earlier one; a `cancelled` one withdraws it."""

    id: str
    proposal: int
    start: int
    end: int
    ranks: tuple[int, ...]
    options: frozenset[str]
    cancelled: bool


class CaptureInbox:
    """The requests for this rank, and its answers."""

    def __init__(self, context: RunContext, reporter: Reporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._reporter = reporter
        self._clock = clock
        self._file = context.capture_dir / "request.json"
        self._next_poll_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None  # modification time, inode and size of the last request

    def poll(self) -> ProfileRequest | None:
        """The request for this attempt, if it has changed since the last call; also one for other ranks only."""
        now = self._clock()
        if now < self._next_poll_at:
            return None
        self._next_poll_at = now + POLL_INTERVAL_S
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        found = status.st_mtime_ns, status.st_ino, status.st_size
        if found == self._seen:
            return None
        self._seen = found
        with suppress(OSError, ValueError):
            content = read_regular(self._file, MAX_REQUEST_BYTES, follow_links=False)
            return parse_request(content, self._context.attempt)
        return None

    def answer(self, request: ProfileRequest, state: CaptureState, step: int, reason: str = "") -> None:
        """Write this rank's answer. `step`: the next step of this rank."""
        self._reporter.replace(
            self._context.capture_dir / f"rank-{self._context.rank}.json",
            {
                "id": request.id,
                "proposal": request.proposal,
                "attempt": self._context.attempt,
                "rank": self._context.rank,
                "state": state,
                "step": step,
                "reason": reason[:500],
                "at": time.time(),
            },
        )


def parse_request(content: bytes, attempt: int) -> ProfileRequest | None:
    """The request, or None if it is invalid or of another attempt."""
    try:
        fields: dict[str, Any] = json.loads(content)
        request = ProfileRequest(
            id=str(fields["id"]),
            proposal=int(fields["proposal"]),
            start=int(fields["start_step"]),
            end=int(fields["end_step"]),
            ranks=tuple(map(int, fields["ranks"])),
            options=frozenset(map(str, fields["options"])) & OPTIONS,
            cancelled=fields["cancelled"] is True,
        )
        is_current = int(fields["attempt"]) == attempt
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return request if is_current and 1 <= request.start < request.end <= request.start + MAX_STEPS else None
