"""Arrays on this host, with real processes."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.support import ended, eventually, processes_of, shell_job

from muster.api.spec import index_set
from muster.errors import Conflict, DaemonError
from muster.local.client import LocalClient

_LINE = 'echo "begin $MUSTER_ARRAY_INDEX" >> "$NOTES"; sleep 0.1; echo "end $MUSTER_ARRAY_INDEX" >> "$NOTES"'


@pytest.mark.slow
def test_an_array_runs_each_index_and_a_retry_those_that_failed(home: Path) -> None:
    client = LocalClient.up(home, nodes="1x8", idle_s=120)
    fixed = home.parent / "fixed"
    line = 'echo "$MUSTER_ARRAY_INDEX of $MUSTER_ARRAY_COUNT"; [ "$MUSTER_ARRAY_INDEX" != 3 ] || [ -e "$FIXED" ]'
    array = {"indices": "0-4,7", "parallelism": 2}
    policy = {"maxRestarts": 0}
    client.submit(shell_job("sweep", line, env={"FIXED": str(fixed)}, array=array, failurePolicy=policy))
    found = ended(client, "sweep")
    assert found.status.array is not None
    assert (found.status.phase, found.status.array.failed, found.status.array.succeeded) == ("Failed", "3", "0-2,4,7")
    assert list(client.log_lines("sweep-7", "default", "trainer", 0)) == ["7 of 6"]
    assert client.job("sweep-3").status.phase == "Failed"
    fixed.touch()
    client.retry("sweep")
    eventually(lambda: client.job("sweep").status.phase == "Succeeded")
    with pytest.raises(Conflict, match="no index"):
        client.retry("sweep")
    client.down()


@pytest.mark.slow
def test_after_kill_9_of_the_daemon_each_index_has_run_once(home: Path) -> None:
    notes = home.parent / "notes"
    client = LocalClient.up(home, nodes="1x8", idle_s=120)
    array = {"indices": "0-29", "parallelism": 6}
    client.submit(shell_job("sweep", _LINE, env={"NOTES": str(notes)}, array=array, failurePolicy={"maxRestarts": 0}))
    for _ in range(5):
        time.sleep(0.15)
        with suppress(OSError, ValueError):
            os.kill(int((home / "daemon.lock").read_text()), signal.SIGKILL)
        with suppress(DaemonError):
            client.status()  # starts the next daemon
    found = ended(client, "sweep")
    assert found.status.array is not None
    assert index_set(found.status.array.succeeded) == frozenset(range(30))
    lines = [tuple(line.split()) for line in notes.read_text().splitlines()]
    assert sorted(lines) == sorted((word, str(index)) for word in ("begin", "end") for index in range(30))
    client.down()
    assert processes_of(home) == []
