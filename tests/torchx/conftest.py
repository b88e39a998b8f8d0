"""TorchX tests need TorchX (either version) and no torch; those with a daemon have one of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("torchx")

from muster.api.yaml_input import load_objects
from muster.errors import DaemonError
from muster.local.client import LocalClient

QUEUE = """
apiVersion: muster.dev/v1alpha1
kind: Queue
metadata: {name: research}
spec:
  maxPriority: 100
  namespaceSelector: {}
  resources: [{flavor: local, guaranteed: {cpu: 2}, limit: {cpu: 2}}]
"""


@pytest.fixture(scope="module")
def client() -> Iterator[LocalClient]:
    """A daemon that shows two nodes of 2 CPUs, and a queue `research` with quota for one of them."""
    with tempfile.TemporaryDirectory(prefix="muster-", ignore_cleanup_errors=True) as home:
        client = LocalClient.up(home, nodes="2x0:cpu=2")
        client.apply(load_objects(QUEUE))
        yield LocalClient.connect(home)
        with suppress(DaemonError):
            client.down(force=True)


@pytest.fixture(scope="module")
def home(client: LocalClient) -> Path:
    """The home of that daemon."""
    return client._home.path
