"""Jobs into a cluster, all of them or none.

A cluster has no transaction over several objects, and an answer can be lost: a job whose creation nobody confirmed is
looked for, what was created before one is refused is deleted again, and what stays uncertain is named.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

from muster.errors import ClusterError, Conflict, MusterError, NotFound
from muster.kubernetes import paths, queries
from muster.kubernetes.apply import STRICT_FIELD_VALIDATION
from muster.kubernetes.config import DEFAULT_NAMESPACE
from muster.kubernetes.decode import decode, to_manifest
from muster.kubernetes.kube_client import DRY_RUN, KubeClient
from muster.kubernetes.preconditions import is_uid_mismatch, uid_precondition
from muster.spec import TrainingJob

_MAX_LOOKUPS = 10
_MISSES_UNTIL_ABSENT = 2  # looks that show nothing
_PAUSE_S = 1.0


def submit_jobs(kube_client: KubeClient, jobs: Sequence[TrainingJob], dry_run: bool) -> list[TrainingJob]:
    """Create jobs, all of them or none, as the API server completed them. Raises as `muster.kubernetes.apply`, with
    the job that it is about; the text names what was created and could not be deleted again, or may have been created.
    """
    for job in jobs:
        with _attribute_errors_to(job):
            queries.preflight_job(kube_client, job, job.metadata.namespace or kube_client.config.namespace)
    checked = [_create(kube_client, job, DRY_RUN) for job in jobs]
    if dry_run:
        return checked
    created: list[TrainingJob] = []
    try:
        for job, awaited in zip(jobs, checked, strict=True):
            created.append(_create_confirmed(kube_client, job, awaited))
    except MusterError as error:
        left = _roll_back(kube_client, created)
        if left:
            names = " ".join(map(_job_label, left))
            error.args = (f"{error}; created before that and not taken back, so: muster delete job {names}",)
        raise
    return created


def _create(kube_client: KubeClient, job: TrainingJob, query: Mapping[str, str]) -> TrainingJob:
    with _attribute_errors_to(job):
        requested = to_manifest(job, kube_client.config.namespace)
        name, namespace = job.metadata.name, requested["metadata"]["namespace"]
        path = paths.collection_path("TrainingJob", namespace)
        try:
            return decode(
                TrainingJob, kube_client.request("POST", path, requested, query={**STRICT_FIELD_VALIDATION, **query})
            )
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            raise Conflict(
                f"a job {name!r} exists already in namespace {namespace!r}; choose another name, or remove it: muster"
                f" delete job {namespace}/{name}",
                field="metadata.name",
                reason="AlreadyExists",
            ) from error


def _create_confirmed(kube_client: KubeClient, job: TrainingJob, expected: TrainingJob) -> TrainingJob:
    """Create a job. Where the answer is lost it is looked for; `awaited` is how the server would complete it."""
    try:
        return _create(kube_client, job, {})
    except ClusterError as error:
        name = _job_label(expected)
        try:
            found = _find_created(kube_client, expected)
        except MusterError:
            error.args = (f"{error}; whether job {name} was created is not known: muster describe {name}",)
            raise error from None
        if found is None:
            raise
        if found.spec != expected.spec:
            error.args = (f"{error}; there is a job {name} now that is not quite this one: muster describe {name}",)
            raise
        return found


def _find_created(kube_client: KubeClient, job: TrainingJob) -> TrainingJob | None:
    """The job that is there; None where there is none, also a while later: a request may be late. Raises as a
    `Connection` does."""
    path = paths.object_path("TrainingJob", job.metadata.name, job.metadata.namespace)
    missing = 0
    for left in reversed(range(_MAX_LOOKUPS)):
        try:
            return decode(TrainingJob, kube_client.get(path))
        except NotFound:
            missing += 1
            if missing == _MISSES_UNTIL_ABSENT:
                return None
        except ClusterError:
            if not left:
                raise
        time.sleep(_PAUSE_S)
    return None


def _roll_back(kube_client: KubeClient, jobs: Sequence[TrainingJob]) -> list[TrainingJob]:
    """Delete what was just created; those that are still there, or may be."""
    left = []
    for job in jobs:
        meta = job.metadata
        try:
            kube_client.request(
                "DELETE",
                paths.object_path("TrainingJob", meta.name, meta.namespace),
                uid_precondition(meta.uid),
            )
        except NotFound:
            continue
        except MusterError as error:  # why the other one was refused counts more
            if not is_uid_mismatch(error):
                left.append(job)
    return left


@contextlib.contextmanager
def _attribute_errors_to(job: TrainingJob) -> Iterator[None]:
    """Whatever is raised is about this job, as its file names it."""
    try:
        yield
    except MusterError as error:
        error.job = _job_label(job)
        raise


def _job_label(job: TrainingJob) -> str:
    return f"{job.metadata.namespace or DEFAULT_NAMESPACE}/{job.metadata.name}"
