"""Rows of the queue tree: usage, borrowed and available quota."""

from __future__ import annotations

from typing import Any

from muster import model
from muster.api import spec
from muster.tables import queue_rows


def queue(name: str, parent: str | None = None, **amounts_by_field: int) -> spec.Queue:
    entry = {"flavor": "h200", **{field: {"gpu": str(amount)} for field, amount in amounts_by_field.items()}}
    body = {"metadata": {"name": name}, "spec": {"parent": parent, "resources": [entry] if amounts_by_field else []}}
    return spec.Queue.model_validate(body)


def running(uid: str, queue: str, gpus: int) -> model.RunningGang:
    role = model.Role("trainer", gpus, gpus, model.Resources.of({"gpu": 1, "pods": 1}))
    gang = model.Gang(uid, uid, queue, 0, 0.0, (role,))
    return model.RunningGang(gang, (model.RolePlacement("trainer", "h200", (("n1", gpus),)),), 0.0)


def amounts(row: dict[str, Any]) -> dict[str, str]:
    (entry,) = row["resources"]
    return {field: entry[field].get("gpu") for field in ("guaranteed", "limit", "used", "borrowed", "available")}


def test_rows_have_used_borrowed_and_available_quota() -> None:
    tree = [queue("b", "root", guaranteed=8, limit=12), queue("a", "root", guaranteed=8, lend=2), queue("root")]
    jobs = (running("j1", "b", 9), running("j2", "a", 3))
    snapshot = model.Snapshot(0.0, (), (), (), (), jobs, usage=(model.DecayedUsage("b", "h200", "gpu", 160.0),))
    rows = queue_rows(tree, snapshot, {"a": 2})
    assert [(row["name"], row["depth"], row["waiting"], row["admitted"]) for row in rows] == [
        ("root", 0, 2, 2), ("a", 1, 2, 1), ("b", 1, 0, 1),
    ]  # fmt: skip
    root, a, b = rows
    # a keeps 6 for itself and lends 2; b lends all of its 8. The root has 10 to share, of which b uses 9 and a none.
    assert amounts(root) == {"guaranteed": "16", "limit": None, "used": "12", "borrowed": "0", "available": "1"}
    assert amounts(a) == {"guaranteed": "8", "limit": None, "used": "3", "borrowed": "0", "available": "4"}
    assert amounts(b) == {"guaranteed": "8", "limit": "12", "used": "9", "borrowed": "1", "available": "1"}
    assert (b["share"], a["share"]) == (16.0, 0.0)


def test_a_root_with_only_a_limit_may_use_all_of_it_without_borrowing() -> None:
    snapshot = model.Snapshot(0.0, (), (), (), (), (running("j", "a", 8),))
    (row,) = queue_rows([queue("a", limit=24)], snapshot, {})
    assert amounts(row) == {"guaranteed": "24", "limit": "24", "used": "8", "borrowed": "0", "available": "16"}


def test_available_quota_respects_the_limit_of_a_parent() -> None:
    tree = [queue("root", guaranteed=100), queue("team", "root", guaranteed=10, limit=10)]
    tree += [queue("keeps", "team", guaranteed=10, lend=0), queue("other", "team")]
    rows = queue_rows(tree, model.Snapshot(0.0, (), (), (), (), (running("j", "other", 8),)), {})
    assert {row["name"]: amounts(row)["available"] for row in rows}["keeps"] == "2"


def test_capacity_nominated_for_a_gang_in_backoff_is_used() -> None:
    one = running("j1", "a", 3)
    nomination = model.Nomination("j1", one.placement, (), 100.0, nominated_gang=one.gang)
    (row,) = queue_rows([queue("a", guaranteed=8)], model.Snapshot(0.0, (), (), (), (), (), (nomination,)), {})
    assert (amounts(row)["used"], amounts(row)["available"]) == ("3", "5")


def test_an_invalid_queue_is_a_row_with_the_reason() -> None:
    (row,) = queue_rows([queue("a", guaranteed=8)], None, {}, {"a": "spec.weight: odd"})
    assert (row["active"], row["reason"], row["message"]) == (
        False,
        "InvalidSpec",
        "it cannot be read: spec.weight: odd",
    )
    assert row["resources"][0]["guaranteed"] == {"gpu": "8"}


def test_queues_in_a_cycle_have_no_numbers() -> None:
    rows = queue_rows([queue("a", "b", guaranteed=1), queue("b", "a"), queue("c", "a")], None, {})
    assert [(row["name"], row["active"], row["reason"], row["resources"]) for row in rows] == [
        ("a", False, "Cycle", []), ("b", False, "Cycle", []), ("c", False, "ParentInactive", []),
    ]  # fmt: skip
