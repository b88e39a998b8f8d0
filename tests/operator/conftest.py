"""A test goes on where it was, however long the machine did something else meanwhile."""

from __future__ import annotations

import pytest

from muster_operator import leader
from muster_operator.collectors import heartbeat_client

LONG_S = 600.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is begun within seconds of a round, and how long an answer may take."""
    monkeypatch.setattr(leader, "_START_WITHIN_S", LONG_S)
    monkeypatch.setattr(heartbeat_client, "TIMEOUT_S", LONG_S)
