"""Changes of objects by users, with a database and nodes but without a daemon."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.local.support import has, shell_job

from muster.api import spec
from muster.api.yaml_input import AnyObject
from muster.errors import ClusterError, Conflict, InvalidSpec, MusterError, NotFound, Refused
from muster.local import home as home_module
from muster.local.daemon import ensure_default_objects
from muster.local.environment import LOG_LIMIT_ANNOTATION, JobEnvironmentStore, annotate_submitter
from muster.local.home import open_home
from muster.local.nodes import parse_shape, virtual_nodes
from muster.local.objects import ObjectRegistry
from muster.local.store import SqliteStore, open_store
from muster.workload.conditions import CANCELLED, COMPLETE, FAILED
from muster.workload.transitions import finish


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    store = open_store(tmp_path / "muster.db")
    ensure_default_objects(store, virtual_nodes(parse_shape("2x8")), 1.0)
    return store


@pytest.fixture
def objects(store: SqliteStore, tmp_path: Path) -> ObjectRegistry:
    times = iter(range(100, 10_000))
    environments = JobEnvironmentStore(open_home(tmp_path / "home"))
    nodes = virtual_nodes(parse_shape("2x8"))
    return ObjectRegistry(store, nodes, {"PATH": "/usr/bin:/bin"}, environments, lambda: float(next(times)))


def submitted(objects: ObjectRegistry, *names: str) -> list[spec.TrainingJob]:
    return [objects.submit([shell_job(name, "true")], dry_run=False)[0] for name in names]


def finished(store: SqliteStore, job: spec.TrainingJob, kind: str) -> None:
    status = finish(job.status, kind, "Completed", "completed", 1.0)
    with store.transaction():
        store.put(job.model_copy(update={"status": status}))


# ---- arrays


def test_a_job_may_depend_on_an_index_of_an_array_that_exists(objects: ObjectRegistry) -> None:
    objects.submit([shell_job("sweep", "true", array={"indices": "0-3"})], dry_run=False)
    objects.submit([shell_job("after", "true", dependsOn=[{"job": "sweep-3"}])], dry_run=False)
    with pytest.raises(NotFound, check=has("'sweep-4'", reason="DependencyNotFound")):
        objects.submit([shell_job("never", "true", dependsOn=[{"job": "sweep-4"}])], dry_run=False)


def test_what_a_retry_or_a_cancellation_writes_into_an_array_is_validated(
    objects: ObjectRegistry, store: SqliteStore
) -> None:
    even = ",".join(map(str, range(100, 600, 2)))
    objects.submit([shell_job("sweep", "true", array={"indices": "0-999", "cancel": even})], dry_run=False)
    with pytest.raises(InvalidSpec, match=r"spec\.array\.cancel: .* 1000 characters"):
        objects.patch("default", "sweep-998", {"cancel": True})
    objects.submit([shell_job("often", "true", array={"indices": "0-9", "retries": 1000})], dry_run=False)
    job = objects.find("default", "often")
    with store.transaction():
        store.put(
            job.model_copy(update={"status": job.status.model_copy(update={"array": spec.ArrayStatus(failed="3")})})
        )
    with pytest.raises(InvalidSpec, match=r"spec\.array\.retries: .* 1000"):
        objects.retry("default", "often")


def test_retries_of_an_array_cannot_be_lowered(objects: ObjectRegistry) -> None:
    objects.submit([shell_job("sweep", "true", array={"indices": "0-3", "retries": 2})], dry_run=False)
    with pytest.raises(InvalidSpec, match=r"spec\.array\.retries: cannot be lowered"):
        objects.apply([shell_job("sweep", "true", array={"indices": "0-3", "retries": 1})])


# ---- unknown jobs


def test_an_unknown_job_is_reported_with_the_most_similar_name(objects: ObjectRegistry) -> None:
    submitted(objects, "llama-8b", "bert")
    with pytest.raises(NotFound, check=has("'lama-8b'", "'default'", "'llama-8b'", reason="NotFound")):
        objects.find("default", "lama-8b")


def test_an_unknown_job_without_similar_name_is_reported_with_the_newest_jobs(
    objects: ObjectRegistry,
) -> None:
    submitted(objects, "zz", "yy", "aa", "xx", "bb", "ww", "cc")
    with pytest.raises(NotFound, check=has("cc, ww, bb, xx, aa and 2 more")):
        objects.find("default", "quite-different")


def test_an_unknown_job_in_an_empty_namespace_is_reported_as_such(objects: ObjectRegistry) -> None:
    submitted(objects, "elsewhere")
    with pytest.raises(NotFound, check=has("'team-a'", "no jobs")):
        objects.find("team-a", "elsewhere")


# ---- full disk


def test_with_less_than_a_mebibyte_of_free_disk_jobs_and_queues_are_refused(
    objects: ObjectRegistry, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(objects, "before")
    queue = spec.Queue(metadata=spec.ObjectMeta(name="new"), spec=spec.QueueSpec())
    monkeypatch.setattr(home_module, "_free_bytes", lambda folder: 2**20 - 1)
    for add in (lambda: submitted(objects, "late"), lambda: objects.apply([queue])):
        with pytest.raises(ClusterError) as refused:
            add()
        assert refused.value.reason == "StoreUnwritable"
    assert (len(store.jobs), "new" in store.queues) == (1, False)
    monkeypatch.setattr(home_module, "_free_bytes", lambda folder: 2**20)
    submitted(objects, "late")
    objects.apply([queue])
    assert (len(store.jobs), "new" in store.queues) == (2, True)


# ---- existing and finished jobs


@pytest.mark.parametrize(
    ("fields", "advised"), [({"suspend": False}, True), ({"suspend": True}, False), ({"cancel": True}, False)]
)
@pytest.mark.parametrize(("kind", "phase"), [(COMPLETE, "Succeeded"), (FAILED, "Failed")])
def test_a_finished_job_cannot_be_suspended_resumed_or_cancelled(
    objects: ObjectRegistry, store: SqliteStore, fields: dict[str, bool], advised: bool, kind: str, phase: str
) -> None:
    (job,) = submitted(objects, "over")
    finished(store, job, kind)
    with pytest.raises(Conflict, check=has("'over'", phase, reason="JobFinished")) as error:
        objects.patch("default", "over", fields)
    assert ("submit it again" in str(error.value)) == advised


def test_only_the_ttl_of_a_finished_job_can_be_changed(objects: ObjectRegistry, store: SqliteStore) -> None:
    (job,) = submitted(objects, "over")
    finished(store, job, COMPLETE)
    ttl = {"ttl_seconds_after_finished": 60}
    objects.apply([job.model_copy(update={"spec": job.spec.model_copy(update=ttl)})])
    assert objects.find("default", "over").spec.ttl_seconds_after_finished == 60
    with pytest.raises(Conflict, check=has("'over'", "Succeeded")):
        objects.apply([job.model_copy(update={"spec": job.spec.model_copy(update={**ttl, "priority": 3})})])


def test_an_invalid_log_limit_is_refused_for_an_existing_job(objects: ObjectRegistry) -> None:
    (job,) = submitted(objects, "waits")
    annotations = {**job.metadata.annotations, LOG_LIMIT_ANNOTATION: "much"}
    edited = job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})
    with pytest.raises(InvalidSpec, check=has(field=f"metadata.annotations[{LOG_LIMIT_ANNOTATION}]")):
        objects.apply([edited])
    assert LOG_LIMIT_ANNOTATION not in objects.find("default", "waits").metadata.annotations


def annotated(job: spec.TrainingJob, **annotations: str) -> spec.TrainingJob:
    notes = {**job.metadata.annotations, **{f"muster.dev/{name}": value for name, value in annotations.items()}}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": notes})})


def test_an_invalid_oversubscribe_annotation_is_refused_for_an_existing_job(
    objects: ObjectRegistry,
) -> None:
    (job,) = submitted(objects, "waits")
    with pytest.raises(InvalidSpec) as refused:
        objects.apply([annotated(job, oversubscribe="yes")])
    assert refused.value.field == "metadata.annotations[muster.dev/oversubscribe]"
    assert objects.find("default", "waits").metadata.annotations == job.metadata.annotations


@pytest.mark.parametrize(
    ("name", "right"), [("oversubscibe", "did you mean 'muster.dev/oversubscribe'?"), ("queue", "valid on this host: ")]
)
def test_an_unknown_annotation_of_muster_is_refused_with_a_suggestion(
    objects: ObjectRegistry, name: str, right: str
) -> None:
    wrong = annotated(shell_job("new", "true"), **{name: "true"})
    (waits,) = submitted(objects, "waits")
    for refuse in (
        lambda: objects.submit([wrong], dry_run=False),
        lambda: objects.apply([wrong]),
        lambda: objects.apply([annotated(waits, **{name: "true"})]),
    ):
        with pytest.raises(InvalidSpec, check=has(right, field=f'metadata.annotations["muster.dev/{name}"]')):
            refuse()
    assert objects.find("default", "waits").metadata.annotations == waits.metadata.annotations


def test_removing_the_oversubscribe_annotation_is_refused_for_a_job_that_needs_it(
    objects: ObjectRegistry,
) -> None:
    many = shell_job("many", "torchrun --nproc-per-node 5000 -m train")
    (allowed,) = objects.submit([annotated(many, oversubscribe="true")], dry_run=False)
    for job in (many, annotated(many, oversubscribe="false")):
        with pytest.raises(Refused) as refused:
            objects.apply([job])
        assert refused.value.reason == "Oversubscribed"
    assert objects.find("default", "many").metadata.annotations == allowed.metadata.annotations


def test_too_many_processes_and_too_many_pods_are_one_error(objects: ObjectRegistry) -> None:
    with pytest.raises(Refused) as refused:
        objects.submit([shell_job("many", "torchrun --nproc-per-node 5000 -m train", replicas=999)], dry_run=True)
    assert refused.value.reason == "Oversubscribed"
    assert "5000 processes" in str(refused.value)
    assert "the largest that fits is 220 pods" in str(refused.value)


@pytest.mark.parametrize("priority", [0, 3])
def test_the_passed_variables_of_a_job_cannot_be_changed_and_are_kept_if_omitted(
    objects: ObjectRegistry, priority: int
) -> None:
    plain = shell_job("waits", "true")
    with_one = annotated(plain, **{"pass-environment": "A, B"})
    objects.submit([with_one], dry_run=False, environments=[{"PATH": "/usr/bin:/bin", "A": "1", "B": "2"}])

    def applied(job: spec.TrainingJob) -> str:
        changed = job.model_copy(update={"spec": job.spec.model_copy(update={"priority": priority})})
        objects.apply([changed])
        return objects.find("default", "waits").metadata.annotations["muster.dev/pass-environment"]

    for other in ("A", "A,B,C"):
        with pytest.raises(InvalidSpec) as refused:
            applied(annotated(plain, **{"pass-environment": other}))
        assert refused.value.field == "metadata.annotations[muster.dev/pass-environment]"
    assert applied(plain) == "A, B"
    assert set(applied(annotated(plain, **{"pass-environment": "B,A"})).replace(" ", "").split(",")) == {"A", "B"}


def test_a_repeated_cancel_is_no_error(objects: ObjectRegistry, store: SqliteStore) -> None:
    submitted(objects, "stopped")
    cancelled = objects.patch("default", "stopped", {"cancel": True})
    finished(store, cancelled, CANCELLED)
    assert objects.patch("default", "stopped", {"cancel": True}).status.phase == "Terminating"


def test_the_error_for_a_cancelled_job_names_its_phase(objects: ObjectRegistry, store: SqliteStore) -> None:
    (job,) = submitted(objects, "stopped")
    with store.transaction():
        status = finish(job.status, CANCELLED, "Cancelled", "cancelled by the user", 1.0)
        store.put(job.model_copy(update={"status": status}))
    with pytest.raises(Conflict, check=has("'stopped'", "Cancelled")):
        objects.patch("default", "stopped", {"suspend": False})


# ---- several jobs


@pytest.mark.parametrize(
    "last", [shell_job("taken", "true"), shell_job("large", "true", gpus=9), shell_job("first", "true")]
)
def test_several_jobs_are_submitted_all_or_none(
    objects: ObjectRegistry, store: SqliteStore, last: spec.TrainingJob
) -> None:
    submitted(objects, "taken")
    with pytest.raises(MusterError):
        objects.submit([shell_job("first", "true"), shell_job("second", "true"), last], dry_run=False)
    assert [job.metadata.name for job in store.jobs.values()] == ["taken"]
    objects.submit([shell_job("first", "true"), shell_job("second", "true")], dry_run=False)
    assert [job.metadata.name for job in store.jobs.values()] == ["taken", "first", "second"]


def test_if_the_disk_is_full_after_the_first_of_several_jobs_none_is_stored(
    objects: ObjectRegistry, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, calls = store.put, iter([1, 2])

    def put_one(item: AnyObject) -> None:
        if next(calls) == 2:
            raise sqlite3.OperationalError("database or disk is full")
        put(item)

    monkeypatch.setattr(store, "put", put_one)
    with pytest.raises(ClusterError, check=has(reason="StoreUnwritable")):
        objects.submit([shell_job("first", "true"), shell_job("second", "true")], dry_run=False)
    assert store.jobs == {}


def test_an_error_names_the_job_that_caused_it(objects: ObjectRegistry) -> None:
    with pytest.raises(MusterError) as refusal:
        objects.submit([shell_job("one", "true"), shell_job("two", "true", queue="nowhere")], dry_run=False)
    assert (refusal.value.job, refusal.value.field) == ("default/two", "spec.queue")


def test_a_repeated_submission_of_several_jobs_returns_the_same_jobs(
    objects: ObjectRegistry, store: SqliteStore
) -> None:
    jobs = [annotate_submitter(shell_job(name, "true")) for name in ("a", "b")]
    first = objects.submit(jobs, dry_run=False)
    assert objects.submit(jobs, dry_run=False) == first
    assert len(store.jobs) == 2


# ---- deletion of queues


def make_queue(name: str, parent: str | None = None) -> spec.Queue:
    fields: dict[str, Any] = {"namespaceSelector": {}, **({"parent": parent} if parent else {})}
    return spec.Queue.model_validate({"metadata": {"name": name}, "spec": fields})


@pytest.mark.parametrize("ended", [True, False])
def test_only_a_job_that_has_ended_is_to_be_deleted_so_that_its_name_is_free(
    objects: ObjectRegistry, store: SqliteStore, ended: bool
) -> None:
    (job,) = objects.submit([shell_job("taken", "true")], False)
    if ended:
        with store.transaction():
            status = finish(job.status, COMPLETE, "Completed", "completed", 1.0)
            store.put(job.model_copy(update={"status": status}))
    with pytest.raises(Conflict) as refused:
        objects.submit([shell_job("taken", "true")], False)
    message = str(refused.value)
    assert "use another name" in message
    assert ("muster delete job default/taken" in message, "muster describe default/taken" in message) == (
        ended,
        not ended,
    )


def test_a_queue_with_children_is_not_deleted_and_the_error_names_them(
    objects: ObjectRegistry, store: SqliteStore
) -> None:
    objects.apply([make_queue("company"), make_queue("research", "company"), make_queue("product", "company")])
    with pytest.raises(Conflict, check=has("'company'", "product, research", reason="HasChildren")):
        objects.delete_all([("Queue", "company", "default")])
    assert {"company", "research", "product"} <= set(store.queues)
    for name in ("research", "product", "company"):
        assert objects.delete_all([("Queue", name, "default")])[0]["result"] == "deleted"


def test_a_queue_whose_children_are_being_deleted_waits_for_them(objects: ObjectRegistry, store: SqliteStore) -> None:
    objects.apply([make_queue("company"), make_queue("research", "company")])
    job = shell_job("unfinished", "true", queue="research")
    with store.transaction():
        store.put(job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "u"})}))
    assert objects.delete_all([("Queue", "research", "default")])[0]["result"] == "deleting"
    assert objects.delete_all([("Queue", "company", "default")])[0]["result"] == "deleting"
    assert {"company", "research"} <= set(store.queues)


# ---- deletion of several objects


def test_several_objects_are_not_deleted_if_some_do_not_exist_and_the_error_names_those(
    objects: ObjectRegistry, store: SqliteStore
) -> None:
    submitted(objects, "z1", "z2")
    objects.apply([make_queue("research")])
    jobs, queues = dict(store.jobs), dict(store.queues)
    targets = [("TrainingJob", "z1"), ("TrainingJob", "away"), ("Queue", "research"), ("Queue", "gone")]
    with pytest.raises(NotFound, check=has("'away'", "'gone'")):
        objects.delete_all([(kind, name, "default") for kind, name in targets])
    assert (store.jobs, store.queues) == (jobs, queues)


def test_several_objects_are_not_deleted_if_one_cannot_be(objects: ObjectRegistry, store: SqliteStore) -> None:
    objects.apply([make_queue("company"), make_queue("research", "company"), make_queue("product")])
    with pytest.raises(
        Conflict, match=r"queue 'company' has queues below it: research.*; nothing was deleted$"
    ) as refused:
        objects.delete_all([("Queue", "product", "default"), ("Queue", "company", "default")])
    assert refused.value.reason == "HasChildren"
    assert {"company", "research", "product"} <= set(store.queues)
    rows = objects.delete_all([("Queue", name, "default") for name in ("research", "company", "product")])
    assert [row["result"] for row in rows] == ["deleted"] * 3


def kept_of(objects: ObjectRegistry, store: SqliteStore) -> dict[str, dict[str, str] | None]:
    """Environments by name of the job."""
    return {job.metadata.name: objects._environments.load(job.metadata.uid) for job in store.jobs.values()}


def test_the_environment_of_each_submitted_job_is_stored(objects: ObjectRegistry, store: SqliteStore) -> None:
    environment = {"PATH": "/bin", "HF_TOKEN": "t"}
    objects.submit([shell_job("a", "true"), shell_job("b", "true")], dry_run=False, environments=[environment, None])
    objects.submit([shell_job("c", "true")], dry_run=True, environments=[environment])
    objects.apply([shell_job("d", "true")], [environment])
    objects.apply([shell_job("d", "true", priority=3)], [{"PATH": "/bin", "LATER": "x"}])
    assert kept_of(objects, store) == {"a": environment, "b": None, "d": environment}


def test_the_environment_of_a_refused_job_is_removed(
    objects: ObjectRegistry, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, names = store.put, []

    def put_one(item: spec.TrainingJob) -> None:
        names.append(item.metadata.name)
        if len(names) > 1:
            raise sqlite3.OperationalError("database or disk is full")
        put(item)

    monkeypatch.setattr(store, "put", put_one)
    with pytest.raises(ClusterError):
        objects.submit([shell_job("a", "true"), shell_job("b", "true")], False, [{"PATH": "/bin"}, {"PATH": "/bin"}])
    assert (names, list((tmp_path / "home" / "pods").rglob("*"))) == (["a", "b"], [])
