"""The database of this host: objects, pods and events in one SQLite file, and the records of pods and events.

Objects and pods are also kept in memory, since each scheduling cycle reads all of them; unchanged ones stay the same
Python objects. A transaction is on disk (fsync) before it ends, so that no process is started or stopped for a write
that a crash could lose. Only the daemon that holds the lock of the home opens the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from muster.api.spec import Flavor, Queue, TrainingJob, TrainingJobStatus
from muster.api.yaml_input import KINDS, AnyObject
from muster.cluster import PodView
from muster.errors import ClusterError
from muster.kinds.trainingjob.array_changes import with_index_statuses
from muster.kinds.trainingjob.arrays import index_job, index_key, split_index_key
from muster.local import usage_table
from muster.model import GangKey, Resources
from muster.usage.report import RecordedUsage, UsagePeriod, hour_of
from muster.usage.segments import JobSegments, segments_of
from muster.workload.conditions import has_terminated

SCHEMA = 1
MAX_EVENTS_PER_JOB = 200
RESERVED_BYTES = 2 * 2**20
"""Space in the database, and in its write-ahead log, that remains usable on a full disk."""
_CHECKPOINT_PAGES = 128  # of 4 KiB: the log is restarted long before it exceeds its reserved size
T = TypeVar("T")
PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Lost"]
_SCHEMA_SQL = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE objects (uid TEXT PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE pods (name TEXT PRIMARY KEY, job_uid TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE events (id INTEGER PRIMARY KEY, job_uid TEXT NOT NULL, at REAL NOT NULL, type TEXT NOT NULL,
                     reason TEXT NOT NULL, message TEXT NOT NULL, count INTEGER NOT NULL);
CREATE INDEX events_of_job ON events (job_uid, id);
"""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One replica, from the decision to run it until its resources are released. Times are Unix seconds.

    `devices` is None until its GPUs are chosen, before the shim starts. `deleting_at`: when the engine deleted it.
    `failed_at`: when its first rank failed. `request`: its requests at creation.
    """

    name: str
    job_uid: str
    role: str
    index: int
    replicas: int
    attempt: int
    node: str
    flavor: str
    port: int
    gpus: int
    devices: tuple[str, ...] | None = None
    phase: PodPhase = "Pending"
    exit_code: int | None = None
    reason: str = ""
    finished_at: float | None = None
    log_tail: str = ""
    deleting_at: float | None = None
    grace_s: float = 30.0
    failed_at: float | None = None
    request: Resources = Resources()

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed", "Lost")

    def to_view(self) -> PodView:
        """The engine's view; ready as soon as it runs, since probes are not supported on this host."""
        return PodView(
            name=self.name,
            job_uid=self.job_uid,
            role=self.role,
            index=self.index,
            attempt=self.attempt,
            node=self.node,
            phase=self.phase,
            ready=self.phase == "Running",
            deleting=self.deleting_at is not None,
            tombstone=self.finished and self.deleting_at is not None,
            grace_s=None if self.deleting_at is None else self.grace_s,
            exit_code=self.exit_code,
            reason=self.reason,
            finished_at=self.finished_at,
            failed_at=self.failed_at,
            log_tail=self.log_tail,
            request=self.request,
        )


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event of a job that occurred `count` times in a row, last at `at`."""

    job_uid: str
    at: float
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        return {"at": self.at, "type": self.type, "reason": self.reason, "message": self.message, "count": self.count}


class SqliteStore:
    """The open database. Not thread-safe: the caller holds a lock."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._undo: list[Callable[[], None]] | None = None  # of the transaction in progress
        self.version = 0  # the newest resourceVersion
        self.settings: dict[str, str] = {}
        self.jobs: dict[str, TrainingJob] = {}  # by uid; queues and flavors by name
        self.queues: dict[str, Queue] = {}
        self.flavors: dict[str, Flavor] = {}
        self.pods: dict[str, dict[str, PodRecord]] = {}  # by job uid, then by name
        self.counted_usage: dict[str, int] = {}  # segments of usage in the record, by job uid
        self._load()

    def _load(self) -> None:
        self.settings = dict(self._connection.execute("SELECT name, value FROM settings"))
        self.version = int(self.settings.get("resource_version", "0"))
        self.counted_usage = usage_table.load_counted(self._connection)
        for kind, body in self._connection.execute("SELECT kind, body FROM objects ORDER BY rowid"):
            self._cache_object(KINDS[kind].model_validate_json(body))
        for (body,) in self._connection.execute("SELECT body FROM pods ORDER BY rowid"):
            pod = msgspec.json.decode(body, type=PodRecord)
            self.pods.setdefault(pod.job_uid, {})[pod.name] = pod

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside are committed together, or none. Raises `ClusterError` StoreUnwritable."""
        undo: list[Callable[[], None]] = []
        version, self._undo = self.version, undo
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            if self.version != version:
                self._write_setting("resource_version", str(self.version))
            self._connection.execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            for step in reversed(undo):
                step()
            self.version = version
            if isinstance(error, sqlite3.Error):
                raise ClusterError(f"the database cannot be written: {error}", reason="StoreUnwritable") from error
            raise
        finally:
            self._undo = None

    def reserve_space(self) -> None:
        """Reserve free pages in the database and in its write-ahead log, so that jobs can be stopped on a full disk.

        SQLite reuses both and does not return them to the disk, the log until it is closed. Without effect on a disk
        that is already full.
        """
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        with suppress(sqlite3.Error):
            self._connection.execute("CREATE TABLE IF NOT EXISTS spare (content BLOB)")
            self._connection.execute(f"INSERT INTO spare VALUES (zeroblob({RESERVED_BYTES}))")
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        with suppress(sqlite3.Error):
            self._connection.execute("DROP TABLE IF EXISTS spare")
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def find_job(self, key: GangKey) -> TrainingJob | None:
        """The job of this uid, or the index of an array with this key."""
        uid, index = split_index_key(key)
        job = self.jobs.get(uid)
        return job if job is None or index is None else index_job(job, index)

    def put_status(self, key: GangKey, status: TrainingJobStatus, now: float) -> None:
        """Write the status of a job, or of an index of an array."""
        uid, index = split_index_key(key)
        if index is None:
            self.put(self.jobs[uid].model_copy(update={"status": status}))
        else:
            self.put_indices(uid, {index: status}, now)

    def put_indices(self, uid: str, statuses: Mapping[int, TrainingJobStatus], now: float) -> None:
        """Write statuses of indices of an array into its object. Their usage is counted when it ends."""
        job = self.jobs[uid]
        for index, status in statuses.items():
            key = index_key(uid, index)
            segments = segments_of(job.model_copy(update={"status": status}), now, key)
            if segments is not None:
                self._count_usage(segments.with_end() if has_terminated(status) else segments)
            if has_terminated(status):
                usage_table.forget_job(self._connection, key)
                self._cache_delete(self.counted_usage, key)
        changed = with_index_statuses(job, statuses, now)
        if changed is not job:
            self.put(changed)

    def put(self, item: AnyObject) -> None:
        """Write an object under a new resourceVersion."""
        self.version += 1
        metadata = item.metadata.model_copy(update={"resource_version": str(self.version)})
        stored = item.model_copy(update={"metadata": metadata})
        self._connection.execute(
            "INSERT INTO objects (uid, kind, body) VALUES (?, ?, ?)"
            " ON CONFLICT (uid) DO UPDATE SET body = excluded.body",
            (metadata.uid, stored.kind, stored.model_dump_json(by_alias=True, exclude_none=True)),
        )
        self._cache_object(stored)
        if isinstance(item, TrainingJob) and item.status.usage is not None and item.status.usage.ended:
            self._count_usage(segments_of(item, 0.0))

    def remove(self, item: AnyObject, now: float) -> None:
        """Remove an object; with a job also its events. The usage of an admitted job ends `now`."""
        self._connection.execute("DELETE FROM objects WHERE uid = ?", (item.metadata.uid,))
        if isinstance(item, TrainingJob):
            if (segments := segments_of(item, now)) is not None:
                self._count_usage(segments.with_end())
            usage_table.forget_job(self._connection, item.metadata.uid)
            self._cache_delete(self.counted_usage, item.metadata.uid)
            self._connection.execute("DELETE FROM events WHERE job_uid = ?", (item.metadata.uid,))
            self._cache_delete(self.jobs, item.metadata.uid)
        elif isinstance(item, Queue):
            self._cache_delete(self.queues, item.metadata.name)
        else:
            self._cache_delete(self.flavors, item.metadata.name)

    def recorded_usage(self, period: UsagePeriod) -> RecordedUsage:
        totals = usage_table.read_totals(self._connection, period.first, period.last)
        return RecordedUsage((totals,), dict(self.counted_usage))

    def delete_old_usage(self, now: float) -> None:
        usage_table.delete_old(self._connection, hour_of(now))

    def _count_usage(self, job: JobSegments | None) -> None:
        """Add segments that have ended and are not in the record."""
        if job is not None and job.count > (counted := self.counted_usage.get(job.uid, 0)):
            usage_table.count_segments(self._connection, job, counted)
            self._cache_set(self.counted_usage, job.uid, job.count)

    def put_pod(self, pod: PodRecord) -> None:
        self._connection.execute(
            "INSERT INTO pods (name, job_uid, body) VALUES (?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET body = excluded.body",
            (pod.name, pod.job_uid, msgspec.json.encode(pod)),
        )
        self._cache_set(self.pods.setdefault(pod.job_uid, {}), pod.name, pod)

    def remove_pod(self, pod: PodRecord) -> None:
        self._connection.execute("DELETE FROM pods WHERE name = ?", (pod.name,))
        self._cache_delete(self.pods[pod.job_uid], pod.name)

    def put_setting(self, name: str, value: str) -> None:
        self._write_setting(name, value)
        self._cache_set(self.settings, name, value)

    def add_event(self, event: EventRecord) -> None:
        """Write an event; a repetition of the last one only increases its count. That of an index is one of its
        array."""
        uid, index = split_index_key(event.job_uid)
        if index is not None:
            event = replace(event, job_uid=uid, message=f"index {index}: {event.message}")
        last = self._connection.execute(
            "SELECT id, reason, message FROM events WHERE job_uid = ? ORDER BY id DESC LIMIT 1", (event.job_uid,)
        ).fetchone()
        if last is not None and last[1:] == (event.reason, event.message):
            self._connection.execute("UPDATE events SET count = count + 1, at = ? WHERE id = ?", (event.at, last[0]))
            return
        self._connection.execute(
            "INSERT INTO events (job_uid, at, type, reason, message, count) VALUES (?, ?, ?, ?, ?, ?)",
            (event.job_uid, event.at, event.type, event.reason, event.message, event.count),
        )
        self._connection.execute(
            "DELETE FROM events WHERE job_uid = ?1 AND id <= "
            "(SELECT id FROM events WHERE job_uid = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
            (event.job_uid, MAX_EVENTS_PER_JOB),
        )

    def events(self, job_uid: str) -> list[EventRecord]:
        rows = self._connection.execute(
            "SELECT job_uid, at, type, reason, message, count FROM events WHERE job_uid = ? ORDER BY id", (job_uid,)
        )
        return [EventRecord(*row) for row in rows]

    def close(self) -> None:
        """Close the file, including its write-ahead log."""
        self._connection.close()

    def _write_setting(self, name: str, value: str) -> None:
        self._connection.execute(
            "INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def _cache_object(self, item: AnyObject) -> None:
        if isinstance(item, TrainingJob):
            self._cache_set(self.jobs, item.metadata.uid, item)
        elif isinstance(item, Queue):
            self._cache_set(self.queues, item.metadata.name, item)
        else:
            self._cache_set(self.flavors, item.metadata.name, item)

    def _cache_set(self, where: dict[str, T], key: str, value: T) -> None:
        if self._undo is not None:
            self._undo.append(_undo_step(where, key))
        where[key] = value

    def _cache_delete(self, where: dict[str, T], key: str) -> None:
        if self._undo is not None:
            self._undo.append(_undo_step(where, key))
        where.pop(key, None)


def _undo_step(where: dict[str, T], key: str) -> Callable[[], None]:
    """A function that restores the current value of `key`."""
    missing = key not in where
    before = where.get(key)

    def restore() -> None:
        if missing or before is None:
            where.pop(key, None)
        else:
            where[key] = before

    return restore


def open_store(path: Path) -> SqliteStore:
    """Open or create the database.

    Raises `ClusterError`: NewerDatabase if a newer Muster created it (it is not changed), StoreUnreadable if it is
    damaged or not a database, StoreUnwritable if it cannot be created.
    """
    if path.exists() and path.stat().st_size:
        _check_schema(path)
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        _check_not_newer(_schema_version(connection), path)  # it may have been created since the check above
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if _schema_version(connection) == 0:
            connection.executescript(
                f"BEGIN; {_SCHEMA_SQL} {usage_table.SCHEMA_SQL} PRAGMA user_version = {SCHEMA}; COMMIT;"
            )
        return SqliteStore(connection)
    except sqlite3.OperationalError as error:
        raise ClusterError(f"{path} cannot be opened: {error}", reason="StoreUnwritable") from error
    except (sqlite3.DatabaseError, ValueError) as error:
        raise ClusterError(
            f"{path} cannot be read: {error}; move the file away to start with an empty database",
            reason="StoreUnreadable",
        ) from error


def _check_schema(path: Path) -> None:
    """Check the version without writing to the file."""
    try:
        connection = sqlite3.connect(path.absolute().as_uri() + "?mode=ro", uri=True)
        try:
            schema = _schema_version(connection)
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise ClusterError(
            f"{path} cannot be read: {error}; move the file away to start with an empty database",
            reason="StoreUnreadable",
        ) from error
    _check_not_newer(schema, path)


def _check_not_newer(schema: int, path: Path) -> None:
    if schema > SCHEMA:
        raise ClusterError(
            f"{path} was created by a newer Muster (schema {schema}; this version supports up to {SCHEMA}); use that"
            " version, or set MUSTER_HOME to another folder. The file was not changed",
            reason="NewerDatabase",
        )


def _schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
