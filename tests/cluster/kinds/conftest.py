"""The controllers of other kinds, beside the control plane of the worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.kinds import controllers
from tests.cluster.operator.pools import Pool


@pytest.fixture(scope="session")
def job_set_controller(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The controller of JobSets runs."""
    with controllers.job_sets(control_plane, tmp_path_factory.mktemp("jobset")):
        yield


@pytest.fixture(scope="session")
def train_job_controller(
    control_plane: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
    controllers_of_kinds: None,
    job_set_controller: None,
) -> Iterator[None]:
    """The controllers of TrainJobs and JobSets run."""
    with controllers.train_jobs(control_plane, tmp_path_factory.mktemp("trainer")):
        yield


@pytest.fixture
def two(pool: Pool) -> Pool:
    """Two nodes of 4 GPUs, of which red owns one and blue the other, and a namespace whose labelled objects queue."""
    pool.set_up(nodes=2, gpus=4)
    pool.api.patch(f"/api/v1/namespaces/{pool.namespace}", {"metadata": {"labels": {"muster.dev/queueing": "enabled"}}})
    pool.wait_until_seen()
    return pool
