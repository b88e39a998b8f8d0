"""A home for each test, whose processes are killed afterwards; the parts of a daemon without its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.support import processes_of

from muster.local.control_loop import ControlLoop, DaemonComponents
from muster.local.daemon import assemble
from muster.local.home import open_home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A new home; its remaining processes are killed at the end."""
    path = tmp_path / "home"
    yield path
    for pid in processes_of(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def parts(home: Path) -> Iterator[DaemonComponents]:
    """The parts of a daemon with one virtual node of 8 GPUs."""
    parts = assemble(open_home(home), "1x8", None)
    yield parts
    parts.reports.stop()
    parts.supervisor.kill_all()
    parts.store.close()


@pytest.fixture
def loop(home: Path, parts: DaemonComponents) -> Iterator[ControlLoop]:
    """The loop of these parts, which a test runs cycle by cycle."""
    lock = os.open(open_home(home).lock, os.O_RDWR | os.O_CREAT)
    yield ControlLoop(open_home(home), parts, 60.0, lock)
    os.close(lock)
