"""Restores what a collector changes in its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore signal handlers after the test, and keep the priority of the test process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(os, "nice", lambda increment: 0)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
