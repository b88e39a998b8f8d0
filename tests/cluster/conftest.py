"""A control plane for the tests of this folder: one for each worker, and private ones for tests that break theirs."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane.binaries import Unavailable, ensure
from tests.cluster.controlplane.catalogue import JOB_SETS, NEWEST, OLDEST, TRAIN_JOBS, Release
from tests.cluster.controlplane.nodes import Shape
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.experiments import QUEUED_KINDS, install_experiments
from tests.cluster.operator.installing import CRDS, install
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import Operator
from tests.cluster.operator.sidecars import COLLECTORS

HERE = Path(__file__).parent
SKIP = "MUSTER_SKIP_CLUSTER"
_CONTROLLERS = {"job_set_controller": [JOB_SETS], "controllers_of_kinds": [JOB_SETS, TRAIN_JOBS]}
"""Programs by the fixture that needs them."""
# The Go programs of a control plane collect garbage less often: 13% less CPU of all programs, for 260 MiB of each API
# server.
os.environ.setdefault("GOGC", "300")

StartControlPlane = Callable[..., ControlPlane]
AddNodes = Callable[..., list[str]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("cluster")
            item.add_marker(pytest.mark.xdist_group("control plane"))  # `make smoke` starts one
            if os.environ.get(SKIP) == "1":
                item.add_marker(pytest.mark.skip(reason=f"{SKIP}=1"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing before any test's timeout runs, and where its progress is seen."""
    if session.config.option.collectonly or os.environ.get(SKIP) == "1":
        return
    if any(HERE in item.path.parents for item in session.items):
        capture: Any = session.config.pluginmanager.getplugin("capturemanager")
        # Where there is no way, the fixture says so to every test that needs it.
        with capture.global_and_fixture_disabled(), contextlib.suppress(Unavailable):
            ensure()
            used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
            if "oldest" in used:
                ensure([OLDEST])
            ensure({name for fixture, names in _CONTROLLERS.items() if fixture in used for name in names})
            if "newest" in used:
                ensure(release=NEWEST)


@pytest.fixture(scope="session")
def newest() -> Release:
    """The newest Kubernetes release, whose servers were built before the first test: an option of `ControlPlane.start`
    and `change_release`."""
    return NEWEST


@pytest.fixture(scope="session")
def controllers_of_kinds() -> None:
    """The controllers of JobSets and TrainJobs are built, for tests that run them (tests.cluster.kinds.controllers)."""


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane that all tests of this worker share. Leave it as you found it: use `namespace`, `add_nodes`."""
    with _start(tmp_path_factory.mktemp("control-plane"), crds=CRDS) as plane:
        yield plane


@pytest.fixture
def start_control_plane(tmp_path: Path) -> Iterator[StartControlPlane]:
    """Start a control plane of this test's own; takes the options of `ControlPlane.start`."""
    started: list[ControlPlane] = []

    def start(**options: Any) -> ControlPlane:
        started.append(_start(tmp_path / f"control-plane-{len(started)}", **options))
        return started[-1]

    yield start
    for plane in started:
        plane.stop()


@pytest.fixture
def namespace(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test's own. Its pods are gone when the test ends."""
    api, name = control_plane.api, f"test-{next(_NUMBERS)}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name, "annotations": {"test": request.node.name}}})
    pods = f"/api/v1/namespaces/{name}/pods"
    control_plane.wait_for(
        "the namespace has its service account",
        lambda: not api.gone(f"/api/v1/namespaces/{name}/serviceaccounts/default"),
    )
    yield name
    api.delete(f"/api/v1/namespaces/{name}")
    api.delete(pods, gracePeriodSeconds=0)
    control_plane.wait_for("the namespace's pods are gone", lambda: not api.items(pods))


@pytest.fixture
def add_nodes(control_plane: ControlPlane) -> Iterator[AddNodes]:
    """Add nodes to the shared control plane that are gone when the test ends."""
    added: list[str] = []

    def add(count: int, shape: Shape | None = None, *, prefix: str = "node", first: int = 0) -> list[str]:
        names = control_plane.add_nodes(count, shape, prefix=prefix, first=first)
        added.extend(names)
        return names

    yield add
    there = {node["metadata"]["name"] for node in control_plane.api.items("/api/v1/nodes")}
    control_plane.delete_nodes(*(name for name in added if name in there))


@pytest.fixture(scope="session")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """The operator of all tests that do not hurt it. It adds collectors, and asks them often."""
    install(control_plane)
    install_experiments(control_plane)
    log = tmp_path_factory.mktemp("operator") / "log"
    running = Operator(control_plane.kubeconfig(), log, *COLLECTORS, *QUEUED_KINDS)
    try:
        running.wait("it leads", lambda: running.leads)
        yield running
        assert running.stop() == 0, running.tail()
    finally:
        if running.running:
            running.kill()


@pytest.fixture
def pool(control_plane: ControlPlane, namespace: str, operator: Operator) -> Iterator[Pool]:
    """The test's own part of the cluster."""
    one = Pool(control_plane, namespace, lambda: operator)
    yield one
    one.tear_down()


def _start(folder: Path, **options: Any) -> ControlPlane:
    try:
        return ControlPlane.start(folder, **options)
    except Unavailable as error:
        reason = str(error)
    pytest.fail(reason, pytrace=False)


_NUMBERS = itertools.count()
