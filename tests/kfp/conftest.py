"""A home of its own for each test, whose processes are killed afterwards."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.support import processes_of


@pytest.fixture
def home() -> Iterator[Path]:
    """A new home for Muster on this host."""
    with tempfile.TemporaryDirectory(prefix="muster-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "home"
        for pid in processes_of(Path(folder) / "home"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
