"""Submits a job whose pods unpack an archive of code, which a ConfigMap of the job contains."""

from __future__ import annotations

import base64
import contextlib

from muster.api.spec import TrainingJob
from muster.cluster_client.submit import submit_jobs
from muster.errors import ClusterError, MusterError
from muster.kube.requests import MERGE_PATCH, STRICT_FIELD_VALIDATION
from muster.kube.resources import CONFIG_MAPS, TRAINING_JOBS
from muster.kube.sync_client import KubeClient

ARCHIVE = "workspace.tar.gz"
"""The key of the archive in the ConfigMap."""


def archive_name(job: str) -> str:
    """The name of the ConfigMap of a job."""
    return f"{job}-workspace"


def submit_with_archive(kube_client: KubeClient, job: TrainingJob, archive: bytes) -> TrainingJob:
    """Create the ConfigMap, then the job that becomes its owner, so that both are deleted together.

    Raises the errors of `submit_jobs`; a refused job leaves no ConfigMap. If the client or the server fails in between,
    the ConfigMap may remain without an owner.
    """
    namespace = job.metadata.namespace or kube_client.config.namespace
    name = archive_name(job.metadata.name)
    document = {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "immutable": True,
        "binaryData": {ARCHIVE: base64.b64encode(archive).decode()},
    }
    kube_client.request("POST", CONFIG_MAPS.path(namespace), document, query=STRICT_FIELD_VALIDATION)
    path = CONFIG_MAPS.path(namespace, name)
    try:
        (created,) = submit_jobs(kube_client, [job], dry_run=False)
    except ClusterError:  # the job may have been created
        raise
    except MusterError:
        with contextlib.suppress(MusterError):
            kube_client.request("DELETE", path)
        raise
    owner = {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "name": created.metadata.name,
        "uid": created.metadata.uid,
    }
    with contextlib.suppress(MusterError):  # the job is submitted
        kube_client.request("PATCH", path, {"metadata": {"ownerReferences": [owner]}}, content_type=MERGE_PATCH)
    return created
