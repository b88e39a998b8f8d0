"""A home for each test, and nothing left running after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.small import processes_of


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home that nobody has used; whatever still runs for it at the end is killed."""
    path = tmp_path / "home"
    yield path
    for pid in processes_of(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
