"""The durable record of usage in documents of limited size, of which only the newest is ever changed.

A document has sums, and of every job that still exists the number of segments that are in the sums of any document
(`counted`). Sums and numbers change in one write, so that a segment is counted once, whatever is repeated after a
crash. A new document takes over the numbers of the one before; those of the old one have no meaning then.

Of running jobs a document has the segment that has not ended (`running`) and the time up to which it was observed. A
job that was deleted while no process observed it is counted up to that time.

Users decide how many jobs exist and which names of users their labels have. Where a document would be too large, the
namespaces with the most entries pay, so that the usage of all others is recorded as before (`smaller`).
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from muster.errors import ClusterError
from muster.usage.segments import ChargedSegment, JobSegments
from muster.usage.totals import DAY_MS, UsageKey, UsageTotals

SEVERAL_USERS = "(several users)"
"""What a namespace with too many users has their usage under; no label is like it."""
_IN_FLIGHT_MS = 60_000
"""Time within which the write of an ended segment is observed."""


@dataclass(frozen=True, slots=True)
class RunningSegment:
    """The segment of a job that had not ended when the document was written: its number, and the segment up to then."""

    number: int
    segment: ChargedSegment


@dataclass(frozen=True, slots=True)
class UsageDocument:
    """One document. `day`: days since 1970 UTC of its creation. Never changed: `updated` makes a new one.

    `settled`: by namespace whose jobs have no numbers of their own, a time in Unix milliseconds. Of segments that ended
    until then none is counted any more.
    """

    day: int
    number: int = 0
    totals: UsageTotals = field(default_factory=UsageTotals)
    counted: Mapping[str, int] = field(default_factory=dict)
    running: Mapping[str, RunningSegment] = field(default_factory=dict)
    settled: Mapping[str, int] = field(default_factory=dict)

    def count_of(self, job: JobSegments) -> int:
        """Number of segments of a job that must not be counted any more."""
        known, until_ms = self.counted.get(job.uid, 0), self.settled.get(job.namespace)
        return known if until_ms is None else max(known, job.count_until(until_ms))

    def counts_of(self, jobs: Iterable[JobSegments]) -> Mapping[str, int]:
        """`counted`, also of those of the jobs that have no number of their own."""
        if not self.settled:
            return self.counted
        return {**self.counted, **{job.uid: count for job in jobs if (count := self.count_of(job))}}

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
            known = self.count_of(job)
            if job.count > known:
                totals.add_all(job.after(known))
                counted[job.uid] = max(job.count, counted.get(job.uid, 0))  # a retried index has two entries
            if job.current is not None and known <= job.count:
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
        return UsageDocument(day, number, UsageTotals(), self.counted, self.running, self.settled)

    def with_fewer_jobs(
        self, jobs: Sequence[JobSegments], most: int, until_ms: int, kept: Container[str]
    ) -> UsageDocument:
        """At most `most` entries of jobs, if `until_ms` is late enough: the largest namespaces have no numbers for what
        ended until then, and no running segments, which only count if a job is deleted while no operator runs.
        `jobs`: all that are observed; `kept`: uids of those whose namespace is not known."""
        namespaces = {job.uid: job.namespace for job in jobs}
        counts = Counter(namespaces.get(uid, "") for uid in (*self.counted, *self.running) if uid not in kept)
        largest = _largest(counts, most)
        smaller = replace(self, settled={**self.settled, **dict.fromkeys(largest - {""}, until_ms)})
        dropped = {job.uid for job in jobs if job.namespace in largest and smaller._has_settled(job)}
        if "" in largest:  # jobs that do not exist any more
            dropped |= {uid for uid in self.counted if uid not in namespaces and uid not in kept}
        counted = {uid: count for uid, count in self.counted.items() if uid not in dropped}
        running = {uid: one for uid, one in self.running.items() if one.segment.namespace not in largest}
        return replace(smaller, counted=counted, running=running)

    def _has_settled(self, job: JobSegments) -> bool:
        """Whether the number of a job says no more than `settled`."""
        return self.counted.get(job.uid, 0) <= job.count_until(self.settled.get(job.namespace, 0))

    def with_fewer_users(self, most: int) -> UsageDocument:
        """The largest namespaces have one sum of all their users, until at most `most` other sums are left."""
        largest = _largest(Counter(key.namespace for key in self.totals.hours), most)
        totals = UsageTotals()
        for key, hours in self.totals.hours.items():
            totals.merge({key._replace(user=SEVERAL_USERS) if key.namespace in largest else key: hours})
        return replace(self, totals=totals)


def _largest(entries: Counter[str], most: int) -> set[str]:
    """The namespaces with the most entries, so many that the others have at most `most`."""
    left, found = entries.total(), set[str]()
    for namespace, count in sorted(entries.items(), key=lambda one: (-one[1], one[0])):
        if left <= most:
            break
        found.add(namespace)
        left -= count
    return found


_Row = tuple[str, str, str, str, str, int, list[int]]  # namespace, queue, user, flavor, resource, day, hours
_Running = tuple[int, str, str, str, int, int, list[tuple[str, str, int]]]


class _Jobs(msgspec.Struct):
    counted: dict[str, int] = {}
    running: dict[str, _Running] = {}
    settled: dict[str, int] = {}


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
        return len(self.totals) + len(self.jobs)


def encode(document: UsageDocument) -> EncodedDocument:
    """The document with its parts as they are written."""
    return EncodedDocument(document, _encode_totals(document.totals), _encode_jobs(document))


def next_document(
    newest: UsageDocument | None,
    now_ms: int,
    live: Sequence[JobSegments],
    deleted: Sequence[JobSegments],
    max_bytes: int,
    unreadable: Container[str] = (),
) -> EncodedDocument:
    """The document to write after `newest`: the same one updated, or, on another day and where it would exceed
    `max_bytes`, its successor, and where that would exceed it, too, a smaller one. `now_ms`: Unix time. Raises
    `ClusterError` UsageRecordFull where that is not enough."""
    day = now_ms // DAY_MS
    base = UsageDocument(day) if newest is None else newest if newest.day >= day else newest.successor(day)
    found = encode(base.updated(live, deleted, unreadable))
    if found.size > max_bytes and base is newest:
        found = encode(newest.successor(newest.day).updated(live, deleted, unreadable))
    for until_ms in (now_ms - _IN_FLIGHT_MS, now_ms):
        if found.size > max_bytes:
            found = smaller(found, (*live, *deleted), max_bytes, until_ms, unreadable)
    if found.size > max_bytes:
        message = f"usage is not recorded: its sums and the numbers of its jobs exceed {max_bytes} bytes"
        raise ClusterError(message, reason="UsageRecordFull")
    return found


def smaller(
    found: EncodedDocument, jobs: Sequence[JobSegments], max_bytes: int, until_ms: int, unreadable: Container[str]
) -> EncodedDocument:
    """The document with about a quarter of `max_bytes` for each part that exceeds half of it."""
    document, part = found.document, max_bytes // 2
    if len(found.jobs) > part:
        entries = len(document.counted) + len(document.running)
        document = document.with_fewer_jobs(jobs, entries * part // (2 * len(found.jobs)), until_ms, unreadable)
    if len(found.totals) > part:
        document = document.with_fewer_users(len(document.totals.hours) * part // (2 * len(found.totals)))
    return encode(document)


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
    return _compress({"counted": document.counted, "running": running, "settled": document.settled})


def decode_totals(data: bytes) -> UsageTotals:
    """The sums. Raises `ClusterError` for anything else."""
    try:
        rows = _rows.decode(gzip.decompress(data))
    except (OSError, EOFError, ValueError) as error:
        raise ClusterError(f"usage record: the sums cannot be read: {error}") from error
    return UsageTotals({UsageKey(day, *names): hours for *names, day, hours in rows})


def decode_jobs(data: bytes) -> tuple[dict[str, int], dict[str, RunningSegment], dict[str, int]]:
    """(counted, running, settled). Raises `ClusterError` for anything else."""
    try:
        found = _jobs.decode(gzip.decompress(data))
    except (OSError, EOFError, ValueError) as error:
        raise ClusterError(f"usage record: the jobs cannot be read: {error}") from error
    running = {}
    for uid, (number, namespace, queue, user, since_ms, until_ms, amounts) in found.running.items():
        pairs = tuple(((flavor, resource), amount) for flavor, resource, amount in amounts)
        running[uid] = RunningSegment(number, ChargedSegment(namespace, queue, user, since_ms, until_ms, pairs))
    return found.counted, running, found.settled


def _compress(value: Any) -> bytes:
    return gzip.compress(msgspec.json.encode(value), compresslevel=6, mtime=0)
