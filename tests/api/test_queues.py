"""The condition of queues, and the namespaces that may use them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from tests.api.objects import COMPANY, gpus, queue

from muster.api.spec import Queue
from muster.api.validation import (
    namespace_allowed,
    queue_readiness,
)


def test_a_healthy_tree_is_active() -> None:
    assert {name: result.active for name, result in queue_readiness(COMPANY).items()} == {
        "company": True,
        "research": True,
    }


def test_a_cycle_makes_its_queues_and_what_hangs_below_inactive_and_names_the_path() -> None:
    readiness = queue_readiness([queue("b", "c"), queue("a", "b"), queue("c", "a"), queue("leaf", "b"), queue("ok")])
    assert {name: result.reason for name, result in readiness.items()} == {
        "a": "Cycle",
        "b": "Cycle",
        "c": "Cycle",
        "leaf": "ParentInactive",
        "ok": "NoResources",
    }
    assert readiness["c"].message.startswith("in a cycle: a → b → c → a ")
    assert "a → b → c → a" in readiness["leaf"].message


def test_a_flavor_that_does_not_exist_is_named_and_the_queue_stays_active() -> None:
    tree = [queue("typo", resources=[*gpus("h20"), *gpus("h200")]), queue("other", resources=gpus("tpu"))]
    readiness = queue_readiness(tree, flavors=["h200", "a100"])
    assert {name: (result.active, result.reason, result.message) for name, result in readiness.items()} == {
        "typo": (
            True,
            "FlavorNotFound",
            "spec.resources[0].flavor: flavor 'h20' does not exist; did you mean 'h200'?",
        ),
        "other": (
            True,
            "FlavorNotFound",
            "spec.resources[0].flavor: flavor 'tpu' does not exist; there is a100, h200",
        ),
    }
    assert {result.reason for result in queue_readiness(tree).values()} == {"Ready"}  # flavors are not known


def test_without_any_flavor_the_first_one_is_said_to_be_missing() -> None:
    (state,) = queue_readiness([queue("a", resources=gpus("h200"))], flavors=[]).values()
    assert state.reason == "FlavorNotFound"
    assert state.message == "spec.resources[0].flavor: flavor 'h200' does not exist; there is no flavor yet"


def test_a_queue_of_which_no_usable_flavor_exists_names_the_queue_above_that_it_comes_from() -> None:
    tree = [
        queue("company", resources=gpus("h20")),
        queue("team", "company"),
        queue("other", "company", resources=gpus("a100")),
    ]
    readiness = queue_readiness(tree, flavors=["h200", "a100"])
    assert {name: state.reason for name, state in readiness.items()} == {
        "company": "FlavorNotFound",
        "team": "FlavorNotFound",
        "other": "Ready",
    }
    error = "spec.resources[0].flavor: flavor 'h20' does not exist; did you mean 'h200'?"
    assert (readiness["company"].message, readiness["team"].message) == (error, f"queue 'company': {error}")


def test_of_many_flavors_the_number_of_the_others_is_said() -> None:
    (state,) = queue_readiness(
        [queue("a", resources=gpus("tpu"))], flavors=[f"pool-{n:02}" for n in range(20)]
    ).values()
    assert state.message.endswith("pool-07 and 12 more")


def test_the_hint_for_a_flavor_that_many_queues_name_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []

    def hint(name: str, known: Collection[str], kind: str) -> str:
        requested.append(name)
        return f"there is {kind} {name}"

    monkeypatch.setattr("muster.api.validation.queues.name_hint", hint)
    tree = [queue("top", resources=gpus("h20")), *(queue(f"q{n}", "top", resources=gpus("h20")) for n in range(9))]
    states = queue_readiness(tree, flavors=["a100"])
    assert {state.message.partition("; ")[2] for state in states.values()} == {"there is flavor h20"}
    assert requested == ["h20"]


def test_a_queue_that_is_its_own_parent_is_a_cycle() -> None:
    assert queue_readiness([queue("a", "a")])["a"].message.startswith("in a cycle: a → a ")


def test_a_missing_parent_is_named_and_makes_the_queues_below_inactive() -> None:
    readiness = queue_readiness([queue("leaf", "team"), queue("team", "company")])
    assert (readiness["team"].reason, readiness["leaf"].reason) == ("ParentNotFound", "ParentInactive")
    assert readiness["team"].message == "its parent 'company' does not exist; create it or remove spec.parent"
    assert "parent 'company' does not exist" in readiness["leaf"].message


def test_a_queue_that_cannot_be_read_admits_nothing_nor_does_any_below_it() -> None:
    tree = [*COMPANY, queue("other")]
    readiness = queue_readiness(tree, {"company": "spec.weight: must be greater than 0; got -1", "gone": "whatever"})
    assert {name: result.reason for name, result in readiness.items()} == {
        "company": "InvalidSpec",
        "research": "ParentInactive",
        "other": "NoResources",
    }
    text = "it cannot be read: spec.weight: must be greater than 0; got -1"
    assert readiness["company"].message == text
    assert readiness["research"].message == f"its parent 'company' is inactive: {text}"


def test_a_queue_that_is_being_deleted_admits_nothing() -> None:
    leaving = Queue.model_validate({"metadata": {"name": "a", "deletionTimestamp": 5.0}})
    assert queue_readiness([leaving])["a"].reason == "Deleting"


def test_children_guaranteed_more_than_their_parent_overcommit_it_and_nothing_else() -> None:
    readiness = queue_readiness(
        [
            queue("root", resources=gpus(guaranteed=64)),
            queue("top", "root", resources=gpus(guaranteed=16)),
            queue("a", "top", resources=gpus(guaranteed=16)),
            queue("b", "top", resources=gpus(guaranteed=8)),
        ]
    )
    assert readiness["top"].active
    assert readiness["top"].overcommitted_message == (
        "its children are guaranteed 24 nvidia.com/gpu of h200 together, it guarantees 16; "
        "raise it to 24 or lower those of its children (a, b)"
    )
    assert [readiness[name].overcommitted_message for name in ("root", "a", "b")] == [None] * 3


def test_a_parent_that_sets_no_guarantee_is_not_overcommitted_but_its_parent_can_be() -> None:
    readiness = queue_readiness(
        [
            queue("root", resources=gpus(guaranteed=8)),
            queue("middle", "root"),
            queue("a", "middle", resources=gpus(guaranteed=9)),
        ]
    )
    assert readiness["middle"].overcommitted_message is None
    assert "guaranteed 9 nvidia.com/gpu" in (readiness["root"].overcommitted_message or "")


def test_children_guaranteed_more_than_their_parents_limit_overcommit_it() -> None:
    readiness = queue_readiness(
        [queue("top", resources=gpus(limit=8)), queue("a", "top", resources=gpus(guaranteed=9))]
    )
    assert "it is limited to 8" in (readiness["top"].overcommitted_message or "")


def test_without_a_selector_on_the_path_no_namespace_may_use_a_queue() -> None:
    assert not namespace_allowed("a", [queue("a")], {"org": "x"})


def test_an_empty_selector_allows_all_and_is_inherited() -> None:
    assert namespace_allowed("research", COMPANY, {})


def test_the_nearest_selector_counts_alone() -> None:
    queues = [queue("top", namespaceSelector={}), queue("a", "top", namespaceSelector={"matchLabels": {"org": "r"}})]
    assert not namespace_allowed("a", queues, {"org": "x"})
    assert namespace_allowed("a", queues, {"org": "r"})


@pytest.mark.parametrize(
    ("line", "labels", "expected"),
    [
        ({"key": "org", "operator": "In", "values": ["a", "b"]}, {"org": "b"}, True),
        ({"key": "org", "operator": "In", "values": ["a"]}, {}, False),
        ({"key": "org", "operator": "NotIn", "values": ["a"]}, {"org": "a"}, False),
        ({"key": "org", "operator": "NotIn", "values": ["a"]}, {}, True),
        ({"key": "org", "operator": "Exists"}, {"org": ""}, True),
        ({"key": "org", "operator": "Exists"}, {}, False),
        ({"key": "org", "operator": "DoesNotExist"}, {"org": "a"}, False),
        ({"key": "org", "operator": "DoesNotExist"}, {}, True),
    ],
)
def test_match_expressions_follow_kubernetes(line: dict[str, Any], labels: dict[str, str], expected: bool) -> None:
    queues = [queue("a", namespaceSelector={"matchExpressions": [line]})]
    assert namespace_allowed("a", queues, labels) is expected
