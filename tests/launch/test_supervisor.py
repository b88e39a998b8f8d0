"""The supervisor without a pod: a failing store, signals during a failure, ranks that cannot start."""

from __future__ import annotations

import json
import os
import queue
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from muster_components.launch.rank_layout import RankLayout
from muster_components.launch.rank_process import RankExited, RankProcess, start_rank
from muster_components.launch.rendezvous_store import EXIT_STORE
from muster_components.launch.stack_dumps import RankStacks, StackDumper
from muster_components.launch.supervisor import (
    SIGNAL_REQUEST,
    LauncherEvent,
    RankFiles,
    SignalReceived,
    StoreFailed,
    start_ranks,
    supervise,
)

Inbox = queue.SimpleQueue[LauncherEvent]


def sleeper(inbox: Inbox, *, deaf: bool = False) -> RankProcess:
    """A rank that sleeps; with `deaf` it ignores SIGTERM."""
    text = "trap '' TERM; echo ready; sleep 600 & wait; sleep 600" if deaf else "echo ready; exec sleep 600"
    rank = start_rank(0, ["sh", "-c", text], dict(os.environ), inbox.put)
    deadline = time.monotonic() + 300
    while rank.last_line != "ready":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return rank


def test_a_failure_of_the_store_stops_the_ranks_and_has_its_own_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    inbox: Inbox = queue.SimpleQueue()
    rank = sleeper(inbox)
    inbox.put(StoreFailed(EXIT_STORE, "the rendezvous store cannot be served"))
    assert supervise({0: rank}, stop_timeout_s=60, events=inbox) == EXIT_STORE
    assert "muster: the rendezvous store cannot be served" in capfd.readouterr().out


def test_the_first_failure_is_written_before_the_other_ranks_have_ended(tmp_path: Path) -> None:
    inbox: Inbox = queue.SimpleQueue()
    note = tmp_path / "failure.json"
    seen: list[dict[str, float]] = []

    class Watched(RankProcess):
        """Checks the failure file when it is terminated."""

        def terminate(self) -> None:
            seen.append(json.loads(note.read_text()))
            self.kill()

    broken = RankProcess(0, start_rank(0, ["true"], dict(os.environ), lambda end: None).process, "")
    stuck = Watched(1, sleeper(inbox).process, "")
    before = time.time()
    inbox.put(RankExited(0, 42, time.monotonic() - 5.0))
    after = time.time()
    inbox.put(RankExited(1, 137, time.monotonic()))
    assert supervise({0: broken, 1: stuck}, 60, inbox, str(note)) == 42
    (entry,) = seen
    assert entry["exit_code"] == 42
    assert before - 0.5 <= entry["failed_at"] + 5.0 <= after + 0.5


@pytest.mark.slow
def test_a_signal_does_not_extend_the_time_after_a_failure() -> None:
    inbox: Inbox = queue.SimpleQueue()
    rank = sleeper(inbox, deaf=True)
    inbox.put(StoreFailed(EXIT_STORE, "broken"))
    inbox.put(SignalReceived(15))
    assert supervise({0: rank}, stop_timeout_s=600, events=inbox) == EXIT_STORE  # or this test runs into its limit


class Recorded(StackDumper):
    """Notes each dump, and whether the ranks still ran."""

    def __init__(self, ranks: Mapping[int, RankProcess]) -> None:
        super().__init__(ranks, None, RankLayout(nproc=2))
        self.dumps: list[tuple[str, list[int], bool]] = []

    def dump(self, request: str, ranks: Iterable[int], limit_s: float = 0.0) -> list[RankStacks]:
        chosen = sorted(ranks)
        self.dumps.append((request, chosen, all(self._ranks[rank].process.poll() is None for rank in chosen)))
        return []


@pytest.mark.parametrize(
    ("event", "running"),
    [
        (SignalReceived(signal.SIGTERM), [0, 1]),
        (StoreFailed(EXIT_STORE, "broken"), [0, 1]),
        (RankExited(0, 1, 0.0), [1]),
    ],
)
def test_before_ranks_are_stopped_it_is_saved_where_they_are(event: LauncherEvent, running: list[int]) -> None:
    inbox: Inbox = queue.SimpleQueue()
    ranks = {0: sleeper(inbox), 1: replace(sleeper(queue.SimpleQueue()), rank=1)}
    dumper = Recorded(ranks)
    inbox.put(event)
    inbox.put(RankExited(1, 143, 0.0))
    supervise(ranks, 600, inbox, dumper=dumper)
    ranks[0].kill()
    assert dumper.dumps == [(SIGNAL_REQUEST, running, True)]


def test_if_a_rank_cannot_be_started_the_others_are_killed() -> None:
    with pytest.raises(FileNotFoundError):
        start_ranks(RankLayout(nproc=2), ["/no/such/python"], {}, RankFiles(), queue.SimpleQueue())
