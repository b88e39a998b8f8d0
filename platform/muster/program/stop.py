"""`muster.should_stop`: whether the program is to save a checkpoint and end, the same answer on all ranks.

Ranks get SIGTERM at different steps, and a rank that ends on its own leaves the others waiting in a collective. So the
ranks agree on a number of calls of `should_stop`, which is called once per step:

1. A rank that got SIGTERM says so in the rendezvous store, which a thread of each rank reads twice a second.
2. Rank 0 proposes a number of calls ahead of its own. Each rank's thread votes: it accepts if its program has made
   fewer calls, else it rejects and says how many. A rank that accepted waits in that call until it is decided.
3. If all accept, that call is the last of every rank. Otherwise a number further ahead is proposed.

The votes come from threads, so that a program that waits in a collective for another one cannot delay them. No
collective is called, and a call costs nothing but a comparison.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, Protocol

POLL_S = 0.5
VOTE_POLL_S = 0.01
"""Once a rank is to stop."""
AHEAD = 2
"""Calls between rank 0's and the first number that it proposes."""
CONNECT_TIMEOUT = timedelta(seconds=300)
_PREFIX = "muster/stop"


class Store(Protocol):
    """What ranks agree through: torch's TCPStore."""

    def set(self, key: str, value: str, /) -> None:
        """Set a value."""

    def get(self, key: str, /) -> bytes:
        """A value that exists."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all of them exist."""


class StopAgreement:
    """The calls of one rank, and what the ranks have agreed on. `should_stop` is called by the program, `run` in a
    thread; `stop_s`: from SIGTERM until a rank is killed."""

    def __init__(self, rank: int, world_size: int, stop_s: float) -> None:
        self._rank = rank
        self._world_size = world_size
        self._stop_s = stop_s
        self._changed = threading.Condition()
        self._calls = 0
        self._last_call: int | None = None  # accepted, perhaps not decided yet
        self._is_decided = False
        self._deadline: float | None = None  # of this rank's own signal, then of all
        self._closed = threading.Event()

    def on_signal(self) -> None:
        """SIGTERM came. Called by a signal handler: takes no lock."""
        if self._deadline is None:
            self._deadline = time.time() + self._stop_s

    def should_stop(self) -> float | None:
        """One more call; the deadline (Unix seconds) if it is the last one."""
        if self._world_size == 1:
            return self._deadline
        with self._changed:
            self._calls += 1
            while self._last_call is not None and self._calls >= self._last_call:
                if self._is_decided:
                    return self._deadline
                if self._closed.is_set():
                    return None
                self._changed.wait(POLL_S)
        return None

    def run(self, store: Store) -> None:
        """Agree with the other ranks, once one of them is to stop. Returns when it is decided or after `close`."""
        while not store.check([f"{_PREFIX}/requested"]):
            if self._deadline is not None:
                store.set(f"{_PREFIX}/requested", repr(self._deadline))
            elif self._closed.wait(POLL_S):
                return
        requested = float(store.get(f"{_PREFIX}/requested"))
        self._deadline = requested if self._deadline is None else min(self._deadline, requested)
        ahead, proposal = AHEAD, self._calls + AHEAD
        for number in range(10**6):
            if self._rank == 0:
                store.set(f"{_PREFIX}/{number}/proposal", str(proposal))
            value = self._await(store, [f"{_PREFIX}/{number}/proposal"])
            if value is None:
                return
            store.set(f"{_PREFIX}/{number}/calls/{self._rank}", str(self._vote(int(value[0]))))
            if self._rank == 0:
                calls = self._await(store, [f"{_PREFIX}/{number}/calls/{rank}" for rank in range(self._world_size)])
                if calls is None:
                    return
                most = max(map(int, calls))
                store.set(f"{_PREFIX}/{number}/decision", "stop" if most < proposal else "later")
                ahead *= 2
                proposal = max(most, self._calls) + ahead
            decision = self._await(store, [f"{_PREFIX}/{number}/decision"])
            if decision is None or self._decide(decision[0] == b"stop"):
                return

    def close(self) -> None:
        """End `run`, and every wait for a decision."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    def _vote(self, proposal: int) -> int:
        """Accept the call as the last one if it is ahead; returns the number of calls until now."""
        with self._changed:
            if self._calls < proposal:
                self._last_call = proposal
            return self._calls

    def _decide(self, is_last: bool) -> bool:
        with self._changed:
            self._is_decided = is_last
            if not is_last:
                self._last_call = None
            self._changed.notify_all()
        return is_last

    def _await(self, store: Store, keys: Sequence[str]) -> list[bytes] | None:
        """The values once all exist; None after `close`."""
        while not store.check(list(keys)):
            if self._closed.wait(VOTE_POLL_S):
                return None
        return [store.get(key) for key in keys]


def should_stop() -> float | None:
    """None, or the time (Unix seconds) until which the program must have saved its checkpoint and ended: it got SIGTERM
    because its job is preempted, suspended, resized or cancelled.

    Call it once per step, at the same place on all ranks, which get the same answer in the same call. From the first
    call on SIGTERM does not end the program. Outside a job it is always None, and SIGTERM has its usual effect.

    Several ranks agree through a store of `torch.distributed`, which the program must have imported before the first
    call: otherwise a warning is printed, it is always None, and SIGTERM has its usual effect. A single rank needs no
    torch.
    """
    agreement = _agreement()
    return None if agreement is None else agreement.should_stop()


def stop_seconds(environ: Mapping[str, str]) -> float:
    """From SIGTERM of a rank until its launcher kills it: of the grace period 10 s less, at least half of it, and less
    the time in which the launcher saves stacks."""
    grace_s = float(environ.get("MUSTER_GRACE_SECONDS") or 30)
    stop_s = max(grace_s - 10, grace_s / 2)
    return stop_s - min(float(environ.get("MUSTER_STACKS_SECONDS") or 3), stop_s / 4)


_agreements: list[StopAgreement | None] = []


def _agreement() -> StopAgreement | None:
    if not _agreements:
        try:
            _agreements.append(_begin(os.environ) if "MUSTER_RUN_DIR" in os.environ else None)
        except ValueError as error:  # of an invalid variable, or outside the main thread
            _agreements.append(None)
            print(f"muster.should_stop has no effect: {error}", file=sys.stderr, flush=True)
    return _agreements[0]


def _begin(environ: Mapping[str, str]) -> StopAgreement:
    """Handle SIGTERM, and start the thread that agrees with the other ranks. Raises ValueError."""
    world_size = int(environ.get("WORLD_SIZE", "1"))
    agreement = StopAgreement(int(environ.get("RANK", "0")), world_size, stop_seconds(environ))
    distributed = sys.modules.get("torch.distributed")
    if world_size > 1 and distributed is None:
        raise ValueError(f"{world_size} ranks agree through torch.distributed, which the program has not imported")
    previous = signal.getsignal(signal.SIGTERM)

    def on_signal(number: int, frame: FrameType | None) -> None:
        agreement.on_signal()
        if callable(previous):
            previous(number, frame)

    signal.signal(signal.SIGTERM, on_signal)
    if world_size > 1:
        thread = threading.Thread(
            target=_run, args=(agreement, distributed, environ), name="muster-should-stop", daemon=True
        )
        thread.start()
        atexit.register(_close, agreement, thread)
    return agreement


def _run(agreement: StopAgreement, distributed: Any, environ: Mapping[str, str]) -> None:
    try:
        address = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        agreement.run(distributed.TCPStore(*address, is_master=False, timeout=CONNECT_TIMEOUT))
    except Exception as error:  # of torch's store, such as that rank 0 has ended
        agreement.close()
        with contextlib.suppress(OSError):
            print(f"muster.should_stop: the ranks cannot agree: {error}", file=sys.stderr, flush=True)


def _close(agreement: StopAgreement, thread: threading.Thread) -> None:
    agreement.close()
    thread.join(2 * POLL_S)
