"""Objects into a cluster, and changes of jobs that are there. Several are all checked, by us and by the server, before
the first one is written: a cluster has no transaction over them, so what fails midway says what was written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.admission import apply_notices, being_deleted, check_apply, check_edit, check_unfinished, with_replicas
from muster.errors import ClusterError, Conflict, InvalidSpec, MusterError, NotFound, Refused
from muster.kubernetes import overview, paths
from muster.kubernetes.access import DEFAULT_NAMESPACE
from muster.kubernetes.connection import DRY_RUN, JSON_PATCH, MERGE_PATCH, Connection, Json
from muster.kubernetes.deleting import named
from muster.kubernetes.identity import another, staying_with
from muster.kubernetes.reading import WRONG_VERSION, manifest, read, reads_alike
from muster.spec import Flavor, Queue, TrainingJob

if TYPE_CHECKING:
    from muster.documents import Object

STRICT = {"fieldValidation": "Strict"}
"""The query of a write that refuses fields that nobody knows."""
_TRIES = 5


def apply_all(connection: Connection, documents: Sequence[Object]) -> list[dict[str, Any]]:
    """Create or change objects: [{kind, namespace, name, result}], queues with `notices` where there are. Jobs that
    name no namespace come into that of the kubeconfig's context. Raises as a `Connection` does, and as
    `muster.admission` as far as what that depends on may be read; what fails midway says what was written before it."""
    told = _check_apply(connection, documents)
    for item in documents:
        _put(connection, item, DRY_RUN)
    rows: list[dict[str, Any]] = []
    for item in documents:
        try:
            rows.append(_put(connection, item, {}))
        except MusterError as error:
            error.args = (_half_written(error, item, rows),)
            raise
    noted = [row["name"] if row["kind"] == "Queue" else "" for row in rows]
    return [row | ({"notices": told[name]} if name in told else {}) for row, name in zip(rows, noted, strict=True)]


def change(connection: Connection, job: TrainingJob, fields: Json) -> TrainingJob:
    """Set fields of the spec of a job that is not finished; of no other that has its name meanwhile: `Conflict`."""
    check_unfinished(job, stopping=any(fields.values()))
    path = paths.one("TrainingJob", job.metadata.name, job.metadata.namespace)
    patch = {"metadata": {"uid": job.metadata.uid}, "spec": fields}
    with staying_with(named(_result(job.kind, job.metadata.namespace, job.metadata.name, ""))):
        return read(TrainingJob, connection.request("PATCH", path, patch, content_type=MERGE_PATCH))


def scale(connection: Connection, job: TrainingJob, replicas: Mapping[str, int]) -> TrainingJob:
    """Change how many pods roles have. Each write says which job it means and which role it takes to stand where, so
    that an edit that comes in between is not overwritten: `Conflict`."""
    check_unfinished(job)
    wanted = with_replicas(job, replicas)
    name, namespace = job.metadata.name, job.metadata.namespace or connection.access.namespace
    overview.check_new(connection, wanted, namespace)
    patch = [
        step
        for place, role in enumerate(wanted.spec.roles)
        if role.replicas != job.spec.roles[place].replicas
        for step in (
            {"op": "test", "path": f"/spec/roles/{place}/name", "value": role.name},
            {"op": "replace", "path": f"/spec/roles/{place}/replicas", "value": role.replicas},
        )
    ]
    if wanted.spec.elastic_replicas is None and job.spec.elastic_replicas is not None:
        patch.append({"op": "remove", "path": "/spec/elasticReplicas"})
    if not patch:
        return job
    path = paths.one("TrainingJob", name, namespace)
    this = {"op": "test", "path": "/metadata/uid", "value": job.metadata.uid}
    try:
        return read(TrainingJob, connection.request("PATCH", path, [this, *patch], content_type=JSON_PATCH))
    except InvalidSpec as error:  # of a test that fails the server says no more than that
        if error.field:
            raise
        there = overview.job(connection, name, namespace)
        if there.metadata.uid != job.metadata.uid:
            raise another(named(_result(job.kind, namespace, name, ""))) from error
        if [role.name for role in there.spec.roles] != [role.name for role in job.spec.roles]:
            raise Conflict(f"the roles of job {name!r} changed meanwhile; look at it and try again") from error
        raise


def _check_apply(connection: Connection, documents: Sequence[Object]) -> dict[str, list[str]]:
    told: dict[str, list[str]] = {}  # notices, by queue
    others: list[Queue | Flavor] = [item for item in documents if not isinstance(item, TrainingJob)]
    if others:
        with _unless_forbidden():
            known: list[Queue | Flavor] = [*overview.queues(connection), *overview.flavors(connection)]
            check_apply(others, known)
            told = apply_notices(others, known, overview.nodes_of(connection, [*known, *others]))
    for job in documents:
        if isinstance(job, TrainingJob):
            namespace = job.metadata.namespace or connection.access.namespace
            with _unless_unreadable(), contextlib.suppress(NotFound):
                check_edit(overview.job(connection, job.metadata.name, namespace), job)
            overview.check_new(connection, job, namespace, others)
    return told


def _put(connection: Connection, item: Object, how: Mapping[str, str]) -> dict[str, Any]:
    """Create the object, or put its spec in the place of what is there; labels and annotations are added. Raises
    `Conflict` for one that is being deleted, or that somebody edits at the same time."""
    wanted = manifest(item, connection.access.namespace)
    meta = wanted["metadata"]
    name, namespace = meta["name"], meta.get("namespace")
    path = paths.one(item.kind, name, namespace)
    try:
        there = connection.get(path)
    except NotFound:
        connection.request("POST", paths.collection(item.kind, namespace), wanted, query={**STRICT, **how})
        return _result(item.kind, namespace, name, "created")
    _check_not_leaving(item, there)
    if reads_alike(type(item), _changed(there, wanted), there):
        return _result(item.kind, namespace, name, "unchanged")
    _replace(connection, item, there, wanted, how)
    return _result(item.kind, namespace, name, "configured")


def _replace(connection: Connection, item: Object, there: Json, wanted: Json, how: Mapping[str, str]) -> None:
    """The write is guarded, and made anew of what is there now if that was written meanwhile: the operator writes its
    status all the time. Somebody's edit is not overwritten."""
    path = paths.one(item.kind, wanted["metadata"]["name"], wanted["metadata"].get("namespace"))
    for left in reversed(range(_TRIES)):
        try:
            connection.request("PUT", path, _changed(there, wanted), query={**STRICT, **how})
        except Conflict:
            now = connection.get(path)
            if not left or _edited(there, now):
                raise
            _check_not_leaving(item, now)
            there = now
            continue
        return


def _check_not_leaving(item: Object, there: Json) -> None:
    if there["metadata"].get("deletionTimestamp"):
        raise being_deleted(item.kind, item.metadata.name)


def _edited(before: Json, now: Json) -> bool:
    """Whether it is another object, or somebody wrote its spec."""
    return before["metadata"].get("uid") != now["metadata"].get("uid") or before.get("spec") != now.get("spec")


@contextlib.contextmanager
def _unless_forbidden() -> Iterator[None]:
    """What may not be read is not checked here."""
    try:
        yield
    except Refused as error:
        if overview.allowed(error):
            raise


@contextlib.contextmanager
def _unless_unreadable() -> Iterator[None]:
    """What cannot be read may be mended; what of it may not be edited the server says."""
    try:
        yield
    except ClusterError as error:
        if error.reason != WRONG_VERSION:
            raise


def _half_written(error: MusterError, item: Object, rows: Sequence[dict[str, Any]]) -> str:
    """The error, with what was written before it."""
    before = [named(row) for row in rows if row["result"] != "unchanged"]
    told = f"{error}; written before that: {', '.join(before)}" if before else str(error)
    if isinstance(error, ClusterError):
        this = named(_result(item.kind, item.metadata.namespace or DEFAULT_NAMESPACE, item.metadata.name, ""))
        return f"{told}; whether {this} was written is not known: apply it again"
    return told


def _changed(there: Json, wanted: Json) -> Json:
    return {**there, "spec": wanted["spec"], "metadata": _joined(there["metadata"], wanted["metadata"])}


def _joined(there: Json, wanted: Json) -> Json:
    both = {name: {**there.get(name, {}), **wanted.get(name, {})} for name in ("labels", "annotations")}
    return {**there, **{name: value for name, value in both.items() if value}}


def _result(kind: str, namespace: str | None, name: str, result: str) -> dict[str, Any]:
    return {"kind": kind, "namespace": namespace if kind == "TrainingJob" else None, "name": name, "result": result}
