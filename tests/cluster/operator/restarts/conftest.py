"""A control plane on which only the operators of the test run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.installing import CRDS, SYSTEM, install
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import Operator

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/muster-operator"
Start = Callable[..., Operator]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane on which no other operator runs."""
    with ControlPlane.start(tmp_path_factory.mktemp("crashes"), crds=CRDS) as own:
        install(own)
        yield own


@pytest.fixture
def start(plane: ControlPlane, tmp_path: Path) -> Iterator[Start]:
    """Start operators that are gone when the test ends; the Lease is free at first."""
    started: list[Operator] = []

    def one(name: str = "a", *flags: str) -> Operator:
        started.append(Operator(plane.kubeconfig(), tmp_path / f"{name}.log", "--identity", name, *flags))
        return started[-1]

    yield one
    for operator in started:
        if operator.running:
            operator.thaw()
            operator.kill()
    if not plane.api.gone(LEASE):
        plane.api.delete(LEASE)


@pytest.fixture
def pool(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """A part of the cluster; whether an operator runs is the test's business."""
    name = f"pool-{random.Random(request.node.name).randrange(10**6)}"
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    one = Pool(plane, name, None)
    one.set_up(nodes=4, gpus=4)
    yield one
    for queue in plane.api.items("/apis/muster.dev/v1alpha1/queues"):
        plane.api.patch(
            f"/apis/muster.dev/v1alpha1/queues/{queue['metadata']['name']}", {"metadata": {"finalizers": None}}
        )
    one.tear_down()
