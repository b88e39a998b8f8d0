from __future__ import annotations

from typing import Any

import pytest
from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.engine import Engine, check_feasibility, decode_snapshot, encode_snapshot
from muster.errors import InvalidSpec
from muster.kinds.trainingjob.adapter import submitted_anew
from muster.scheduling import plan
from muster.simulate import JobBehavior


def snapshot_of(*queues_: Any) -> Any:
    levels = {"rack": "rack"}
    cluster = ScenarioCluster(nodes(2, rack="r1"), [flavor(levels=levels)], queues_ or [queue()])
    cluster.submit(job("other", 2), JobBehavior(1000))
    settle(Engine(), cluster, until=10)
    cluster.fail_node("n1")
    return cluster.observe()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, None),
        ({"suspend": True}, None),
        ({"pods": 3}, "LargerThanCluster"),
        ({"queue": "missing"}, "QueueNotFound"),
        ({"flavors": ["b200"]}, "FlavorNotFound"),
        ({"topology": {"required": "block"}}, "UnknownTopologyLevel"),
    ],
    ids=str,
)
def test_only_permanent_obstacles_are_reported(fields: dict[str, Any], code: str | None) -> None:
    result = check_feasibility(submitted_anew(job("a", **fields), 0.0), snapshot_of())
    assert (None if result is None else result.reason) == code


def test_a_job_larger_than_its_quota_is_reported() -> None:
    result = check_feasibility(submitted_anew(job("a"), 0.0), snapshot_of(queue(gpus=8)))
    assert result is not None
    assert result.reason == "LargerThanQuota"


def test_a_recorded_snapshot_plans_the_same() -> None:
    cluster = ScenarioCluster(nodes(3, rack="r1"), [flavor(levels={"rack": "rack"})], [queue(gpus=24)])
    engine = Engine()
    for number in range(4):
        cluster.submit(job(f"j{number}", 2, least=1, priority=number, maxRuntimeSeconds=100), JobBehavior(50))
        settle(engine, cluster, until=10 * number)
    snapshot = engine.reconcile(cluster.observe()).snapshot
    again = decode_snapshot(encode_snapshot(snapshot))
    assert again == snapshot
    assert plan(again).decisions == plan(snapshot).decisions


@pytest.mark.parametrize("data", [b"", b"[]", b'{"now": "soon"}', b"\xff", b'{"now": 1}'])
def test_an_invalid_snapshot_file_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidSpec, match="not a snapshot"):
        decode_snapshot(data)
