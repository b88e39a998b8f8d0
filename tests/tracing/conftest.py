"""What a collector does to its process is undone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`main` makes itself nice and takes over signals; the test run wants neither."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(os, "nice", lambda increment: 0)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
