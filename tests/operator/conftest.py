"""Removes time limits that a slow machine could exceed."""

from __future__ import annotations

import pytest

from muster_operator import leader
from muster_operator.collectors import heartbeat_client

LONG_S = 600.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits for starting writes in a cycle and for answers."""
    monkeypatch.setattr(leader, "_START_WITHIN_S", LONG_S)
    monkeypatch.setattr(heartbeat_client, "TIMEOUT_S", LONG_S)
