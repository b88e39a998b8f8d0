"""Usage over time in the read API."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.state.observed_states import NOW, named
from tests.visibility.states import in_namespace, leader, read, two_queues

from muster.api.spec import FlavorAmounts, JobUsageStatus, TrainingJob, UsageSegment
from muster.errors import InvalidSpec, NotFound
from muster.usage.report import RecordedUsage
from muster.usage.segments import ChargedSegment, JobSegments
from muster.usage.totals import UsageTotals
from muster.visibility.requests import parse_request
from muster.visibility.types import BASE_PATH
from muster.visibility.usage import UsageQuery
from muster.workload import transitions

GPU = "nvidia.com/gpu"
HOUR_MS = 3_600_000
ALL = "from=1970-01-01&to=1970-01-02"


def segment(since: float, until: float | None, queue: str = "default", user: str = "", **amounts: str) -> UsageSegment:
    flavors = [FlavorAmounts(flavor="any", amounts=amounts or {GPU: "8"})]
    return UsageSegment(queue=queue, user=user, since=since, until=until, flavors=flavors)


def with_usage(
    job: TrainingJob, *ended: UsageSegment, current: UsageSegment | None = None, first: int = 0
) -> TrainingJob:
    usage = JobUsageStatus(first=first, ended=list(ended), current=current)
    return job.model_copy(update={"status": job.status.model_copy(update={"usage": usage})})


def hours(found: dict[str, Any], resource: str = GPU) -> dict[str, float]:
    return {one["metadata"]["name"]: one["hours"] for one in found["items"] if one["resource"] == resource}


def sums(*segments: ChargedSegment) -> UsageTotals:
    totals = UsageTotals()
    totals.add_all(segments)
    return totals


def counted(queue: str, since_ms: int, until_ms: int, namespace: str = "default") -> ChargedSegment:
    return ChargedSegment(namespace, queue, "", since_ms, until_ms, ((("any", GPU), 8),))


def test_usage_is_what_ended_and_what_runs_until_now() -> None:
    job = with_usage(named("a"), segment(100.0, 400.0), current=segment(600.0, None, cpu="1500m"))
    found = read(leader(two_queues(job)), f"usage?{ALL}&step=hour")
    assert hours(found) == {"default": 8 * 300 / 3600}
    assert hours(found, "cpu") == {"default": 1.5 * (NOW - 600) / 3600}


def test_segments_in_the_record_are_not_counted_again() -> None:
    job = with_usage(named("a"), segment(100.0, 400.0), segment(500.0, 600.0), first=1)
    record = RecordedUsage((sums(counted("default", 0, 50_000), counted("default", 100_000, 400_000)),), {"a": 2})
    found = read(leader(two_queues(job), recorded_usage=record), f"usage?{ALL}")
    assert hours(found) == {"default": 8 * (50 + 300 + 100) / 3600}


def test_a_deleted_job_counts_until_the_record_has_it() -> None:
    gone = JobSegments("gone", 0, (counted("default", 0, 7_200_000),), None)
    before = RecordedUsage((), {}, (gone,))
    after = RecordedUsage((sums(*gone.ended),), {"gone": 1}, (gone,))
    found = [read(leader(two_queues(), recorded_usage=one), f"usage?{ALL}") for one in (before, after)]
    assert [hours(one) for one in found] == [{"default": 16.0}, {"default": 16.0}]


def test_steps_divide_usage_at_their_borders_and_empty_steps_are_absent() -> None:
    record = RecordedUsage(
        (sums(counted("default", HOUR_MS // 2, 2 * HOUR_MS), counted("default", 5 * HOUR_MS, 6 * HOUR_MS)),)
    )
    state = leader(two_queues(), recorded_usage=record)
    (item,) = read(state, f"usage?{ALL}&step=hour")["items"]
    assert [(point["at"], point["hours"]) for point in item["points"]] == [
        ("1970-01-01T00:00:00.000000Z", 4.0),
        ("1970-01-01T01:00:00.000000Z", 8.0),
        ("1970-01-01T05:00:00.000000Z", 8.0),
    ]
    (item,) = read(state, f"usage?{ALL}")["items"]
    assert [point["hours"] for point in item["points"]] == [20.0]
    assert read(state, "usage?from=1970-01-01T01:00:00Z&to=1970-01-01T01:30:00Z&step=hour")["items"][0]["hours"] == 8.0


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 1000)), max_size=8))
def test_a_segment_divided_between_hours_keeps_its_sum(parts: list[tuple[int, int, int]]) -> None:
    totals = UsageTotals()
    for one, other, amount in parts:
        totals.add(ChargedSegment("n", "q", "", min(one, other), max(one, other), ((("f", GPU), amount),)))
    expected = sum(abs(one - other) * amount for one, other, amount in parts)
    assert sum(amount for _, _, amount in totals.cells()) == expected
    assert all(0 < amount <= 1000 * 8 * HOUR_MS for _, _, amount in totals.cells())


def test_it_is_summed_by_queue_namespace_or_user() -> None:
    jobs = (
        with_usage(in_namespace(named("a"), "x"), segment(0.0, 3600.0, "red", "ann")),
        with_usage(in_namespace(named("b"), "x"), segment(0.0, 3600.0, "blue", "bob")),
        with_usage(in_namespace(named("c"), "y"), segment(0.0, 1800.0, "red", "ann")),
        with_usage(in_namespace(named("d"), "y"), segment(0.0, 1800.0, "red")),
    )
    state = leader(two_queues(*jobs))
    assert hours(read(state, f"usage?{ALL}")) == {"blue": 8.0, "red": 16.0}
    assert hours(read(state, f"usage?{ALL}&by=namespace")) == {"x": 16.0, "y": 8.0}
    assert hours(read(state, f"usage?{ALL}&by=user")) == {"": 4.0, "ann": 12.0, "bob": 8.0}


def test_usage_of_namespaces_that_the_client_may_not_read_is_left_out() -> None:
    mine = with_usage(in_namespace(named("a"), "mine"), segment(0.0, 3600.0))
    record = RecordedUsage((sums(counted("default", 0, HOUR_MS, "theirs")),))
    state = leader(two_queues(mine), recorded_usage=record)

    def may_read(namespace: str) -> bool:
        return namespace == "mine"

    assert hours(read(state, f"usage?{ALL}", may_read)) == {"default": 8.0}
    assert hours(read(state, f"namespaces/mine/usage?{ALL}")) == {"default": 8.0}
    assert hours(read(state, f"namespaces/theirs/usage?{ALL}", may_read)) == {}


def test_pages_have_every_item_once() -> None:
    jobs = (with_usage(named(name), segment(0.0, 3600.0, name, cpu="1")) for name in "abc")
    state = leader(two_queues(*jobs))
    first = read(state, f"usage?{ALL}&limit=2")
    second = read(state, f"usage?{ALL}&limit=2&continue={first['metadata']['continue']}")
    assert [hours(one, "cpu") for one in (first, second)] == [{"a": 1.0, "b": 1.0}, {"c": 1.0}]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("by=team", "by"), ("step=week", "step"), ("from=yesterday", "from"), ("to=1969-01-01", "to"),
        ("from=2026-11-02&to=2026-11-01", "from"), ("from=2020-01-01&to=2026-01-01", "from"),
        ("from=2026-01-01&to=2026-11-01&step=hour", "from"), ("since=1d", "since"),
        ("from=9999-12-31T23:59:59-12:00", "from"),
    ],
)  # fmt: skip
def test_an_invalid_parameter_is_refused_with_its_name(query: str, field: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        read(leader(two_queues()), f"usage?{query}")
    assert (error.value.field, error.value.reason) == (field, "BadRequest")


def test_other_lists_have_no_period_and_usage_has_no_names() -> None:
    with pytest.raises(InvalidSpec):
        parse_request(f"{BASE_PATH}/jobs?from=2026-01-01")
    with pytest.raises(NotFound):
        parse_request(f"{BASE_PATH}/usage/red")


def test_without_parameters_it_is_the_last_30_days_in_whole_days() -> None:
    period = UsageQuery().period(NOW + 100 * 86_400)
    assert (period.first, period.last, period.step) == (70 * 24, 101 * 24, "day")


def test_a_released_job_has_no_current_segment() -> None:
    job = named("a")
    status = transitions.suspend(job.status, NOW)
    assert read(leader(two_queues(job.model_copy(update={"status": status}))), f"usage?{ALL}")["items"] == []
