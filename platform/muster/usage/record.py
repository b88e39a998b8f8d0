"""The durable record of usage in documents of limited size, of which only the newest is ever changed.

A document has sums, and of every job that still exists the number of segments that are in the sums of any document
(`counted`). Sums and numbers change in one write, so that a segment is counted once, whatever is repeated after a
crash. A new document takes over the numbers of the one before; those of the old one have no meaning then.

Of running jobs a document has the segment that has not ended (`running`) and the time up to which it was observed. A
job that was deleted while no process observed it is counted up to that time.
"""

from __future__ import annotations

import gzip
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from muster.errors import ClusterError
from muster.usage.segments import ChargedSegment, JobSegments
from muster.usage.totals import UsageKey, UsageTotals


@dataclass(frozen=True, slots=True)
class RunningSegment:
    """The segment of a job that had not ended when the document was written: its number, and the segment up to then."""

    number: int
    segment: ChargedSegment


@dataclass(frozen=True, slots=True)
class UsageDocument:
    """One document. `day`: days since 1970 UTC of its creation. Never changed: `updated` makes a new one."""

    day: int
    number: int = 0
    totals: UsageTotals = field(default_factory=UsageTotals)
    counted: Mapping[str, int] = field(default_factory=dict)
    running: Mapping[str, RunningSegment] = field(default_factory=dict)

    def updated(
        self, live: Iterable[JobSegments], deleted: Iterable[JobSegments], unreadable: Container[str] = ()
    ) -> UsageDocument:
        """The document that also counts what it lacks of these jobs. `live`: every job that exists; `unreadable`: uids
        of those whose status cannot be read now, which have not ended; `deleted`: jobs that do not exist any more, up
        to their end. Numbers of other jobs are kept: see `without`."""
        totals, counted = self.totals.copy(), dict(self.counted)
        running: dict[str, RunningSegment] = {}
        observed: set[str] = set()
        for job in (*live, *(one.with_end() for one in deleted)):
            observed.add(job.uid)
            known = counted.get(job.uid, 0)
            if job.count > known:
                totals.add_all(job.after(known))
                counted[job.uid] = job.count
            if job.current is not None and counted.get(job.uid, 0) <= job.count:
                running[job.uid] = RunningSegment(job.count, job.current)
        for uid, last in self.running.items():
            if uid in unreadable and uid not in observed:
                running[uid] = last
            elif uid not in observed and counted.get(uid, 0) <= last.number:
                totals.add(last.segment)
                counted[uid] = last.number + 1
        return replace(self, totals=totals, counted=counted, running=running)

    def without(self, uids: Iterable[str]) -> UsageDocument:
        """The document without the numbers of jobs that will never be observed again."""
        dropped = set(uids)
        return replace(self, counted={uid: count for uid, count in self.counted.items() if uid not in dropped})

    def successor(self, day: int) -> UsageDocument:
        """The empty document after this one, with its numbers and running jobs."""
        number = self.number + 1 if day == self.day else 0
        return UsageDocument(day, number, UsageTotals(), self.counted, self.running)


_Row = tuple[str, str, str, str, str, int, list[int]]  # namespace, queue, user, flavor, resource, day, hours
_Running = tuple[int, str, str, str, int, int, list[tuple[str, str, int]]]


class _Jobs(msgspec.Struct):
    counted: dict[str, int] = {}
    running: dict[str, _Running] = {}


_rows = msgspec.json.Decoder(list[_Row])
_jobs = msgspec.json.Decoder(_Jobs)


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """A document and its encoded parts."""

    document: UsageDocument
    totals: bytes
    jobs: bytes

    @property
    def size(self) -> int:
        """Bytes of both parts."""
        return len(self.totals) + len(self.jobs)


def encode(document: UsageDocument) -> EncodedDocument:
    """The document with its parts as they are written."""
    return EncodedDocument(document, _encode_totals(document.totals), _encode_jobs(document))


def next_document(
    newest: UsageDocument | None,
    day: int,
    live: Sequence[JobSegments],
    deleted: Sequence[JobSegments],
    max_bytes: int,
    unreadable: Container[str] = (),
) -> EncodedDocument:
    """The document to write after `newest`: the same one updated, or, on another day and where it would exceed
    `max_bytes`, its successor. Raises `ClusterError` UsageRecordFull where the numbers of the jobs alone exceed it."""
    base = UsageDocument(day) if newest is None else newest if newest.day >= day else newest.successor(day)
    found = encode(base.updated(live, deleted, unreadable))
    if found.size > max_bytes and base is newest:
        found = encode(newest.successor(newest.day).updated(live, deleted, unreadable))
    if found.size > max_bytes:
        message = (
            f"usage is not recorded: the numbers of {len(found.document.counted)} jobs exceed {max_bytes} bytes;"
            " delete finished jobs, or set spec.ttlSecondsAfterFinished"
        )
        raise ClusterError(message, reason="UsageRecordFull")
    return found


def _encode_totals(totals: UsageTotals) -> bytes:
    """The sums, compressed."""
    rows = [(*key[1:], key.day, hours) for key, hours in sorted(totals.hours.items())]
    return _compress(rows)


def _encode_jobs(document: UsageDocument) -> bytes:
    """The numbers and running jobs, compressed."""
    running: dict[str, Any] = {}
    for uid, last in document.running.items():
        one = last.segment
        amounts = [(flavor, resource, amount) for (flavor, resource), amount in one.amounts]
        running[uid] = (last.number, one.namespace, one.queue, one.user, one.since_ms, one.until_ms, amounts)
    return _compress({"counted": dict(document.counted), "running": running})


def decode_totals(data: bytes) -> UsageTotals:
    """The sums. Raises `ClusterError` for anything else."""
    try:
        rows = _rows.decode(gzip.decompress(data))
    except (OSError, EOFError, ValueError) as error:
        raise ClusterError(f"usage record: the sums cannot be read: {error}") from error
    return UsageTotals({UsageKey(day, *names): hours for *names, day, hours in rows})


def decode_jobs(data: bytes) -> tuple[dict[str, int], dict[str, RunningSegment]]:
    """(counted, running). Raises `ClusterError` for anything else."""
    try:
        found = _jobs.decode(gzip.decompress(data))
    except (OSError, EOFError, ValueError) as error:
        raise ClusterError(f"usage record: the jobs cannot be read: {error}") from error
    running = {}
    for uid, (number, namespace, queue, user, since_ms, until_ms, amounts) in found.running.items():
        pairs = tuple(((flavor, resource), amount) for flavor, resource, amount in amounts)
        running[uid] = RunningSegment(number, ChargedSegment(namespace, queue, user, since_ms, until_ms, pairs))
    return found.counted, running


def _compress(value: Any) -> bytes:
    return gzip.compress(msgspec.json.encode(value), compresslevel=6, mtime=0)
