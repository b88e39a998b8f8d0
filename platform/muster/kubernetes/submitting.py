"""Jobs into a cluster, all of them or none.

A cluster has no transaction over several objects, and an answer can be lost: a job whose creation nobody confirmed is
looked for, what was created before one is refused is deleted again, and what stays uncertain is named.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

from muster.errors import ClusterError, Conflict, MusterError, NotFound
from muster.kubernetes import overview, paths
from muster.kubernetes.access import DEFAULT_NAMESPACE
from muster.kubernetes.connection import DRY_RUN, Connection
from muster.kubernetes.identity import means_another, only
from muster.kubernetes.reading import manifest, read
from muster.kubernetes.writing import STRICT
from muster.spec import TrainingJob

_LOOKS = 10
_ENOUGH = 2  # looks that show nothing
_PAUSE_S = 1.0


def submit_all(connection: Connection, jobs: Sequence[TrainingJob], dry_run: bool) -> list[TrainingJob]:
    """Create jobs, all of them or none, as the API server completed them. Raises as `muster.kubernetes.writing`, with
    the job that it is about; the text names what was created and could not be deleted again, or may have been created.
    """
    for job in jobs:
        with _about(job):
            overview.check_new(connection, job, job.metadata.namespace or connection.access.namespace)
    checked = [_create(connection, job, DRY_RUN) for job in jobs]
    if dry_run:
        return checked
    created: list[TrainingJob] = []
    try:
        for job, awaited in zip(jobs, checked, strict=True):
            created.append(_create_surely(connection, job, awaited))
    except MusterError as error:
        left = _take_back(connection, created)
        if left:
            names = " ".join(map(_label, left))
            error.args = (f"{error}; created before that and not taken back, so: muster delete job {names}",)
        raise
    return created


def _create(connection: Connection, job: TrainingJob, how: Mapping[str, str]) -> TrainingJob:
    with _about(job):
        wanted = manifest(job, connection.access.namespace)
        name, namespace = job.metadata.name, wanted["metadata"]["namespace"]
        path = paths.collection("TrainingJob", namespace)
        try:
            return read(TrainingJob, connection.request("POST", path, wanted, query={**STRICT, **how}))
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            raise Conflict(
                f"a job {name!r} exists already in namespace {namespace!r}; choose another name, or remove it: muster"
                f" delete job {namespace}/{name}",
                field="metadata.name",
                reason="AlreadyExists",
            ) from error


def _create_surely(connection: Connection, job: TrainingJob, awaited: TrainingJob) -> TrainingJob:
    """Create a job. Where the answer is lost it is looked for; `awaited` is how the server would complete it."""
    try:
        return _create(connection, job, {})
    except ClusterError as error:
        name = _label(awaited)
        try:
            found = _look_for(connection, awaited)
        except MusterError:
            error.args = (f"{error}; whether job {name} was created is not known: muster describe {name}",)
            raise error from None
        if found is None:
            raise
        if found.spec != awaited.spec:
            error.args = (f"{error}; there is a job {name} now that is not quite this one: muster describe {name}",)
            raise
        return found


def _look_for(connection: Connection, job: TrainingJob) -> TrainingJob | None:
    """The job that is there; None where there is none, also a while later: a request may be late. Raises as a
    `Connection` does."""
    path = paths.one("TrainingJob", job.metadata.name, job.metadata.namespace)
    missing = 0
    for left in reversed(range(_LOOKS)):
        try:
            return read(TrainingJob, connection.get(path))
        except NotFound:
            missing += 1
            if missing == _ENOUGH:
                return None
        except ClusterError:
            if not left:
                raise
        time.sleep(_PAUSE_S)
    return None


def _take_back(connection: Connection, jobs: Sequence[TrainingJob]) -> list[TrainingJob]:
    """Delete what was just created; those that are still there, or may be."""
    left = []
    for job in jobs:
        meta = job.metadata
        try:
            connection.request(
                "DELETE",
                paths.one("TrainingJob", meta.name, meta.namespace),
                only(meta.uid),
            )
        except NotFound:
            continue
        except MusterError as error:  # why the other one was refused counts more
            if not means_another(error):
                left.append(job)
    return left


@contextlib.contextmanager
def _about(job: TrainingJob) -> Iterator[None]:
    """Whatever is raised is about this job, as its file names it."""
    try:
        yield
    except MusterError as error:
        error.job = _label(job)
        raise


def _label(job: TrainingJob) -> str:
    return f"{job.metadata.namespace or DEFAULT_NAMESPACE}/{job.metadata.name}"
