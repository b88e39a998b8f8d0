"""A daemon that nobody needs any more ends; the request for which it was started is answered first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.small import ended, eventually, shell_job

from muster.errors import ClusterError
from muster.local.client import LocalClient
from muster.local.control_loop import RequestTracker


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def tracker_at(clock: Callable[[], float]) -> RequestTracker:
    return RequestTracker(lambda: None, clock)


def test_before_its_first_request_a_daemon_stays_a_minute_however_short_it_may_idle() -> None:
    clock = Clock()
    tracker = tracker_at(clock)
    assert (tracker.close_if_idle(0.0), tracker.idle_remaining_s(0.0)) == (False, 60.0)
    clock.now += 59.9
    assert not tracker.close_if_idle(0.0)
    clock.now += 0.1
    assert tracker.close_if_idle(0.0), "whoever started it is gone"


def test_after_a_request_it_stays_as_long_as_it_was_told_and_not_while_it_answers() -> None:
    clock = Clock()
    tracker = tracker_at(clock)
    tracker.begin_request()
    clock.now += 1000.0
    assert not tracker.close_if_idle(5.0)
    tracker.end_request()
    assert (tracker.close_if_idle(5.0), tracker.idle_remaining_s(5.0)) == (False, 5.0)
    clock.now += 5.0
    assert tracker.close_if_idle(5.0)
    with pytest.raises(ClusterError, match="shutting down"):
        tracker.begin_request()


def test_a_daemon_that_was_told_not_to_idle_ends_as_soon_as_it_has_answered() -> None:
    tracker = tracker_at(Clock())
    tracker.begin_request()
    tracker.end_request()
    assert tracker.close_if_idle(0.0)


@pytest.mark.slow
def test_with_daemons_that_do_not_idle_each_call_has_one_that_answers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_IDLE_SECONDS", "0")
    client = LocalClient.connect(home)
    pids = set()
    for _ in range(2):
        pids.add(pid := client.status()["pid"])
        eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists())  # type: ignore[misc]
    assert len(pids) == 2
    client.submit(shell_job("job", "true"))
    assert ended(client, "job").status.phase == "Succeeded"
