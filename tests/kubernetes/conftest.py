"""An API server in memory for each test, and `muster` as its users run it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.conftest import muster
from tests.kubernetes.server import Server, serving

__all__ = ["muster"]


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that keeps nothing yet."""
    with serving() as server:
        yield server


@pytest.fixture
def served(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server that `muster` asks."""
    import muster.cli.client as opening

    monkeypatch.setattr(opening, "_open", lambda start: server.client())
    return server
