"""Evictions that are tried and given up leave no trace in the plan."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.random_snapshots import snapshots, tight
from tests.scheduling.snapshots import evicted, gang, inputs, queue, rack, run, waits_by_uid

from muster.model import Snapshot
from muster.scheduling import MUSTER, PlanResult, plan
from muster.scheduling.decisions import Decisions

WITHOUT_PREEMPTION = replace(MUSTER, preempts=False)
"""The same rules, but no gang tries to preempt."""


def without_success(snapshot: Snapshot) -> PlanResult | None:
    """The plan, unless one of its trials succeeded: then gangs leave, shrink, or do not start after all."""
    with patch.object(Decisions, "withdraw", autospec=True, side_effect=Decisions.withdraw) as withdraw:
        result = plan(snapshot)
    return None if withdraw.called else result


@given(st.integers(0, 1 << 32).map(tight))
def test_a_plan_in_which_all_trials_fail_is_the_plan_without_trials(snapshot: Snapshot) -> None:
    result = without_success(snapshot)
    if result is not None:
        assert result.decisions == plan(snapshot, policy=WITHOUT_PREEMPTION).decisions


@given(snapshots)
def test_a_plan_in_which_all_trials_fail_is_the_plan_without_trials_for_any_snapshot(snapshot: Snapshot) -> None:
    result = without_success(snapshot)
    if result is not None:
        assert result.decisions == plan(snapshot, policy=WITHOUT_PREEMPTION).decisions


def test_after_a_trial_that_failed_the_next_gang_reclaims_as_without_the_one_that_tried() -> None:
    # a is 4 above its guarantee: one of its gangs may be evicted, then it is back at it. `large` tries that one and
    # would need a second; so it waits, and `small` reclaims just that one.
    nodes = rack("r1", 3)
    running = [run(gang(f"v{i}", "a", size=4), [f"r1-{i // 2}"], since=float(i)) for i in range(5)]
    running.append(run(gang("other", "gone", size=4), ["r1-2"]))
    queues = [queue("co"), queue("a", "co", 16), queue("b", "co", 8), queue("c", "co", 4)]
    large, small = gang("large", "b", pods=2, size=4), gang("small", "c", size=4, runtime=60.0)
    alone, both = (
        inputs(nodes, queues, [small], running),
        inputs(nodes, queues, [large, small], running),
    )
    assert waits_by_uid(plan(both))["large"].reason == "InsufficientResources"
    assert evicted(plan(both)) == evicted(plan(alone)) == {"v4": "small"}
