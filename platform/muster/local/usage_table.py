"""The durable record of usage on this host: sums by hour, and how many segments of each job they contain.

Both change in the transaction that writes the status of a job or removes it, so that a crash counts nothing twice.
"""

from __future__ import annotations

import sqlite3

from muster.usage.segments import JobSegments
from muster.usage.totals import UsageKey, UsageTotals

RETENTION_DAYS = 400
SCHEMA_SQL = """
CREATE TABLE usage (
    hour INTEGER NOT NULL, namespace TEXT NOT NULL, queue TEXT NOT NULL, user TEXT NOT NULL, flavor TEXT NOT NULL,
    resource TEXT NOT NULL, amount INTEGER NOT NULL,
    PRIMARY KEY (hour, namespace, queue, user, flavor, resource)) WITHOUT ROWID;
CREATE TABLE usage_counted (job_uid TEXT PRIMARY KEY, segments INTEGER NOT NULL) WITHOUT ROWID;
"""


def load_counted(connection: sqlite3.Connection) -> dict[str, int]:
    """Number of segments in the sums, by job uid."""
    return dict(connection.execute("SELECT job_uid, segments FROM usage_counted"))


def count_segments(connection: sqlite3.Connection, job: JobSegments, counted: int) -> None:
    """Add the segments that have ended, without the first `counted`. Call it inside a transaction."""
    sums = UsageTotals()
    sums.add_all(job.after(counted))
    connection.executemany(
        "INSERT INTO usage (hour, namespace, queue, user, flavor, resource, amount) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
        [(hour, *key[1:], amount) for key, hour, amount in sums.cells()],
    )
    connection.execute(
        "INSERT INTO usage_counted (job_uid, segments) VALUES (?, ?)"
        " ON CONFLICT (job_uid) DO UPDATE SET segments = excluded.segments",
        (job.uid, job.count),
    )


def forget_job(connection: sqlite3.Connection, job_uid: str) -> None:
    """The job does not exist any more."""
    connection.execute("DELETE FROM usage_counted WHERE job_uid = ?", (job_uid,))


def read_totals(connection: sqlite3.Connection, first_hour: int, last_hour: int) -> UsageTotals:
    """The sums of the hours since 1970 from `first_hour` to before `last_hour`."""
    sums = UsageTotals()
    rows = connection.execute(
        "SELECT hour, namespace, queue, user, flavor, resource, amount FROM usage WHERE hour >= ? AND hour < ?",
        (first_hour, last_hour),
    )
    for hour, *names, amount in rows:
        day, hour_of_day = divmod(hour, 24)
        sums.hours.setdefault(UsageKey(day, *names), [0] * 24)[hour_of_day] += amount
    return sums


def delete_old(connection: sqlite3.Connection, now_hour: int) -> None:
    """Delete sums older than the retention."""
    connection.execute("DELETE FROM usage WHERE hour < ?", (now_hour - RETENTION_DAYS * 24,))
