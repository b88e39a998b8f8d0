"""Checks and warnings at apply."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.api.objects import COMPANY, flavor, gang, gpus, queue, refused

from muster.api.spec import Queue
from muster.api.validation import (
    apply_warnings,
    check_apply,
    check_size,
    queue_readiness,
)
from muster.model import NodeInfo, Resources


def test_a_sound_tree_is_applied_in_any_order() -> None:
    check_apply([*reversed(COMPANY), flavor()], [])
    check_apply([queue("research", "company", weight=2)], [*COMPANY, flavor()])


def test_an_apply_that_closes_a_cycle_is_refused_with_its_path() -> None:
    message = refused("QueueCycle", check_apply, [queue("company", "research")], COMPANY)
    assert message.startswith("queue 'company': spec.parent: in a cycle: company → research → company")


def test_an_apply_under_a_missing_parent_is_refused_with_the_nearest_queue() -> None:
    message = refused("ParentNotFound", check_apply, [queue("team", "compny")], COMPANY)
    assert message.endswith("did you mean 'company'?")


def test_an_apply_that_overcommits_a_parent_is_refused_from_either_end() -> None:
    small = [queue("top", resources=gpus(guaranteed=8)), queue("a", "top", resources=gpus(guaranteed=8))]
    more = queue("b", "top", resources=gpus(guaranteed=1))
    assert "guaranteed 9" in refused("Overcommitted", check_apply, [more], small)
    less = queue("top", resources=gpus(guaranteed=7))
    assert "guaranteed 8" in refused("Overcommitted", check_apply, [less], small)


def test_an_existing_error_elsewhere_does_not_block_an_apply() -> None:
    check_apply([queue("new")], [queue("a", "b"), queue("b", "a"), queue("lost", "nowhere")])


def test_an_apply_that_mends_a_cycle_passes() -> None:
    check_apply([queue("a")], [queue("a", "b"), queue("b", "a")])


def test_a_quota_of_a_flavor_that_does_not_exist_is_refused() -> None:
    message = refused("FlavorNotFound", check_apply, [queue("x", resources=gpus("h20", guaranteed=1))], [flavor()])
    assert message == "queue 'x': spec.resources[0].flavor: flavor 'h20' does not exist; did you mean 'h200'?"


def shared(name: str, parent: str | None = None, **spec: Any) -> Queue:
    """A queue that all namespaces may use."""
    return queue(name, parent, namespaceSelector={}, **spec)


def test_a_limit_without_any_guarantee_is_a_warning() -> None:
    default = shared("default", resources=[{"flavor": "h200", "guaranteed": {"pods": 110}}])
    below = [shared("other", "default")]
    message = apply_warnings([shared("small", "default", resources=gpus(limit=8))], [default, *below])
    (notice,) = message.pop("small")
    assert message == {}
    assert notice == (
        "spec.resources[0].limit: nvidia.com/gpu of h200: neither this queue nor one above it guarantees any, so it"
        " can use 0; set guaranteed here, or guaranteed or limit of queue 'default'"
    )


def test_a_limit_that_a_root_can_never_reach_is_noticed() -> None:
    message = apply_warnings([shared("top", resources=gpus(guaranteed=8, limit=16))], [])
    of = "spec.resources[0].limit: nvidia.com/gpu of h200"
    assert message == {"top": [f"{of}: 16 is never reached: a root cannot borrow, and 8 is guaranteed"]}


def test_the_first_queue_below_one_that_takes_jobs_is_noticed_once() -> None:
    default = shared("default", resources=gpus(guaranteed=8))
    message = apply_warnings([shared("a", "default"), shared("b", "default")], [default])
    assert message == {"a": ["jobs can no longer be submitted to 'default': only queues without children take jobs"]}
    assert apply_warnings([shared("c", "default")], [default, shared("a", "default")]) == {}


def test_a_queue_whose_path_names_no_flavor_is_noticed_at_apply_and_in_its_condition() -> None:
    message = apply_warnings([shared("a")], [])["a"]
    assert message == [
        "spec.resources: neither this queue nor one above it names a flavor, so its jobs cannot use any node"
    ]
    readiness = queue_readiness(
        [shared("a"), shared("b", resources=gpus(limit=1)), shared("c", "b"), shared("top"), shared("d", "top")]
    )
    assert {name: (one.active, one.reason) for name, one in readiness.items()} == {
        "a": (True, "NoResources"),
        "b": (True, "Ready"),
        "c": (True, "Ready"),
        "top": (True, "Ready"),
        "d": (True, "NoResources"),
    }


def test_a_guarantee_of_more_than_all_nodes_have_is_noticed() -> None:
    node = NodeInfo("n", Resources.of({"nvidia.com/gpu": 8}), flavor="h200")
    big, small = shared("big", resources=gpus(guaranteed=17)), shared("small", resources=gpus(guaranteed=16))
    message = apply_warnings(
        [big, small],
        [],
        [node, dataclasses.replace(node, name="m"), dataclasses.replace(node, name="x", flavor="a100")],
    )
    assert message == {
        "big": ["spec.resources[0].guaranteed: nvidia.com/gpu of h200: 17 is more than the 16 that all its nodes have"]
    }
    assert apply_warnings([big], [], None) == {}
    assert apply_warnings([shared("most", resources=gpus(limit=99))], [], [node]) == {}


def test_a_quota_that_can_be_used_is_not_noticed() -> None:
    company = [shared("top", resources=gpus(guaranteed=8, limit=8)), shared("none", "top", resources=gpus(limit=0))]
    assert apply_warnings([*company, shared("small", "top", resources=gpus(limit=1))], []) == {}
    assert apply_warnings([shared("a", "new"), shared("new", resources=gpus(guaranteed=8))], []) == {}
    alone = shared("alone", resources=gpus(limit=8))
    assert apply_warnings([alone, shared("below", "alone", resources=gpus(limit=4))], []) == {}


def test_a_queue_that_no_namespace_may_use_is_noticed_and_not_the_one_above_it() -> None:
    top, below = queue("top", resources=gpus(guaranteed=8)), queue("below", "top")
    message = apply_warnings([top, below], [])
    assert set(message) == {"below"}
    assert message["below"][0].startswith("spec.namespaceSelector: ")
    assert set(apply_warnings([top], [])) == {"top"}
    assert apply_warnings([below], [shared("top", resources=gpus(guaranteed=8)), queue("other", "top")]) == {}
    assert apply_warnings([top], [shared("below", "top")]) == {}


@pytest.mark.parametrize("top", [gpus(limit=8), gpus(guaranteed=8, limit=8), gpus(guaranteed=8)])
@pytest.mark.parametrize("between", [[], [shared("middle", "top")]])
def test_a_limit_above_what_the_queues_above_it_leave_is_noticed(
    top: list[dict[str, Any]], between: list[Queue]
) -> None:
    parent = between[-1].metadata.name if between else "top"
    above = [shared("top", resources=top), *between]
    (notice,) = apply_warnings([shared("a", parent, resources=gpus(limit=16))], [*above, shared("b", parent)])["a"]
    assert notice.startswith("spec.resources[0].limit: nvidia.com/gpu of h200: 16 is never reached")
    assert "8" in notice.split("never reached")[1]
    assert apply_warnings([shared("a", parent, resources=gpus(limit=8))], [*above, shared("b", parent)]) == {}


def test_a_root_with_a_limit_alone_takes_jobs_up_to_it() -> None:
    queues = [queue("a", resources=gpus(limit=8))]
    check_size(gang(8, 1, "a"), queues)
    assert "queue a can never have more than 8:" in refused("LargerThanQuota", check_size, gang(9, 1, "a"), queues)
