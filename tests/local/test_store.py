"""The database: durability, transactions, and the identity of unchanged objects."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.local.support import has, shell_job

from muster.api import spec
from muster.errors import ClusterError
from muster.local import store
from muster.local.daemon import ensure_default_objects
from muster.local.nodes import parse_shape, virtual_nodes
from muster.local.store import MAX_EVENTS_PER_JOB, EventRecord, PodRecord, SqliteStore, open_store
from muster.model import Resources


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "muster.db"


def job(uid: str = "u1") -> spec.TrainingJob:
    one = shell_job("job", "true")
    return one.model_copy(
        update={"metadata": one.metadata.model_copy(update={"uid": uid, "creation_timestamp": 12.25})}
    )


def pod(uid: str = "u1") -> PodRecord:
    request = Resources.of({"nvidia.com/gpu": 2, "cpu": 500, "pods": 1})
    return PodRecord(
        "job-trainer-0-x", uid, "trainer", 0, 1, 0, "n1", "local", 20000, 2, devices=("0", "1"), request=request
    )


def contents(store: SqliteStore) -> tuple[object, ...]:
    return (
        store.jobs,
        store.queues,
        store.flavors,
        {uid: pods for uid, pods in store.pods.items() if pods},
        store.version,
    )


def test_written_objects_are_there_after_reopening(path: Path) -> None:
    store = open_store(path)
    ensure_default_objects(store, virtual_nodes(parse_shape("2x8")), 1.0)
    with store.transaction():
        store.put(job())
        store.put_pod(pod())
        store.add_event(EventRecord("u1", 3.0, "Normal", "Admitted", "1 pod"))
    before = contents(store)
    store.close()
    again = open_store(path)
    assert contents(again) == before
    assert again.events("u1") == [EventRecord("u1", 3.0, "Normal", "Admitted", "1 pod")]
    assert again.queues["default"].spec.resources[0].guaranteed == {"pods": "220"}


def change_much_and_fail(store: SqliteStore) -> None:
    with store.transaction():
        store.put(store.jobs["u1"].model_copy(update={"status": spec.TrainingJobStatus(phase="Running")}))
        store.put(job("u2"))
        store.remove_pod(pod())
        store.put_setting("name", "value")
        raise RuntimeError("halfway")


def test_a_failed_transaction_changes_nothing_on_disk_or_in_memory(path: Path) -> None:
    store = open_store(path)
    with store.transaction():
        store.put(job())
        store.put_pod(pod())
    before = contents(store)
    kept = store.jobs["u1"], store.pods["u1"]["job-trainer-0-x"]
    with pytest.raises(RuntimeError):
        change_much_and_fail(store)
    assert contents(store) == before
    assert (store.jobs["u1"], store.pods["u1"]["job-trainer-0-x"]) == kept
    assert store.jobs["u1"] is kept[0]
    assert "name" not in store.settings
    store.close()
    assert contents(open_store(path)) == before


def test_each_write_gets_a_new_version_and_other_objects_stay_the_same(path: Path) -> None:
    store = open_store(path)
    with store.transaction():
        store.put(job("u1"))
        store.put(job("u2"))
    other = store.jobs["u2"]
    with store.transaction():
        store.put(store.jobs["u1"])
    assert store.jobs["u2"] is other
    assert [int(one.metadata.resource_version) for one in store.jobs.values()] == [3, 2]


def test_removing_a_job_removes_its_events(path: Path) -> None:
    store = open_store(path)
    with store.transaction():
        store.put(job())
        store.add_event(EventRecord("u1", 3.0, "Normal", "Admitted", "1 pod"))
    with store.transaction():
        store.remove(store.jobs["u1"], 1.0)
    assert (store.jobs, store.events("u1")) == ({}, [])


def test_a_repeated_event_is_counted_and_old_events_are_removed(path: Path) -> None:
    store = open_store(path)
    with store.transaction():
        for at in (1.0, 2.0, 3.0):
            store.add_event(EventRecord("u1", at, "Warning", "Late", "again"))
    assert store.events("u1") == [EventRecord("u1", 3.0, "Warning", "Late", "again", count=3)]
    with store.transaction():
        for number in range(MAX_EVENTS_PER_JOB + 50):
            store.add_event(EventRecord("u1", number, "Normal", "Step", str(number)))
    assert len(store.events("u1")) == MAX_EVENTS_PER_JOB
    assert store.events("u1")[-1].message == str(MAX_EVENTS_PER_JOB + 49)


def test_a_database_that_cannot_be_created_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, check=has("muster.db", reason="StoreUnwritable")):
        open_store(tmp_path / "nowhere" / "muster.db")


def make_newer(path: Path) -> bytes:
    open_store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute(f"PRAGMA user_version = {store.SCHEMA + 1}")
    connection.close()
    return path.read_bytes()


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41b", "a b"])
def test_a_home_with_special_characters_is_reopened_and_a_newer_database_in_it_refused(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    open_store(folder / "muster.db").close()
    open_store(folder / "muster.db").close()
    before = make_newer(folder / "muster.db")
    with pytest.raises(ClusterError) as refusal:
        open_store(folder / "muster.db")
    assert refusal.value.reason == "NewerDatabase"
    assert (folder / "muster.db").read_bytes() == before


def test_a_database_upgraded_after_the_first_check_is_refused_and_not_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_newer(path)
    monkeypatch.setattr(store, "_check_schema", lambda path: None)
    with pytest.raises(ClusterError) as refusal:
        open_store(path)
    assert (refusal.value.reason, path.read_bytes() == before) == ("NewerDatabase", True)


def test_the_default_queue_follows_the_nodes_until_it_is_changed(path: Path) -> None:
    store = open_store(path)
    ensure_default_objects(store, virtual_nodes(parse_shape("1x8")), 1.0)
    ensure_default_objects(store, virtual_nodes(parse_shape("3x8")), 2.0)
    assert store.queues["default"].spec.resources[0].guaranteed == {"pods": "330"}
    assert store.queues["default"].metadata.generation == 2
    mine = store.queues["default"].model_copy(update={"spec": spec.QueueSpec(weight=2.0)})
    with store.transaction():
        store.put(mine)
    ensure_default_objects(store, virtual_nodes(parse_shape("5x8")), 3.0)
    assert store.queues["default"].spec == spec.QueueSpec(weight=2.0)
    with store.transaction():
        store.remove(store.queues["default"], 1.0)
    ensure_default_objects(store, virtual_nodes(parse_shape("5x8")), 4.0)
    assert "default" not in store.queues
