"""A write for one job does not reach another one with its name, on a real API server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.operator.pools import Pool
from tests.cluster.users.conftest import kubeconfig

from muster.api.spec import TrainingJob
from muster.cluster_client import jobs, queries
from muster.errors import Conflict
from muster.kube.config import KubeContext, load_config
from muster.kube.sync_client import KubeClient

Write = Callable[[KubeClient, TrainingJob], object]
WRITES: dict[str, Write] = {
    "suspend": lambda connection, job: jobs.patch_job_spec(connection, job, {"suspend": True}),
    "scale": lambda connection, job: jobs.scale_job(connection, job, {"worker": 1}),
}


@pytest.fixture
def connection(pool: Pool) -> KubeClient:
    """An administrator's, in the namespace of the test."""
    return KubeClient(load_config(KubeContext(kubeconfig(pool)), {}))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_that_is_meant_for_another_uid_is_refused(pool: Pool, connection: KubeClient, write: Write) -> None:
    pool.set_up()
    pool.submit("llama", pods=2)
    pool.wait_for_phase("llama", "Running")
    job = queries.get_job(connection, "llama", pool.namespace)
    meta = job.metadata.model_copy(update={"uid": "11111111-1111-1111-1111-111111111111"})
    with pytest.raises(Conflict, match="llama was deleted and recreated concurrently; check the new one and retry"):
        write(connection, job.model_copy(update={"metadata": meta}))
    assert pool.phase("llama") == "Running"
    assert len(pool.pods("llama")) == 2
    write(connection, queries.get_job(connection, "llama", pool.namespace))


def test_a_role_whose_index_has_changed_is_not_scaled(pool: Pool, connection: KubeClient) -> None:
    pool.set_up()
    pool.submit("llama", pods=2, suspend=True)
    job = queries.get_job(connection, "llama", pool.namespace)
    role = pool.job("llama", pods=2)["spec"]["roles"][0]
    pool.edit("llama", roles=[{**role, "name": "reviewer"}])
    with pytest.raises(Conflict, match="the roles of job 'llama' were changed concurrently"):
        jobs.scale_job(connection, job, {"worker": 1})
