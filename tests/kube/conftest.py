"""An API server in memory for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster_client.server import Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    """A server without objects."""
    with serving() as server:
        yield server
