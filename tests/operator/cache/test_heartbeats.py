"""Heartbeats in the cache: progress, missing answers, clock skew, and impossible numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.api.spec import CheckpointStatus, ProgressStatus
from muster.cluster import Heartbeat, RunTime
from muster.usage.goodput import runs_with
from muster_operator.cache.heartbeats import HeartbeatCache, HeartbeatReport

PATIENCE_S = 50.0
NOW = 1_000_000.0


def report(
    pod: str = "p0", now: float = NOW, durable: bool = True, at: float | None = NOW, **more: Any
) -> HeartbeatReport:
    checkpoint = {name: more.pop(f"latest_{name}") for name in ("step", "at") if f"latest_{name}" in more}
    return HeartbeatReport(pod, now, {"at": at, "step": 5, **more}, checkpoint, durable)


def test_an_unchanged_heartbeat_is_no_change_and_keeps_its_identity() -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    assert heartbeats.on_response("u", report(), NOW)
    first = heartbeats.observed((), NOW)["u"]
    assert first == Heartbeat(at=NOW, step=5, step_changed_at=NOW)
    assert not heartbeats.on_response("u", report(now=NOW + 15), NOW + 15)
    assert heartbeats.observed((), NOW + 15)["u"] is first


def test_time_runs_from_when_the_step_last_changed() -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    heartbeats.on_response("u", report(), NOW)
    heartbeats.on_response("u", report(now=NOW + 20, at=NOW + 20), NOW + 20)
    assert heartbeats.observed([("u", "p0")], NOW + 20)["u"] == Heartbeat(at=NOW + 20, step=5, step_changed_at=NOW)
    heartbeats.on_response("u", report(now=NOW + 30, at=NOW + 30, step=6), NOW + 30)
    assert heartbeats.observed([("u", "p0")], NOW + 30)["u"].step_changed_at == NOW + 30


def test_without_answers_a_job_counts_as_progressing() -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    heartbeats.on_response("u", report(), NOW)
    watched = [("u", "p0"), ("never", "p1")]
    assert heartbeats.observed(watched, NOW + PATIENCE_S)["u"].step_changed_at == NOW
    late = NOW + PATIENCE_S + 1
    shown = heartbeats.observed(watched, late)
    assert (shown["u"].step, shown["u"].at, shown["u"].step_changed_at) == (5, NOW, late)
    assert shown["never"].step_changed_at == late
    heartbeats.on_response("u", report(now=late), late)
    assert heartbeats.observed(watched, late)["u"].step_changed_at == NOW  # it did answer, without progress


def test_without_answers_a_job_is_not_known_to_stall() -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    heartbeats.on_response("u", report(step_time_s=0.5), NOW)
    assert heartbeats.observed((), NOW + PATIENCE_S)["u"].step_time_s == 0.5
    silent = heartbeats.observed((), NOW + PATIENCE_S + 1)["u"]
    assert silent.step_time_s is None
    assert heartbeats.observed((), NOW + PATIENCE_S + 2)["u"] is silent


def test_a_new_pod_has_not_answered_even_if_its_predecessor_had() -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    heartbeats.on_response("u", report("old"), NOW)
    assert heartbeats.observed([("u", "new")], NOW + 1)["u"].step_changed_at == NOW + 1


def test_a_job_without_stall_timeout_has_its_last_heartbeat() -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    heartbeats.on_response("u", report(), NOW)
    assert heartbeats.observed((), NOW + 10 * PATIENCE_S)["u"].step_changed_at == NOW
    heartbeats.retain(())
    assert heartbeats.observed((), NOW) == {}


def test_checkpoints_that_are_not_durable_do_not_count() -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    answer: dict[str, Any] = {"latest_step": 4, "latest_at": NOW - 5, "checkpoint_step": 4, "checkpoint_at": NOW - 5}
    heartbeats.on_response("kept", report(**answer), NOW)
    heartbeats.on_response("lost", report(durable=False, **answer), NOW)
    shown = heartbeats.observed((), NOW)
    assert (shown["kept"].checkpoint_step, shown["kept"].checkpoint_at) == (4, NOW - 5)
    assert (shown["lost"].checkpoint_step, shown["lost"].checkpoint_at) == (None, None)
    assert not heartbeats.on_response("lost", report(durable=False, now=NOW + 15, **answer), NOW + 15)


def test_times_of_a_skewed_clock_are_converted_to_ours_and_stay_constant() -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    slow = NOW - 3600.0
    heartbeats.on_response("u", report(now=slow + 0.2, at=slow - 10), NOW)
    first = heartbeats.observed((), NOW)["u"]
    assert first.at == NOW - 10
    heartbeats.on_response("u", report(now=slow + 15.4, at=slow - 10), NOW + 15)  # the request took longer this time
    assert heartbeats.observed((), NOW + 15)["u"] is first


def test_a_small_clock_skew_changes_nothing() -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    heartbeats.on_response("u", report(now=NOW + 3, at=NOW + 2), NOW)
    assert heartbeats.observed((), NOW)["u"].at == NOW + 2


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([10**400, -(10**400), 2**60, -1])
)
NAMES = ("at", "step", "steps", "loss", "tokens_per_s", "checkpoint_step", "checkpoint_at")


HEARTBEATS = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, ANYTHING))
LATEST = st.dictionaries(st.sampled_from(("step", "at")), ANYTHING)


@given(HEARTBEATS, LATEST, st.floats(0, 4e9))
def test_any_heartbeat_can_be_written_into_a_status(
    heartbeat: dict[str, Any], checkpoint: dict[str, Any], clock: float
) -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    heartbeats.on_response("u", HeartbeatReport("p", clock, heartbeat, checkpoint, durable=True), NOW)
    found = heartbeats.observed([("u", "p")], NOW).get("u")
    if found is None:
        return
    assert 0 <= found.step <= 2**53
    assert 0 <= found.at <= NOW + 5
    progress = ProgressStatus(step=found.step, steps=found.total_steps, loss=found.loss, at=found.at)
    assert math.isfinite(progress.loss or 0.0)
    progress.model_dump_json()
    if found.checkpoint_at is not None and found.checkpoint_step is not None:
        CheckpointStatus(step=found.checkpoint_step, at=found.checkpoint_at).model_dump_json()


def division(at: float, **milliseconds: object) -> dict[str, object]:
    return {"attempt": 0, "first_step": 1, "last_step": 5, "at": at, "milliseconds": milliseconds}


def with_division(reported: object, now: float = NOW) -> HeartbeatReport:
    return replace(report(now=now), run_time=reported)


def test_the_newest_valid_division_of_time_is_kept_also_that_of_the_end() -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    assert heartbeats.on_response("u", with_division(division(NOW, productive=4_000)), NOW)
    refused: list[object] = [
        None, [], {"attempt": 0}, division(NOW, waiting=1), division(NOW, productive=-1), division(NOW, productive="9"),
        division(-1.0, productive=1), {**division(NOW, productive=1), "last_step": math.inf},
    ]  # fmt: skip
    for invalid in refused:
        assert not heartbeats.on_response("u", with_division(invalid), NOW), invalid
    assert heartbeats.observed((), NOW)["u"].run_time == RunTime(0, 1, 5, NOW, {"productive": 4_000})
    heartbeats.on_final_run_time("u", "p0", division(NOW + 9, productive=9_000), NOW + 10)
    heartbeats.on_final_run_time("u", "p0", division(NOW + 8, productive=8_000), NOW + 10)
    heartbeats.on_final_run_time("u", "another", division(NOW + 20, productive=1), NOW + 20)
    heartbeats.on_final_run_time("unknown", "p0", division(NOW, productive=1), NOW)
    assert heartbeats.observed((), NOW)["u"].run_time == RunTime(0, 1, 5, NOW + 9, {"productive": 9_000})
    assert "unknown" not in heartbeats.observed((), NOW)


@given(st.one_of(ANYTHING, st.dictionaries(st.sampled_from(tuple(division(0.0))), ANYTHING)))
def test_any_division_can_be_written_into_a_status(reported: object) -> None:
    heartbeats = HeartbeatCache(PATIENCE_S)
    heartbeats.on_response("u", with_division(reported), NOW)
    found = heartbeats.observed((), NOW)["u"].run_time
    if found is not None:
        (run,) = runs_with([], found)
        run.model_dump_json()
