"""Evictions that are tried and given up leave no trace in the plan."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.random_worlds import worlds
from tests.scheduling.worlds import evicted, gang, queue, rack, run, waits_by_uid, world

from muster.model import RunningGang, Snapshot
from muster.scheduling import MUSTER, PlanResult, plan
from muster.scheduling.decisions import Decisions

WITHOUT_PREEMPTION = replace(MUSTER, preempts=False)
"""The same rules, but no gang tries to preempt."""


def without_success(snapshot: Snapshot) -> PlanResult | None:
    """The plan, unless one of its trials succeeded: then gangs leave, shrink, or do not start after all."""
    with patch.object(Decisions, "withdraw", autospec=True, side_effect=Decisions.withdraw) as withdraw:
        result = plan(snapshot)
    return None if withdraw.called else result


def tight(seed: int) -> Snapshot:
    """Full nodes of queue a, which is a little above its guarantee, and gangs of b that want more back than a has
    borrowed, or all of it in one rack; so many trials begin that come to nothing (a third of these worlds)."""
    draw = Random(seed)
    nodes = rack("r1", draw.randint(1, 3)) + rack("r2", draw.randint(1, 3))
    running: list[RunningGang] = []
    for node in nodes:
        left = 8 - draw.choice((0, 0, 1, 4))
        while left > 0:
            size = min(left, draw.choice((1, 2, 4, 8)))
            uid = f"r{len(running)}"
            since = float(draw.randint(0, 900))
            running.append(run(gang(uid, "a", size=size, priority=draw.choice((0, 2))), [node.name], since=since))
            left -= size
    used = sum(r.gang.roles[0].request.get("nvidia.com/gpu") for r in running)
    queues = [queue("co"), queue("a", "co", max(0, used - draw.choice((1, 2, 4, 8)))), queue("b", "co", 24)]
    waiting = []
    for i in range(draw.randint(2, 6)):
        pods, size = draw.choice(((1, 4), (1, 8), (2, 4), (2, 8), (3, 8), (1, 1), (1, 2)))
        required, leaf = draw.choice((None, "rack")), draw.choice(("b", "b", "a"))
        priority = draw.choice((0, 1))
        waiting.append(gang(f"w{i}", leaf, pods=pods, size=size, priority=priority, at=float(i), required=required))
    return world(nodes, queues, waiting, running)


@given(st.integers(0, 1 << 32).map(tight))
def test_a_plan_in_which_all_trials_fail_is_the_plan_without_trials(snapshot: Snapshot) -> None:
    result = without_success(snapshot)
    if result is not None:
        assert result.decisions == plan(snapshot, policy=WITHOUT_PREEMPTION).decisions


@given(worlds)
def test_a_plan_in_which_all_trials_fail_is_the_plan_without_trials_in_any_world(snapshot: Snapshot) -> None:
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
    alone, both = world(nodes, queues, [small], running), world(nodes, queues, [large, small], running)
    assert waits_by_uid(plan(both))["large"].reason == "InsufficientResources"
    assert evicted(plan(both)) == evicted(plan(alone)) == {"v4": "small"}
