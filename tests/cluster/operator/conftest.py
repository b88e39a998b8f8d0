"""An operator on the control plane that a worker's tests share, and a part of the cluster for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import Operator

CRDS = Path(__file__).resolve().parents[3] / "helm" / "crds.yaml"
SYSTEM = "muster-system"

StartOperator = Callable[..., Operator]


def install(plane: ControlPlane) -> None:
    """The CRDs, and the namespace of the operator's Lease."""
    plane.kubectl("apply", "-f", str(CRDS))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))
    if plane.api.gone(f"/api/v1/namespaces/{SYSTEM}"):
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})


@pytest.fixture(scope="package")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """The operator of all tests that do not hurt it."""
    install(control_plane)
    running = Operator(control_plane.kubeconfig(), tmp_path_factory.mktemp("operator") / "log")
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

    def alive() -> str:
        return "" if operator.running else f"the operator ended\n{operator.tail()}"

    one = Pool(control_plane, namespace, alive)
    yield one
    one.tear_down()
