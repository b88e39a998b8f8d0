"""However many jobs and users a namespace has, the record of the others is as before."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence

import pytest

from muster.errors import ClusterError
from muster.usage.record import SEVERAL_USERS, UsageDocument, decode_jobs, encode, next_document
from muster.usage.segments import ChargedSegment, JobSegments
from muster.usage.totals import DAY_MS, HOUR_MS, UsageTotals

NOON = 20_000 * DAY_MS + 12 * HOUR_MS
MAX_BYTES = 60_000
CPU = ((("h200", "cpu"), 1),)
GPU = ((("h200", "nvidia.com/gpu"), 8),)


def uids() -> Iterator[str]:
    """As Kubernetes makes them, which do not compress."""
    rng = random.Random(0)
    while True:
        yield str(uuid.UUID(int=rng.getrandbits(128), version=4))


UIDS = uids()


def segment(namespace: str, start: int, end: int, user: str = "u") -> ChargedSegment:
    return ChargedSegment(namespace, "q", user, start, end, GPU if namespace == "small" else CPU)


def ended(namespace: str, count: int, at: int = NOON - HOUR_MS, users: int = 1) -> list[JobSegments]:
    """Jobs that ran for ten minutes."""
    return [
        JobSegments(next(UIDS), 0, (segment(namespace, at - 600_000, at, f"u-{number % users}"),), None)
        for number in range(count)
    ]


def running(namespace: str, count: int) -> list[JobSegments]:
    return [JobSegments(next(UIDS), 0, (), segment(namespace, NOON - HOUR_MS, NOON)) for _ in range(count)]


def total(*documents: UsageDocument, namespace: str) -> int:
    cells = (cell for document in documents for cell in document.totals.cells())
    return sum(amount for key, _, amount in cells if key.namespace == namespace)


def passes(count: int, live: Sequence[JobSegments], start: UsageDocument | None = None) -> list[UsageDocument]:
    """The documents after so many passes, each of a new leader that knows what is stored only."""
    stored: list[UsageDocument] = [] if start is None else [start]
    for number in range(count):
        newest = stored[-1] if stored else None
        found = next_document(newest, NOON + number * 60_000, live, [], MAX_BYTES)
        assert found.size <= MAX_BYTES
        one = found.document
        one = UsageDocument(one.day, one.number, one.totals, *decode_jobs(found.jobs))
        if newest is not None and (newest.day, newest.number) == (one.day, one.number):
            stored[-1] = one
        else:
            stored.append(one)
    return stored


@pytest.mark.parametrize("many", [ended("large", 5000), ended("large", 5000, NOON), running("large", 5000)])
def test_a_namespace_with_many_jobs_does_not_keep_others_from_being_recorded(many: list[JobSegments]) -> None:
    small = ended("small", 100)
    documents = passes(4, [*many, *small])
    assert total(*documents, namespace="small") == 100 * 8 * 600_000
    assert documents[-1].counted.keys() >= {job.uid for job in small}
    assert "small" not in documents[-1].settled


def test_jobs_without_numbers_of_their_own_are_counted_once() -> None:
    """What they use later is counted, too."""
    many = ended("large", 5000)
    documents = passes(3, many)
    assert total(*documents, namespace="large") == 5000 * 600_000
    assert len(documents[-1].counted) < 5000
    later = [JobSegments(job.uid, 0, (*job.ended, segment("large", NOON, NOON + 60_000)), None) for job in many[:100]]
    again = passes(3, [*later, *many[100:]], documents[-1])
    assert total(*documents[:-1], *again, namespace="large") == 5000 * 600_000 + 100 * 60_000


def test_readers_get_the_numbers_of_jobs_that_have_none_of_their_own() -> None:
    many = ended("large", 5000)
    newest = passes(1, many)[-1]
    assert newest.counts_of(many) == {job.uid: 1 for job in many}


def test_numbers_of_jobs_that_cannot_be_read_are_kept() -> None:
    many, unreadable = ended("large", 5000), ended("small", 1)
    known = UsageDocument(20_000).updated(unreadable, [])
    found = next_document(known, NOON, many, [], MAX_BYTES, {unreadable[0].uid})
    assert found.document.counted[unreadable[0].uid] == 1


def test_numbers_of_jobs_that_do_not_exist_any_more_are_dropped_first() -> None:
    gone = UsageDocument(20_000).updated(ended("large", 5000), [])
    small = ended("small", 100)
    found = next_document(gone, NOON, small, [], MAX_BYTES)
    assert found.document.counted.keys() == {job.uid for job in small}
    assert found.document.settled == {}


def test_a_namespace_with_many_users_has_one_sum_of_them_and_others_keep_theirs() -> None:
    many, small = ended("large", 20_000, users=20_000), ended("small", 20, users=20)
    documents = passes(2, [*many, *small])
    assert total(*documents, namespace="large") == 20_000 * 600_000
    users = {key.user for one in documents for key in one.totals.hours if key.namespace == "large"}
    assert SEVERAL_USERS in users
    assert len(users) < 2000
    assert len({key.user for one in documents for key in one.totals.hours if key.namespace == "small"}) == 20


def test_a_document_that_nothing_makes_small_enough_is_an_error() -> None:
    many = [job for number in range(3000) for job in ended(f"team-{number}", 1)]
    with pytest.raises(ClusterError) as error:
        next_document(None, NOON, many, [], 3000)
    assert error.value.reason == "UsageRecordFull"


def test_an_ordinary_document_names_no_settled_namespaces() -> None:
    found = encode(UsageDocument(20_000).updated(ended("small", 10), []))
    assert decode_jobs(found.jobs)[2] == {}
    assert UsageTotals(found.document.totals.hours) == found.document.totals
