"""An API server in memory for each test, and `muster` as its users run it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.conftest import muster
from tests.cluster_client.server import FLAVORS, NODES, QUEUES, Server, serving

__all__ = ["muster"]

_QUOTA = {"resources": [{"flavor": "h200", "guaranteed": {"cpu": 8}}]}


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that keeps nothing yet."""
    with serving() as server:
        yield server


@pytest.fixture
def served(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server that `muster` asks."""
    import muster.cli.options as opening

    monkeypatch.setattr(opening, "_connect_local", lambda start: server.client())
    return server


@pytest.fixture
def cluster(served: Server) -> Server:
    """A queue, a flavor and a node that takes pods."""
    served.put(f"{QUEUES}/research", {"metadata": {"name": "research"}, "spec": {"namespaceSelector": {}, **_QUOTA}})
    served.put(f"{FLAVORS}/h200", {"metadata": {"name": "h200"}, "spec": {}})
    served.put("/api/v1/namespaces/default", {"metadata": {"name": "default"}})
    served.put(f"{NODES}/n1", {"metadata": {"name": "n1"}, "status": {"allocatable": {"pods": "110"}}})
    return served
