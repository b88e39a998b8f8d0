"""A home for each test, whose processes are killed afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.support import processes_of


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A new home; its remaining processes are killed at the end."""
    path = tmp_path / "home"
    yield path
    for pid in processes_of(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
