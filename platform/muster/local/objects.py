"""Changes of objects by users: submit, apply, delete, patch, scale. All are validated before anything is changed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, Literal, NotRequired, TypedDict

from muster.api import spec
from muster.api.validation import (
    already_exists_conflict,
    apply_warnings,
    being_deleted_conflict,
    check_apply,
    check_edit,
    check_flavor_unused,
    check_no_children,
    check_unfinished,
    resumed_in_vain,
    with_replicas,
)
from muster.api.yaml_input import AnyObject
from muster.cluster import NodeView
from muster.errors import Conflict, InvalidSpec, MusterError, NotFound
from muster.kinds.trainingjob.array_changes import with_index_cancelled, with_retry
from muster.kinds.trainingjob.arrays import index_job, index_of, split_index_key
from muster.kinds.trainingjob.submit import KnownObjects, check_depends_on
from muster.local.environment import (
    OVERSUBSCRIBE_ANNOTATION,
    SUBMISSION_ANNOTATION,
    SUBMITTER_ANNOTATIONS,
    JobEnvironmentStore,
    check_annotations,
)
from muster.local.home import check_free_space
from muster.local.job_checks import check_fits, check_local_support, check_processes, check_unique_names, used_queues
from muster.local.store import EventRecord, SqliteStore
from muster.local.submissions import move_submission
from muster.state.projection import to_node
from muster.text import did_you_mean
from muster.workload.conditions import is_admitted, is_finished
from muster.workload.related import split_gang_name

_MAX_LISTED_JOBS = 5  # jobs named in the error for an unknown job


class ObjectResult(TypedDict):
    """What an apply or delete did to one object."""

    kind: str
    namespace: str | None
    name: str
    result: Literal["created", "configured", "unchanged", "deleted", "deleting"]
    notices: NotRequired[list[str]]  # warnings about valid but questionable values


class ObjectRegistry:
    """The objects in the store. The caller holds the lock of the store."""

    def __init__(
        self,
        store: SqliteStore,
        nodes: Sequence[NodeView],
        environment: Mapping[str, str],
        environments: JobEnvironmentStore,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._environment = environment  # of jobs submitted without one
        self._environments = environments
        self._clock = clock

    def find(self, namespace: str, name: str) -> spec.TrainingJob:
        """The job of this name, or the index of an array, JOB-INDEX. Raises `NotFound`."""
        found = self._find(namespace, name) or self._find_index(namespace, name)
        if found is None:
            known = [job for job in self._store.jobs.values() if _namespace(job) == namespace]
            raise NotFound(f"job {name!r} does not exist in namespace {namespace!r}; {_suggest_jobs(name, known)}")
        return found

    def submit(
        self, jobs: Sequence[spec.TrainingJob], dry_run: bool, environments: Sequence[Mapping[str, str] | None] = ()
    ) -> list[spec.TrainingJob]:
        """Accept new jobs, all or none, with the `environments` of their submitter, one per job. Raises `Refused` or
        `InvalidSpec` for a job that could never start."""
        check_unique_names(jobs)
        checked: list[tuple[spec.TrainingJob, list[str] | None]] = []
        for job, environment in zip_longest(jobs, environments):
            try:
                checked.append(self._check_new(job, environment))
                self._check_depends_on(job, jobs)
            except MusterError as error:
                error.job = f"{_namespace(job)}/{job.metadata.name}"
                raise
        if dry_run:
            return [job for job, _ in checked]
        with self._create_transaction():
            return [
                self._add_job(job, notices, environment) if notices is not None else job
                for (job, notices), environment in zip_longest(checked, environments)
            ]

    @contextmanager
    def _create_transaction(self) -> Iterator[None]:
        """A transaction in which objects may be added, unless the disk is full: the database's reserve is for stopping
        jobs. If it fails, the stored environments of the jobs are removed, too."""
        check_free_space(self._environments.home.path)
        try:
            with self._store.transaction():
                yield
        except BaseException:
            self._environments.delete_all_except(self._store.jobs)
            raise

    def _check_new(
        self, job: spec.TrainingJob, environment: Mapping[str, str] | None
    ) -> tuple[spec.TrainingJob, list[str] | None]:
        """The job with server-set fields, and notices; None as notices if the same submission created it before."""
        namespace = _namespace(job)
        taken = self._find(namespace, job.metadata.name)
        if taken is not None and _same_submission(taken, job):
            return taken, None
        if taken is not None:
            raise already_exists_conflict(job.metadata.name, namespace, taken.status)
        notices = check_local_support(job, self._environment if environment is None else environment)
        check_fits(job, self._nodes, KnownObjects(self._store.queues, self._store.flavors), self._clock())
        return self._with_server_fields(job, namespace), notices

    def apply(
        self, documents: Sequence[AnyObject], environments: Sequence[Mapping[str, str] | None] = ()
    ) -> list[ObjectResult]:
        """Create or change objects, all or none; queues with notices. `environments` are those of the client, one per
        document, for jobs that are created."""
        known: list[AnyObject] = [*self._store.flavors.values(), *self._store.queues.values()]
        check_apply(documents, known)
        check_unique_names(documents)
        queues = {queue.metadata.name: queue for queue in (*known, *documents) if isinstance(queue, spec.Queue)}
        flavors = {flavor.metadata.name: flavor for flavor in (*known, *documents) if isinstance(flavor, spec.Flavor)}
        notices: dict[tuple[str, str], list[str]] = {}  # by namespace and name
        sent = list(zip_longest(documents, environments))
        for document, environment in sent:
            if isinstance(document, spec.TrainingJob):
                checked = self._check_job(document, environment, KnownObjects(queues, flavors))
                notices[_namespace(document), document.metadata.name] = checked
        self._check_parents_not_deleting(documents)
        queue_notices = apply_warnings(
            documents, known, [to_node(view, list(flavors.values())) for view in self._nodes]
        )
        with self._create_transaction():
            rows = [self._apply(document, notices, environment) for document, environment in sent]
        for row in rows:
            if row["kind"] == "Queue" and row["name"] in queue_notices:
                row["notices"] = queue_notices[row["name"]]
        return rows

    def delete_all(self, targets: Sequence[tuple[str, str, str]]) -> list[ObjectResult]:
        """Delete objects, (kind, name, namespace) each, in this order: all or none; a repeated delete is no error.
        Raises `Conflict` (flavor in use, queue with children), and `NotFound` that names all that do not exist."""
        items, missing = [], []
        suffix = "; nothing was deleted" if len(targets) > 1 else ""
        for kind, name, namespace in targets:
            try:
                items.append(self._get(kind, namespace, name))
            except NotFound as error:
                missing.append(str(error))
        if missing:
            raise NotFound("; ".join(missing) + suffix)
        try:
            with self._store.transaction():
                return [_result(item, "deleted" if self._delete(item) else "deleting") for item in items]
        except Conflict as error:
            raise Conflict(f"{error}{suffix}", reason=error.reason) from error

    def patch(self, namespace: str, name: str, fields: Mapping[str, Any]) -> spec.TrainingJob:
        """Set suspend or cancel in a job's spec. Raises `NotFound`, `InvalidSpec`, `Refused` QueueDeleted, or
        `Conflict` if the job is finished; a repeated cancel is no error."""
        job = self.find(namespace, name)
        if not (job.spec.cancel and fields.get("cancel")):
            check_unfinished(job, stopping=any(fields.values()))
        changed = job.model_copy(update={"spec": job.spec.model_copy(update=dict(fields))})
        if (index := index_of(job)) is not None:
            job = self._store.jobs[split_index_key(job.metadata.uid)[0]]
            changed = with_index_cancelled(job, index, fields)
        check_edit(job, changed)
        if changed.spec == job.spec:
            return job
        queue = self._store.queues.get(job.spec.queue)
        if job.spec.suspend and not changed.spec.suspend and queue and queue.metadata.deletion_timestamp is not None:
            raise resumed_in_vain(job)
        with self._store.transaction():
            self._store.put(_next_generation(changed))
        return self._store.jobs[job.metadata.uid]

    def retry(self, namespace: str, name: str) -> spec.TrainingJob:
        """Queue the failed indices of an array again. Raises `NotFound`, and as `with_retry` does."""
        changed = with_retry(self.find(namespace, name))
        with self._store.transaction():
            self._store.put(_next_generation(changed))
        return self._store.jobs[changed.metadata.uid]

    def scale(self, namespace: str, name: str, replicas: Mapping[str, int]) -> spec.TrainingJob:
        """Change only the number of pods of roles. Raises `NotFound`, `InvalidSpec`, `Refused`, or `Conflict` if the
        job is finished."""
        job = self.find(namespace, name)
        check_unfinished(job)
        self.apply([with_replicas(job, replicas)])
        return self._store.jobs[job.metadata.uid]

    # ---- checks

    def _check_depends_on(self, job: spec.TrainingJob, jobs: Sequence[spec.TrainingJob]) -> None:
        namespace = _namespace(job)
        submitted = [one.metadata.name for one in jobs if _namespace(one) == namespace]
        check_depends_on(job, lambda name: self._find(namespace, name) or self._find_index(namespace, name), submitted)

    def _check_job(
        self,
        job: spec.TrainingJob,
        environment: Mapping[str, str] | None,
        known: KnownObjects,
    ) -> list[str]:
        old = self._find(_namespace(job), job.metadata.name)
        if old is not None and old.metadata.deletion_timestamp is not None:
            raise being_deleted_conflict(job.kind, job.metadata.name)
        if old is not None:
            check_edit(old, job)
            check_annotations(job, old)
            if old.spec == job.spec:
                if _oversubscribe_value(old) != _oversubscribe_value(job) and not is_finished(old.status):
                    check_processes(job, self._nodes)
                return []
            environment = self._environments.load(old.metadata.uid)  # that of the submission is kept
        notices = check_local_support(job, self._environment if environment is None else environment, old)
        check_fits(job, self._nodes, known, self._clock())
        return notices

    def _check_parents_not_deleting(self, documents: Sequence[AnyObject]) -> None:
        """Applying a deleted queue restores it, but its parent must not remain deleted. Raises `Conflict`."""
        queues = {document.metadata.name: document for document in documents if isinstance(document, spec.Queue)}
        for queue in queues.values():
            parent = self._store.queues.get(queue.spec.parent or "")
            deleted = parent is not None and parent.metadata.deletion_timestamp is not None
            if parent is not None and deleted and parent.metadata.name not in queues:
                raise being_deleted_conflict(parent.kind, parent.metadata.name)

    # ---- writes; inside a transaction

    def _apply(
        self,
        document: AnyObject,
        notices: Mapping[tuple[str, str], list[str]],
        environment: Mapping[str, str] | None,
    ) -> ObjectResult:
        old = self._current(document)
        if old is None:
            if isinstance(document, spec.TrainingJob):
                namespace = _namespace(document)
                self._add_job(
                    self._with_server_fields(document, namespace),
                    notices[namespace, document.metadata.name],
                    environment,
                )
            else:
                self._store.put(self._with_server_fields(document, None))
            return _result(document, "created")
        annotations = document.metadata.annotations
        if isinstance(document, spec.TrainingJob):  # keep the submitter's directory and interpreter
            notes = {key: value for key, value in old.metadata.annotations.items() if key in SUBMITTER_ANNOTATIONS}
            annotations = annotations | notes
        update: dict[str, Any] = {"labels": document.metadata.labels, "annotations": annotations}
        if isinstance(document, spec.Queue):
            update["deletion_timestamp"] = None
        if old.spec == document.spec and update == {key: getattr(old.metadata, key) for key in update}:
            return _result(document, "unchanged")
        metadata = old.metadata.model_copy(update=update)
        changed = old.model_copy(update={"spec": document.spec, "metadata": metadata})
        self._store.put(changed if old.spec == document.spec else _next_generation(changed))
        return _result(document, "configured")

    def _add_job(
        self, job: spec.TrainingJob, notices: Sequence[str], environment: Mapping[str, str] | None
    ) -> spec.TrainingJob:
        if environment is not None:
            self._environments.save(job.metadata.uid, environment)
        move_submission(self._environments.home, job)
        self._store.put(job)
        for notice in notices:
            self._store.add_event(EventRecord(job.metadata.uid, self._clock(), "Normal", "FieldIgnored", notice))
        return self._store.jobs[job.metadata.uid]

    def _delete(self, item: AnyObject) -> bool:
        """Delete an object; True if it is removed immediately."""
        if isinstance(item, spec.Flavor):
            users = [job.metadata.name for job in self._store.jobs.values() if _uses_flavor(job, item.metadata.name)]
            check_flavor_unused(item.metadata.name, users)
            self._store.remove(item, self._clock())
            return True
        if isinstance(item, spec.Queue) and self._can_remove_queue(item):
            self._store.remove(item, self._clock())
            return True
        if item.metadata.deletion_timestamp is None:
            metadata = item.metadata.model_copy(update={"deletion_timestamp": self._clock()})
            self._store.put(item.model_copy(update={"metadata": metadata}))
        return False

    # ---- helpers

    def _find(self, namespace: str, name: str) -> spec.TrainingJob | None:
        jobs = self._store.jobs.values()
        return next((job for job in jobs if job.metadata.name == name and _namespace(job) == namespace), None)

    def _find_index(self, namespace: str, name: str) -> spec.TrainingJob | None:
        parts = split_gang_name(name)
        array = None if parts is None else self._find(namespace, parts[0])
        return None if array is None or parts is None else index_job(array, parts[1])

    def _get(self, kind: str, namespace: str, name: str) -> AnyObject:
        if kind == "TrainingJob":
            return self.find(namespace, name)
        if kind not in ("Queue", "Flavor"):
            raise InvalidSpec(f"kind: must be TrainingJob, Queue or Flavor; got {kind!r}", field="kind")
        found = self._store.queues.get(name) if kind == "Queue" else self._store.flavors.get(name)
        if found is None:
            raise NotFound(f"{kind.lower()} {name!r} does not exist")
        return found

    def _current(self, document: AnyObject) -> AnyObject | None:
        if isinstance(document, spec.TrainingJob):
            return self._find(_namespace(document), document.metadata.name)
        if isinstance(document, spec.Queue):
            return self._store.queues.get(document.metadata.name)
        return self._store.flavors.get(document.metadata.name)

    def _can_remove_queue(self, queue: spec.Queue) -> bool:
        """Whether no job keeps the queue and it has no deleted child. Raises `Conflict` if it has other children."""
        name = queue.metadata.name
        check_no_children(name, self._store.queues.values())
        deleting = any(other.spec.parent == name for other in self._store.queues.values())
        return not deleting and name not in used_queues(self._store.jobs.values(), self._store.queues.values())

    def _with_server_fields(self, item: Any, namespace: str | None) -> Any:
        """The object with uid, namespace, generation, creation time and an empty status."""
        update = {
            "uid": uuid.uuid4().hex,
            "namespace": namespace,
            "generation": 1,
            "creation_timestamp": self._clock(),
            "deletion_timestamp": None,
        }
        return item.model_copy(
            update={"metadata": item.metadata.model_copy(update=update), "status": type(item.status)()}
        )


def _next_generation(item: Any) -> Any:
    metadata = item.metadata.model_copy(update={"generation": item.metadata.generation + 1})
    return item.model_copy(update={"metadata": metadata})


def _namespace(item: AnyObject) -> str:
    return item.metadata.namespace or "default"


def _suggest_jobs(name: str, jobs: Sequence[spec.TrainingJob]) -> str:
    """The nearest name, else the newest jobs."""
    newest = sorted(jobs, key=lambda job: (-(job.metadata.creation_timestamp or 0.0), job.metadata.name))
    names = [job.metadata.name for job in newest]
    more = f" and {len(names) - _MAX_LISTED_JOBS} more" if len(names) > _MAX_LISTED_JOBS else ""
    existing = (
        f"existing jobs, newest first: {', '.join(names[:_MAX_LISTED_JOBS])}{more}" if names else "it has no jobs"
    )
    return did_you_mean(name, names, existing)


def _same_submission(a: spec.TrainingJob, b: spec.TrainingJob) -> bool:
    """Whether `b` is the retry of submission `a` by a client that got no response."""
    submission = a.metadata.annotations.get(SUBMISSION_ANNOTATION)
    return submission is not None and submission == b.metadata.annotations.get(SUBMISSION_ANNOTATION)


def _oversubscribe_value(job: spec.TrainingJob) -> str | None:
    return job.metadata.annotations.get(OVERSUBSCRIBE_ANNOTATION)


def _uses_flavor(job: spec.TrainingJob, flavor: str) -> bool:
    return is_admitted(job.status) and any(part.flavor == flavor for part in job.status.placement)


def _result(
    item: AnyObject, result: Literal["created", "configured", "unchanged", "deleted", "deleting"]
) -> ObjectResult:
    namespace = _namespace(item) if isinstance(item, spec.TrainingJob) else None
    return {"kind": item.kind, "namespace": namespace, "name": item.metadata.name, "result": result}
