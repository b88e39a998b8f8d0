"""Jobs that are left alone for a while, and the room that they keep."""

from __future__ import annotations

from typing import Any

from muster.cluster import NodeView
from muster.local.cluster import QUARANTINE_S, Quarantine, with_unmanaged_usage
from muster.local.records import PodRecord
from muster.model import Resources


def pod(node: str, phase: Any, gpus: int) -> PodRecord:
    request = Resources.of({"nvidia.com/gpu": gpus, "pods": 1})
    return PodRecord(
        name=f"a-{node}-{phase}", job_uid="u", role="r", index=0, replicas=1, attempt=0, node=node, flavor="f", port=1,
        gpus=gpus, grace_s=1.0, request=request, phase=phase,
    )  # fmt: skip


def test_a_job_is_left_alone_for_a_minute_and_then_tried_again() -> None:
    aside = Quarantine()
    aside.add("a", 100.0)
    aside.add("b", 110.0)
    assert aside.active(100.0 + QUARANTINE_S - 1) == {"a", "b"}
    assert aside.active(100.0 + QUARANTINE_S) == {"b"}
    assert aside.active(200.0) == frozenset()


def test_what_has_not_ended_keeps_its_room_and_nodes_without_such_pods_stay_the_same_objects() -> None:
    one, two = NodeView("n1", Resources.of({"nvidia.com/gpu": 8, "pods": 9})), NodeView("n2", Resources())
    nodes = with_unmanaged_usage((one, two), [pod("n1", "Running", 3), pod("n1", "Pending", 1), pod("n1", "Failed", 4)])
    assert nodes[0].unmanaged_usage == Resources.of({"nvidia.com/gpu": 4, "pods": 2})
    assert nodes[1] is two
    assert with_unmanaged_usage((one, two), [])[0] is one
