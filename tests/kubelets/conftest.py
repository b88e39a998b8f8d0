"""One cluster with real nodes for the tests of this folder, started on first use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane import binaries
from tests.cluster.controlplane.binaries import Unavailable
from tests.cluster.controlplane.catalogue import OF_CONTROL_PLANE, OF_NODES
from tests.kubelets import archives, machine, operator
from tests.kubelets.cluster import Cluster

HERE = Path(__file__).parent
SKIP = "MUSTER_SKIP_CLUSTER"
ANYWHERE = ("test_machine.py",)


class Shared:
    """The cluster, if it runs. A machine runs one at a time, so a test that starts its own ends this one first."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._cluster: Cluster | None = None

    def get(self) -> Cluster:
        """The cluster with two nodes and the operator, started if necessary."""
        if self._cluster is None:
            self._cluster = Cluster.start(self._new_folder(), images=archives.ensure())
            operator.install(self._cluster)
        return self._cluster

    def end(self) -> None:
        """End it, if it runs."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = machine.missing()
    for item in items:
        if HERE in item.path.parents and item.path.name not in ANYWHERE:
            item.add_marker("cluster")
            item.add_marker(pytest.mark.timeout(1800))  # the first test starts the cluster, and others compile
            if os.environ.get(SKIP) == "1":
                item.add_marker(pytest.mark.skip(reason=f"{SKIP}=1"))
            elif missing:
                item.add_marker(pytest.mark.skip(reason=f"this machine cannot run kubelets: {'; '.join(missing)}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build programs and images before the timeout of any test starts, with visible progress."""
    if session.config.option.collectonly or os.environ.get(SKIP) == "1" or machine.missing():
        return
    if any(HERE in item.path.parents and item.get_closest_marker("cluster") for item in session.items):
        capture: Any = session.config.pluginmanager.getplugin("capturemanager")
        # Where that fails, the fixture reports it to every test that needs it.
        with capture.global_and_fixture_disabled(), contextlib.suppress(Unavailable):
            binaries.ensure((*OF_CONTROL_PLANE, *OF_NODES))
            archives.ensure()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """See Shared."""
    one = Shared(lambda: tmp_path_factory.mktemp("kubelets"))
    yield one
    one.end()


@pytest.fixture
def cluster(shared: Shared) -> Cluster:
    """Two real nodes with two GPUs each, and the operator installed. Tests must restore its state."""
    try:
        return shared.get()
    except Unavailable as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def no_cluster(shared: Shared) -> None:
    """No cluster of this session runs on this machine."""
    shared.end()
