"""Which replica an elastic torchrun gives rank 0: `muster logs` shows that of replica 0 first, and follows it."""

from __future__ import annotations

import pytest

from muster_operator.pod_builder.job_objects import host_name


@pytest.mark.slow
def test_an_elastic_torchrun_gives_rank_0_to_replica_0_by_the_names_of_its_pods() -> None:
    """It sorts nodes by their full names, which begin with the pods' host names."""
    rendezvous = pytest.importorskip("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
    joined = [index for index in range(1200) if index] + [0]  # in the order of arrival
    names = {index: f"{host_name('worker', index)}.train-1.team.svc.cluster.local" for index in joined}
    nodes = [rendezvous._NodeDesc(names[index], pid=7, local_id=0) for index in joined]
    assert sorted(nodes)[0].addr == names[0]
