"""The cluster as the verbs of `muster` and TorchX use it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.admission import check_apply, check_edit, check_unfinished, with_replicas
from muster.admission.submitting import nearest
from muster.engine import dump
from muster.errors import Conflict, InvalidSpec, MusterError, NotFound, Refused
from muster.kubernetes import draining, overview, paths
from muster.kubernetes.access import Target, find_access
from muster.kubernetes.connection import JSON_PATCH, MERGE_PATCH, Connection, Json
from muster.kubernetes.logs import Excerpt, Replica, read_log
from muster.kubernetes.reading import event_row, manifest, read
from muster.kubernetes.watching import watch_job
from muster.spec import Flavor, Queue, TrainingJob

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster.cluster import NodeView
    from muster.documents import Object

_STRICT = {"fieldValidation": "Strict"}
_DRY_RUN = {"dryRun": "All"}
_MOST_NAMED = 200


class KubernetesClient:
    """One user's view of one cluster. Calls raise `Refused` (reason Forbidden where a right is missing), `NotFound`,
    `Conflict`, `InvalidSpec`, `ClusterError`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.namespace = connection.access.namespace
        """Where jobs are that name no namespace: that of the kubeconfig's context."""

    @classmethod
    def connect(cls, target: Target | None = None) -> KubernetesClient:
        """A client of a kubeconfig's cluster. Asks the cluster nothing yet."""
        return cls(Connection(find_access(target or Target())))

    def status(self) -> dict[str, Any]:
        """Which cluster it is and what it runs."""
        access = self._connection.access
        version = self._connection.get("/version")
        return {
            "context": access.context,
            "server": access.server,
            "namespace": access.namespace,
            "kubernetes": version.get("gitVersion", ""),
        }

    # ---- objects

    def apply(self, documents: Sequence[Object]) -> list[dict[str, Any]]:
        """Create or change objects: [{kind, namespace, name, result}]. All are checked, by us and by the server, before
        the first one is written."""
        self._check_apply(documents)
        for item in documents:
            self._put(item, _DRY_RUN)
        return [self._put(item, {}) for item in documents]

    def delete(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """Delete an object: {kind, namespace, name, result}. `deleting`: its pods stop first, a queue waits for its
        unfinished jobs."""
        if kind not in paths.PLURALS:
            raise InvalidSpec(f"kind {kind!r} is not known; write TrainingJob, Queue or Flavor", field="kind")
        try:
            answer = self._connection.request("DELETE", paths.one(kind, name, namespace))
        except NotFound as error:
            if kind == "TrainingJob":
                raise self._no_job(name, namespace) from error
            raise NotFound(f"there is no {kind.lower()} {name!r}") from error
        leaving = answer.get("kind") == kind and answer["metadata"].get("finalizers")
        return _result(kind, namespace, name, "deleting" if leaving else "deleted")

    def submit(self, job: TrainingJob, dry_run: bool = False) -> TrainingJob:
        """Submit a job, as the API server completed it; `dry_run` only checks. Refused early when it could never start,
        as far as its user may read what that depends on."""
        return self.submit_all([job], dry_run)[0]

    def submit_all(self, jobs: Sequence[TrainingJob], dry_run: bool = False) -> list[TrainingJob]:
        """Submit jobs, all of them or none: all are checked first, and what was created before one is refused after
        all is deleted again."""
        for job in jobs:
            overview.check_new(self._connection, job, job.metadata.namespace or self.namespace)
        checked = [self._create(job, _DRY_RUN) for job in jobs]
        if dry_run:
            return checked
        created: list[TrainingJob] = []
        try:
            for job in jobs:
                created.append(self._create(job, {}))
        except MusterError:
            for one in created:
                self._take_back(one)
            raise
        return created

    def jobs(self, namespace: str | None = None) -> list[TrainingJob]:
        """Jobs of a namespace, or of all, oldest first."""
        return overview.jobs(self._connection, namespace)

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        """One job."""
        try:
            return read(TrainingJob, self._connection.get(paths.one("TrainingJob", name, namespace)))
        except NotFound as error:
            raise self._no_job(name, namespace) from error

    def cancel(self, name: str, namespace: str = "default") -> TrainingJob:
        """Stop a job for good; its record stays."""
        job = self.job(name, namespace)
        if job.spec.cancel:
            return job
        return self._change(job, {"cancel": True})

    def suspend(self, name: str, namespace: str = "default") -> TrainingJob:
        """Have a job checkpoint and give its room back until it is resumed."""
        return self._change(self.job(name, namespace), {"suspend": True})

    def resume(self, name: str, namespace: str = "default") -> TrainingJob:
        """Let a suspended job wait in its queue again."""
        return self._change(self.job(name, namespace), {"suspend": False})

    def scale(self, name: str, namespace: str, replicas: Mapping[str, int]) -> TrainingJob:
        """Change how many pods roles have. Each write says which role it takes to stand where, so that an edit that
        comes in between is not overwritten: `Conflict`."""
        job = self.job(name, namespace)
        check_unfinished(job)
        wanted = with_replicas(job, replicas)
        overview.check_new(self._connection, wanted, namespace)
        patch = [
            step
            for place, role in enumerate(wanted.spec.roles)
            if role.replicas != job.spec.roles[place].replicas
            for step in (
                {"op": "test", "path": f"/spec/roles/{place}/name", "value": role.name},
                {"op": "replace", "path": f"/spec/roles/{place}/replicas", "value": role.replicas},
            )
        ]
        if not patch:
            return job
        path = paths.one("TrainingJob", name, namespace)
        try:
            return read(TrainingJob, self._connection.request("PATCH", path, patch, content_type=JSON_PATCH))
        except InvalidSpec as error:
            if "testing value" in str(error):
                raise Conflict(f"the roles of job {name!r} changed meanwhile; look at it and try again") from error
            raise

    # ---- queues and nodes

    def queues(self) -> list[dict[str, Any]]:
        """The queue tree as rows, parents first (`muster.overview`)."""
        return overview.table_of_queues(self._connection)

    def node_views(self) -> tuple[NodeView, ...]:
        """The nodes themselves."""
        return overview.nodes(self._connection)

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes as rows."""
        return overview.table_of_nodes(self._connection)

    def drain(self, node: str) -> list[TrainingJob]:
        """Have all jobs leave a node with a checkpoint, and none come to it; those that are on it."""
        draining.drain(self._connection, node)
        return draining.jobs_on(self.jobs(None), node)

    def undrain(self, node: str) -> None:
        """Let jobs come to a node again."""
        draining.undrain(self._connection, node)

    def jobs_on(self, node: str) -> list[TrainingJob]:
        """Jobs whose pods are on a node, or on their way from it."""
        return draining.jobs_on(self.jobs(None), node)

    def snapshot(self) -> bytes:
        """The world as it can be read now, for `muster replay`."""
        return dump(overview.newest_snapshot(self._connection))

    # ---- what a job does

    def events(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """[{at, type, reason, message, count}], oldest first; as long as the cluster keeps them, usually an hour."""
        uid = self.job(name, namespace).metadata.uid
        query = {"fieldSelector": f"involvedObject.uid={uid}"}
        found = self._connection.items(paths.core(namespace, "events"), query)
        return sorted(map(event_row, found), key=lambda row: float(row["at"]))

    def beats(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """None: what ranks say is in the run folder, inside the cluster. The newest checkpoint is in the status."""
        return []

    def run_dir(self, name: str, namespace: str = "default") -> Path | None:
        """None: the run folder is inside the cluster."""
        self.job(name, namespace)
        return None

    def watch(self, name: str, namespace: str = "default") -> Iterator[TrainingJob]:
        """The job now and after every change, until it is finished. Raises `NotFound` when it is deleted."""
        return watch_job(self._connection, name, namespace)

    def log_lines(
        self,
        name: str,
        namespace: str,
        role: str,
        index: int,
        *,
        attempt: int | None = None,
        since: float | None = None,
        until: float | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> Iterator[str]:
        """Lines of one replica's log, of its present attempt; see `muster.kubernetes.logs`."""
        excerpt = Excerpt(since, until, tail, follow)
        return read_log(self._connection, Replica(namespace, name, role, index), attempt, excerpt)

    # ---- small things

    def _check_apply(self, documents: Sequence[Object]) -> None:
        others: list[Queue | Flavor] = [item for item in documents if not isinstance(item, TrainingJob)]
        if others:
            with _unless_forbidden():
                known: list[Queue | Flavor] = [*overview.queues(self._connection), *overview.flavors(self._connection)]
                check_apply(others, known)
        for job in documents:
            if isinstance(job, TrainingJob):
                namespace = job.metadata.namespace or self.namespace
                with contextlib.suppress(NotFound):
                    check_edit(self.job(job.metadata.name, namespace), job)
                overview.check_new(self._connection, job, namespace, others)

    def _put(self, item: Object, how: dict[str, str]) -> dict[str, Any]:
        """Create the object, or put its spec in the place of what is there; labels and annotations are added."""
        wanted = manifest(item, self.namespace)
        meta = wanted["metadata"]
        path = paths.one(item.kind, meta["name"], meta.get("namespace"))
        try:
            there = self._connection.get(path)
        except NotFound:
            collection = paths.collection(item.kind, meta.get("namespace"))
            self._connection.request("POST", collection, wanted, query=_STRICT | how)
            return _result(item.kind, meta.get("namespace"), meta["name"], "created")
        changed = {**there, "spec": wanted["spec"], "metadata": _joined(there["metadata"], meta)}
        if read(type(item), changed) == read(type(item), there):
            return _result(item.kind, meta.get("namespace"), meta["name"], "unchanged")
        self._connection.request("PUT", path, changed, query=_STRICT | how)
        return _result(item.kind, meta.get("namespace"), meta["name"], "configured")

    def _create(self, job: TrainingJob, how: dict[str, str]) -> TrainingJob:
        wanted = manifest(job, self.namespace)
        namespace = wanted["metadata"]["namespace"]
        path = paths.collection("TrainingJob", namespace)
        try:
            return read(TrainingJob, self._connection.request("POST", path, wanted, query=_STRICT | how))
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            raise Conflict(
                f"a job {job.metadata.name!r} exists already in namespace {namespace!r}; choose another name, or remove"
                f" it: muster delete job {namespace}/{job.metadata.name}",
                field="metadata.name",
                reason="AlreadyExists",
            ) from error

    def _take_back(self, job: TrainingJob) -> None:
        meta = job.metadata
        with contextlib.suppress(MusterError):  # why the other one was refused counts more
            body = {"preconditions": {"uid": meta.uid}}
            self._connection.request("DELETE", paths.one("TrainingJob", meta.name, meta.namespace), body)

    def _change(self, job: TrainingJob, fields: Json) -> TrainingJob:
        check_unfinished(job)
        path = paths.one("TrainingJob", job.metadata.name, job.metadata.namespace)
        body = {"spec": fields}
        return read(TrainingJob, self._connection.request("PATCH", path, body, content_type=MERGE_PATCH))

    def _no_job(self, name: str, namespace: str) -> NotFound:
        told = f"there is no job {name!r} in namespace {namespace!r}"
        path = paths.collection("TrainingJob", namespace)
        with contextlib.suppress(MusterError):
            page = self._connection.get(path, {"limit": str(_MOST_NAMED)})
            told += f"; {nearest(name, [item['metadata']['name'] for item in page['items']], 'job')}"
        return NotFound(told)


@contextlib.contextmanager
def _unless_forbidden() -> Iterator[None]:
    """What may not be read is not checked here."""
    try:
        yield
    except Refused as error:
        if overview.allowed(error):
            raise


def _joined(there: Json, wanted: Json) -> Json:
    both = {name: {**there.get(name, {}), **wanted.get(name, {})} for name in ("labels", "annotations")}
    return {**there, **{name: value for name, value in both.items() if value}}


def _result(kind: str, namespace: str | None, name: str, result: str) -> dict[str, Any]:
    return {"kind": kind, "namespace": namespace if kind == "TrainingJob" else None, "name": name, "result": result}


__all__ = ["KubernetesClient", "Target"]
