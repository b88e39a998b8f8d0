"""What users do to objects, without a daemon: a database, the nodes, and nothing that runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.local.small import shell_job

from muster import spec
from muster.errors import ClusterError, Conflict, InvalidSpec, MusterError, NotFound, Refused
from muster.lifecycle.conditions import CANCELLED, COMPLETE, FAILED
from muster.lifecycle.transitions import finish
from muster.local import home as home_module
from muster.local.annotations import LOG_LIMIT_ANNOTATION, annotate_submitter
from muster.local.environment import JobEnvironmentStore
from muster.local.home import open_home
from muster.local.nodes import parse_shape, virtual_nodes
from muster.local.objects import ObjectRegistry
from muster.local.store import SqliteStore, open_store
from muster.local.wiring import ensure_default_objects
from muster.yaml_input import AnyObject


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
    status = finish(job.status, kind, "Completed", "it is over", 1.0)
    with store.transaction():
        store.put(job.model_copy(update={"status": status}))


# ---- a job that is not there


def test_whoever_misspells_a_job_is_told_the_nearest_one(objects: ObjectRegistry) -> None:
    submitted(objects, "llama-8b", "bert")
    with pytest.raises(
        NotFound, match=r"job 'lama-8b' does not exist in namespace 'default'; did you mean 'llama-8b'\?"
    ):
        objects.find("default", "lama-8b")


def test_whoever_asks_for_something_else_is_told_the_newest_jobs_and_how_many_more_there_are(
    objects: ObjectRegistry,
) -> None:
    submitted(objects, "zz", "yy", "aa", "xx", "bb", "ww", "cc")
    with pytest.raises(NotFound, match=r"existing jobs, newest first: cc, ww, bb, xx, aa and 2 more$"):
        objects.find("default", "quite-different")


def test_an_empty_namespace_is_said_to_be_empty(objects: ObjectRegistry) -> None:
    submitted(objects, "elsewhere")
    with pytest.raises(NotFound, match="in namespace 'team-a'; it has no jobs"):
        objects.find("team-a", "elsewhere")


# ---- a disk that is full


def test_below_a_mebibyte_of_free_disk_jobs_and_queues_are_refused(
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


# ---- a job that is over


@pytest.mark.parametrize(
    ("fields", "advised"), [({"suspend": False}, True), ({"suspend": True}, False), ({"cancel": True}, False)]
)
@pytest.mark.parametrize(("kind", "phase"), [(COMPLETE, "Succeeded"), (FAILED, "Failed")])
def test_a_finished_job_can_be_neither_suspended_resumed_nor_cancelled_and_only_who_resumes_is_advised_to_submit(
    objects: ObjectRegistry, store: SqliteStore, fields: dict[str, bool], advised: bool, kind: str, phase: str
) -> None:
    (job,) = submitted(objects, "over")
    finished(store, job, kind)
    with pytest.raises(Conflict, match=f"job 'over' has already ended in phase {phase}") as error:
        objects.patch("default", "over", fields)
    assert ("submit it again" in str(error.value)) == advised


def test_of_a_finished_job_the_time_to_live_alone_can_be_applied(objects: ObjectRegistry, store: SqliteStore) -> None:
    (job,) = submitted(objects, "over")
    finished(store, job, COMPLETE)
    ttl = {"ttl_seconds_after_finished": 60}
    objects.apply([job.model_copy(update={"spec": job.spec.model_copy(update=ttl)})])
    assert objects.find("default", "over").spec.ttl_seconds_after_finished == 60
    with pytest.raises(Conflict, match="job 'over' has already ended in phase Succeeded; submit it again"):
        objects.apply([job.model_copy(update={"spec": job.spec.model_copy(update={**ttl, "priority": 3})})])


def test_a_log_limit_that_is_no_amount_is_refused_for_a_job_that_is_there(objects: ObjectRegistry) -> None:
    (job,) = submitted(objects, "waits")
    annotations = {**job.metadata.annotations, LOG_LIMIT_ANNOTATION: "much"}
    edited = job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})
    with pytest.raises(InvalidSpec, match="log-limit"):
        objects.apply([edited])
    assert LOG_LIMIT_ANNOTATION not in objects.find("default", "waits").metadata.annotations


def annotated(job: spec.TrainingJob, **annotations: str) -> spec.TrainingJob:
    notes = {**job.metadata.annotations, **{f"muster.dev/{name}": value for name, value in annotations.items()}}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": notes})})


def test_oversubscribe_that_is_neither_true_nor_false_is_refused_for_a_job_that_is_there(
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
def test_an_unknown_annotation_of_muster_is_refused_with_the_nearest_name(
    objects: ObjectRegistry, name: str, right: str
) -> None:
    wrong = annotated(shell_job("new", "true"), **{name: "true"})
    (waits,) = submitted(objects, "waits")
    for refuse in (
        lambda: objects.submit([wrong], dry_run=False),
        lambda: objects.apply([wrong]),
        lambda: objects.apply([annotated(waits, **{name: "true"})]),
    ):
        with pytest.raises(InvalidSpec, match="unknown annotation") as refused:
            refuse()
        assert refused.value.field == f'metadata.annotations["muster.dev/{name}"]'
        assert right in str(refused.value)
    assert objects.find("default", "waits").metadata.annotations == waits.metadata.annotations


def test_a_job_with_an_annotation_that_an_earlier_version_has_stored_can_still_be_changed(
    objects: ObjectRegistry, store: SqliteStore
) -> None:
    (job,) = submitted(objects, "waits")
    with store.transaction():
        store.put(annotated(job, odd="1"))
    assert objects.scale("default", "waits", {"trainer": 2}).spec.roles[0].replicas == 2
    assert objects.find("default", "waits").metadata.annotations["muster.dev/odd"] == "1"


def test_taking_back_that_a_job_may_oversubscribe_is_refused_while_it_starts_more_processes_than_cores(
    objects: ObjectRegistry,
) -> None:
    many = shell_job("many", "torchrun --nproc-per-node 5000 train.py")
    (allowed,) = objects.submit([annotated(many, oversubscribe="true")], dry_run=False)
    for said in (many, annotated(many, oversubscribe="false")):
        with pytest.raises(Refused) as refused:
            objects.apply([said])
        assert refused.value.reason == "Oversubscribed"
    assert objects.find("default", "many").metadata.annotations == allowed.metadata.annotations


def test_too_many_processes_and_too_many_pods_are_told_in_one_refusal(objects: ObjectRegistry) -> None:
    with pytest.raises(Refused) as refused:
        objects.submit([shell_job("many", "torchrun --nproc-per-node 5000 train.py", replicas=999)], dry_run=True)
    assert refused.value.reason == "Oversubscribed"
    assert "5000 processes" in str(refused.value)
    assert "the largest that fits is 220 pods" in str(refused.value)


@pytest.mark.parametrize("priority", [0, 3])
def test_the_variables_that_a_job_was_submitted_with_cannot_be_changed_and_stay_where_they_are_left_out(
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


def test_cancelling_a_cancelled_job_again_is_no_error(objects: ObjectRegistry, store: SqliteStore) -> None:
    submitted(objects, "stopped")
    cancelled = objects.patch("default", "stopped", {"cancel": True})
    finished(store, cancelled, CANCELLED)
    assert objects.patch("default", "stopped", {"cancel": True}).status.phase == "Terminating"


def test_a_job_that_was_cancelled_is_said_to_be_cancelled_and_not_to_have_failed(
    objects: ObjectRegistry, store: SqliteStore
) -> None:
    (job,) = submitted(objects, "stopped")
    with store.transaction():
        status = finish(job.status, CANCELLED, "Cancelled", "cancelled by the user", 1.0)
        store.put(job.model_copy(update={"status": status}))
    with pytest.raises(Conflict, match="job 'stopped' has already ended in phase Cancelled; submit it again"):
        objects.patch("default", "stopped", {"suspend": False})


# ---- several jobs at once


@pytest.mark.parametrize(
    "last", [shell_job("taken", "true"), shell_job("large", "true", gpus=9), shell_job("first", "true")]
)
def test_of_several_jobs_all_are_submitted_or_none(
    objects: ObjectRegistry, store: SqliteStore, last: spec.TrainingJob
) -> None:
    submitted(objects, "taken")
    with pytest.raises(MusterError):
        objects.submit([shell_job("first", "true"), shell_job("second", "true"), last], dry_run=False)
    assert [job.metadata.name for job in store.jobs.values()] == ["taken"]
    objects.submit([shell_job("first", "true"), shell_job("second", "true")], dry_run=False)
    assert [job.metadata.name for job in store.jobs.values()] == ["taken", "first", "second"]


def test_when_the_disk_is_full_after_the_first_of_several_jobs_none_is_there(
    objects: ObjectRegistry, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, calls = store.put, iter([1, 2])

    def put_one(item: AnyObject) -> None:
        if next(calls) == 2:
            raise sqlite3.OperationalError("database or disk is full")
        put(item)

    monkeypatch.setattr(store, "put", put_one)
    with pytest.raises(ClusterError, match="disk is full"):
        objects.submit([shell_job("first", "true"), shell_job("second", "true")], dry_run=False)
    assert store.jobs == {}


def test_a_refusal_says_which_job_of_several_it_is_about(objects: ObjectRegistry) -> None:
    with pytest.raises(MusterError) as refusal:
        objects.submit([shell_job("one", "true"), shell_job("two", "true", queue="nowhere")], dry_run=False)
    assert (refusal.value.job, refusal.value.field) == ("default/two", "spec.queue")


def test_several_jobs_that_come_again_by_the_same_submission_are_known(
    objects: ObjectRegistry, store: SqliteStore
) -> None:
    jobs = [annotate_submitter(shell_job(name, "true")) for name in ("a", "b")]
    first = objects.submit(jobs, dry_run=False)
    assert objects.submit(jobs, dry_run=False) == first
    assert len(store.jobs) == 2


# ---- queues that are deleted


def a_queue(name: str, parent: str | None = None) -> spec.Queue:
    return spec.Queue.model_validate({"metadata": {"name": name}, "spec": {"parent": parent} if parent else {}})


def test_a_queue_with_queues_below_it_is_not_deleted_and_they_are_named(
    objects: ObjectRegistry, store: SqliteStore
) -> None:
    objects.apply([a_queue("company"), a_queue("research", "company"), a_queue("product", "company")])
    with pytest.raises(Conflict, match="queue 'company' has queues below it: product, research;") as refusal:
        objects.delete("Queue", "default", "company")
    assert refusal.value.reason == "HasChildren"
    assert {"company", "research", "product"} <= set(store.queues)
    for name in ("research", "product", "company"):
        assert objects.delete("Queue", "default", name)["result"] == "deleted"


def test_a_queue_whose_children_are_being_deleted_waits_for_them(objects: ObjectRegistry, store: SqliteStore) -> None:
    objects.apply([a_queue("company"), a_queue("research", "company")])
    job = shell_job("unfinished", "true", queue="research")
    with store.transaction():
        store.put(job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "u"})}))
    assert objects.delete("Queue", "default", "research")["result"] == "deleting"
    assert objects.delete("Queue", "default", "company")["result"] == "deleting"
    assert {"company", "research"} <= set(store.queues)


# ---- several that are deleted together


def test_of_several_objects_none_is_deleted_when_one_is_not_there_and_every_such_one_is_named(
    objects: ObjectRegistry, store: SqliteStore
) -> None:
    submitted(objects, "z1", "z2")
    objects.apply([a_queue("research")])
    jobs, queues = dict(store.jobs), dict(store.queues)
    targets = [("TrainingJob", "z1"), ("TrainingJob", "away"), ("Queue", "research"), ("Queue", "gone")]
    told = r"job 'away' does not exist in .*; queue 'gone' does not exist; nothing was deleted$"
    with pytest.raises(NotFound, match=told):
        objects.delete_all([(kind, name, "default") for kind, name in targets])
    assert (store.jobs, store.queues) == (jobs, queues)


def test_of_several_objects_none_is_deleted_when_one_may_not_go(objects: ObjectRegistry, store: SqliteStore) -> None:
    objects.apply([a_queue("company"), a_queue("research", "company"), a_queue("product")])
    with pytest.raises(
        Conflict, match=r"queue 'company' has queues below it: research.*; nothing was deleted$"
    ) as told:
        objects.delete_all([("Queue", "product", "default"), ("Queue", "company", "default")])
    assert told.value.reason == "HasChildren"
    assert {"company", "research", "product"} <= set(store.queues)
    gone = objects.delete_all([("Queue", name, "default") for name in ("research", "company", "product")])
    assert [row["result"] for row in gone] == ["deleted"] * 3


def kept_of(objects: ObjectRegistry, store: SqliteStore) -> dict[str, dict[str, str] | None]:
    """Environments by name of the job."""
    return {job.metadata.name: objects._environments.load(job.metadata.uid) for job in store.jobs.values()}


def test_jobs_keep_the_environment_that_they_were_sent_with(objects: ObjectRegistry, store: SqliteStore) -> None:
    here = {"PATH": "/bin", "HF_TOKEN": "t"}
    objects.submit([shell_job("a", "true"), shell_job("b", "true")], dry_run=False, environments=[here, None])
    objects.submit([shell_job("c", "true")], dry_run=True, environments=[here])
    objects.apply([shell_job("d", "true")], [here])
    objects.apply([shell_job("d", "true", priority=3)], [{"PATH": "/bin", "LATER": "x"}])
    assert kept_of(objects, store) == {"a": here, "b": None, "d": here}


def test_nothing_stays_of_an_environment_whose_job_was_not_accepted(
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
