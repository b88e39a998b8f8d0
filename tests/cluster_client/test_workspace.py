"""A job with an archive of code: both are created and deleted together."""

from __future__ import annotations

import base64

import pytest
from tests.cluster_client.server import JOBS, Server

from muster.api.spec import TrainingJob
from muster.cluster_client.submit import ARCHIVE
from muster.errors import Refused

CONFIG_MAP = "/api/v1/namespaces/default/configmaps/llama-workspace"


def job(queue: str = "research") -> TrainingJob:
    template = {"spec": {"containers": [{"name": "main", "image": "a", "command": ["true"]}]}}
    spec = {"queue": queue, "roles": [{"name": "main", "template": template}]}
    return TrainingJob.model_validate({"metadata": {"name": "llama", "namespace": "default"}, "spec": spec})


def test_the_job_owns_the_config_map_with_the_archive(cluster: Server) -> None:
    cluster.client().submit_with_archive(job(), b"code")
    stored, submitted = cluster.objects[CONFIG_MAP], cluster.objects[f"{JOBS}/llama"]
    assert base64.b64decode(stored["binaryData"][ARCHIVE]) == b"code"
    assert stored["immutable"] is True
    (owner,) = stored["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "name": "llama",
        "uid": submitted["metadata"]["uid"],
    }


def test_a_refused_job_leaves_no_config_map(cluster: Server) -> None:
    with pytest.raises(Refused, match="queue none does not exist"):
        cluster.client().submit_with_archive(job(queue="none"), b"code")
    assert CONFIG_MAP not in cluster.objects
    assert f"{JOBS}/llama" not in cluster.objects
