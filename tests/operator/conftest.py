"""Removes time limits that a slow machine could exceed."""

from __future__ import annotations

import pytest

from muster_operator.collectors import heartbeat_client

LONG_S = 600.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limit for answers of collectors."""
    monkeypatch.setattr(heartbeat_client, "TIMEOUT_S", LONG_S)
