"""Rate limits, and which candidate may write."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.kube.async_client import ApiError, TokenBucket
from muster.kube.lease import LeaderElector, Lease, LeaseCandidate, LeaseTimes

TIMES = LeaseTimes(duration_s=15.0, renew_deadline_s=10.0, retry_s=2.0)


def lease(**spec: object) -> Lease:
    import msgspec

    return msgspec.convert({"metadata": {"name": "l", "namespace": "n"}, "spec": spec}, type=Lease)


def held_by(holder: str, renewed: str = "t0") -> Lease:
    return lease(holderIdentity=holder, leaseDurationSeconds=15, renewTime=renewed)


def test_a_burst_is_sent_at_once_and_later_requests_wait() -> None:
    bucket = TokenBucket(per_s=10.0, burst=3)
    assert [bucket.reserve(0.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.1, 0.2]


def test_tokens_come_back_but_never_more_than_the_burst() -> None:
    bucket = TokenBucket(per_s=10.0, burst=3)
    for _ in range(3):
        bucket.reserve(0.0)
    assert bucket.available(0.1) == 1.0
    assert bucket.available(60.0) == 3.0


@given(st.lists(st.floats(0, 5), min_size=1, max_size=200), st.integers(1, 50), st.floats(0.5, 100))
def test_no_window_exceeds_burst_and_rate(gaps: list[float], burst: int, per_s: float) -> None:
    bucket, now, sent = TokenBucket(per_s, burst), 0.0, []
    for gap in gaps:
        now += gap
        sent.append(now + bucket.reserve(now))
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            assert last - first + 1 <= burst + per_s * (sent[last] - sent[first]) + 1 + 1e-6


def test_a_free_lease_may_be_acquired_and_a_held_one_may_not() -> None:
    candidate = LeaseCandidate("us", TIMES)
    assert not candidate.may_acquire(0.0)  # not observed yet
    candidate.observe(lease(), 0.0)
    assert candidate.may_acquire(0.0)
    candidate.observe(held_by("them"), 0.0)
    assert not candidate.may_acquire(14.9)


def test_acquired_is_unchanged_until_another_holder() -> None:
    candidate = LeaseCandidate("us", TIMES)
    candidate.observe(lease(), 0.0)
    first = candidate.next_lease(lease(), "t1")
    candidate.on_renewed(first, 0.0, 0.1)
    candidate.stop()
    late = candidate.next_lease(first, "t2")
    candidate.on_renewed(late, 60.0, 60.1)
    assert candidate.acquired == first.spec.acquire_time == "t1"
    back = candidate.next_lease(held_by("them"), "t3")
    candidate.on_renewed(back, 90.0, 90.1)
    assert candidate.acquired == "t3"


def test_a_lease_is_taken_over_after_its_duration_without_change() -> None:
    candidate = LeaseCandidate("us", TIMES)
    candidate.observe(held_by("them", "t0"), 100.0)
    candidate.observe(held_by("them", "t1"), 110.0)  # renewed: the time starts again
    candidate.observe(held_by("them", "t1"), 120.0)
    assert not candidate.may_acquire(124.9)
    assert candidate.may_acquire(125.0)


def test_the_holder_counts_from_the_start_of_its_renewal_and_stops_before_others_start() -> None:
    candidate = LeaseCandidate("us", TIMES)
    candidate.observe(lease(), 0.0)
    candidate.on_renewed(held_by("us"), began_at=100.0, now=103.0)
    assert candidate.holds(109.9)
    assert not candidate.holds(110.0)


def test_a_holder_that_observes_another_stops_at_once() -> None:
    candidate = LeaseCandidate("us", TIMES)
    candidate.on_renewed(held_by("us"), began_at=100.0, now=100.0)
    candidate.observe(held_by("them"), 101.0)
    assert not candidate.holds(101.0)


def test_a_candidate_that_stopped_does_not_hold_the_lease() -> None:
    candidate = LeaseCandidate("us", TIMES)
    candidate.on_renewed(held_by("us"), began_at=100.0, now=100.0)
    candidate.stop()
    assert not candidate.holds(100.0)


def test_a_transition_is_counted_and_a_renewal_is_not() -> None:
    candidate = LeaseCandidate("us", TIMES)
    taken = candidate.next_lease(lease(holderIdentity="them", leaseTransitions=4, acquireTime="t0"), "t9")
    assert (taken.spec.holder_identity, taken.spec.lease_transitions, taken.spec.acquire_time) == ("us", 5, "t9")
    renewed = candidate.next_lease(taken, "t10")
    assert (renewed.spec.lease_transitions, renewed.spec.acquire_time, renewed.spec.renew_time) == (5, "t9", "t10")


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0.01, 20.0), st.floats(0.0, 12.0)), max_size=60))
def test_two_candidates_never_hold_at_once(steps: list[tuple[str, float, float]]) -> None:
    """Each step: time passes, then one of the two observes and, if allowed, writes; its answer is late by `lag`."""
    candidates = {name: LeaseCandidate(name, TIMES) for name in "ab"}
    current, now, writes = lease(), 0.0, 0
    for name, gap, lag in steps:
        now += gap
        candidate = candidates[name]
        candidate.observe(current, now)
        if candidate.may_acquire(now):
            writes += 1
            current = candidate.next_lease(current, f"t{writes}")
            candidate.on_renewed(current, began_at=now, now=now + lag)
        assert sum(one.holds(now) for one in candidates.values()) <= 1


class Leases:
    """Answers of an API server with one Lease."""

    def __init__(self) -> None:
        self.lease: bytes | None = None

    async def get(self, path: str) -> bytes:
        if self.lease is None:
            raise ApiError(404, "NotFound", path)
        return self.lease

    async def post(self, path: str, body: bytes) -> bytes:
        self.lease = body
        return body

    put = post


def test_a_lease_that_is_given_back_at_the_end_is_logged_as_released_and_not_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        elector = LeaderElector(Leases(), "system", "muster", LeaseCandidate("us", TIMES))  # type: ignore[arg-type]
        running = asyncio.create_task(elector.run())
        await elector.leading.wait()
        running.cancel()
        await elector.release()
        assert not elector.may_write()

    asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["leadership acquired", "leadership released"]
